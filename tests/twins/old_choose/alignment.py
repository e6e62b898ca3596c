"""Keeps the shards in step while they are behind: says which of them a batch reads, and up to which arrival. Pure.

Spark has one watermark for all shards. Where one shard is read far ahead of another, the watermark follows it, and the
rows of the other come late and are dropped. So no shard is read beyond the oldest unread record of all, plus a bound:
what comes later is then late by this bound at most. Flink calls that watermark alignment.

Times are epoch milliseconds by the server's clock, unless they are called steady: milliseconds that never step back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from kinesis_trident.checkpoint.model.nodes import CheckpointNode, Plan
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.tip.looks import Look
from kinesis_trident.spout.positions import AtTimestamp

BOUND_MS = 5 * 60_000
"""The bound of `maxShardSkew=auto`, in milliseconds."""

_PACES, _PACE = 3, 3
"""The batches whose pace counts with `auto`, and how much faster than that their records may pass."""

_LOOKS = 16
"""The shards that are looked at before a batch, at most. With 1,000 shards all of them would hardly be quicker."""

HOLD_MS = 5 * 60_000
"""Milliseconds for which a shard that cannot be read holds the others."""


@dataclass(frozen=True, slots=True)
class AlignedRead:
    """What a batch reads: records of the shards `read` that arrived by `upto`, or all if that is None.

    `span`: the milliseconds of the stream that this is at most. `passed`: the shards that the others wait for no
    longer, from now on, though they have records that are older.
    """

    read: list[str]
    upto: int | None = None
    passed: list[str] = field(default_factory=list)
    span: int = field(default=0, compare=False)


def align(
    oldest: Mapping[str, int], sure: Mapping[str, int], wanted: Iterable[str], bound: int
) -> tuple[list[str], int]:
    """Return the shards to read, and the arrival up to which they are read.

    Args:
        oldest: when the oldest unread record of each shard arrived, or a time before that.
        sure: the time up to which a turn reads at least, of those of the shards to be read for which that is known.
        wanted: the shards that can be read. One that is not in `oldest` is read, and holds nobody.
        bound: milliseconds by which a shard may be ahead. One that is ahead by more than three quarters waits if it is
            sure that a single turn catches up: otherwise each batch would read a little of all shards.
    """
    reached = min(max(at, sure.get(shard, at)) for shard, at in oldest.items())
    upto, near = reached + bound, reached + 3 * bound // 4
    # The others need each batch: every one that waits takes from the next batch what it is ahead.
    read = [s for s in wanted if oldest.get(s, reached) <= (near if sure.get(s, reached) >= upto else upto)]
    return read, upto


def find_known_upto(node: CheckpointNode | None) -> int | None:
    """Return the time up to which a shard was read, or seen to be empty; None if that is unknown."""
    return max(node.arrival or 0, node.seen or 0) or None if node is not None else None


def find_oldest_unread(
    state: ShardState,
    look: Look | None,
    ahead: tuple[int, int] | None,
    parents: Iterable[CheckpointNode | None],
) -> int | None:
    """Return when the oldest unread record of a shard arrived, or a time before that; None if nothing is known.

    Args:
        state: of the shard.
        look: the last look at it.
        ahead: `Pin.ahead` of its last turn.
        parents: their nodes; they were read to their ends before.
    """
    known = [find_known_upto(state.checkpoint), *map(find_known_upto, parents)]
    if look is not None and look.position == state.position:
        known += [look.arrival, look.at if look.more is False else None]
    if ahead is not None:
        known.append(ahead[0])
    if isinstance(state.position, AtTimestamp):
        known.append(state.position.time)
    return max((at for at in known if at is not None), default=None)


class Alignment:
    """The steps of a run.

    Args:
        bound: milliseconds by which a shard may be ahead of another; None for `BOUND_MS`, or for more where batches
            begin so seldom that a query would never catch up.
    """

    def __init__(self, bound: int | None = None) -> None:
        self._bound = bound
        self._planned: deque[int] = deque(maxlen=_PACES + 1)
        self._reached: deque[int] = deque(maxlen=2)
        self._unmoved: set[str] = set()
        self._stuck: dict[str, int] = {}
        self._passed: set[str] = set()

    @property
    def pace(self) -> int:
        """Return the milliseconds between two batches, at least, of late; 0 if there were too few."""
        times = list(self._planned)
        if len(times) <= _PACES:
            return 0
        return min(other - one for one, other in pairwise(times))

    @property
    def bound(self) -> int:
        """Return the milliseconds by which a shard may be ahead of another one."""
        return max(BOUND_MS, _PACE * self.pace) if self._bound is None else self._bound

    def note_plan(self, steady: int) -> None:
        """Note that a batch was planned."""
        self._planned.append(steady)

    def rest(self) -> None:
        """Note that there is nothing to read: nobody waits for anybody."""
        self._stuck = {}

    def note_batch(self, plan: Plan, states: Mapping[str, ShardState], ahead: Collection[str]) -> None:
        """Note which shards a batch should have read and could not: Kinesis refuses their reads.

        `ahead`: those whose turn has said when the next record arrived.
        """
        for shard in plan.read:
            state = states.get(shard)
            if state is None or str(state.position) != plan.positions[shard] or shard in ahead:
                self._unmoved.discard(shard)
            else:
                self._unmoved.add(shard)

    def choose_looks(
        self, oldest: Mapping[str, int | None], sure: Mapping[str, int], wanted: Collection[str]
    ) -> list[str]:
        """Return the shards at which to look before the next step, so that it is sure how far their turns read.

        Where turns read much of the bound, the others would wait for the slowest ones, whose turns have left nothing of
        an answer. `oldest`, `sure`, `wanted`: as of `step`.
        """
        if len(self._reached) < 2 or 4 * (self._reached[1] - self._reached[0]) < self.bound:
            return []
        unsure = ((oldest.get(shard), shard) for shard in wanted if shard not in sure)
        return [shard for _, shard in sorted((at, shard) for at, shard in unsure if at is not None)[:_LOOKS]]

    def step(
        self,
        oldest: Mapping[str, int | None],
        sure: Mapping[str, int],
        wanted: Collection[str],
        standing: Collection[str],
        now: int,
        steady: int,
    ) -> AlignedRead:
        """Return what the next batch reads.

        Args:
            oldest: by each shard with something unread, or of which that is not known: as `find_oldest_unread`.
            sure: as of `align`.
            wanted: the shards that are known to have something unread.
            standing: those that cannot be read now, whatever they have.
            now: the time.
            steady: the steady time.
        """
        # They have unread records whose arrival the endpoint does not report: they neither wait nor hold others.
        silent = {shard for shard in wanted if oldest.get(shard) is None}
        stuck = {
            shard
            for shard, at in oldest.items()
            if shard not in silent and (at is None or shard in standing or shard in self._unmoved)
        }
        self._stuck = {shard: self._stuck.get(shard, steady) for shard in stuck}
        left = {shard for shard, since in self._stuck.items() if steady - since >= HOLD_MS}
        if left >= oldest.keys() - silent:
            # Nobody goes on without them.
            left = {shard for shard in left if oldest[shard] is None}
        self._passed &= left
        counted = {shard: at for shard, at in oldest.items() if shard not in left and shard not in silent}
        known = {shard: at for shard, at in counted.items() if at is not None}
        if len(known) < len(counted):
            return AlignedRead([])
        bound = self.bound
        if not known or min(known.values()) + bound // 2 >= now:
            return AlignedRead(list(wanted), None, self._find_newly_passed(left, oldest, now - bound))
        read, upto = align(known, {s: at for s, at in sure.items() if s in known}, wanted, bound)
        self._reached.append(upto - bound)
        passed = self._find_newly_passed(left, oldest, upto - 2 * bound)
        return AlignedRead(read, upto, passed, upto - min(known.values()))

    def _find_newly_passed(
        self, left: Collection[str], oldest: Mapping[str, int | None], before: int
    ) -> list[str]:
        new = sorted(shard for shard in left if shard not in self._passed and (oldest[shard] or 0) < before)
        self._passed.update(new)
        return new
