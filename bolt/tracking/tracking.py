"""Tracks one attempt at a batch: the common mechanism of `reliable()`, topologies of bolts and Trident.

    tracking = Tracking(rows, batch, carrier)               # rows: the batch's DataFrame, as the source gave it
    words = tracking.steps("split", tracking.source, (step,), schema)
    counts = tracking.steps("count", words.on(words.frame.repartition(4, "word")), (other,), schema)
    ...                                                     # whatever actions: on `counts.frame`, several, or none
    verdict = tracking.judge()                              # now every tuple has been judged

A `Tracked` is a DataFrame with the column `__anchors`, and the names of the operators that made its rows. Between
two operators any operation may come that keeps every row with its `__anchors`, once: repartition, select, persist;
`on` replaces the frame by the changed one. `steps` runs functions that judge tuples one by one. `operator` takes
any picklable generator over Arrow batches; it keeps an `OperatorLedger` (`bolt.tracking.reports`) and calls
`bolt.tracking.operators.send` at the end of its input: `consume` the anchors of every tuple that comes in,
`produce` those of every one that goes out, `fail` the roots of what fails.

`judge` adds the reports up (`bolt.tracking.coverage`). An operator whose reports do not cover its input is run
once more to a noop sink. If the sums disagree even then, everything runs once more with sums of spans of records
(`bolt.tracking.spans`), down to single ones: those whose own sums disagree are not done, with the kind `LOST`;
the others are. There is no further Spark job if everything ran and nothing failed except in operators that run in
one worker with those on the source's rows (`bolt.tracking.fusion`); for other failures, one job over the source's
rows finds the positions of those records.

With `isolating`, operators run in child processes of their workers (`bolt.tracking.isolation`), and `deadly` names the
records that ended one. An attempt at a batch that knows such records fails them before any operator gets them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.steps.functions import Step
from kinesis_trident.bolt.tracking.carriers import Carrier, Unheard
from kinesis_trident.bolt.tracking.coverage import (
    OPEN,
    SOURCE,
    find_lost,
    spans_of,
    whole,
)
from kinesis_trident.bolt.tracking.failed import Failed, unite
from kinesis_trident.bolt.tracking.fusion import Operator, Promptly
from kinesis_trident.bolt.tracking.held import Held
from kinesis_trident.bolt.tracking.isolation import Excluded, Isolated
from kinesis_trident.bolt.tracking.judged_facts import JudgedFacts
from kinesis_trident.bolt.tracking.operators import Finder, StepOperator, Tag
from kinesis_trident.bolt.tracking.reports import Reports
from kinesis_trident.bolt.tracking.running_scan import reading_chain, running_scan
from kinesis_trident.bolt.tracking.spans import PROPERTY, WHOLE, Range, Spans
from kinesis_trident.bolt.tracking.tracked import Tracked
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.model.nodes import Pin
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.common.visible_text import make_reason
from kinesis_trident.spout.failed_records.retry_spool import RetrySpool
from kinesis_trident.spout.reader.rows import ANCHORS, MESSAGE_ID, SCHEMA
from kinesis_trident.tracker.failure import Failure, Kind

log = logging.getLogger(__name__)

_FINDER = "__finder"
_FINDING = {_FINDER: (SOURCE,)}
_TAP = "__source"
_TAPPING = {_TAP: (SOURCE,)}
_SURVIVORS = "__survivors"
_ANCHORS = SCHEMA[ANCHORS]


class Tracking:
    """One attempt at a batch; `rows` are the source's rows.

    `verdict` names records to exclude. A published outcome of the batch overrides it and is `final`: then a failure
    fails the batch, never the record. `isolating`: the operators are run for `deadly` alone.
    """

    def __init__(
        self,
        rows: DataFrame,
        batch: JudgedFacts,
        carrier: Carrier,
        verdict: Verdict | None = None,
        *,
        isolating: bool = False,
    ) -> None:
        carrier.clear()
        self._batch = batch
        self._carrier = carrier
        self._wiring: dict[str, tuple[str, ...]] = {}
        self._made: dict[str, Tracked] = {}
        self.held = Held()
        self.final = batch.published is not None
        self.verdict = batch.published if self.final else verdict
        self._rows = rows
        self._isolating = False
        # A replay is read in tasks of Spark's own, because nobody counts its rows here.
        self._scan = None if isolating or self.final else running_scan(rows)
        self.source = Tracked(rows, (SOURCE,), reading_chain(rows, self._scan) if self._scan else None)
        if batch.deadly and not self.final:
            schema = StructType([field for field in rows.schema if field.name != ANCHORS])
            step = Excluded(batch.deadly, arrow_schema(schema))
            self.source = self.steps(_SURVIVORS, self.source, (step,), schema)
        self._isolating = isolating

    @property
    def spool(self) -> RetrySpool | None:
        """The spool of the source's failed rows, if there is one: with all columns of a record."""
        return None if self._isolating else self._batch.spool

    def tag(self, name: str) -> Tag:
        """Return what an operator of this name needs for its reports."""
        watch = self._batch.watch and replace(self._batch.watch, operator=name)
        return Tag(name, self._batch.txid, Unheard() if self._isolating else self._carrier.sender, watch)

    def steps(
        self,
        name: str,
        tuples: Tracked,
        steps: tuple[Step, ...],
        schema: StructType,
        *,
        carry: tuple[str, ...] = (),
        anchored: bool = True,
    ) -> Tracked:
        """Judge tuples one by one; `schema` is that of the steps' rows and of the columns in `carry`.

        Without `anchored` the output is not tracked any further: it has no `__anchors`, and its tuples are acked
        there.

        Raises:
            OperatorError: an operator of this name is there already.
        """
        of_source = tuples.producers == (SOURCE,)
        operator = StepOperator(
            self.tag(name),
            steps,
            of_source,
            carry,
            anchored,
            self.verdict if of_source else None,
            self.final,
            self.spool if of_source else None,
            # What a replay delivers is done by its outcome, in whatever order.
            of_source and self._batch.in_order and not self.final,
        )
        return self.operator(name, tuples, operator, schema, anchored=anchored)

    def operator(
        self, name: str, tuples: Tracked, operator: Operator, schema: StructType, *, anchored: bool = True
    ) -> Tracked:
        """Apply an operator to tuples; `schema` has no `__anchors`, which is added if the output is `anchored`.

        Raises:
            OperatorError: an operator of this name is there already.
        """
        if self._isolating:
            operator = Isolated(replace(self.tag(name), sender=self._carrier.sender), operator)
        fields: list[StructField] = [*schema.fields, *([_ANCHORS] if anchored else [])]
        made = tuples.through(operator, StructType(fields), (name,))
        self._add(name, tuples.producers, made)
        return made

    def stream(self, name: str, of: str, tuples: Tracked, frame: DataFrame) -> Tracked:
        """Return those of an operator's output `tuples` that it reports under another name: the rows of `frame`.

        Raises:
            OperatorError: an operator of this name is there already.
        """
        if name == of:
            return tuples.on(frame)
        made = Tracked(frame, (name,))
        self._add(name, self._wiring[of], made)
        return made

    def judge(self, refused: Mapping[str, Failure] | None = None, *, ran: bool = False) -> Verdict:
        """Check that every tuple has been judged; return the records that are not done.

        `refused` names records, by message id, that a sink could not store, with their failures. `ran`: every operator
        ran to its end; otherwise an operator after a user's function that got no input runs again, because it looks
        the same as one that never ran.

        Raises:
            NotCoveredError: rows of a shard were not read at all, not even when the operators were run again.
            NotOfThisBatchError: `refused` names a record that is not in the batch.
        """
        batch = self._batch
        pins, reports = batch.pins(), self._heard()
        unheard = {operator for operator, _ in batch.find_uncovered(self._wiring, reports, pins)}
        if not ran:
            heard = {key.operator for key in reports}
            unheard |= {name for name, inputs in self._wiring.items() if OPEN in inputs and name not in heard}
        if unheard:
            # The user's function took only part of the rows, or none: judge the others too.
            # A cached frame would not run its operator.
            self.held.uncache()
            for name in self._last(unheard):
                run_frame(self._made[name].frame)
            pins, reports = batch.pins(), self._heard()
        if batch.is_unread(pins):
            # Only functions take the source's rows, and Spark saw that they need none: these records are done.
            pins = pins_of_read(self._rows, batch)
        failed = batch.failed(self._wiring, reports, pins)
        missing = batch.find_uncovered(self._wiring, reports, pins)
        if missing:
            lost = self._find_lost(missing, pins)
            failed = batch.failed(self._wiring, self._heard(), pins)
            failed = unite(failed, lost)
        if not all(some.is_placed for some in failed.values()):
            finder = Finder(self.tag(_FINDER), failed)
            run_frame(self._rows.mapInArrow(Promptly(finder), StructType([SCHEMA[MESSAGE_ID]])))
            reports = self._heard()
            batch.require_covered(_FINDING, reports, pins)
            failed = batch.failed(_FINDING, reports, pins)
        if self._scan is not None:
            self._scan.count(sum(pin.rows for pin in pins.values()))
        return batch.judge(failed, pins, refused or {})

    def deadly(self) -> dict[int, Failed]:
        """Return the records that ended a worker in a run with `isolating`, by shard index."""
        found: dict[int, Failed] = {}
        for key, failed in self._heard().items():
            if key.operator != _SURVIVORS and failed:
                found = unite(found, {key.shard: failed})
        return found

    def shared(self, tuples: Tracked) -> Tracked:
        """Return the same tuples, cached for several operators: `held` frees them."""
        return tuples.on(self.held.cache(tuples.frame))

    def for_function(self, tuples: Tracked) -> Tracked:
        """Return the same tuples for a user's function, which may take a part of them, or none.

        What made them is judged to its end all the same. `judge` runs operators again that it finds incomplete;
        but of those below another such function it cannot know the input: these run to their end now, and their
        tuples are cached.
        """
        if not self._is_below_function(tuples.producers):
            return tuples
        kept = self.shared(tuples)
        run_frame(kept.frame)
        return kept

    def _add(self, name: str, inputs: tuple[str, ...], made: Tracked) -> None:
        if not name or name in self._wiring:
            msg = (
                f"operator {name!r}: the name is empty or used already. Give each operator its own name; there "
                f"are {', '.join(self._wiring) or 'none'}"
            )
            raise OperatorError(msg)
        self._wiring[name] = inputs
        self._made[name] = made

    def _find_lost(self, missing: list[tuple[str, str]], pins: Mapping[str, Pin]) -> dict[int, Failed]:
        """Return the records whose trees do not sum to zero, by shard index, from a run with separate sums."""
        batch = self._batch
        spans = batch.spans(missing, pins)
        tap = self._rows.mapInArrow(Promptly(Finder(self.tag(_TAP), {})), StructType([SCHEMA[MESSAGE_ID]]))
        while True:
            reports = self._sum_spans(
                spans, [tap, *(self._made[name].frame for name in self._last(self._wiring))]
            )
            given = spans_of(reports, _TAP)
            batch.require_covered(_TAPPING, whole(reports), pins)
            found = {
                part: name
                for part, name in find_lost(self._wiring, reports, given).items()
                if part[1] != WHOLE
            }
            if not found:
                # In this run nothing was lost, and it judged every record.
                return {}
            ranges: dict[int, list[Range]] = {}
            for shard, span in found:
                ranges.setdefault(shard, []).append(spans.range_of(shard, span))
            finer = Spans.over(ranges)
            if spans.size <= finer.size:
                break
            spans = finer
        log.warning(
            "batch %d: tuples were lost or duplicated before %s; %d records (in spans of %d) are not done",
            batch.txid,
            ", ".join(dict.fromkeys(found.values())),
            len(found) * spans.size,
            spans.size,
        )
        lost: dict[int, list[tuple[int, int, Failure]]] = {}
        for (shard, span), name in found.items():
            first, until = spans.range_of(shard, span)
            why = Failure(Kind.LOST, make_reason(f"its tuples did not all come to {name}, or came twice"))
            lost.setdefault(shard, []).append((first, until - 1, why))
        return {shard: Failed.over(*zip(*some, strict=True)) for shard, some in lost.items()}

    def _sum_spans(self, spans: Spans, frames: Iterable[DataFrame]) -> Reports:
        """Run these frames and return the operators' reports of spans."""
        before = self._heard().keys()
        settings = self._rows.sparkSession.conf
        settings.set(PROPERTY, spans.text())
        try:
            for frame in frames:
                run_frame(frame)
        finally:
            settings.unset(PROPERTY)
        return {key: failed for key, failed in self._heard().items() if key not in before}

    def _is_below_function(self, producers: Iterable[str]) -> bool:
        """Return whether operators among the producers, or above them, take what a user's function returned."""
        inputs = [self._wiring[name] for name in producers if name in self._wiring]
        return any(OPEN in names or self._is_below_function(names) for names in inputs)

    def _heard(self) -> Reports:
        return self._batch.reports(self._carrier.reports)

    def _last(self, operators: Iterable[str]) -> list[str]:
        """Return the operators whose tuples no other takes: running these runs all."""
        names = set(operators)
        above: set[str] = set()
        for name in reversed(self._wiring):
            if name in names or name in above:
                above.update(self._wiring[name])
        return [name for name in self._wiring if name in names and name not in above]


def pins_of_read(rows: DataFrame, batch: JudgedFacts) -> Mapping[str, Pin]:
    """Return the pins of a batch, all of whose rows were read: now, if the user's function did not need them."""
    pins = batch.pins()
    if batch.is_unread(pins):
        run_frame(rows)
        pins = batch.pins()
    return pins


def run_frame(frame: DataFrame) -> None:
    """Run a frame for the effects of its tasks; its rows are dropped."""
    frame.write.format("noop").mode("overwrite").save()
