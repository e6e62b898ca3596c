"""The figures of the specification in docs/reliability.md: worlds that are searched whole, and what is followed.

`PYTHONPATH=tests:. python -m spec.figures` searches all worlds, and writes the tables.
"""

from __future__ import annotations

import time

from doc_tables import DocTable

from spec.bounds import Bounds
from spec.follow import NOT_FOLLOWED
from spec.page import describe
from spec.planted import PLANTED, RARE
from spec.search import Found, search

__all__ = ["LONG", "REACHED", "explore", "families_table", "planted_table", "worlds_table"]

REACHED = {
    "two starts": (Bounds(), 4_950),
    "retries": (Bounds(txids=3, tries=2), 19_195),
    "a new checkpoint": (Bounds(checkpoints=1), 21_249),
    "servers that lag": (Bounds(lag=True), 5_301),
    "a plain query": (Bounds(shards=(1,), starts=3, kinds=(True,), leaves_out=1), 3_135),
    "both kinds": (Bounds(shards=(1,), starts=3, kinds=(False, True)), 58_190),
    "both kinds over a state": (Bounds(shards=(1,), starts=3, kinds=(False, True), sink="state"), 56_152),
    "two shards": (Bounds(shards=(1, 1), starts=3), 98_671),
    "dead letters": (Bounds(fickle=(0,), starts=3, txids=3), 117_579),
    "restored, then a new checkpoint": (
        Bounds(shards=(1,), fickle=(), starts=3, restores=1, checkpoints=1, heeded=True),
        33_995,
    ),
}
"""What `make test` searches: each world with the number of states that are reached."""

LONG = {
    "three starts": (Bounds(starts=3), 170_067),
    "a state": (Bounds(starts=3, sink="state"), 148_395),
    "a fenced transaction": (Bounds(starts=3, sink="fenced"), 168_207),
    "ZooKeeper restored": (Bounds(shards=(1,), starts=3, restores=1, late_copies=True), 164_504),
    "restored, and continued": (
        Bounds(shards=(1,), starts=3, restores=1, late_copies=True, go_on=True),
        168_502,
    ),
}
"""And what `make long` does."""


def explore(name: str) -> Found:
    """Search a world: if a query is plain or goes on, or the first note may be lost, some records come twice."""
    bounds, _ = (REACHED | LONG)[name]
    is_first_lost = bounds.restores and not bounds.late_copies
    is_exact = bounds.kinds == (False,) and not (bounds.go_on or is_first_lost)
    return search(bounds, only=() if is_exact else ("LOST", "REUSED"))


def worlds_table(seconds: list[str]) -> DocTable:
    """Return the table, with the seconds that each search took."""
    rows = [
        (name, describe(bounds), f"{states:,}", "`make test`" if name in REACHED else "`make long`", took)
        for (name, (bounds, states)), took in zip((REACHED | LONG).items(), seconds, strict=True)
    ]
    return DocTable(
        "reliability.md",
        "worlds: rendered from tests/spec/figures.py",
        "end of worlds",
        ("world", "", "states reached", "searched by", "seconds"),
        rows,
    )


def families_table() -> DocTable:
    """Return the families of the model that are not followed."""
    return DocTable(
        "reliability.md",
        "families: rendered from tests/spec/follow.py",
        "end of families",
        ("family", "why it is not followed"),
        [(f"`{name}`", why) for name, why in NOT_FOLLOWED.items()],
    )


def planted_table() -> DocTable:
    """Return the errors that are planted in the code."""
    return DocTable(
        "reliability.md",
        "planted: rendered from tests/spec/planted.py",
        "end of planted",
        ("rule", "what is wrong in the code", "what shows it: schedules of a family"),
        [
            *((_linked(one.rule), one.what, f"`{one.family}`") for one in PLANTED),
            *((_linked(one.rule), one.what, f"the story of {_linked(one.family)}") for one in RARE),
        ],
    )


def _linked(rule: str) -> str:
    return f"[`{rule}`](protocol.md#{rule})"


def main() -> None:
    """Search all worlds, and write the table."""
    took = []
    for name in REACHED | LONG:
        begun = time.process_time()
        print(name, explore(name).states, flush=True)
        took.append(f"{time.process_time() - begun:.1f}")
    worlds_table(took).write()
    families_table().write()
    planted_table().write()


if __name__ == "__main__":
    main()
