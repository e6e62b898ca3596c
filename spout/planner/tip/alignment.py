"""Keeps the shards in step while they are behind: says which of them a batch reads, and up to which arrival. Pure.

Spark has one watermark for all shards. Where one shard is read far ahead of another, the watermark follows it, and the
rows of the other come late and are dropped. So no shard is read beyond the oldest unread record of all, plus a bound:
what comes later is then late by this bound at most. Flink calls that watermark alignment.

Times are epoch milliseconds by the server's clock, unless they are called steady: milliseconds that never step back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from kinesis_trident.checkpoint.model.nodes import CheckpointNode
from kinesis_trident.checkpoint.model.standing import InStep, Standing
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
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
    longer, from now on, though they have records that are older. `told`: all of which that was said. `stuck`: since
    when, in steady milliseconds, each of those that cannot be read holds the others. `waits`: those that have more, and
    wait for others.
    """

    read: list[str]
    upto: int | None = None
    passed: list[str] = field(default_factory=list)
    span: int = field(default=0, compare=False)
    told: frozenset[str] = field(default=frozenset(), compare=False)
    stuck: Mapping[str, int] = field(default_factory=dict, compare=False)
    waits: frozenset[str] = field(default=frozenset(), compare=False)

    def is_too_short(self, pace: int) -> bool:
        """Return whether a query whose batches begin so many milliseconds one after the other never catches up."""
        return self.upto is not None and self.span < pace


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


class Behind(NamedTuple):
    """How far the shards are behind.

    Attributes:
        oldest: by each shard with something unread, or of which that is not known: as `find_oldest_unread`.
        wanted: the shards that are known to have something unread, and can be read.
        standing: those that cannot be read now, whatever they have.
        sure: as of `align`.
        unsure: those at which to look, so that it is sure how far their turns read.
    """

    oldest: Mapping[str, int | None]
    wanted: Collection[str]
    standing: Collection[str] = ()
    sure: Mapping[str, int] = {}
    unsure: Collection[str] = ()

    def know(self, kept: Mapping[str, tuple[int, int]]) -> Behind:
        """Return this with what looks have `kept` of shards: when the first and the last record of that arrived."""
        oldest = {**self.oldest, **{shard: first for shard, (first, _) in kept.items()}}
        return self._replace(oldest=oldest, sure={**self.sure, **{s: last for s, (_, last) in kept.items()}})


def find_behind(
    shards: Shards, sights: Sights, standings: Mapping[str, Standing], wanted: Iterable[str]
) -> Behind:
    """Return how far the shards are behind, of which nobody is sure; `standings`: of all that count."""
    states, seen = shards.states, sights.by_shard
    standing = {shard for shard, one in standings.items() if one.step is InStep.A_WHILE}
    oldest: dict[str, int | None] = {}
    for shard in shards.positions:
        if standings[shard].step is not InStep.NO:
            here, sight = states[shard], seen.get(shard)
            look, ahead = (sight.look, sight.ahead) if sight is not None else (None, None)
            parents = () if here.checkpoint else shards.lineage[shard].parents
            ends = [states[one].checkpoint for one in parents if one in states]
            oldest[shard] = find_oldest_unread(here, look, ahead, ends)
    for shard in standing - oldest.keys():
        at = find_known_upto(states[shard].checkpoint)
        if at is not None:
            oldest[shard] = at
    standing.update(shard for shard, one in seen.items() if one.unmoved)
    return Behind(oldest, [shard for shard in wanted if standings[shard].reads], standing)


class Alignment(msgspec.Struct, frozen=True):
    """The last batches of a run that has a bound.

    Attributes:
        given: milliseconds by which a shard may be ahead of another; None for `BOUND_MS`, or for more where batches
            begin so seldom that a query would never catch up.
        planned: the steady times at which they were planned.
        reached: how far the last two would have all shards read.
    """

    given: int | None = None
    planned: tuple[int, ...] = ()
    reached: tuple[int, ...] = ()

    @property
    def pace(self) -> int:
        """Return the milliseconds between two batches, at least, of late; 0 if there were too few."""
        times = self.planned
        if len(times) <= _PACES:
            return 0
        return min(other - one for one, other in pairwise(times))

    @property
    def bound(self) -> int:
        """Return the milliseconds by which a shard may be ahead of another one."""
        return max(BOUND_MS, _PACE * self.pace) if self.given is None else self.given

    def note_plan(self, steady: int) -> Alignment:
        """Note that a batch was planned."""
        return replace(self, planned=(*self.planned, steady)[-_PACES - 1 :])

    def note_read(self, read: AlignedRead) -> Alignment:
        """Note up to where a batch reads."""
        return (
            self if read.upto is None else replace(self, reached=(*self.reached, read.upto - self.bound)[-2:])
        )

    def find_unsure(self, behind: Behind, sights: Sights) -> Behind:
        """Return how far the shards are behind, with what the last turns have said of it, and where to look.

        Where turns read much of the bound, the others would wait for the slowest ones, whose turns have left nothing of
        an answer.
        """
        told = {shard: one.ahead for shard, one in sights.by_shard.items() if one.ahead is not None}
        sure = {shard: told[shard][1] for shard in behind.wanted if shard in told}
        if len(self.reached) < 2 or 4 * (self.reached[1] - self.reached[0]) < self.bound:
            return behind._replace(sure=sure)
        unsure = ((behind.oldest.get(shard), shard) for shard in behind.wanted if shard not in sure)
        first = sorted((at, shard) for at, shard in unsure if at is not None)[:_LOOKS]
        return behind._replace(sure=sure, unsure=[shard for _, shard in first])


def step(behind: Behind, now: int, steady: int, bound: int, last: AlignedRead) -> AlignedRead:
    """Return what the next batch reads; `steady`: the steady time; `last`: whose `stuck` and `told` go on."""
    oldest, wanted = behind.oldest, behind.wanted
    # They have unread records whose arrival the endpoint does not report: they neither wait nor hold others.
    silent = {shard for shard in wanted if oldest.get(shard) is None}
    stuck = {
        shard: last.stuck.get(shard, steady)
        for shard, at in oldest.items()
        if shard not in silent and (at is None or shard in behind.standing)
    }
    left = {shard for shard, since in stuck.items() if steady - since >= HOLD_MS}
    if left >= oldest.keys() - silent:
        # Nobody goes on without them.
        left = {shard for shard in left if oldest[shard] is None}
    told = last.told & left
    counted = {shard: at for shard, at in oldest.items() if shard not in left and shard not in silent}
    known = {shard: at for shard, at in counted.items() if at is not None}
    if len(known) < len(counted):
        return AlignedRead([], told=told, stuck=stuck, waits=frozenset(wanted))
    read, upto, span, before = list(wanted), None, 0, now - bound
    if known and min(known.values()) + bound // 2 < now:
        read, upto = align(known, {s: at for s, at in behind.sure.items() if s in known}, wanted, bound)
        span, before = upto - min(known.values()), upto - 2 * bound
    passed = sorted(shard for shard in left - told if (oldest[shard] or 0) < before)
    waits = frozenset(wanted).difference(read)
    return AlignedRead(read, upto, passed, span, told.union(passed), stuck, waits)
