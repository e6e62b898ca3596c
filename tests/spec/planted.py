"""Errors planted in the code: a rule of the protocol is broken at its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from kinesis_trident.checkpoint.model.nodes import BatchOutcome, Pin
from kinesis_trident.checkpoint.store import batches, epochs, notes
from kinesis_trident.spout.planner import reconciler
from kinesis_trident.spout.planner.settling import finished_batch

__all__ = ["PLANTED", "Planted"]

Plant = Callable[[pytest.MonkeyPatch], None]


class Planted(NamedTuple):
    """The rule that is broken, how, and a family whose schedules come there."""

    rule: str
    what: str
    plant: Plant
    family: str

    def __str__(self) -> str:
        return self.what


def _forget_failures(patch: pytest.MonkeyPatch) -> None:
    weigh = finished_batch.Evidence.weigh

    def lenient(self: Any) -> finished_batch.Verdict:
        verdict = weigh(self)
        return finished_batch.Verdict({}, verdict.unread, verdict.is_plain_now, verdict.warning)

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


PLANTED = [
    Planted("queue", "settling forgets the failures", _forget_failures, "one"),
    Planted(
        "doubt", "what a plain query has read is done, whoever has committed", _doubt_nothing, "lagging-plain"
    ),
    Planted("doubt", "a pin forgets who has made it", _forget_the_maker, "plain"),
    Planted("doubt", "a pin does not say who has read it last", _leave_pins_unmarked, "one"),
    Planted("pin", "a task pins a turn anew", _pin_anew, "one"),
    Planted("begun", "a begun batch does not come first", _leave_a_begun_batch, "many"),
    Planted(
        "memory", "a start does not heed the epochs of Spark's offset", _forget_epochs, "restored-folder"
    ),
    Planted("once", "a replay judges again, and overwrites the outcome", _judge_again, "one"),
    Planted("judging", "a driver does not say that it judges", _say_nothing, "one"),
    Planted("conflict", "each start counts as of another checkpoint", _give_every_plan_away, "one"),
]
"""Each is refused by the specification; the model's own promises see some of them."""
