"""Storm's acker: whether the trees of many roots are done, in a fixed space a root, whatever the size of a tree.

Source: "Guaranteeing Message Processing" of Apache Storm. A root's value is the XOR of the ids of all tuples created
and acked in its tree: each id comes once when its tuple is made and once when it is acked, so zero means done. What
differs from Storm's own: fail wins over zero; a second init of a root is ignored; and a root that was answered is
remembered for another timeout, so that late messages do not make an entry of a tree that nobody waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.ids import to_signed
from kinesis_trident.tracker.sums import Int64s, Sums, combine_roots, int64s

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
        self._young = _Bucket()
        self._old = _Bucket()

    @property
    def pending(self) -> int:
        """Return the number of roots that wait for an answer."""
        return sum(
            sum(map(bool, bucket.trees.values())) + sum(block.open for block in bucket.blocks)
            for bucket in (self._young, self._old)
        )

    def init(self, root: int, value: int) -> TreeOutcome | None:
        """A root was emitted: `value` is the XOR of the ids of its first tuples, 0 when nobody consumes it."""
        if value > _MOST or root > _MOST:
            root, value = to_signed(root), to_signed(value)
        young, old = self._young, self._old
        if root in young.trees or root in old.trees or self._find(root) is not None:
            return None
        for bucket in (young, old) if young.early or old.early else ():
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
            root, value = to_signed(root), to_signed(value)
        bucket = self._young
        held = bucket.trees.get(root)
        if held is None:
            bucket = self._old
            held = bucket.trees.get(root)
        if held is not None:
            if not held:
                return None
            bucket.trees[root] = held = held ^ value
            return None if held else self._answer(root, bucket, _ACKED)
        found = self._find(root)
        if found is not None:
            block, place = found
            return _ACKED if block.xor_one(int(place[0]), value) else None
        early = self._early_of(root)
        before = early.get(root, 0)
        early[root] = None if before is None else before ^ value
        return None

    def fail(self, root: int) -> TreeOutcome | None:
        """A tuple failed: so does its tree, at once, or at its init when that comes later."""
        root = to_signed(root)
        for bucket in (self._young, self._old):
            held = bucket.trees.get(root)
            if held is not None:
                return self._answer(root, bucket, _FAILED) if held else None
        found = self._find(root)
        if found is None:
            self._early_of(root)[root] = None
            return None
        block, place = found
        return _FAILED if len(block.take(place)[0]) else None

    def reset_timeout(self, root: int) -> None:
        """The tree's time begins anew. A root that is not known, or answered, is left alone."""
        self.reset_many(np.array([to_signed(root)]))

    def reset_many(self, roots: Int64s) -> None:
        """Do what `reset_timeout` does, for many roots in any order."""
        young, old = self._young, self._old
        roots = int64s(roots)
        for block, _, places in self._place(combine_roots(roots, roots)[0]):
            if block is None:
                for root in places.tolist():
                    if old.trees.get(root):
                        young.trees[root] = old.trees.pop(root)
            elif block in old.blocks:
                moved, values = block.take(places)
                if len(moved):
                    young.blocks.append(Sums(moved, values))

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
            expired, self._old, self._young = self._old, self._young, _Bucket()
            alone = [root for root, value in expired.trees.items() if value]
            self._young.trees = dict.fromkeys(alone, 0)
            late += alone
            for block in expired.blocks:
                late += block.take()[0].tolist()
                self._young.over.append(block)
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
        known = np.zeros(len(roots), dtype=bool)
        for bucket in (self._young, self._old):
            for one in (bucket.trees, bucket.early):
                if one:
                    known |= np.fromiter((root in one for root in roots.tolist()), bool, len(roots))
            for block in (*bucket.blocks, *bucket.over):
                known |= block.find(roots)[1]
        outcomes: dict[TreeOutcome | None, list[int]] = {_ACKED: [], _FAILED: []}
        for root, value in zip(roots[known].tolist(), values[known].tolist(), strict=True):
            outcomes.setdefault(self.init(root, value), []).append(root)
        roots, values = roots[~known], values[~known]
        if len(roots):
            self._young.blocks.append(Sums(roots, values))
        acked = np.concatenate([np.array(outcomes[_ACKED], dtype=np.int64), roots[values == 0]])
        return acked, np.array(outcomes[_FAILED], dtype=np.int64)

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
        done = [_NONE]
        for block, which, places in self._place(roots):
            here, more = roots[which], values[which]
            if block is None:
                pairs = zip(*(each.tolist() for each in combine_roots(here, more)), strict=True)
                done.append(np.array([root for root, xor in pairs if self.ack(root, xor)], dtype=np.int64))
            else:
                done.append(block.xor(here, places, more))
        return np.sort(np.concatenate(done), kind="stable")

    def fail_many(self, roots: Int64s) -> Int64s:
        """Tuples of many roots failed.

        Returns:
            The roots that failed by that, ascending.
        """
        roots = int64s(roots)
        (roots, _), done = combine_roots(roots, roots), [_NONE]
        for block, _, places in self._place(roots):
            if block is None:
                done.append(np.array([root for root in places.tolist() if self.fail(root)], dtype=np.int64))
            else:
                done.append(block.take(places)[0])
        return np.sort(np.concatenate(done), kind="stable")

    def _place(self, roots: Int64s) -> Iterator[tuple[Sums | None, Int64s | slice, Int64s]]:
        """Yield each block that has some of the roots, their indexes, and places there; at last None, and the rest."""
        left: Int64s | slice = slice(None)
        for block in self._blocks():
            places, inside = block.find(roots[left])
            if inside.all():
                yield block, left, places
                return
            if inside.any():
                indexes = np.arange(len(roots))[left]
                yield block, indexes[inside], places[inside]
                left = indexes[~inside]
        yield None, left, roots[left]

    def _blocks(self) -> list[Sums]:
        """Return the blocks in the order in which they count: a root that was moved to another block is in both."""
        young, old = self._young, self._old
        return [*young.blocks, *old.blocks, *young.over, *old.over]

    def _answer(self, root: int, bucket: _Bucket, outcome: TreeOutcome) -> TreeOutcome:
        """Remember for another timeout that a root was answered."""
        del bucket.trees[root]
        self._young.trees[root] = 0
        return outcome

    def _early_of(self, root: int) -> dict[int, int | None]:
        """Return the bucket's messages that came before their init, among which are those of the root."""
        return self._old.early if root in self._old.early else self._young.early

    def _find(self, root: int) -> tuple[Sums, Int64s] | None:
        """Return the block that has a root, and its place there."""
        for block in self._blocks():
            places, inside = block.find(np.array([root]))
            if inside[0]:
                return block, places
        return None


@dataclass(slots=True)
class _Bucket:
    """The roots and messages that came within one timeout, as in Storm's RotatingMap.

    `trees`: roots that came alone, with their values; 0 once answered. `early`: roots whose init has not come, with
    the XOR of what has; None once one of its tuples failed. `blocks`: roots that came in arrays; `over`: those that
    have timed out, or were answered before, and are only remembered.
    """

    trees: dict[int, int] = field(default_factory=dict)
    early: dict[int, int | None] = field(default_factory=dict)
    blocks: list[Sums] = field(default_factory=list)
    over: list[Sums] = field(default_factory=list)


def _pairs(roots: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
    if np.shape(roots) != np.shape(values):
        msg = f"{np.size(roots)} roots with {np.size(values)} values: give one value for each"
        raise OrderError(msg)
    return int64s(roots), int64s(values)
