"""Storm's acker: whether the trees of many roots are done, in a fixed space a root, whatever the size of a tree.

Source: "Guaranteeing Message Processing" of Apache Storm. A root's value is the XOR of the ids of all tuples created
and acked in its tree: each id comes once when its tuple is made and once when it is acked, so zero means done. What
differs from Storm's own: fail wins over zero; a second init of a root is ignored; and a root that was answered is
remembered until it rotates out, so that late messages do not make an entry of a tree that nobody waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt

from tracker.errors import OrderError
from tracker.treeblock import TreeBlock

__all__ = ["Acker", "TreeOutcome", "acker_of"]

Int64s = npt.NDArray[np.int64]


class TreeOutcome(Enum):
    """What became of a tree."""

    ACKED = "acked"
    FAILED = "failed"


class _Entry:
    """A root that came alone. `known`: its init came; `answered`: its outcome was told."""

    __slots__ = ("answered", "failed", "known", "value")

    def __init__(self) -> None:
        self.value = 0
        self.known = False
        self.failed = False
        self.answered = False


class Acker:
    """Roots and values are signed 64-bit integers. Time is in milliseconds and only ever given by the caller.

    A tree that is neither acked nor failed times out between `timeout` and twice that after its init, or after its
    last `reset_timeout`; acks alone do not put that off. Roots may come one at a time or as arrays; `init_many` keeps
    at most 17 bytes for each, 9 where the roots are consecutive.
    """

    def __init__(self, timeout: int = 30_000, now: int = 0) -> None:
        self._timeout = timeout
        self._turned = now
        self._young: dict[int, _Entry] = {}
        self._old: dict[int, _Entry] = {}
        self._young_blocks: list[TreeBlock] = []
        self._old_blocks: list[TreeBlock] = []

    @property
    def pending(self) -> int:
        """How many roots wait for an answer."""
        singles = [*self._young.values(), *self._old.values()]
        return sum(entry.known and not entry.answered for entry in singles) + sum(
            block.pending for block in self._blocks()
        )

    def init(self, root: int, value: int) -> TreeOutcome | None:
        """A root was emitted: `value` is the XOR of the ids of its first tuples, 0 when nobody consumes it."""
        if self._block_of(root) is not None:
            return None
        entry = self._entry(root)
        if entry.known or entry.answered:
            return None
        entry.known = True
        entry.value ^= value
        return self._decided(entry)

    def ack(self, root: int, value: int) -> TreeOutcome | None:
        """A tuple was acked: `value` is its id XOR the ids of the tuples anchored to it. It may come before init.

        Returns:
            The tree's outcome, the one time that it is decided.
        """
        block = self._block_of(root)
        if block is not None:
            return TreeOutcome.ACKED if block.ack_one(root, value) else None
        entry = self._entry(root)
        if entry.answered:
            return None
        entry.value ^= value
        return self._decided(entry)

    def fail(self, root: int) -> TreeOutcome | None:
        """A tuple failed: so does its tree, at once, or at its init when that comes later."""
        block = self._block_of(root)
        if block is not None:
            return TreeOutcome.FAILED if len(block.fail(np.array([root], dtype=np.int64))) else None
        entry = self._entry(root)
        if entry.answered:
            return None
        entry.failed = True
        return self._decided(entry)

    def reset_timeout(self, root: int) -> None:
        """The tree's time begins anew. A root that is not known, or answered, is left alone."""
        block = self._block_of(root)
        if block is not None:
            value = block.remove(root)
            if value is not None:
                entry = self._young[root] = _Entry()
                entry.value, entry.known = value, True
            return
        found = self._old.get(root)
        if found is not None and not found.answered:
            self._young[root] = self._old.pop(root)

    def tick(self, now: int) -> list[int]:
        """Time has passed.

        Returns:
            The roots that timed out, and are answered so.
        """
        late: list[int] = []
        turns = min((now - self._turned) // self._timeout, 2)
        if turns > 0:
            self._turned += (now - self._turned) // self._timeout * self._timeout
        for _ in range(turns):
            late += [root for root, entry in self._old.items() if entry.known and not entry.answered]
            for block in self._old_blocks:
                late += block.open_roots().tolist()
            self._old, self._young = self._young, {}
            self._old_blocks, self._young_blocks = self._young_blocks, []
        return late

    def init_many(self, roots: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
        """Many roots were emitted; they are ascending and distinct.

        Returns:
            The roots that are acked by that, and those that failed: their acks or fails came before.

        Raises:
            OrderError: the roots are not ascending.
        """
        if not (roots[1:] > roots[:-1]).all():
            msg = f"init_many takes ascending, distinct roots; got {len(roots)} that are not"
            raise OrderError(msg)
        known = self._known(roots)
        acked: list[int] = []
        failed: list[int] = []
        for root, value in zip(roots[known].tolist(), values[known].tolist(), strict=True):
            outcome = self.init(root, value)
            if outcome is not None:
                (acked if outcome is TreeOutcome.ACKED else failed).append(root)
        if not known.all():
            block = TreeBlock(roots[~known], values[~known])
            self._young_blocks.append(block)
            acked += block.zeros().tolist()
        return np.array(acked, dtype=np.int64), np.array(failed, dtype=np.int64)

    def ack_many(self, roots: Int64s, values: Int64s) -> Int64s:
        """Many tuples were acked, in any order, a root as often as it has tuples.

        Returns:
            The roots that are done by that, ascending.
        """
        done: list[Int64s] = []
        left = np.ones(len(roots), dtype=bool)
        for block in self._blocks():
            inside = block.holds(roots)
            if inside.all():
                return block.ack(roots, values)
            if inside.any():
                done.append(block.ack(roots[inside], values[inside]))
                left &= ~inside
        alone = [
            root
            for root, value in zip(roots[left].tolist(), values[left].tolist(), strict=True)
            if self.ack(root, value) is not None
        ]
        return np.sort(np.concatenate([*done, np.array(alone, dtype=np.int64)]))

    def fail_many(self, roots: Int64s) -> Int64s:
        """Tuples of many roots failed.

        Returns:
            The roots that failed by that, ascending.
        """
        done: list[Int64s] = []
        left = np.ones(len(roots), dtype=bool)
        for block in self._blocks():
            inside = block.holds(roots)
            done.append(block.fail(roots[inside]))
            left &= ~inside
        alone = [root for root in roots[left].tolist() if self.fail(root) is not None]
        return np.sort(np.concatenate([*done, np.array(alone, dtype=np.int64)]))

    def _blocks(self) -> Sequence[TreeBlock]:
        return [*self._young_blocks, *self._old_blocks]

    def _block_of(self, root: int) -> TreeBlock | None:
        if not self._young_blocks and not self._old_blocks:
            return None
        return next((block for block in self._blocks() if block.has(root)), None)

    def _known(self, roots: Int64s) -> npt.NDArray[np.bool_]:
        known = np.zeros(len(roots), dtype=bool)
        for block in self._blocks():
            known |= block.holds(roots)
        if self._young or self._old:
            known |= np.isin(roots, np.fromiter((*self._young, *self._old), dtype=np.int64))
        return known

    def _entry(self, root: int) -> _Entry:
        entry = self._young.get(root) or self._old.get(root)
        if entry is None:
            entry = self._young[root] = _Entry()
        return entry

    @staticmethod
    def _decided(entry: _Entry) -> TreeOutcome | None:
        if not entry.known or (entry.value and not entry.failed):
            return None
        entry.answered = True
        return TreeOutcome.FAILED if entry.failed else TreeOutcome.ACKED


def acker_of(root: int, ackers: int) -> int:
    """Which of several ackers a root belongs to, from 0: all messages of a tree meet in one. Arrays work too."""
    return root % ackers
