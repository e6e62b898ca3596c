"""Storm's acker: whether the trees of many roots are done, in a fixed space a root, whatever the size of a tree.

Source: "Guaranteeing Message Processing" of Apache Storm. A root's value is the XOR of the ids of all tuples created
and acked in its tree: each id comes once when its tuple is made and once when it is acked, so zero means done. What
differs from Storm's own: fail wins over zero; a second init of a root is ignored; and a root that was answered is
remembered for another timeout, so that late messages do not make an entry of a tree that nobody waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import numpy as np

from kinesis_trident.tracker.acker.arrays import Bools, Int64s, int64s, is_narrow, one_each, together
from kinesis_trident.tracker.acker.blocks import TreeBlock
from kinesis_trident.tracker.acker.buckets import Bucket
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.ids import signed

__all__ = ["Acker", "TreeOutcome"]

_NONE: Int64s = np.empty(0, dtype=np.int64)
_MOST = 2**63 - 1


class TreeOutcome(Enum):
    """The result of a tree."""

    ACKED = "acked"
    FAILED = "failed"


_ACKED, _FAILED = TreeOutcome.ACKED, TreeOutcome.FAILED


class Acker:
    """Roots and values are 64-bit integers, signed or not: -1 and 2**64 - 1 are the same.

    Time is in milliseconds and only ever given by the caller.

    A tree that is neither acked nor failed times out between `timeout` and twice that after its init, or after its
    last `reset_timeout`; acks alone do not put that off. Roots may come one at a time or as arrays; `init_many` keeps
    8 bytes for each where the roots are consecutive, 19 where no two are, and never more than 23.

    Raises:
        OrderError: `timeout` is not positive.
    """

    def __init__(self, timeout: int = 30_000, now: int = 0) -> None:
        if timeout <= 0:
            msg = f"an acker's timeout is {timeout}; give milliseconds, at least 1"
            raise OrderError(msg)
        self._timeout = timeout
        self._turned = now
        self._young = Bucket()
        self._old = Bucket()

    @property
    def pending(self) -> int:
        """Return the number of roots that wait for an answer."""
        return sum(
            sum(map(bool, bucket.trees.values())) + sum(block.pending for block in bucket.blocks)
            for bucket in (self._young, self._old)
        )

    def init(self, root: int, value: int) -> TreeOutcome | None:
        """A root was emitted: `value` is the XOR of the ids of its first tuples, 0 when nobody consumes it."""
        if value > _MOST or root > _MOST:
            root, value = signed(root), signed(value)
        young, old = self._young, self._old
        if root in young.trees or root in old.trees:
            return None
        if (young.blocks or old.blocks or young.gone or old.gone) and self._in_arrays(root):
            return None
        if young.early or old.early:
            for bucket in (young, old):
                if root in bucket.early:
                    early = bucket.early.pop(root)
                    if early is None:
                        young.trees[root] = 0
                        return _FAILED
                    value ^= early
        young.trees[root] = value
        return None if value else _ACKED

    def ack(self, root: int, value: int) -> TreeOutcome | None:
        """A tuple was acked: `value` is its id XOR the ids of the tuples anchored to it. It may come before init.

        Returns:
            The tree's outcome, the one time that it is decided.
        """
        if value > _MOST or root > _MOST:
            root, value = signed(root), signed(value)
        trees = self._young.trees
        held = trees.get(root)
        if held is None:
            return self._ack_elsewhere(root, value)
        if not held:
            return None
        trees[root] = held = held ^ value
        return None if held else _ACKED

    def fail(self, root: int) -> TreeOutcome | None:
        """A tuple failed: so does its tree, at once, or at its init when that comes later."""
        root = signed(root)
        for bucket in (self._young, self._old):
            held = bucket.trees.get(root)
            if held is not None:
                return self._answered(root, bucket, _FAILED) if held else None
        found = self._found(root)
        if found is not None:
            block, place = found
            return _FAILED if len(block.answer(np.array([root]), np.array([place]))) else None
        if not self._is_gone(root):
            self._early_of(root)[root] = None
        return None

    def reset_timeout(self, root: int) -> None:
        """The tree's time begins anew. A root that is not known, or answered, is left alone."""
        root = signed(root)
        young, old = self._young.trees, self._old
        if old.trees.get(root):
            young[root] = old.trees.pop(root)
        found = old.found(root)
        if found is not None:
            block, place = found
            _, values = block.remove(np.array([root]), np.array([place]))
            young.update((root, value) for value in values.tolist())

    def reset_many(self, roots: Int64s) -> None:
        """Do what `reset_timeout` does, for many roots in any order."""
        roots, _ = one_each(int64s(roots), int64s(roots))
        young, old = self._young, self._old
        for root in roots.tolist() if old.trees else ():
            if old.trees.get(root):
                young.trees[root] = old.trees.pop(root)
        for block in [*old.blocks_about(roots)] if len(roots) else ():
            places, inside = block.find(roots)
            moved = block.remove(*((roots, places) if inside is None else (roots[inside], places[inside])))
            if len(moved[0]):
                young.blocks.append(TreeBlock(*moved))

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
            expired, self._old, self._young = self._old, self._young, Bucket()
            alone = [root for root, value in expired.trees.items() if value]
            self._young.trees = dict.fromkeys(alone, 0)
            self._young.gone = [block.roots for block in expired.blocks]
            late += alone
            for block in expired.blocks:
                late += block.open_roots().tolist()
        return late

    def init_many(self, roots: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
        """Many roots were emitted; they are ascending and distinct.

        Returns:
            The roots that are acked by that, and those that failed: their acks or fails came before.

        Raises:
            OrderError: the roots are not ascending, or there are not as many values.
        """
        roots, values = _pairs(roots, values)
        if not (roots[1:] > roots[:-1]).all():
            msg = f"init_many takes ascending, distinct roots; got {len(roots)} that are not"
            raise OrderError(msg)
        known = self._known(roots)
        if known is None:
            return self._begun(roots, values), _NONE
        acked: list[int] = []
        failed: list[int] = []
        for root, value in zip(roots[known].tolist(), values[known].tolist(), strict=True):
            outcome = self.init(root, value)
            if outcome is not None:
                (acked if outcome is _ACKED else failed).append(root)
        begun = self._begun(roots[~known], values[~known])
        return np.concatenate([np.array(acked, dtype=np.int64), begun]), np.array(failed, dtype=np.int64)

    def ack_many(self, roots: Int64s, values: Int64s) -> Int64s:
        """Many tuples were acked, in any order, a root as often as it has tuples.

        The sums are looked at when all values are in. So an ack that comes twice in one call keeps its tree from
        being done, even where `ack` would have taken the second as late; the tree times out.

        Returns:
            The roots that are done by that, ascending.

        Raises:
            OrderError: there are not as many values as roots.
        """
        roots, values = _pairs(roots, values)
        if len(roots) and is_narrow(roots):
            roots, values = one_each(roots, values)
        done: list[Int64s] = []
        for block in self._blocks_about(roots):
            places, inside = block.find(roots)
            if inside is None:
                done.append(block.ack(roots, places, values))
                roots = values = _NONE
                break
            if inside.any():
                done.append(block.ack(roots[inside], places[inside], values[inside]))
                roots, values = roots[~inside], values[~inside]
        roots, values = one_each(roots, values)
        alone = [
            root
            for root, value in zip(roots.tolist(), values.tolist(), strict=True)
            if self.ack(root, value) is not None
        ]
        return together(done, alone)

    def fail_many(self, roots: Int64s) -> Int64s:
        """Tuples of many roots failed.

        Returns:
            The roots that failed by that, ascending.
        """
        roots, _ = one_each(int64s(roots), int64s(roots))
        done: list[Int64s] = []
        for block in self._blocks_about(roots):
            places, inside = block.find(roots)
            if inside is None:
                done.append(block.answer(roots, places))
                roots = _NONE
                break
            if inside.any():
                done.append(block.answer(roots[inside], places[inside]))
                roots = roots[~inside]
        return together(done, [root for root in roots.tolist() if self.fail(root) is not None])

    def _begun(self, roots: Int64s, values: Int64s) -> Int64s:
        """Keep roots that nothing is known of; those of them that nobody consumes."""
        if not len(roots):
            return roots
        block = TreeBlock(roots, values)
        self._young.blocks.append(block)
        return block.unconsumed()

    def _ack_elsewhere(self, root: int, value: int) -> TreeOutcome | None:
        old = self._old
        held = old.trees.get(root)
        if held is not None:
            if not held:
                return None
            old.trees[root] = held = held ^ value
            return None if held else self._answered(root, old, _ACKED)
        found = self._found(root)
        if found is not None:
            return _ACKED if found[0].ack_one(found[1], value) else None
        if not self._is_gone(root):
            early = self._early_of(root)
            before = early.get(root, 0)
            early[root] = None if before is None else before ^ value
        return None

    def _answered(self, root: int, bucket: Bucket, outcome: TreeOutcome) -> TreeOutcome:
        """Remember for another timeout that a root was answered."""
        del bucket.trees[root]
        self._young.trees[root] = 0
        return outcome

    def _early_of(self, root: int) -> dict[int, int | None]:
        """Return the bucket's messages that came before their init, among which are those of the root."""
        return self._old.early if root in self._old.early else self._young.early

    def _found(self, root: int) -> tuple[TreeBlock, int] | None:
        return self._young.found(root) or self._old.found(root)

    def _is_gone(self, root: int) -> bool:
        return self._young.is_gone(root) or self._old.is_gone(root)

    def _in_arrays(self, root: int) -> bool:
        return self._found(root) is not None or self._is_gone(root)

    def _blocks_about(self, roots: Int64s) -> Iterator[TreeBlock]:
        """The blocks that may have some of these ascending roots."""
        if len(roots):
            yield from self._young.blocks_about(roots)
            yield from self._old.blocks_about(roots)

    def _known(self, roots: Int64s) -> Bools | None:
        """Return a mask of the ascending roots that are known; None if none is."""
        known = np.zeros(len(roots), dtype=bool)
        self._young.mark_known(roots, known)
        self._old.mark_known(roots, known)
        return known if known.any() else None


def _pairs(roots: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
    if np.shape(roots) != np.shape(values):
        msg = f"{np.size(roots)} roots with {np.size(values)} values: give one value for each"
        raise OrderError(msg)
    return int64s(roots), int64s(values)
