"""Settles a finished batch: the modules as they were before it was an event of `step`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from kinesis_trident.checkpoint.errors import BatchMissingError
from kinesis_trident.checkpoint.model.codec import misfit_error, name_in_errors
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLetterRecord,
    DeadLettersNode,
    InflightNode,
    NotDone,
    Pin,
    Plan,
    SettledNode,
    ShardsNode,
)
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.planner.exhausted import letters_after
from kinesis_trident.spout.planner.plan import KeptShard, ShardState
from kinesis_trident.spout.planner.settling import settlement as new
from kinesis_trident.spout.planner.settling.finished_batch import Committed, Evidence, Origin, empty_turn
from kinesis_trident.spout.planner.settling.settlement import CommittedTurn, InflightRules
from kinesis_trident.spout.planner.shards.lineage import Lineage, mark_drained
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.tracker.position_keys import Keys
from kinesis_trident.tracker.records import RecordPosition, Run
from kinesis_trident.tracker.runs import Runs
from kinesis_trident.tracker.settling import settle


@dataclass(frozen=True)
class CommittedBatch:
    """A finished batch; a missing node never means done.

    Attributes:
        plan: of it.
        pins: of its turns, by shard; empty if Spark has left the scan out.
        not_done: the records that are not done, and those that could not be decoded, by shard.
        verdict: on what the outcome and the pins show.
        judged: there is an outcome.
        pinned: the shards with a pin of any plan, to be removed.
        since: the milliseconds from the end of the settling before to each pin, by the clock of ZooKeeper.
    """

    plan: Plan
    pins: Mapping[str, Pin]
    not_done: Mapping[str, Sequence[NotDone]]
    verdict: Committed
    judged: bool
    pinned: tuple[str, ...]
    since: Mapping[str, int]

    @classmethod
    def of(
        cls,
        store: SourceStore,
        plan: Plan,
        epoch: int,
        origin: Origin,
        *,
        judged: bool = False,
    ) -> CommittedBatch:
        """Read a batch, and pin the turns that nobody has processed as empty, so that a late task yields no rows.

        If a task has pinned a turn in the meantime, that pin is valid.

        Args:
            store: of the source.
            plan: of the batch.
            epoch: of this run.
            origin: how Spark's checkpoint came to the batch.
            judged: an outcome is expected.

        Raises:
            OutcomeMissingError: it is not known what of the batch is done; nothing was changed.
            StateMissingError: somebody has deleted its plan; nothing was changed.
            FencedError: a newer run has taken over.
        """
        read, acks, judging, since = store.batches.read_finished(plan.txid, plan.shards, judging=not judged)
        found = {**read}
        pins = {shard: pin for shard, pin in found.items() if pin.plan == plan.plan}
        outcome = acks if acks is not None and acks.plan == plan.plan else None
        run = epoch
        if not origin.ours and (batch := store.batches.get(plan.txid)) is not None:
            run = batch.epoch
        if judged and (outcome is None or outcome.epoch != run):
            judging = store.judging.get()
        missing = [shard for shard in plan.shards if shard not in found]
        gone = store.batches.find_deleted(plan.txid, missing, found.values())
        verdict = Evidence(store.layout, plan, run, origin, pins, outcome, judging, gone).weigh()
        empty = {
            shard: empty_turn(plan, shard, epoch)
            for shard in plan.shards
            if shard not in pins or shard in verdict.unread
        }
        try:
            found |= store.batches.create_pins(
                {shard: pin for shard, pin in empty.items() if shard not in pins}, epoch
            )
            for shard in verdict.unread:
                store.batches.replace_pin(shard, empty[shard], epoch)
                found[shard] = empty[shard]
        except BatchMissingError:
            if origin.stored:
                where = store.layout.batch_of(plan.txid)
                deleted = f"{where} does not exist, which this run has stored"
                raise store.shards.lost_error(deleted) from None
            # Spark has left the scan out, so the plan was never stored: nobody can pin anything.
            found = {}
        pins = {shard: pin for shard, pin in found.items() if pin.plan == plan.plan}
        not_done = {**verdict.not_done}
        for shard, pin in pins.items():
            if pin.unreadable:
                # An outcome may name, one by one, records that had no row.
                not_done[shard] = tuple(Runs.sort(pin.unreadable).union(not_done.get(shard, ())))
        return cls(plan, pins, not_done, verdict, acks is not None, tuple(found), since)


class ShardAfter(msgspec.Struct, frozen=True, gc=False):
    """One shard after a batch: its nodes, and the runs that were dead-lettered (or skipped) in it.

    `kept`: what `inflight` was made of, if there is anything in flight.
    """

    checkpoint: CheckpointNode
    inflight: InflightNode
    dead_lettered: tuple[DeadLetterRecord, ...] = ()
    drained: bool = False
    kept: KeptShard | None = None

    @property
    def state(self) -> ShardState:
        """As much of a shard's state as its dead letters are made of."""
        return ShardState(TRIM_HORIZON, self.checkpoint, self.inflight, self.turns)

    @property
    def turns(self) -> Mapping[int, Keys]:
        """The positions of the rows of the batches that `inflight` names, by txid."""
        return self.kept.records.held.records if self.kept else {}


