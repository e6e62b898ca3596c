"""The roots and messages that an acker holds for one timeout."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kinesis_trident.tracker.acker.arrays import Bools, Int64s, Runs
from kinesis_trident.tracker.acker.blocks import TreeBlock

__all__ = ["Bucket"]


class Bucket:
    """The roots and messages that came within one timeout, as in Storm's RotatingMap.

    `trees`: roots that came alone, with their values; 0 once answered, as the value of an open tree never is.
    `early`: roots whose init has not come, with the XOR of what has; None once one of its tuples failed.
    `blocks`: roots that came in arrays. `gone`: roots of blocks that were dropped, all of them answered.
    """

    __slots__ = ("blocks", "early", "gone", "trees")

    def __init__(self) -> None:
        self.trees: dict[int, int] = {}
        self.early: dict[int, int | None] = {}
        self.blocks: list[TreeBlock] = []
        self.gone: list[Runs] = []

    def found(self, root: int) -> tuple[TreeBlock, int] | None:
        """The block that has a root, and the place there."""
        for block in self.blocks:
            place = block.place(root)
            if place is not None:
                return block, place
        return None

    def is_gone(self, root: int) -> bool:
        """Return True if a root was in an array that was dropped."""
        return any(runs.place(root) is not None for runs in self.gone)

    def blocks_about(self, roots: Int64s) -> Iterator[TreeBlock]:
        """The blocks that may have some of these ascending roots."""
        low, high = int(roots.min()), int(roots.max())
        return (block for block in self.blocks if block.roots.first <= high and low <= block.roots.last)

    def mark_known(self, roots: Int64s, known: Bools) -> None:
        """Set in `known` which of ascending roots something is known of here."""
        for runs in (*(block.roots for block in self.blocks), *self.gone):
            if len(roots) and runs.first <= roots[-1] and roots[0] <= runs.last:
                inside = runs.find(roots)[1]
                known |= True if inside is None else inside
        for one in (self.trees, self.early):
            if len(one) > len(roots):
                known |= np.fromiter((root in one for root in roots.tolist()), bool, len(roots))
            elif one:
                known |= np.isin(roots, np.fromiter(one, dtype=np.int64))
