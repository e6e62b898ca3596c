"""Errors planted in the code: a rule of the protocol is broken at its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest

from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.checkpoint.model.nodes import BatchNode, BatchOutcome, Pin
from kinesis_trident.checkpoint.store import batches, epochs, fenced_nodes, notes, shards
from kinesis_trident.checkpoint.zookeeper.operations import Op
from kinesis_trident.spout.errors import OutcomeMissingError
from kinesis_trident.spout.planner import reconciler, run, state
from kinesis_trident.spout.planner.settling import finished_batch, settlement
from kinesis_trident.spout.planner.shards import source_shards

__all__ = ["PLANTED", "RARE", "Planted"]

Plant = Callable[[pytest.MonkeyPatch], None]


class Planted(NamedTuple):
    """The rule that is broken, how, and a family whose schedules come there; `seed`: of one that does today."""

    rule: str
    what: str
    plant: Plant
    family: str
    seed: int = 1

    def __str__(self) -> str:
        return self.what


def _forget_failures(patch: pytest.MonkeyPatch) -> None:
    weigh = finished_batch.Evidence.weigh

    def lenient(self: Any) -> finished_batch.Committed:
        verdict = weigh(self)
        return finished_batch.Committed({}, verdict.unread, verdict.is_plain_now, verdict.warning)

    patch.setattr(finished_batch.Evidence, "weigh", lenient)


def _leave_out_what_was_published(patch: pytest.MonkeyPatch) -> None:
    weigh = finished_batch.Evidence.weigh

    def lenient(self: Any) -> finished_batch.Verdict:
        found = weigh(self)
        by_plain = any(pin.epoch == self.run for pin in self.pins.values())
        return replace(found, not_done={}) if by_plain and not self._is_judged(self.run) else found

    patch.setattr(finished_batch.Evidence, "weigh", lenient)


def _doubt_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(finished_batch.Evidence, "_find_doubtful", lambda _: set())


def _forget_the_maker(patch: pytest.MonkeyPatch) -> None:
    def mark(self: Any, found: Pin, epoch: int) -> Pin:
        return msgspec.structs.replace(found, epoch=max(found.epoch, epoch))

    patch.setattr(batches.BatchStore, "_mark_pin", mark)


def _leave_pins_unmarked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batches.BatchStore, "_mark_pin", lambda _, found, __: found)


def _pin_anew(patch: pytest.MonkeyPatch) -> None:
    def create(self: Any, shard: str, pin: Pin, epoch: int) -> tuple[Pin, bool]:
        self.replace_pin(shard, pin, epoch)
        return pin, True

    patch.setattr(batches.BatchStore, "create_pin", create)
    patch.setattr(batches.BatchStore, "adopt_pin", lambda *_: None)


def _leave_a_begun_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconciler.Reconciler, "_leave_out_used", lambda *_: None)


def _forget_epochs(patch: pytest.MonkeyPatch) -> None:
    raise_epoch = epochs.Epochs.raise_epoch

    def heedless(self: Any, *given: Any, **more: Any) -> Any:
        return raise_epoch(self, *given, **{**more, "known": None, "above": 0})

    patch.setattr(epochs.Epochs, "raise_epoch", heedless)


def _judge_again(patch: pytest.MonkeyPatch) -> None:
    newest = batches.BatchStore.newest_unsettled

    def put(self: Any, acks: BatchOutcome, epoch: int) -> tuple[BatchOutcome, bool]:
        self._nodes.update(self._layout.acks_of(acks.txid), BatchOutcome, lambda _: acks, epoch)
        return acks, True

    patch.setattr(batches.BatchStore, "put_outcome", put)
    patch.setattr(batches.BatchStore, "newest_unsettled", lambda self: (*newest(self)[:2], None))


def _say_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(notes.JudgingNote, "declare", lambda *_: [])


def _give_every_plan_away(patch: pytest.MonkeyPatch) -> None:
    put = batches.BatchStore.put

    def adopting(self: Any, plan: Any, epoch: int) -> Any:
        return put(self, msgspec.structs.replace(plan, adopter=epoch), epoch)

    patch.setattr(batches.BatchStore, "put", adopting)


def _write_unfenced(patch: pytest.MonkeyPatch) -> None:
    def begin(self: Any, ops: Sequence[Op], epoch: int) -> Callable[[], bool]:
        return self.session.begin(ops) if ops else lambda: True

    patch.setattr(fenced_nodes.FencedNodes, "begin", begin)


def _publish_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batches.BatchStore, "put_outcome", lambda _, acks, __: (acks, True))


def _publish_no_failures(patch: pytest.MonkeyPatch) -> None:
    put = batches.BatchStore.put_outcome

    def lenient(self: Any, acks: BatchOutcome, epoch: int) -> tuple[BatchOutcome, bool]:
        _, is_ours = put(self, msgspec.structs.replace(acks, not_done={}), epoch)
        return acks, is_ours

    patch.setattr(batches.BatchStore, "put_outcome", lenient)


def _stamp_too_low(patch: pytest.MonkeyPatch) -> None:
    after = settlement._checkpoint_after

    def low(*given: Any) -> Any:
        node = after(*given)
        return msgspec.structs.replace(node, txid=node.txid - 1)

    patch.setattr(settlement, "_checkpoint_after", low)


def _stay_where_it_began(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settlement, "_position_after", lambda start, _: start)


def _plan_without_what_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconciler, "add_waiting", lambda plan, _: plan)


def _count_no_starts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run, "find_highest_epoch", lambda plan, _: plan.epoch)


def _keep_the_epoch_of_a_batch(patch: pytest.MonkeyPatch) -> None:
    put = batches.BatchStore.put
    patch.setattr(
        batches.BatchStore, "put", lambda self, plan, epoch: self.get(plan.txid) or put(self, plan, epoch)
    )


def _adopt_without_what_waits(patch: pytest.MonkeyPatch) -> None:
    adopt = state.SourceState.adopt

    def bare(self: Any, plan: Any, settled: int) -> None:
        adopt(self, msgspec.structs.replace(plan, retries={}, dead={}, notDone={}), settled)

    patch.setattr(state.SourceState, "adopt", bare)


def _publish_for_nobody(patch: pytest.MonkeyPatch) -> None:
    put = batches.BatchStore.put_outcome

    def nameless(self: Any, acks: BatchOutcome, epoch: int) -> tuple[BatchOutcome, bool]:
        return put(self, msgspec.structs.replace(acks, epoch=0), epoch)

    patch.setattr(batches.BatchStore, "put_outcome", nameless)


def _move_before_the_queue(patch: pytest.MonkeyPatch) -> None:
    settle = shards.ShardStore.settle

    def move(self: Any, updates: Any, *given: Any, **more: Any) -> list[str]:
        return settle(self, {shard: (node, None) for shard, (node, _) in updates.items()}, *given, **more)

    patch.setattr(shards.ShardStore, "settle", move)


def _take_absent_for_done(patch: pytest.MonkeyPatch) -> None:
    weigh = finished_batch.Evidence.weigh

    def lenient(self: Any) -> finished_batch.Committed:
        try:
            return weigh(self)
        except OutcomeMissingError:
            return finished_batch.Committed({})

    patch.setattr(finished_batch.Evidence, "weigh", lenient)


def _leave_a_note_that_stands(patch: pytest.MonkeyPatch) -> None:
    declare = notes.JudgingNote.declare

    def seldom(self: Any, epoch: int, *given: Any) -> list[int]:
        found = self.get()
        if found is None or found.epoch != epoch:
            return declare(self, epoch, *given)
        self._declared = epoch
        return []

    patch.setattr(notes.JudgingNote, "declare", seldom)


def _call_whatever_it_hears(patch: pytest.MonkeyPatch) -> None:
    check = CurrentBatch.check_epoch

    def ask(self: CurrentBatch) -> None:
        with suppress(FencedError):
            check(self)

    patch.setattr(CurrentBatch, "check_epoch", ask)


def _read_all_shards(patch: pytest.MonkeyPatch) -> None:
    def find(lineage: Any, _: object) -> list[str]:
        return [shard for shard, node in lineage.items() if node.state != "drained"]

    patch.setattr(source_shards, "find_readable", find)


def _read_without_a_sync(patch: pytest.MonkeyPatch) -> None:
    read, fetch = batches.BatchStore.read_finished, fenced_nodes.FencedNodes.fetch_each

    def reading(self: Any, *given: Any, **more: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(
                fenced_nodes.FencedNodes, "fetch_each", lambda nodes, kinds, **_: fetch(nodes, kinds)
            )
            return read(self, *given, **more)

    patch.setattr(batches.BatchStore, "read_finished", reading)


def _keep_the_note(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(notes.JudgingNote, "forget", lambda *_: None)


def _forget_what_was_lost(patch: pytest.MonkeyPatch) -> None:
    highest = epochs._highest
    patch.setattr(
        epochs, "_highest", lambda one, other: msgspec.structs.replace(highest(one, other), lost_upto=0)
    )


def _store_over_another(patch: pytest.MonkeyPatch) -> None:
    put = batches.BatchStore.put

    def store(self: Any, plan: Any, epoch: int) -> BatchNode:
        path = self._layout.batch_of(plan.txid)
        found = self._nodes.fetch(path, BatchNode)
        if found is None or found.node.plan.plan == plan.plan:
            return put(self, plan, epoch)
        node = BatchNode(epoch=epoch, plan=plan)
        self._nodes.replace(path, node, found, epoch)
        return node

    patch.setattr(batches.BatchStore, "put", store)


RARE = [
    Planted("absent", "a missing outcome means done", _take_absent_for_done, "absent"),
    Planted("note", "a note that stands is not written anew", _leave_a_note_that_stands, "note"),
    Planted("left", "a plain query is taken for who has committed", _leave_out_what_was_published, "left"),
    Planted("check", "a driver that is replaced calls `write`", _call_whatever_it_hears, "check"),
    Planted("conflict", "a plan takes the place of another one", _store_over_another, "conflict"),
]
"""Errors that no schedule of the model comes to; `family` is the story, which is played."""

PLANTED = [
    Planted("judging", "an outcome does not say who has published it", _publish_for_nobody, "one"),
    Planted(
        "queue",
        "a position moves, and its failed records are not queued with it",
        _move_before_the_queue,
        "one",
    ),
    Planted("fence", "a write does not check the epoch", _write_unfenced, "one", seed=2),
    Planted("before", "an outcome is not published", _publish_nothing, "one"),
    Planted("before", "an outcome names no failures", _publish_no_failures, "one"),
    Planted("stamp", "a shard bears the stamp of the batch before", _stamp_too_low, "one"),
    Planted("queue", "a position does not move", _stay_where_it_began, "one"),
    Planted("begun", "a begun batch forgets what waits beside it", _plan_without_what_waits, "many"),
    Planted(
        "starts", "a start does not heed the starts since a plan", _count_no_starts, "restored-folder", seed=3
    ),
    Planted("fence", "a batch that is taken over keeps its epoch", _keep_the_epoch_of_a_batch, "one"),
    Planted("queue", "an adoption forgets what waits", _adopt_without_what_waits, "restored", seed=6),
    Planted("queue", "settling forgets the failures", _forget_failures, "one"),
    Planted(
        "doubt",
        "what a plain query has read is done, whoever has committed",
        _doubt_nothing,
        "lagging-plain",
        seed=62,
    ),
    Planted("doubt", "a pin forgets who has made it", _forget_the_maker, "plain", seed=2),
    Planted("doubt", "a pin does not say who has read it last", _leave_pins_unmarked, "one", seed=6),
    Planted("pin", "a task pins a turn anew", _pin_anew, "one", seed=5),
    Planted("begun", "a begun batch does not come first", _leave_a_begun_batch, "many"),
    Planted(
        "memory",
        "a start does not heed the epochs of Spark's offset",
        _forget_epochs,
        "restored-folder",
        seed=6,
    ),
    Planted("once", "a replay judges again, and overwrites the outcome", _judge_again, "one", seed=6),
    Planted("judging", "a driver does not say that it judges", _say_nothing, "one"),
    Planted("lineage", "a shard is read before its parents are read to their ends", _read_all_shards, "one"),
    Planted("sync", "what decides is read without a sync", _read_without_a_sync, "lagging", seed=23),
    Planted("judging", "a note stays where a plain query has taken over", _keep_the_note, "kinds-many"),
    Planted(
        "memory",
        "a start does not say which epochs a restore took",
        _forget_what_was_lost,
        "restored-state",
        seed=5,
    ),
    Planted("conflict", "each start counts as of another checkpoint", _give_every_plan_away, "one"),
]
"""Each is refused by the specification; the model's own promises see some of them."""
