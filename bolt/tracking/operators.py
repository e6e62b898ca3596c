"""The tracked operators that run in the executors: generators over Arrow batches that report once, at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kinesis_trident.bolt.errors import BatchFailedError
from kinesis_trident.bolt.steps.functions import Judged, Step
from kinesis_trident.bolt.steps.key_order import KeyOrder
from kinesis_trident.bolt.steps.parts import chain
from kinesis_trident.bolt.steps.watchdog import Watch, watched
from kinesis_trident.bolt.tracking.anchors import Anchors, anchors_of, salt_of
from kinesis_trident.bolt.tracking.carriers import Sender
from kinesis_trident.bolt.tracking.failed import Failed, failures_in
from kinesis_trident.bolt.tracking.place import current_place
from kinesis_trident.bolt.tracking.reports import OperatorLedger
from kinesis_trident.bolt.tracking.spans import Spans
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.common.arrow_columns import numbers, texts
from kinesis_trident.spout.failed_records.retry_spool import RetrySpool
from kinesis_trident.spout.reader.rows import ANCHORS, MESSAGE_ID
from kinesis_trident.tracker.failure import BEHIND, Failure


@dataclass(frozen=True, slots=True)
class Tag:
    """The name under which an operator reports, its batch, its sender, and how its calls are watched."""

    operator: str
    txid: int
    sender: Sender
    watch: Watch | None = None

    def ledger(self) -> OperatorLedger:
        """Return a new ledger for the current task."""
        asked = current_place().spans
        return OperatorLedger(self.operator, self.txid, Spans.parse(asked) if asked else None)

    def judge(self, failure: Failure) -> Failure:
        """Return what the failure of a call means."""
        return failure if self.watch is None else self.watch.judge(failure)


def send(tag: Tag, *ledgers: OperatorLedger) -> None:
    """Send the reports of the current task, of one operator or more; call it only at the end of the input."""
    place = current_place()
    reports = (ledger.reports(place.stage, place.partition) for ledger in ledgers)
    tag.sender.add({key: runs for one in reports for key, runs in one.items()})


@dataclass(frozen=True, slots=True)
class StepOperator:
    """Runs steps over tuples; failed ones are dropped and reported. Without steps all tuples pass.

    `of_source`: the tuples are the source's rows, so failures are reported with their positions, and those that
    `verdict` excludes are dropped. `final`: the outcome is published and not judged again, so a failure fails the
    batch. `carry` names columns of the input that the output keeps beside the steps' schema; with `anchored`, each
    tuple that comes out has new ids in the trees of the tuple that it came from, and is to be judged downstream. An
    operator that is not run to the end of its input reports nothing: nothing is acked whose operators did not run.
    `spool` keeps the source's rows that failed, before the report: their retries need not be fetched. `in_order`: what
    follows a failed record of its key waits with it, and the keys of what is not done are reported.
    """

    tag: Tag
    steps: tuple[Step, ...]
    of_source: bool = True
    carry: tuple[str, ...] = ()
    anchored: bool = False
    verdict: Verdict | None = None
    final: bool = False
    spool: RetrySpool | None = None
    in_order: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the tuples that succeeded."""
        ledger, salt = self.tag.ledger(), salt_of(self.tag.operator)
        lost: list[pa.RecordBatch] = []
        order = KeyOrder() if self.in_order else None
        for batch in batches:
            if batch.num_rows:
                yield from self._judge(batch, ledger, salt, lost, order)
        if self.spool is not None:
            self.spool.put_rows(self.tag.txid, lost)
        send(self.tag, ledger)

    def _judge(
        self,
        batch: pa.RecordBatch,
        ledger: OperatorLedger,
        salt: int,
        lost: list[pa.RecordBatch],
        order: KeyOrder | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the tuples of a batch that succeeded, in parts if they are large."""
        anchors = anchors_of(batch)
        taken = np.arange(batch.num_rows)
        if self.verdict is not None and self.of_source:
            taken = np.flatnonzero(~self.verdict.excluded_in(batch))
        behind = order.find_behind(batch, anchors.roots) if order is not None else taken[:0]
        taken = np.setdiff1d(taken, behind, assume_unique=True) if len(behind) else taken
        given = batch if len(taken) == batch.num_rows else batch.take(numbers(taken))
        if self.of_source:
            ledger.consume_records(anchors, batch.column(MESSAGE_ID), {})
        else:
            ledger.consume(anchors)
        if order is not None and len(behind):
            waits = dict.fromkeys(behind.tolist(), BEHIND)
            self._lose(batch, anchors, waits, ledger, lost, order)
        chained = chain(self.steps, given)
        if order is not None:
            chained = order.judge(batch, anchors.roots, taken, chained)
        parts = watched(chained, self.tag.watch, anchors, range(batch.num_rows))
        for judged in parts:
            rows = np.fromiter(judged.failed, np.int64, len(judged.failed))
            failed = dict(zip(taken[rows].tolist(), map(self.tag.judge, judged.failed.values()), strict=True))
            if failed:
                self._lose(batch, anchors, failed, ledger, lost, order)
            columns = self._columns(batch, judged, taken)
            if self.anchored:
                # A part has all tuples of its input rows, so their numbers are the same as in the whole.
                made = anchors.children(taken[judged.source], salt)
                ledger.produce(made)
                columns[ANCHORS] = made.column()
            yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _lose(
        self,
        batch: pa.RecordBatch,
        anchors: Anchors,
        failed: Mapping[int, Failure],
        ledger: OperatorLedger,
        lost: list[pa.RecordBatch],
        order: KeyOrder | None,
    ) -> None:
        """Report rows that are not done."""
        self._fail(batch, anchors, failed, ledger)
        if order is not None:
            ledger.note_keys(anchors.roots[list(failed)], order.hashes_of(batch, failed))
        if self.spool is not None:
            lost.append(batch.take(numbers(np.array(sorted(failed), np.int64))))

    def _fail(
        self, batch: pa.RecordBatch, anchors: Anchors, failed: Mapping[int, Failure], ledger: OperatorLedger
    ) -> None:
        if self.final:
            row = min(failed)
            what = (
                f"record {batch.column(MESSAGE_ID)[row]}"
                if self.of_source
                else f"a tuple of {self.tag.operator}"
            )
            raise failed_in_replay(what, failed[row])
        if self.of_source:
            ledger.fail_records(anchors, failed)
            return
        for row, failure in failed.items():
            ledger.fail(anchors.roots_at(row), failure)

    def _columns(self, batch: pa.RecordBatch, judged: Judged, taken: np.ndarray) -> dict[str, pa.Array]:
        names = [name for name in judged.rows.schema.names if name not in (*self.carry, ANCHORS)]
        columns = {name: judged.rows.column(name) for name in names}
        if self.carry:
            kept = numbers(taken[judged.source])
            columns |= {name: batch.column(name).take(kept) for name in self.carry}
        return columns


def failed_in_replay(what: str, failure: Failure) -> BatchFailedError:
    """Return the error for a tuple that failed under a verdict that counts its record as done."""
    msg = (
        f"{what} failed in a replay of its batch ({failure}), but the batch's published outcome counts the record as "
        "done: a store may hold it already. The batch is tried again"
    )
    return BatchFailedError(msg)


@dataclass(frozen=True, slots=True)
class Finder:
    """Finds the positions of records that failed downstream, by their ordinals: runs over the source's rows.

    `wanted`: the records, by shard index.
    """

    tag: Tag
    wanted: Mapping[int, Failed]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Report the positions; yields no rows."""
        ledger = self.tag.ledger()
        for batch in batches:
            if batch.num_rows:
                anchors = anchors_of(batch)
                found = failures_in(self.wanted, anchors.roots)
                ledger.consume_records(anchors, batch.column(MESSAGE_ID), found)
        send(self.tag, ledger)
        yield pa.RecordBatch.from_arrays([texts([])], [MESSAGE_ID])
