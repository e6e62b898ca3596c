"""Settles a finished batch, shard by shard: moves checkpoints and queues failed records. Pure.

Settling happens when Spark asks for the next offset, which it does only after it has committed the batch. It takes
the plan, the turn's pin and the outcome, and returns the shard's two nodes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from kinesis_trident.checkpoint.model.codec import misfit_error, name_in_errors
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLetterRecord,
    InflightNode,
    NotDone,
    Pin,
    Plan,
    SettledNode,
)
from kinesis_trident.checkpoint.model.row_ids import positions_of
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.spout.planner.exhausted import letters_after
from kinesis_trident.spout.planner.plan import RUNS_A_SHARD, KeptShard, ShardState
from kinesis_trident.spout.planner.settling.finished_batch import CommittedBatch
from kinesis_trident.spout.planner.settling.shard_events import BatchSettled, ShardUnit
from kinesis_trident.spout.planner.shards.lineage import mark_drained
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.positions import After, ShardEnd, parse_position
from kinesis_trident.tracker.few_failures import Few
from kinesis_trident.tracker.given_turns import GivenTurn
from kinesis_trident.tracker.open_shard import OpenShard
from kinesis_trident.tracker.records import RecordPosition, Run
from kinesis_trident.tracker.retry import Fates, RetryPolicy
from kinesis_trident.tracker.settling import TurnFacts, settle

_FEW_SHARDS = 500
"""The size up to which a plan is one node, and the multi that settles a batch removes its remains too."""

_MANY_DELIVERIES = 64


@dataclass(frozen=True, slots=True)
class InflightRules:
    """What decides how the unfinished records of a source go on.

    Attributes:
        policy: of retries.
        rng: for their jitter.
        max_retrying: `maxRetryingRecords`.
        timeout: milliseconds that records read with `ackMode=explicit` wait for their acks; None if none waits.
        max_inflight: the maximum of unfinished records of a shard; None for no limit, with `ackMode=batch`.
        buries: dead records go somewhere; otherwise (`onExhausted=fail`) one would stop the query.
        target: where they go, for people to read.
    """

    policy: RetryPolicy
    rng: random.Random
    max_retrying: int
    timeout: int | None = None
    max_inflight: int | None = None
    buries: bool = True
    target: str = "skip"

    def fates(self, now: int) -> Fates:
        """Return what decides on records that fail at one time."""
        return Fates(self.policy, now, self.rng)

    def open_shard_of(self, state: ShardState) -> OpenShard:
        """Return the open records of a shard, as its nodes have them."""
        position = state.position
        # The last record that was ever delivered, where that is known.
        through = position.record if isinstance(position, After | ShardEnd) else None
        kept = None if state.kept is None else state.kept.records
        # Each reset is a delivery of its own; those that no record is in any more go where the node is read.
        if kept is not None and all(len(turn.deliveries) <= _MANY_DELIVERIES for turn in kept.held.values()):
            return kept.resume(through)
        return OpenShard.read(
            state.safe,
            state.waiting,
            state.dead,
            pending=state.pending,
            turns=state.turns,
            through=through,
        )

    def keep(self, shard: OpenShard, txid: int) -> KeptShard:
        """Return the open records as they are stored, and whether the shard may read on."""
        # Exhausted runs are about to be written for people to read.
        few = Few("shard")
        dead, waiting = few.limit(shard.dead), few.limit(shard.waiting)
        held = shard.count if self.max_inflight is not None else 0
        stored = shard.stored(waiting, dead)
        node = InflightNode(
            txid=txid,
            dead=dead,
            waiting=waiting,
            blocked=self.explain_block(len(dead) + len(waiting), held),
            pending=stored.pending,
            turns=tuple(sorted(stored.held)),
            counted=True,
        )
        return KeptShard(node, stored)

    def explain_block(self, retrying: int, held: int) -> str:
        """Return why a shard with so many failed runs and unfinished records reads nothing new; empty if it reads."""
        max_retrying = min(self.max_retrying, RUNS_A_SHARD)
        if retrying >= max_retrying:
            groups = count_noun(
                retrying, "group of failed neighbours waits", "groups of failed neighbours wait"
            )
            limit = f"maxRetryingRecords is {max_retrying}"
            return f"{groups} for a retry, and {limit}: the shard reads nothing new until some are done"
        if self.max_inflight is not None and held >= self.max_inflight:
            return (
                f"{count_noun(held, 'record is', 'records are')} read and not done, and maxInflightRecords is "
                f"{self.max_inflight}: the shard reads nothing new until some are acked"
            )
        return ""


class CommittedTurn(msgspec.Struct, frozen=True):
    """One shard's part of a batch that Spark has committed.

    Attributes:
        plan: of the batch.
        shard: its name in the plan.
        source: the prefix of its message ids.
        pin: None if nothing ran (an empty turn: position and due retries stay).
        not_done: the outcome.
        now: epoch milliseconds.
    """

    plan: Plan
    shard: str
    source: str
    pin: Pin | None
    not_done: Sequence[NotDone]
    now: int


def settle_batch(
    shards: Shards, finished: CommittedBatch, rules: InflightRules, layout: Layout, now: int
) -> BatchSettled:
    """Settle a batch that Spark has committed, but for the shards that bear its stamp: they were settled before.

    Raises:
        CorruptNodeError: an outcome, a pin and the records in flight do not agree with each other.
    """
    plan, pins, not_done = finished.plan, finished.pins, finished.not_done
    units, states = list[ShardUnit](), dict(shards.states)
    for shard in plan.shards:
        before = shards.of(plan, shard)
        if before.checkpoint is not None and before.checkpoint.txid >= plan.txid:
            continue
        turn = CommittedTurn(
            plan, shard, layout.source_of(shard), pins.get(shard), not_done.get(shard, ()), now
        )
        try:
            states[shard], buried = settle_shard(before, turn, rules)
        except ValueError as error:
            raise misfit_error(layout.pin_of(plan.txid, shard), error) from error
        node, letters = shards.dead_letters.get(shard), None
        if buried or node is not None:
            with name_in_errors(layout.deadletters_of(shard)):
                letters = letters_after(node, states[shard], buried, rules.target)
        units.append(ShardUnit(shard, states[shard], letters, buried))
    # Those of missed shards are there, too.
    nodes = [state.checkpoint for state in {**shards.missed, **states}.values()]
    ended = [shard for shard, pin in pins.items() if pin.closed]
    # A purge removes plans and outcomes of many nodes; pins with positions of records in flight stay.
    stays = plan.retries or plan.dead or not_done or len(plan.positions) >= _FEW_SHARDS
    stays = stays or any(plan.txid in state.turns for state in states.values())
    return BatchSettled(
        finished,
        now,
        units,
        SettledNode(
            txid=plan.txid,
            plan=plan.plan,
            stamped=len(plan.shards),
            begun=sum([node is not None and node.txid > 0 for node in nodes]),
        ),
        mark_drained(shards.lineage, ended) if ended else shards.lineage,
        ended,
        () if stays else layout.nodes_of_batch(plan.txid, finished.found, outcome=finished.judged),
    )


def settle_shard(
    state: ShardState, turn: CommittedTurn, rules: InflightRules
) -> tuple[ShardState, tuple[DeadLetterRecord, ...]]:
    """Settle one shard of a batch; `state` is the shard before it.

    Returns:
        The shard after it, and its runs that were dead-lettered (or skipped) in the batch.

    Raises:
        ValueError: the outcome names records that the turn did not deliver.
    """
    plan, pin = turn.plan, turn.pin
    if pin is not None and pin.last is not None and _leaves_nothing_in_flight(state, turn, rules):
        node = _checkpoint_after(turn, state.checkpoint, RecordPosition.parse(pin.last))
        idle = InflightNode(txid=plan.txid, waiting=(), counted=True)
        return ShardState(state.start, node, idle), ()
    open_shard, buried = rules.open_shard_of(state), list[Run]()
    if pin is not None:
        open_shard, buried = settle(open_shard, _facts_of(turn, pin, rules), rules.fates(turn.now))
    kept = rules.keep(open_shard, plan.txid)
    node = _checkpoint_after(turn, state.checkpoint, open_shard.safe, kept.node.size)
    left = () if kept.node.is_empty else (kept.records.held.records, kept)
    return ShardState(state.start, node, kept.node, *left), tuple(_letter(run, turn) for run in buried)


def _facts_of(turn: CommittedTurn, pin: Pin, rules: InflightRules) -> TurnFacts:
    """Return what a turn has delivered, and what of it failed."""
    # The `ackMode` that the records were read with decides whether they are done with their batch.
    given = None
    if rules.timeout is not None and pin.positions:
        rows = positions_of(turn.plan, turn.shard, turn.source, pin)
        given = GivenTurn(pin.txid, rows, turn.now + rules.timeout, pin.lost)
    return TurnFacts(
        due=turn.plan.due(turn.shard),
        served=pin.served,
        failed=turn.not_done,
        through=pin.through,
        missing=pin.missing,
        invalid=pin.invalid,
        # Records that a replay no longer found were delivered once, and the outcome may name them.
        fresh=None if given or pin.last is None else (pin.last, max(pin.fresh + pin.lost, 1)),
        given=given,
    )


def _leaves_nothing_in_flight(state: ShardState, turn: CommittedTurn, rules: InflightRules) -> bool:
    """Return whether a turn leaves nothing to track: most do, and shards may be very many."""
    plan, shard, pin = turn.plan, turn.shard, turn.pin
    return (
        not (turn.not_done or state.waiting or state.dead or state.pending)
        and shard not in plan.retries
        and shard not in plan.dead
        and (rules.timeout is None or pin is None or not pin.positions)
    )


def _checkpoint_after(
    turn: CommittedTurn, before: CheckpointNode | None, done: RecordPosition | None, held: int = 0
) -> CheckpointNode:
    """Return the node of a shard after a batch; `done` is its safe checkpoint, `held` counts its runs in flight."""
    plan, pin = turn.plan, turn.pin
    looked = pin if pin is not None and plan.reads(turn.shard) and _has_seen_tip(pin) else before
    return CheckpointNode(
        checkpoint=done.sequence if done else None,
        sub=done.sub if done else -1,
        txid=plan.txid,
        position=_position_after(plan.positions[turn.shard], pin),
        arrival=(pin.arrival if pin else None) or (before.arrival if before else None),
        seen=looked.seen if looked else None,
        behind_ms=looked.behind_ms if looked else 0,
        read=(before.read if before else 0) + (pin.fresh if pin else 0),
        held=held,
    )


def _has_seen_tip(pin: Pin) -> bool:
    """Return whether a turn has found the shard's tip: one that was throttled at once has not."""
    return pin.seen is not None or pin.last is not None or pin.end != pin.start or pin.closed


def _position_after(start: str, pin: Pin | None) -> str:
    if pin is None:
        return start
    if not pin.closed:
        return pin.end
    before = parse_position(pin.start)
    known = before.record if isinstance(before, After) else None
    return str(ShardEnd(RecordPosition.parse(pin.last) if pin.last else known))


def _letter(run: Run, turn: CommittedTurn) -> DeadLetterRecord:
    return DeadLetterRecord(
        message_id=str(MessageId.of_run(turn.source, run)),
        attempts=run.attempt,
        reason=run.failures[-1].reason if run.failures else "",
        time=turn.now,
        txid=turn.plan.txid,
        count=run.count,
    )
