"""One process of a trial: it has a copy of the checkout, in which it collects what tests execute, and plants errors."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from mutants import playing
from mutants.nearness import Collecting, Near
from mutants.planting import Mutant, planted

__all__ = ["Outcome", "Verdict", "begin", "collect", "fails_without", "play"]

_EACH_S = 120
"""By the clock: a test that takes longer hangs."""

_folder = Path()
_planted = 0


class Verdict(StrEnum):
    """What came of an error."""

    FOUND = "found"
    SURVIVED = "survived"
    NOT_EXECUTED = "not executed"
    EQUAL = "equal"


class Outcome(msgspec.Struct):
    """What came of an error, and of which tests."""

    mutant: Mutant
    verdict: Verdict
    tests: int = 0
    """Those that could have run."""
    by: str = ""
    """The test that failed; empty where the tests came to no end."""
    cpu_s: float = 0.0


def begin(root: Path, folder: Path) -> None:
    """Make the copy of this process, in a folder."""
    global _folder  # noqa: PLW0603 - a process of a pool has one copy
    playing.warm_up()
    _folder = Path(tempfile.mkdtemp(dir=folder))
    playing.copy_checkout(root, _folder / "tree")


def collect(files: Sequence[str], cpu_s: float) -> Near:
    """Return what the tests of files execute; those that fail in a copy, or do not come to an end, are left out."""

    def run() -> Near:
        collecting = Collecting(_folder / "tree")
        playing.run_tests(files, collecting, "-m", "not long")
        return collecting.collected()

    return playing.in_copy(_folder / "tree", run, Near, cpu_s=cpu_s, log=_folder / "log").came or {}


def play(mutant: Mutant, tests: Sequence[str], cpu_s: float) -> Outcome:
    """Plant an error, run tests until one fails, and take the error out again.

    Tests that take more than `cpu_s` of a processor, their start included, come to no end: the error is found.
    """
    global _planted  # noqa: PLW0603 - as above
    if not tests:
        return Outcome(mutant, Verdict.NOT_EXECUTED)
    path = _folder / "tree" / mutant.path
    text, stat = path.read_text(), path.stat()
    path.write_text(planted(text, mutant))
    # Python knows what it has compiled by the second and the size; both may be the same.
    _planted += 1
    os.utime(path, (stat.st_atime, stat.st_mtime + _planted))
    try:
        forked = playing.in_copy(
            _folder / "tree",
            lambda: playing.failing(tests, "-x", f"--timeout={_EACH_S}"),
            list[str],
            cpu_s=cpu_s,
            log=_folder / "log",
        )
    finally:
        path.write_text(text)
        os.utime(path, (stat.st_atime, stat.st_mtime))
    is_found = forked.came is None or bool(forked.came)
    by = forked.came[0] if forked.came else ""
    verdict = Verdict.FOUND if is_found else Verdict.SURVIVED
    return Outcome(mutant, verdict, len(tests), by, round(forked.cpu_s, 1))


def fails_without(tests: Sequence[str], cpu_s: float) -> list[str]:
    """Return those of these tests that fail without an error, or all if they come to no end."""
    forked = playing.in_copy(
        _folder / "tree", lambda: playing.failing(tests), list[str], cpu_s=cpu_s, log=_folder / "log"
    )
    return list(tests) if forked.came is None else forked.came
