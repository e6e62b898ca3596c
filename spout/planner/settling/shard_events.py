"""What changes the shards of a source, and a batch's part of that. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kinesis_trident.checkpoint.model.codec import misfit_error, naming
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, DeadLettersNode, InflightNode
from kinesis_trident.checkpoint.model.replays import settle_replays
from kinesis_trident.spout.planner.exhausted import add_dead_letters
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.finished_batch import Finished
from kinesis_trident.spout.planner.settling.settlement import (
    FinishedTurn,
    InflightRules,
    SettledShard,
    settle_shard,
)
from kinesis_trident.spout.planner.shards.lineage import Lineage, mark_drained
from kinesis_trident.spout.planner.shards.source_shards import Shards

_FEW_SHARDS = 500
"""The size up to which a plan is one node, and the multi that settles a batch removes its remains too."""


class Tally(NamedTuple):
    """The counts of records that were acked or failed by id, and of records that timed out.

    `late`: acked while they waited for a retry, which is then cancelled. `done`: acked or failed although they were
    done, or had failed, before. `unknown`: beyond the last record ever read. `timed_out`: not acked in time.
    """

    acked: int = 0
    failed: int = 0
    late: int = 0
    done: int = 0
    unknown: int = 0
    timed_out: int = 0

    def add(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Settled:
    """A batch was settled.

    Attributes:
        finished: its nodes.
        now: the time, in epoch milliseconds.
        done: the shards that it has moved on.
        dead_letters: those that it has changed, by shard.
        lineage: after it.
        ended: the shards that were read to their end in it.
        leaves_nodes: it leaves nodes that a purge removes; otherwise they go with the last multi.
        seconds: that settling took; `operations` and `written`: of this run with ZooKeeper so far.
    """

    finished: Finished
    now: int
    done: Mapping[str, SettledShard]
    dead_letters: Mapping[str, DeadLettersNode]
    lineage: Lineage
    ended: Sequence[str]
    leaves_nodes: bool
    seconds: float = 0.0
    operations: int = 0
    written: int = 0

    def nodes(self, before: Shards) -> dict[str, tuple[CheckpointNode, InflightNode | None]]:
        """Return the nodes of shards that change; most have nothing in flight, before it and after it."""
        found: dict[str, tuple[CheckpointNode, InflightNode | None]] = {}
        for shard, result in self.done.items():
            was = before.states[shard].inflight if shard in before.states else None
            is_idle = result.inflight.is_empty and (was is None or was.is_empty)
            found[shard] = result.checkpoint, None if is_idle else result.inflight
        return found

    def after(self, before: Shards) -> Shards:
        """Return the shards after it."""
        plan = self.finished.plan
        states = dict(before.states)
        for shard, result in self.done.items():
            start = before.of(plan, shard).start
            states[shard] = ShardState(start, result.checkpoint, result.inflight, result.turns)
        return replace(
            before,
            states=states,
            lineage=self.lineage,
            dead_letters={**before.dead_letters, **self.dead_letters},
            settled=plan.txid,
            settled_plan=plan.plan,
        )


@dataclass(frozen=True, slots=True)
class Listed:
    """The shards were listed, and others than before are there."""


@dataclass(frozen=True, slots=True)
class Looked:
    """Idle shards were seen at their tips."""


@dataclass(frozen=True, slots=True)
class Requested:
    """Requests of other processes were taken in, for some shards."""

    shards: Sequence[str]
    tally: Tally


@dataclass(frozen=True, slots=True)
class TimedOut:
    """Records of some shards were not acked in time."""

    shards: Sequence[str]
    tally: Tally


@dataclass(frozen=True, slots=True)
class Adopted:
    """The shards are as ZooKeeper has them now, or batches up to the settled txid were left out."""


ShardEvent = Settled | Listed | Looked | Requested | TimedOut | Adopted

Watcher = Callable[[Shards, ShardEvent, Shards], None]
"""Is told of each change: the shards before it, the event, and the shards after it."""


def settle_batch(
    shards: Shards, finished: Finished, rules: InflightRules, layout: Layout, now: int
) -> Settled:
    """Settle a batch that Spark has committed, but for the shards that bear its stamp: they were settled before.

    Raises:
        CorruptNodeError: an outcome, a pin and the records in flight do not agree with each other.
    """
    plan, pins, not_done = finished.plan, finished.pins, finished.not_done
    done: dict[str, SettledShard] = {}
    for shard in plan.shards:
        before = shards.of(plan, shard)
        if before.checkpoint is not None and before.checkpoint.txid >= plan.txid:
            continue
        turn = FinishedTurn(
            plan, shard, layout.source_of(shard), pins.get(shard), not_done.get(shard, ()), now
        )
        try:
            done[shard] = settle_shard(before, turn, rules)
        except ValueError as error:
            raise misfit_error(layout.pin_of(plan.txid, shard), error) from error
    ended = [shard for shard, pin in pins.items() if pin.closed]
    # A purge removes plans and outcomes of many nodes; pins with positions of records in flight stay.
    is_known = plan.txid in shards.turns_in_use or any(plan.txid in result.turns for result in done.values())
    return Settled(
        finished,
        now,
        done,
        dict(_letters_after(shards, plan.txid, done, rules, layout)),
        mark_drained(shards.lineage, ended) if ended else shards.lineage,
        ended,
        leaves_nodes=bool(plan.retries or plan.dead or not_done or is_known)
        or len(plan.positions) >= _FEW_SHARDS,
    )


def _letters_after(
    shards: Shards, txid: int, done: Mapping[str, SettledShard], rules: InflightRules, layout: Layout
) -> Iterator[tuple[str, DeadLettersNode]]:
    """Yield the nodes of dead letters that a batch changes, by shard."""
    for shard, result in done.items():
        before = node = shards.dead_letters.get(shard)
        if node is not None and node.replays:
            with naming(layout.deadletters_of(shard)):
                node = settle_replays(node, result.inflight, result.turns, result.dead_lettered, txid)
        if result.dead_lettered:
            node = add_dead_letters(node, result.dead_lettered, rules.target)
        if node is not None and node is not before:
            yield shard, node
