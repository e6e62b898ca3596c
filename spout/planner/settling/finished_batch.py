"""Reads the pins and the outcome of a batch that Spark has committed from ZooKeeper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kinesis_trident.checkpoint.errors import BatchMissingError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import BatchOutcome, JudgingNode, NotDone, Pin, Plan
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.data_loss import (
    describe_deleted,
    describe_gone_before_read,
    describe_partial_replay,
)
from kinesis_trident.spout.errors import OutcomeMissingError
from kinesis_trident.spout.kinesis.record_batches import digest_of
from kinesis_trident.spout.planner.streams import Streams
from kinesis_trident.tracker.failure import is_behind, is_held
from kinesis_trident.tracker.runs import Runs


@dataclass(frozen=True, slots=True)
class Committed:
    """The part of a committed batch that is done.

    Attributes:
        not_done: the records that are not, by shard.
        unread: the shards whose turns were never processed, although they are pinned.
        is_plain_now: a plain query has committed the batch, and the note says that an earlier run judges.
        warning: what was not as it should be, and what follows; empty where nothing was.
    """

    not_done: Mapping[str, Sequence[NotDone]]
    unread: frozenset[str] = frozenset()
    is_plain_now: bool = False
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """How the Spark checkpoint that names a batch as committed came to it.

    Attributes:
        ours: Spark has committed the batch under this run.
        stored: this run has stored its plan, as Spark asked for the partitions.
        same_spark_checkpoint: the run that took the batch over last did so for this Spark checkpoint.
        later: the batch after it, if Spark has logged that: then this one was settled before.
    """

    ours: bool
    stored: bool = False
    same_spark_checkpoint: bool = True
    later: Plan | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """The nodes that show what became of a batch that Spark has committed. Pure.

    What counts is the kind of the run under which Spark has committed it: one that judges says so before its first job,
    and publishes an outcome; for a plain one all that it has read is done. Each task marks the pins of the turns that
    it reads with its run.

    Attributes:
        layout: of the source.
        plan: of the batch.
        run: the newest run that has taken it over.
        origin: unless the batch is ours, Spark may have committed it under an earlier run: both were alive, and the
            newer one died before it read a row.
        pins: of the batch, by shard.
        outcome: of the batch.
        judging: the note of the runs that judge.
        gone: the path of a pin that is missing, if somebody has deleted one; else empty.
    """

    layout: Layout
    plan: Plan
    run: int
    origin: Origin
    pins: Mapping[str, Pin]
    outcome: BatchOutcome | None
    judging: JudgingNode | None
    gone: str = ""

    def weigh(self) -> Committed:
        """Decide what of the batch is done.

        Raises:
            OutcomeMissingError: it cannot be decided, because ZooKeeper's data is older than Spark's checkpoint.
        """
        self._refuse_lost_turns()
        published = self.outcome.not_done if self.outcome is not None else {}
        if self._is_judged(self.run) or (self.outcome is not None and self.outcome.epoch == self.run):
            if self.outcome is None:
                raise self._missing_error()
            return Committed(published)
        if not self.origin.same_spark_checkpoint:
            if self.outcome is None and self._is_judged_since(self.plan.epoch):
                by = f", and which the run of epoch {self.run} took over for another Spark checkpoint"
                raise self._missing_error(by)
            if self.outcome is not None or self.pins:
                return Committed(published)
        ours, unread = self.origin.ours, {s for s, pin in self.pins.items() if self._is_judged(pin.epoch)}
        is_plain = ours or any(pin.epoch == self.run for pin in self.pins.values())
        if self.outcome is not None and not is_plain:
            return Committed(published)
        # Sinks such as Spark's files skip a batch that they hold: then an earlier plain run has read it.
        if is_plain or len(unread) < len(self.pins):
            doubtful = set() if ours else self._find_doubtful()
            again = frozenset(unread | doubtful)
            # If it is not certain, who has published may have committed too: then the failed records come again.
            left = {} if ours else {s: runs for s, runs in published.items() if s not in again}
            warning = self._describe_takeover(unread, left, doubtful) if is_plain or doubtful else ""
            return Committed(left, again, is_plain and self.judging is not None, warning)
        if self.pins:
            by = f", and none read by the run of epoch {self.run}, which took it over"
            raise self._missing_error(by)
        return Committed({}, warning=self._describe_nothing_pinned())

    def _is_judged(self, run: int) -> bool:
        return self.judging is not None and self.judging.judged(run)

    def _is_judged_since(self, run: int) -> bool:
        return self.judging is not None and run <= self.judging.epoch

    def _find_doubtful(self) -> set[str]:
        """Return the turns with records that need not be done although a plain query has read them.

        Who begins a batch can commit it as long as its driver lives, whoever has taken the batch over: a plain query
        also without having read all of it, and one that judges also if ZooKeeper was restored and has its outcome no
        more. What a plain run has read that began the batch is done in any case; so is what the next batch goes on
        behind, whose planner knew.
        """
        plan, later, first = self.plan, self.origin.later, self.plan.adopter or self.plan.epoch
        is_judged = self._is_judged_since(first)
        if not first or (is_judged and self.outcome is not None):
            return set()
        return {
            shard
            for shard, pin in self.pins.items()
            if pin.count
            and (is_judged or first < pin.first_reader)
            and (later is None or later.positions.get(shard) == plan.positions[shard])
        }

    def _refuse_lost_turns(self) -> None:
        """Check that no pin was deleted, and that no turn lacks one which Spark's next batch continues."""
        later, plan = self.origin.later, self.plan
        if self.gone:
            msg = f"{self.gone} does not exist, and somebody has deleted a pin: what the batch has read is unknown"
            raise OutcomeMissingError(msg)
        if later is None:
            return
        lost = [
            shard
            for shard in plan.shards
            if shard not in self.pins
            and (plan.due(shard) or later.positions.get(shard) != plan.positions[shard])
        ]
        if lost:
            msg = (
                f"Spark's checkpoint continues after txid {plan.txid}, but {self.layout.pin_of(plan.txid, lost[0])} "
                "does not exist: ZooKeeper was restored from a copy made before the batch was read"
            )
            raise OutcomeMissingError(msg)

    def _describe_nothing_pinned(self) -> str:
        """Say that no turn was read, as far as ZooKeeper knows: a plain query may have left them out.

        Raises:
            OutcomeMissingError: the application judges its records, so it reads each turn.
        """
        where = self.layout.batch_of(self.plan.txid)
        what = f"Spark has committed txid {self.plan.txid}, but {where} has no pin"
        restored = "ZooKeeper was restored from a copy made before the batch was read"
        if self.judging is not None:
            msg = f"{what}, although the query judges its records ({self.layout.judging}): {restored}"
            raise OutcomeMissingError(msg)
        return (
            f"{what}: the query ran nothing of the batch, or {restored}. Its records are read under txid "
            f"{self.plan.txid + 1}, in the second case AGAIN (at least once)"
        )

    def _describe_takeover(
        self, unread: Collection[str], left: Mapping[str, Sequence[NotDone]], doubtful: Collection[str]
    ) -> str:
        """Say what follows from the plain query's taking over a batch; empty if nothing does."""
        judged = self.plan.epoch and self._is_judged_since(self.plan.epoch)
        is_change = self.outcome is not None or unread or judged
        if not is_change and not doubtful:
            return ""
        by = "a run that judges its records" if is_change else "an earlier run"
        again = (
            *([f"its records (shards: {len(doubtful)})"] if doubtful else ()),
            *(["the records that failed in its outcome"] if left else ()),
            *(["what only the first one has read"] if unread else ()),
        )
        done, follows = (
            ("taken over", "; under which of them Spark has committed it is not known")
            if doubtful or left
            else (
                "committed",
                ", for which all that it has read is done. What the first one wrote is written again",
            )
        )
        return (
            f"txid {self.plan.txid} was begun by {by}, and {done} by a plain query (epoch {self.run}){follows}"
            + (f"; there come AGAIN (at least once): {', '.join(again)}" if again else "")
        )

    def _missing_error(self, by: str = "") -> OutcomeMissingError:
        return OutcomeMissingError(
            f"Spark has committed txid {self.plan.txid}, whose records were judged ({self.layout.judging}){by}, but "
            f"{self.layout.acks_of(self.plan.txid)} does not exist: ZooKeeper was restored from a copy made before the "
            "outcome was published, or the batch function was not called for this batch. Which records failed is "
            "unknown, so none counts as done"
        )


