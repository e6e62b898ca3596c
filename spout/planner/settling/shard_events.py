"""The events that change the shards of a source. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import msgspec

from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLetterRecord,
    DeadLettersNode,
    ExternalNode,
    InflightNode,
    SettledNode,
    ShardsNode,
)
from kinesis_trident.checkpoint.model.pauses import Pause, correct_ends
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.finished_batch import CommittedBatch
from kinesis_trident.spout.planner.shards.lineage import Lineage
from kinesis_trident.spout.planner.shards.source_shards import Shards


class Tally(NamedTuple):
    """The counts of records that were acked or failed by id, and of records that timed out.

    `late`: acked while they waited for a retry, which is then cancelled. `done`: acked or failed although they were
    done, or had failed, before. `unknown`: beyond the last record ever read. `timed_out`: not acked in time.
    `permanent`: those of the failed ones that no retry can help.
    """

    acked: int = 0
    failed: int = 0
    late: int = 0
    done: int = 0
    unknown: int = 0
    timed_out: int = 0
    permanent: int = 0

    def add(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class ShardUnit(msgspec.Struct, frozen=True, gc=False):
    """A change of one shard: written in one multi, and true and told from then on.

    Attributes:
        shard: its name.
        state: the shard after it; None if it was never read.
        dead_letters: its new ones; None if they have not changed.
        buried: the runs that were dead-lettered (or skipped) in a batch.
        tally: the counts of the records that others have acked or failed, or that have timed out.
        consumed: the names of the requests that it includes; they are removed with it.
        unreadable: requests that cannot be applied, path to what is wrong; they are put aside before it.
        told: lines for the log.
        writes: which of its nodes it writes.
        answer: what people have asked for, and is not done; they look for it among their requests.
    """

    shard: str
    state: ShardState | None
    dead_letters: DeadLettersNode | None = None
    buried: tuple[DeadLetterRecord, ...] = ()
    tally: Tally = Tally()
    consumed: Sequence[str] = ()
    unreadable: Mapping[str, str] = {}
    told: Sequence[str] = ()
    answer: str = ""
    writes: Literal["all", "checkpoint", "nothing"] = "all"


@dataclass(frozen=True, slots=True)
class BatchSettled:
    """A batch was settled: in all its shards, or in some, and then others are left.

    Attributes:
        finished: its nodes.
        now: the time, in epoch milliseconds.
        units: of the shards that it has moved on, each written with its stamp.
        settled: the node that is written last, with `lineage`, the shards' after it.
        ended: the shards that were read to their end in it.
        leftover: its nodes, which go with the last multi; none if a purge removes them.
        is_whole: that was answered.
        seconds: that settling took; `operations` and `written`: of this run with ZooKeeper so far.
    """

    finished: CommittedBatch
    now: int
    units: Sequence[ShardUnit]
    settled: SettledNode
    lineage: Lineage
    ended: Sequence[str]
    leftover: tuple[str, ...]
    is_whole: bool = True
    seconds: float = 0.0
    operations: int = 0
    written: int = 0

    def nodes(self, before: Shards) -> dict[str, tuple[CheckpointNode, InflightNode | None]]:
        """Return the nodes of shards that change; most have nothing in flight, before it and after it."""
        found: dict[str, tuple[CheckpointNode, InflightNode | None]] = {}
        for unit in self.units:
            shard, state = unit.shard, unit.state
            if state is not None and state.checkpoint is not None and (node := state.inflight) is not None:
                was = before.states[shard].inflight if shard in before.states else None
                is_idle = node.is_empty and (was is None or was.is_empty)
                found[shard] = state.checkpoint, None if is_idle else node
        return found

    def after(self, before: Shards) -> Shards:
        """Return the shards after it."""
        after, settled = Amended(self.units).after(before), self.settled
        if not self.is_whole:
            return after
        return replace(after, lineage=self.lineage, settled=settled.txid, settled_plan=settled.plan)


@dataclass(frozen=True, slots=True)
class Paused:
    """People have paused or resumed something, or a pause is over.

    Attributes:
        pauses: as they are stored.
        now: the time, in epoch milliseconds.
    """

    pauses: Sequence[Pause]
    now: int

    def after(self, before: Shards) -> Shards:
        """Return the shards after it."""
        return replace(before, pauses=correct_ends(self.pauses, self.now, before.pauses), paused_at=self.now)


@dataclass(frozen=True, slots=True)
class Requested:
    """Other processes have asked for replays, acks and fails, by shard and name."""

    asked: Mapping[str, Mapping[str, ExternalNode]]


@dataclass(frozen=True, slots=True)
class TimedOut:
    """Time has passed, in which somebody could ack."""


@dataclass(frozen=True, slots=True)
class HomeUnit:
    """A change of which shards there are, or of what is settled: written in one multi, and true and told from then on.

    Those of an event come before the changes of single shards.

    Attributes:
        after: the shards after it.
        lineage, settled: the nodes that it writes; None for none.
        gone: the shards whose nodes it removes; their dead letters are counted on in `dead_letters`.
    """

    after: Shards
    lineage: ShardsNode | None = None
    settled: SettledNode | None = None
    gone: Sequence[str] = ()
    dead_letters: Mapping[str, DeadLettersNode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Amended:
    """Some shards have changed between two batches, by the units that were written."""

    units: Sequence[ShardUnit]

    def after(self, before: Shards) -> Shards:
        """Return the shards after it."""
        states = {unit.shard: unit.state for unit in self.units if unit.state is not None}
        letters = {unit.shard: unit.dead_letters for unit in self.units if unit.dead_letters is not None}
        return replace(
            before, states={**before.states, **states}, dead_letters={**before.dead_letters, **letters}
        )


ShardEvent = BatchSettled | HomeUnit | Amended | Paused

Watcher = Callable[[Shards, ShardEvent, Shards], None]
"""Is told of each change: the shards before it, the event, and the shards after it."""
