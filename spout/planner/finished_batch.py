"""Reads the pins and the outcome of a batch that Spark has committed from ZooKeeper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kinesis_trident.checkpoint.errors import BatchMissingError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import NotDone, Pin, Plan
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.data_loss import deleted, gone_before, replayed_without
from kinesis_trident.spout.errors import OutcomeMissingError
from kinesis_trident.spout.kinesis.record_batches import digest_of
from kinesis_trident.spout.planner.streams import Streams
from kinesis_trident.tracker.reasons import is_held

__all__ = ["Finished"]


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished batch; a missing node never means done.

    Attributes:
        pins: of its turns, by shard; empty if Spark has left the scan out.
        not_done: the outcome, by shard.
        judged: there is an outcome.
        pinned: the shards with a pin of any plan, to be removed.
    """

    pins: Mapping[str, Pin]
    not_done: Mapping[str, Sequence[NotDone]]
    judged: bool
    pinned: tuple[str, ...]

    @classmethod
    def of(cls, store: SourceStore, plan: Plan, epoch: int, *, judged: bool = False) -> Finished:
        """Read a batch, and pin its unpinned turns as empty, so that a late task yields no rows.

        If a task has pinned a turn in the meantime, that pin is valid. `judged`: an outcome is expected.

        Raises:
            OutcomeMissingError: its records were judged, but the outcome is missing; nothing was changed.
            FencedError: a newer run has taken over.
        """
        found, acks, judging = store.batches.finished(plan.txid, plan.shards, judging=not judged)
        ours = {shard: pin for shard, pin in found.items() if pin.plan == plan.plan}
        if acks is not None and acks.plan == plan.plan:
            not_done = acks.not_done
        elif store.judging.owes_outcome(
            store.judging.get() if judged else judging, plan.txid, {pin.epoch for pin in ours.values()}
        ):
            raise _outcome_missing(store, plan)
        else:
            not_done = {}
        missing = [shard for shard in plan.shards if shard not in ours]
        try:
            found |= store.batches.create_pins(
                {shard: empty_turn(plan, shard, epoch) for shard in missing}, epoch
            )
        except BatchMissingError:
            # Spark has left the scan out, so the plan was never stored: nobody can pin anything.
            found = {}
        pins = {shard: pin for shard, pin in found.items() if pin.plan == plan.plan}
        return cls(pins, not_done, acks is not None, tuple(found))

    def failures(self) -> dict[str, Counter[str]]:
        """Return how many records failed for each reason, by shard; those that bolts hold have not failed."""
        found = {}
        for shard, pieces in self.not_done.items():
            counts: Counter[str] = Counter()
            for piece in pieces:
                counts[piece.reason] += piece.count
            found[shard] = Counter({why: count for why, count in counts.items() if not is_held(why)})
        return found

    def losses(self, txid: int, layout: Layout, streams: Streams) -> Iterator[tuple[str, str]]:
        """Return the records that its turns could not read: a description, and the place of the loss."""
        for shard, pin in self.pins.items():
            if not (pin.gone or pin.lost):
                continue
            key, info = layout.key_of(shard), streams.info_of(shard)
            if pin.gone:
                what = (
                    gone_before(info, key.shard, pin.start, txid)
                    if info is not None
                    else deleted(key.stream, {key.shard: pin.start})
                )
                yield what, f"{shard} {pin.start}"
            else:
                yield replayed_without(key, pin), f"{shard} txid {txid}"


def _outcome_missing(store: SourceStore, plan: Plan) -> OutcomeMissingError:
    layout = store.layout
    return OutcomeMissingError(
        f"Spark has committed txid {plan.txid}, whose records were judged ({layout.judging}), but "
        f"{layout.acks_of(plan.txid)} does not exist: ZooKeeper was restored from a copy made before the outcome was "
        "published, or the batch function was not called for this batch. Which records failed is unknown, so none "
        "counts as done"
    )


def empty_turn(plan: Plan, shard: str, epoch: int) -> Pin:
    """Return the pin of a turn that did not run: its position and due retries stay for a later batch."""
    at = plan.positions[shard]
    return Pin(
        txid=plan.txid,
        plan=plan.plan,
        epoch=epoch,
        start=at,
        end=at,
        last=None,
        count=0,
        fresh=0,
        digest=digest_of(()),
        xor=0,
    )