@dataclass(frozen=True)
class CommittedBatch:
    """A finished batch; a missing node never means done.

    Attributes:
        plan: of it.
        found: the pins of its turns, of any plan, by shard: they are removed with it.
        verdict: on what the outcome and the pins show.
        judged: there is an outcome.
        since: the milliseconds from the end of the settling before to each pin, by the clock of ZooKeeper.
        empty: the pins of the turns that nobody has processed, still to be written.
    """

    plan: Plan
    found: Mapping[str, Pin]
    verdict: Committed
    judged: bool
    since: Mapping[str, int]
    empty: Mapping[str, Pin]

    @classmethod
    def of(
        cls, store: SourceStore, plan: Plan, epoch: int, origin: Origin, *, judged: bool = False
    ) -> CommittedBatch:
        """Read a batch for the run of this epoch; `judged`: an outcome is expected.

        Raises:
            OutcomeMissingError: it is not known what of the batch is done.
        """
        found, acks, judging, since = store.batches.read_finished(plan.txid, plan.shards, judging=not judged)
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
        return cls(plan, found, verdict, acks is not None, since, empty)

    def pin_empty(self, store: SourceStore, epoch: int, *, is_stored: bool) -> CommittedBatch:
        """Pin the turns that nobody has processed as empty, so that a late task yields no rows.

        If a task has pinned a turn in the meantime, that pin is valid. `is_stored`: this run has stored the plan.

        Raises:
            StateMissingError: somebody has deleted its plan; nothing was changed.
            FencedError: a newer run has taken over.
        """
        made = {shard: pin for shard, pin in self.empty.items() if shard not in self.pins}
        try:
            found = {**self.found, **store.batches.create_pins(made, epoch)}
            for shard in self.verdict.unread:
                store.batches.replace_pin(shard, self.empty[shard], epoch)
                found[shard] = self.empty[shard]
        except BatchMissingError:
            if is_stored:
                where = store.layout.batch_of(self.plan.txid)
                deleted = f"{where} does not exist, which this run has stored"
                raise store.shards.lost_error(deleted) from None
            # Spark has left the scan out, so the plan was never stored: nobody can pin anything.
            found = {}
        return replace(self, found=found, empty={})

    @cached_property
    def pins(self) -> Mapping[str, Pin]:
        """Return the pins of its turns, by shard; empty if Spark has left the scan out."""
        return {shard: pin for shard, pin in self.found.items() if pin.plan == self.plan.plan}

    @cached_property
    def not_done(self) -> Mapping[str, Sequence[NotDone]]:
        """Return the records that are not done, and those that could not be decoded, by shard."""
        found = {**self.verdict.not_done}
        for shard, pin in self.pins.items():
            if pin.unreadable:
                # An outcome may name, one by one, records that had no row.
                found[shard] = tuple(Runs.sort(pin.unreadable).union(found.get(shard, ())))
        return found

    @cached_property
    def failures(self) -> Mapping[str, Mapping[str, int]]:
        """Return how many records failed for each reason, by shard; those that bolts hold, or that wait, have not."""
        found = {}
        for shard, pieces in self.not_done.items():
            counts: Counter[str] = Counter()
            for piece in pieces:
                if not (is_held(piece.text) or is_behind(piece.text)):
                    counts[piece.reason] += piece.count
            found[shard] = counts
        return found

    def losses(self, layout: Layout, streams: Streams) -> Iterator[tuple[str, str]]:
        """Return the losses of its turns, which could not read some records: the shard, and a description."""
        txid = self.plan.txid
        for shard, pin in self.pins.items():
            if not (pin.gone or pin.lost):
                continue
            key, info = layout.key_of(shard), streams.info_of(shard)
            if pin.gone:
                what = (
                    describe_gone_before_read(info, key.shard, pin.start, txid)
                    if info is not None
                    else describe_deleted(key.stream, {key.shard: pin.start})
                )
                yield shard, what
            else:
                yield shard, describe_partial_replay(key, pin)


def empty_turn(plan: Plan, shard: str, epoch: int) -> Pin:
    """Return the pin of a turn that did not run: its position and due retries stay for a later batch."""
    return Pin.empty(plan.txid, plan.plan, epoch, plan.positions[shard], digest_of(()))
