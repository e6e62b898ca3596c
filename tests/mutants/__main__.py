"""Plants errors of one line into the core: `python -m mutants SEED COUNT`. Says which of them no test finds."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import msgspec

from mutants import trial
from mutants.nearness import FileOfTests, Near, choose_tests, digest_of, sources_of
from mutants.planting import Mutant, drawn
from mutants.trial import Outcome, Verdict

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "mutants" / "near.json"
EQUAL = Path(__file__).with_name("equal.toml")
DURATIONS = ROOT / "tests" / "durations.json"

TESTS = ("tests/bolt", "tests/checkpoint", "tests/model", "tests/spout", "tests/tracker", "tests/trident")
"""The tests near the core; those of whole jobs take longer than there is time for a mutant."""

_STARTING_S = 15.0
"""Of a processor, for pytest and the servers of its fixtures."""

_TOGETHER_S = 20.0
"""The tests of so many seconds are collected in one process."""


def main() -> int:
    """Plant so many errors: 1 if one survives that nobody has looked at."""
    asked = _asked()
    sources = sources_of(ROOT)
    equal = {(one["path"], one["before"], one["after"]) for one in tomllib.loads(EQUAL.read_text())["equal"]}
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ProcessPoolExecutor(asked.workers, get_context("spawn"), trial.begin, (ROOT, Path(folder))) as pool,
    ):
        near = _near(pool, sources, _files(asked.tests, asked.most), asked.again)
        end = time.monotonic() + 60 * asked.minutes
        outcomes = []
        for outcome in _outcomes(pool, drawn(asked.seed, asked.count, sources), near, asked.seconds, end):
            one = outcome.mutant
            if outcome.verdict is not Verdict.FOUND and (one.path, one.before, one.after) in equal:
                outcome.verdict = Verdict.EQUAL
            outcomes.append(outcome)
            print(_line_of(outcome), flush=True)
        finders = sorted({outcome.by for outcome in outcomes if outcome.by})
        unsure = (
            set(
                pool.submit(
                    trial.fails_without, finders, _STARTING_S + 2 * asked.seconds * len(finders)
                ).result()
            )
            if finders
            else set()
        )
    return _summary(outcomes, unsure, asked)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Plant errors of one line into the core.")
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--tests", nargs="+", default=TESTS, help="folders and files of the tests")
    parser.add_argument(
        "--most", type=float, default=60.0, help="leaves files out whose tests take more seconds"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of tests, at most, for an error")
    parser.add_argument(
        "--minutes", type=float, default=600.0, help="after these no further error is planted"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes, each with a copy of the checkout")
    parser.add_argument("--again", action="store_true", help="collect again what the tests execute")
    return parser.parse_args()


def _files(tests: Sequence[str], most: float) -> dict[str, float]:
    """Return the files of tests, with the seconds that they take."""
    took: Counter[str] = Counter()
    for piece, seconds in json.loads(DURATIONS.read_text()).items():
        took[piece.partition("::")[0]] += seconds
    found = (
        path
        for one in tests
        for path in ([ROOT / one] if one.endswith(".py") else (ROOT / one).rglob("test_*.py"))
    )
    files = {str(path.relative_to(ROOT)): 0.0 for path in sorted(found)}
    return {file: took[file] for file in files if took[file] <= most}


def _near(pool: ProcessPoolExecutor, sources: dict[str, str], files: dict[str, float], again: bool) -> Near:
    """Return which tests execute which lines: what is kept of it, and what is collected now."""
    digests = {file: digest_of((ROOT / file).read_text(), sources) for file in files}
    near = msgspec.json.decode(KEPT.read_bytes(), type=Near) if KEPT.exists() and not again else {}
    near = {file: one for file, one in near.items() if digests.get(file) == one.digest}
    left = {file: seconds for file, seconds in files.items() if file not in near}
    tasks = {
        pool.submit(trial.collect, group, _STARTING_S + 10 * sum(1 + left[file] for file in group)): group
        for group in _groups(left)
    }
    for done, task in enumerate(as_completed(tasks), 1):
        seen = task.result()
        for file in tasks[task]:
            near[file] = seen.get(file, FileOfTests())
            near[file].digest = digests[file]
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        KEPT.write_bytes(msgspec.json.encode(near))
        print(f"collected {done} of {len(tasks)} groups of files", flush=True)
    return near


def _groups(files: dict[str, float]) -> Iterator[list[str]]:
    group: list[str] = []
    seconds = 0.0
    for file, took in files.items():
        group.append(file)
        seconds += took
        if seconds >= _TOGETHER_S:
            yield group
            group, seconds = [], 0.0
    if group:
        yield group


def _outcomes(
    pool: ProcessPoolExecutor, mutants: Sequence[Mutant], near: Near, seconds: float, end: float
) -> Iterator[Outcome]:
    """Yield what comes of each error, in order, until the time is over."""
    tasks = [
        pool.submit(trial.play, one, [*choose_tests(one, near, seconds)], _STARTING_S + 2 * seconds)
        for one in mutants
    ]
    for task in tasks:
        if time.monotonic() > end and task.cancel():
            continue
        yield task.result()


def _line_of(outcome: Outcome) -> str:
    by = outcome.by or ("the tests come to no end" if outcome.verdict is Verdict.FOUND else "")
    tests = f"; {outcome.tests} tests, {outcome.cpu_s} s"
    return f"{outcome.verdict}: {outcome.mutant}{tests}{by and f'; {by}'}"


def _summary(outcomes: Sequence[Outcome], unsure: set[str], asked: argparse.Namespace) -> int:
    counted = Counter(one.verdict for one in outcomes)
    decided = len(outcomes) - counted[Verdict.EQUAL]
    found = [one for one in outcomes if one.verdict is Verdict.FOUND and one.by not in unsure]
    files = f"files of at most {asked.most:g} s, {asked.seconds:g} s of tests for an error"
    print(
        f"\nseed {asked.seed}: {len(outcomes)} errors, {files}: {len(found)} of {decided} found"
        f" ({len(found) / max(1, decided):.0%}), {counted[Verdict.SURVIVED]} survived,"
        f" {counted[Verdict.NOT_EXECUTED]} not executed, {counted[Verdict.EQUAL]} equal;"
        f" {sum(one.cpu_s for one in outcomes):.0f} s of a processor"
    )
    for test in sorted(unsure):
        print(f"fails without an error too, and what it found is not counted: {test}")
    for one in outcomes:
        if one.verdict in {Verdict.SURVIVED, Verdict.NOT_EXECUTED}:
            print(_line_of(one))
    return int(len(found) < decided)


if __name__ == "__main__":
    sys.exit(main())
