"""The worlds that are searched whole, with their figures in docs/reliability/figures.md.

`PYTHONPATH=tests:. python -m spec.figures` searches all of them, and writes the table.
"""

from __future__ import annotations

import time

from doc_tables import DocTable

from spec.bounds import Bounds
from spec.page import describe
from spec.search import Found, search

__all__ = ["CHAOS", "LONG", "REACHED", "WORLDS", "explore", "worlds_table"]

REACHED = {
    "two starts": (Bounds(), 4_950),
    "retries": (Bounds(txids=3, tries=2), 19_195),
    "a new checkpoint": (Bounds(checkpoints=1), 21_249),
    "servers that lag": (Bounds(lag=True), 5_301),
    "a plain query": (Bounds(shards=(1,), starts=3, kinds=(True,), leaves_out=1), 3_135),
    "a plain query, two shards": (
        Bounds(shards=(1, 1), starts=3, kinds=(True,), leaves_out=1),
        8_614,
    ),
    "both kinds": (Bounds(shards=(1,), starts=3, kinds=(False, True)), 58_190),
    "both kinds over a state": (Bounds(shards=(1,), starts=3, kinds=(False, True), sink="state"), 56_152),
    "two shards": (Bounds(shards=(1, 1), starts=3), 98_671),
    "dead letters": (Bounds(fickle=(0,), starts=3, txids=3), 117_579),
    "restored, then a new checkpoint": (
        Bounds(shards=(1,), fickle=(), starts=3, restores=1, checkpoints=1, heeded=True),
        33_995,
    ),
    "a late task": (Bounds(late_tasks=1), 22_163),
    "a child": (Bounds(shards=(1, 1), starts=2, parents={1: (0,)}), 2_865),
    "batches that fail": (Bounds(starts=3, transactional=True), 22_932),
    "an expired record": (Bounds(expire=1), 11_966),
    "a failed record that expires": (Bounds(shards=(1,), txids=3, tries=2, expire=1), 6_330),
    "an overwritten folder": (Bounds(shards=(1,), starts=3, sink="overwritten"), 23_201),
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

CHAOS = {
    "four starts": (Bounds(shards=(1,), starts=4), 742_597),
    "four starts over a state": (Bounds(shards=(1,), starts=4, sink="state"), 669_213),
    "four starts of both kinds": (Bounds(shards=(1,), starts=4, txids=1, kinds=(False, True)), 692_189),
    "two shards, with retries": (Bounds(shards=(1, 1), txids=3, tries=2), 9_211),
    "restored, then a new checkpoint, with failures": (
        Bounds(shards=(1,), starts=3, restores=1, checkpoints=1, heeded=True),
        255_952,
    ),
    "an older checkpoint": (Bounds(shards=(1,), starts=3, olders=True), 104_819),
    "restored, and an older checkpoint": (
        Bounds(shards=(1,), fickle=(), starts=3, restores=1, late_copies=True, olders=True),
        47_744,
    ),
    "late tasks": (Bounds(shards=(1,), starts=3, late_tasks=2), 239_591),
    "a late task over a state": (Bounds(fickle=(0,), starts=3, late_tasks=1, sink="state"), 395_992),
    "a split": (
        Bounds(shards=(1, 1, 1), fickle=(0,), starts=3, txids=3, parents={1: (0,), 2: (0,)}),
        117_757,
    ),
    "a merge": (Bounds(shards=(1, 1, 1), fickle=(0, 1), starts=3, txids=3, parents={2: (0, 1)}), 354_029),
    "a transactional spout": (Bounds(shards=(1, 1), starts=4, transactional=True), 162_927),
    "expired records": (Bounds(fickle=(0,), starts=3, txids=3, expire=2), 524_809),
    "expired records, three starts": (Bounds(shards=(1,), starts=3, expire=1), 53_910),
    "failed records that expire": (Bounds(txids=3, tries=2, expire=1), 61_639),
}
"""And `make chaos`."""

WORLDS = REACHED | LONG | CHAOS
_TARGETS = {"test": REACHED, "long": LONG, "chaos": CHAOS}


def explore(name: str) -> Found:
    """Search a world; what may come twice, or is taken back where retention takes records, is not asked for there.

    Some records come twice if a query is plain or goes on, or the first note may be lost.
    """
    bounds, _ = WORLDS[name]
    is_first_lost = bounds.restores and not bounds.late_copies
    is_exact = bounds.kinds == (False,) and not (bounds.go_on or is_first_lost or bounds.expire)
    return search(bounds, kinds=() if is_exact else ("LOST", "REUSED"), most=10**8)


def worlds_table(seconds: list[str]) -> DocTable:
    """Return the table, with the seconds that each search took."""
    rows = [
        (name, describe(bounds), f"{states:,}", f"`make {target}`", took)
        for (target, (name, (bounds, states))), took in zip(
            ((target, world) for target, worlds in _TARGETS.items() for world in worlds.items()),
            seconds,
            strict=True,
        )
    ]
    return DocTable(
        "reliability/figures.md",
        "worlds: rendered from tests/spec/figures.py",
        "end of worlds",
        ("world", "", "states reached", "searched by", "seconds"),
        rows,
    )


def main() -> None:
    """Search all worlds, and write the table."""
    took = []
    for name in WORLDS:
        begun = time.process_time()
        print(name, explore(name).states, flush=True)
        took.append(f"{time.process_time() - begun:.1f}")
    worlds_table(took).write()


if __name__ == "__main__":
    main()
