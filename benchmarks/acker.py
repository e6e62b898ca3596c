"""Measure how fast the acker is, and what a pending root costs: `python -m benchmarks.acker`."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from time import process_time

import numpy as np

from benchmarks.report import Section, best, publish, verdict
from kinesis_trident.tracker.acker import Acker, TreeOutcome
from kinesis_trident.tracker.ids import roots as turn_roots

TREES = 1_000_000
CALL = 10_000
ONES = 200_000
SHARDS = 8
ARRAYS, CALLS = 40.0, 0.6
"""The bounds: million values a second of CPU time, in arrays and one call a message."""


def arrays(roots: np.ndarray, order: np.ndarray, *, together: bool = False) -> Callable[[], None]:
    """Trees of one tuple and two children: init, then three acks each, 10 k a call, the roots in this order.

    `together`: the three acks of a tree come in one call, shuffled; else in three passes.
    """
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(-(2**63), 2**63, TREES) for _ in range(3))
    acks = a ^ b ^ c, b, c
    if together:
        trees = np.tile(order.reshape(-1, CALL), 3).reshape(-1)
        kind = np.tile(np.repeat(np.arange(3), CALL), TREES // CALL)
        within = (np.arange(0, 3 * TREES, 3 * CALL)[:, None] + rng.permutation(3 * CALL)).reshape(-1)
        trees, kind = trees[within], kind[within]
        parts = np.array_split(np.arange(3 * TREES), 3 * TREES // CALL)
        calls = [
            (roots[trees[part]], np.choose(kind[part], [v[trees[part]] for v in acks])) for part in parts
        ]
    else:
        parts = np.array_split(order, TREES // CALL)
        calls = [(roots[part], values[part]) for values in acks for part in parts]

    def run() -> None:
        acker = Acker()
        acker.init_many(roots, a)
        done = sum(len(acker.ack_many(*call)) for call in calls)
        assert done == TREES

    return run


def once(roots: np.ndarray, order: np.ndarray) -> Callable[[], None]:
    """Trees of one tuple: init, then one ack, 10 k a call."""
    values = np.random.default_rng(1).integers(-(2**63), 2**63, TREES)
    calls = [(roots[part], values[part]) for part in np.array_split(order, TREES // CALL)]

    def run() -> None:
        acker = Acker()
        acker.init_many(roots, values)
        assert sum(len(acker.ack_many(*call)) for call in calls) == TREES

    return run


def ones() -> None:
    """Trees of one tuple and two children, one call a message."""
    acker = Acker()
    for root in range(ONES):
        acker.init(root, root + 1)
    for root in range(ONES):
        acker.ack(root, root + 1 ^ 5 ^ 6)
        acker.ack(root, 5)
    assert all(acker.ack(root, 6) is TreeOutcome.ACKED for root in range(ONES))


def bytes_a_root(roots: np.ndarray) -> float:
    """Return what a pending root takes."""
    values = np.ones(len(roots), dtype=np.int64)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        acker = Acker()
        acker.init_many(roots, values)
        size = tracemalloc.get_traced_memory()[0] - before
        assert acker.pending == TREES
        return size / TREES
    finally:
        tracemalloc.stop()


def main() -> None:
    """Measure, print, and write the section."""
    rng = np.random.default_rng(2)
    rising, anyhow = np.arange(TREES), rng.permutation(TREES)
    within = (np.arange(0, TREES, CALL)[:, None] + rng.permutation(CALL)).reshape(-1)
    one_turn = turn_roots(1, 0, rising)
    shards = np.concatenate([turn_roots(1, n, np.arange(TREES // SHARDS)) for n in range(SHARDS)])
    random = np.sort(rng.integers(-(2**63), 2**63, TREES))
    rows = []
    for what, roots, values, run in (
        ("a shard's records, one ack each, in order", one_turn, 2, once(one_turn, rising)),
        ("a shard's records, three acks each, in order", one_turn, 4, arrays(one_turn, rising)),
        ("the same, shuffled within a call", one_turn, 4, arrays(one_turn, within)),
        (
            "the same, all three acks shuffled within three calls",
            one_turn,
            4,
            arrays(one_turn, rising, together=True),
        ),
        ("the same, shuffled over all records", one_turn, 4, arrays(one_turn, anyhow)),
        (f"records of {SHARDS} shards, shuffled over all", shards, 4, arrays(shards, anyhow)),
        ("random 64-bit roots, in order", random, 4, arrays(random, rising)),
        ("random 64-bit roots, shuffled over all", random, 4, arrays(random, anyhow)),
    ):
        rate = values * TREES / best(run, 9, process_time) / 1e6
        bound = verdict(f"{ARRAYS:.0f} M", rate >= ARRAYS)
        rows.append([what, f"{rate:,.0f} M", bound, f"{bytes_a_root(roots):.1f}"])
    rate = 4 * ONES / best(ones, 9, process_time) / 1e6
    bound = verdict(f"{CALLS:.2f} M", rate >= CALLS)
    rows.append(["one call a message, three acks each", f"{rate:,.2f} M", bound, ""])
    publish(
        Section(
            name="acker",
            title="The acker",
            command="python -m benchmarks.acker",
            columns=[
                f"{TREES:,} trees, acked {CALL:,} values a call",
                "values a second of CPU time",
                "bound",
                "bytes a pending root",
            ],
            rows=rows,
            note="The inits count as values too; the bytes are those that are held before the first ack.",
        )
    )


if __name__ == "__main__":
    main()
