"""How fast the acker is, and what a pending root costs: `python -m benchmarks.acker`."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np

from benchmarks.report import Section, best, publish
from tracker.acker import Acker, TreeOutcome

TREES = 1_000_000
CALL = 10_000
ONES = 200_000


def arrays(order: np.ndarray, apart: int) -> Callable[[], None]:
    """Trees of one tuple and two children: init, then three acks each, 10 k a call."""
    rng = np.random.default_rng(1)
    roots = np.arange(TREES, dtype=np.int64) * apart
    a, b, c = (rng.integers(-(2**63), 2**63, TREES) for _ in range(3))
    calls = [
        (roots[part], values[part])
        for values in (a ^ b ^ c, b, c)
        for part in np.array_split(order, TREES // CALL)
    ]

    def run() -> None:
        acker = Acker()
        acker.init_many(roots, a)
        done = sum(len(acker.ack_many(*call)) for call in calls)
        assert done == TREES

    return run


def ones() -> None:
    """The same trees, one call a message."""
    acker = Acker()
    for root in range(ONES):
        acker.init(root, root + 1)
    for root in range(ONES):
        acker.ack(root, root + 1 ^ 5 ^ 6)
        acker.ack(root, 5)
    assert all(acker.ack(root, 6) is TreeOutcome.ACKED for root in range(ONES))


def bytes_a_root(apart: int) -> float:
    """What a pending root takes."""
    roots = np.arange(TREES, dtype=np.int64) * apart
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        acker = Acker()
        acker.init_many(roots, roots + 1)
        size = tracemalloc.get_traced_memory()[0] - before
        assert acker.pending == TREES
        return size / TREES
    finally:
        tracemalloc.stop()


def main() -> None:
    """Measure, print, and write the section."""
    rising = np.arange(TREES)
    within = np.concatenate(
        [start + np.random.default_rng(2).permutation(CALL) for start in range(0, TREES, CALL)]
    )
    rows = []
    for what, order, apart in (
        ("arrays, roots consecutive, in order", rising, 1),
        ("arrays, roots consecutive, in random order within a call", within, 1),
        ("arrays, roots apart, in order", rising, 3),
    ):
        seconds = best(arrays(order, apart))
        rows.append([what, f"{4 * TREES / seconds / 1e6:,.1f} M", f"{bytes_a_root(apart):.1f}"])
    rows.append(["one call a message", f"{4 * ONES / best(ones, 3) / 1e6:,.2f} M", ""])
    publish(
        Section(
            name="acker",
            title="The acker",
            command="python -m benchmarks.acker",
            columns=["trees of three tuples, 10 k acks a call", "values/s", "bytes a pending root"],
            rows=rows,
            note="An init and three acks a tree; the bytes are those that are held before the first ack.",
        )
    )


if __name__ == "__main__":
    main()
