"""The code that each section of docs/benchmarks/figures.md measures, and whether its figures are still so.

A section says the newest commit of the folders that it measures. `make release` refuses a page with a section whose
folders have changed since; `make bench-check` measures figures that do not depend on the machine once more.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

__all__ = ["COUNTED", "MEASURED", "changed_figures", "commit_of", "mend_figures", "outdated_sections"]

ROOT = Path(__file__).resolve().parents[1]

_KINESIS = ("spout/kinesis", "spout/reader")
_SOURCE = ("spout", "checkpoint", "tracker")
_BOLTS = (*_SOURCE, "bolt")
_TRIDENT = (*_SOURCE, "trident")

MEASURED: dict[str, tuple[str, ...]] = {
    "acker": ("tracker",),
    "batch": _SOURCE,
    "bolts-json": _BOLTS,
    "bolts-large": _BOLTS,
    "bolts-small": _BOLTS,
    "branches": _TRIDENT,
    "calls": _KINESIS,
    "emits": ("bolt",),
    "failing-queries": _BOLTS,
    "failing-shares": _SOURCE,
    "failures": _SOURCE,
    "fetch": _KINESIS,
    "functions": ("bolt", "trident/steps"),
    "growth": (*_SOURCE, "trident/stores", "console"),
    "imports": (*_BOLTS, "trident"),
    "latency-first": _SOURCE,
    "latency-load": _TRIDENT,
    "latency-prefetch": _SOURCE,
    "latency-trickle": _SOURCE,
    "limits": _SOURCE,
    "load-rate": _BOLTS,
    "load-shards": _BOLTS,
    "many-shards": _SOURCE,
    "peers": _BOLTS,
    "peers-count": _TRIDENT,
    "planning": _SOURCE,
    "registry": ("bolt/registry",),
    "savings": _BOLTS,
    "sink": ("spout/kinesis", "spout/sink"),
    "small-batches": _BOLTS,
    "small-server": _SOURCE,
    "source": _SOURCE,
    "stages": _SOURCE,
    "states": ("trident/maps", "trident/stores"),
    "task-memory": ("spout/reader", "bolt", "trident/run"),
    "tracker": ("tracker",),
    "word-count": _TRIDENT,
    "word-count-spent": _TRIDENT,
}
"""By section: the folders and files of the code that it measures."""

COUNTED: dict[str, tuple[str, ...]] = {
    "acker": ("bytes a pending root",),
    "failures": (
        "the plan as Spark logs it, at most",
        "Spark's progress event, at most: report, start and end",
        # What is due in a hundred batches follows the clock a little.
        "written to ZooKeeper a batch, at most; one batch of 100,000, every second one fails",
    ),
    "growth": (
        "a batch of a state in files, the median, bytes",
        "written to ZooKeeper until all are done, KiB",
        "operations with ZooKeeper, a batch",
        "the plan as Spark logs it, KiB",
    ),
    "planning": (
        "operations with ZooKeeper a batch",
        "shards that the further plan reads",
        "the plan as Spark logs it, a batch",
    ),
    "registry": ("bytes",),
    "small-server": (
        "groups that wait at once",
        "written when they fail",
        "written until all are done",
        "batches until then",
    ),
    "tracker": ("bytes a record in flight",),
}
"""By section: the rows, columns and single figures ("row; column") that are counted: the same on any machine."""

NEAR = 0.05
"""The part by which a counted figure may differ: some are of random records."""

_SECTION = re.compile(r"<!-- begin: (?P<name>\S+) -->\n(?P<body>.*?)<!-- end: (?P=name) -->", re.DOTALL)
_COMMAND = re.compile(r"^`(python [^`]+)`", re.MULTILINE)
_COMMIT = re.compile(r", commit `([0-9a-f]+)`\.")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")

Git = Callable[..., str]


def git(*arguments: str) -> str:
    """Return what git prints.

    Raises:
        LookupError: it refuses: this is no clone, or it has no such commit.
    """
    done = subprocess.run(
        ["/usr/bin/env", "git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LookupError(done.stderr.strip())
    return done.stdout.strip()


def commit_of(section: str, git: Git = git) -> str:
    """Return the newest commit of what a section measures; nothing for one of another page.

    Raises:
        ValueError: something of it is not committed.
        LookupError: this is no clone.
    """
    if section not in MEASURED:
        return ""
    if changed := git("status", "--porcelain", "--", *MEASURED[section]):
        msg = f"section {section!r} would say a commit that it was not measured at. Commit first:\n{changed}"
        raise ValueError(msg)
    return git("log", "-1", "--format=%h", "--abbrev=10", "--", *MEASURED[section])


def outdated_sections(page: str, git: Git = git) -> Iterator[str]:
    """Yield a sentence for each section whose figures are older than the last change of the code that it measures."""
    for match in _SECTION.finditer(page):
        name, body = match["name"], match["body"]
        command, commit = (found and found[1] for found in (_COMMAND.search(body), _COMMIT.search(body)))
        if name not in MEASURED:
            yield f"{name}: nothing says what it measures. Name its folders in benchmarks/provenance.py"
            continue
        try:
            newer = git("rev-list", "--count", f"{commit}..HEAD", "--", *MEASURED[name]) if commit else ""
        except LookupError:
            newer = ""
        if newer != "0":
            since = (
                f"{newer} commits to {', '.join(MEASURED[name])} are newer" if newer else "of no known commit"
            )
            yield f"{name}: {since}. Run `{command}`"


def changed_figures(
    name: str, columns: Iterable[str], rows: Iterable[Iterable[str]], page: str
) -> Iterator[str]:
    """Yield a sentence for each counted figure of a section that is no longer the one on the page."""
    found = next((match["body"] for match in _SECTION.finditer(page) if match["name"] == name), "")
    before = _cells([line[2:-2].split(" | ") for line in found.splitlines() if line.startswith("| ")])
    for cell, figure in _cells([[*columns], *map(list, rows)]).items():
        if not _is_counted(name, cell):
            continue
        old = before.get(cell, "nothing")
        if not _are_near(old, figure):
            yield f"{name}: {cell[0]}, {cell[1]}: the page says {old}, and it is {figure}"


def mend_figures(name: str, columns: Iterable[str], rows: Iterable[Iterable[str]], page: str) -> str:
    """Return the page with the counted figures of a section as they are; what is timed stays as it is."""
    new = _cells([[*columns], *map(list, rows)])

    def mend(section: re.Match[str]) -> str:
        if section["name"] != name:
            return section[0]
        head: list[str] = []
        lines = section[0].splitlines(keepends=True)
        for at, line in enumerate(lines):
            if line.startswith("| "):
                row, *cells = line.rstrip("\n")[2:-2].split(" | ")
                head = head or cells
                places = [(row, column) for column in head]
                cells = [
                    new.get(place, cell) if _is_counted(name, place) else cell
                    for place, cell in zip(places, cells, strict=True)
                ]
                lines[at] = f"| {' | '.join([row, *cells])} |\n"
        return "".join(lines)

    return _SECTION.sub(mend, page)


def _is_counted(name: str, cell: tuple[str, str]) -> bool:
    return bool({*cell, "; ".join(cell)} & {*COUNTED.get(name, ())})


def _cells(table: list[list[str]]) -> dict[tuple[str, str], str]:
    head, *rows = table or [[]]
    return {
        (row[0], column): figure for row in rows for column, figure in zip(head[1:], row[1:], strict=True)
    }


def _are_near(old: str, new: str) -> bool:
    if _NUMBER.sub("", old) != _NUMBER.sub("", new):
        return False
    pairs = zip(_numbers(old), _numbers(new), strict=False)
    # What is rounded to one digit may differ by one there.
    return all(abs(one - other) <= max(NEAR * abs(one), 0.1) for one, other in pairs)


def _numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in _NUMBER.findall(text)]