@dataclass(frozen=True, slots=True)
class BatchSettled:
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

    finished: CommittedBatch
    now: int
    done: Mapping[str, ShardAfter]
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
            states[shard] = ShardState(start, result.checkpoint, result.inflight, result.turns, result.kept)
        return replace(
            before,
            states=states,
            lineage=self.lineage,
            dead_letters={**before.dead_letters, **self.dead_letters},
            settled=plan.txid,
            settled_plan=plan.plan,
        )


def settle_batch(
    shards: Shards, finished: CommittedBatch, rules: InflightRules, layout: Layout, now: int
) -> BatchSettled:
    """Settle a batch that Spark has committed, but for the shards that bear its stamp: they were settled before.

    Raises:
        CorruptNodeError: an outcome, a pin and the records in flight do not agree with each other.
    """
    plan, pins, not_done = finished.plan, finished.pins, finished.not_done
    done: dict[str, ShardAfter] = {}
    for shard in plan.shards:
        before = shards.of(plan, shard)
        if before.checkpoint is not None and before.checkpoint.txid >= plan.txid:
            continue
        turn = CommittedTurn(
            plan, shard, layout.source_of(shard), pins.get(shard), not_done.get(shard, ()), now
        )
        try:
            done[shard] = settle_shard(before, turn, rules)
        except ValueError as error:
            raise misfit_error(layout.pin_of(plan.txid, shard), error) from error
    letters = dict[str, DeadLettersNode]()
    for shard, result in done.items():
        node = shards.dead_letters.get(shard)
        if result.dead_lettered or node is not None:
            with name_in_errors(layout.deadletters_of(shard)):
                node = letters_after(node, result.state, result.dead_lettered, rules.target)
            if node is not None:
                letters[shard] = node
    ended = [shard for shard, pin in pins.items() if pin.closed]
    # A purge removes plans and outcomes of many nodes; pins with positions of records in flight stay.
    is_known = plan.txid in shards.turns_in_use or any(plan.txid in result.turns for result in done.values())
    return BatchSettled(
        finished,
        now,
        done,
        letters,
        mark_drained(shards.lineage, ended) if ended else shards.lineage,
        ended,
        leaves_nodes=bool(plan.retries or plan.dead or not_done or is_known)
        or len(plan.positions) >= new._FEW_SHARDS,
    )


def settle_shard(state: ShardState, turn: CommittedTurn, rules: InflightRules) -> ShardAfter:
    """Settle one shard of a batch; `state` is the shard before it.

    Raises:
        ValueError: the outcome names records that the turn did not deliver.
    """
    plan, pin = turn.plan, turn.pin
    is_drained = pin is not None and pin.closed
    if pin is not None and pin.last is not None and new._leaves_nothing_in_flight(state, turn, rules):
        node = new._checkpoint_after(turn, state.checkpoint, RecordPosition.parse(pin.last))
        return ShardAfter(node, InflightNode(txid=plan.txid, waiting=(), counted=True), drained=is_drained)
    open_shard, buried = rules.open_shard_of(state), list[Run]()
    if pin is not None:
        open_shard, buried = settle(open_shard, new._facts_of(turn, pin, rules), rules.fates(turn.now))
    kept = rules.keep(open_shard, plan.txid)
    return ShardAfter(
        checkpoint=new._checkpoint_after(turn, state.checkpoint, open_shard.safe, kept.node.size),
        inflight=kept.node,
        dead_lettered=tuple(new._letter(run, turn) for run in buried),
        drained=is_drained,
        kept=None if kept.node.is_empty else kept,
    )


def settle_in(
    store: SourceStore, before: Shards, finished: CommittedBatch, event: BatchSettled, epoch: int
) -> None:
    """Write a batch that is settled: the shell before."""
    plan, after = finished.plan, event.after(before)
    store.shards.settle(
        event.nodes(before),
        event.dead_letters,
        ShardsNode(shards=dict(event.lineage)) if event.ended else None,
        SettledNode(
            txid=plan.txid,
            plan=plan.plan,
            stamped=len(plan.shards),
            # Mended since: the checkpoints of missed shards are there, too.
            begun=sum(
                one.checkpoint is not None and one.checkpoint.txid > 0
                for one in {**after.missed, **after.states}.values()
            ),
        ),
        epoch,
        leftover=()
        if event.leaves_nodes
        else store.layout.nodes_of_batch(plan.txid, finished.pinned, outcome=finished.judged),
    )
    if finished.verdict.is_plain_now:
        store.judging.forget(epoch)
