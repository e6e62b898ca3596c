"""The facts by which the tuples of a batch are judged: from operators' reports to the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from kinesis_trident.bolt.errors import NotCoveredError
from kinesis_trident.bolt.steps.watchdog import Watch
from kinesis_trident.bolt.tracking.coverage import SOURCE, Wiring, failures, find_uncovered
from kinesis_trident.bolt.tracking.failed import Failed
from kinesis_trident.bolt.tracking.reports import Reports
from kinesis_trident.bolt.tracking.spans import Spans
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.model.nodes import Pin, Plan
from kinesis_trident.spout.failed_records.retry_spool import RetrySpool
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.sums import XorSum


@dataclass(frozen=True, slots=True)
class JudgedFacts:
    """A batch that is judged: that of the source, or of any DataFrame whose rows have anchors. It never changes.

    Attributes:
        plan: of the batch.
        epoch: of the run that works on it.
        tag: the tag in the roots of its rows.
        pins: reads the pins of its turns as they are now, of this plan only.
        source_of: tells how the message ids of a shard begin.
        published: the outcome that an earlier attempt has published, if any: it is applied, and nothing is judged.
        deadly: the records known to end the worker that processes them: by shard index.
        spool: the spool of failed records, if there is one.
        watch: how the calls of users' functions are watched.
        in_order: with `retryOrder=key`.
    """

    plan: Plan
    epoch: int
    tag: int
    pins: Callable[[], Mapping[str, Pin]]
    source_of: Callable[[str], str] = str
    published: Verdict | None = None
    deadly: Mapping[int, Failed] = field(default_factory=dict)
    spool: RetrySpool | None = None
    watch: Watch | None = None
    in_order: bool = False

    @property
    def txid(self) -> int:
        """The transaction id."""
        return self.plan.txid

    def reports(self, reports: Reports) -> Reports:
        """Return the reports of this batch, this plan and this epoch."""
        return {
            key: failed for key, failed in reports.items() if (key.txid, key.tag) == (self.txid, self.tag)
        }

    def is_unread(self, pins: Mapping[str, Pin]) -> bool:
        """Return whether not all turns of the batch are in `pins`."""
        return any(shard not in pins for shard in self.plan.shards)

    def find_uncovered(
        self, wiring: Wiring, reports: Reports, pins: Mapping[str, Pin]
    ) -> list[tuple[str, str]]:
        """Return the operators, each with a shard whose records it has not all seen, according to the reports.

        Initial values come from the pins, never from the rows.
        """
        shards = self.plan.shards
        unread = [shard for shard in shards if shard not in pins]
        first = [operator for operator, inputs in wiring.items() if SOURCE in inputs]
        missing = find_uncovered(wiring, reports, self._turns(pins))
        return [
            *((operator, shard) for operator in first for shard in unread),
            *((operator, shards[index]) for operator, index in missing),
        ]

    def spans(self, missing: Iterable[tuple[str, str]], pins: Mapping[str, Pin]) -> Spans:
        """Return spans, down to single records, of the shards in `uncovered`.

        Raises:
            NotCoveredError: a shard's rows were not read at all.
        """
        concerned = {shard for _, shard in missing}
        if not concerned <= pins.keys():
            self._not_covered(sorted(missing))
        plan = self.plan
        # Ordinals skip one between two segments of a turn; there are at most two segments for each due run.
        return Spans.over(
            {
                index: [(0, 2 * (pins[shard].count + len(plan.due(shard)) + 1))]
                for index, shard in enumerate(plan.shards)
                if shard in concerned
            }
        )

    def require_covered(self, wiring: Wiring, reports: Reports, pins: Mapping[str, Pin]) -> None:
        """Check that every record was judged.

        Raises:
            NotCoveredError: an operator has not seen all records of a shard.
        """
        missing = self.find_uncovered(wiring, reports, pins)
        if missing:
            self._not_covered(missing)

    def failed(self, wiring: Wiring, reports: Reports, pins: Mapping[str, Pin]) -> dict[int, Failed]:
        """Return the failures of operators, by the shard's index in the plan: the union over all their runs."""
        return failures(wiring, reports, self._turns(pins))

    def judge(
        self, failed: Mapping[int, Failed], pins: Mapping[str, Pin], refused: Mapping[str, Failure]
    ) -> Verdict:
        """Return the records that are not done; all in `failed` have positions, `refused` are those of a sink.

        Raises:
            NotOfThisBatchError: `refused` names a record that is not in the batch.
        """
        shards = self.plan.shards
        pieces = {shards[index]: some.not_done() for index, some in failed.items()}
        return Verdict.of(self.plan, pins, pieces, refused, self.source_of)

    def _not_covered(self, missing: Sequence[tuple[str, str]]) -> NoReturn:
        shards = ", ".join(dict.fromkeys(shard for _, shard in missing))
        operators = ", ".join(dict.fromkeys(operator for operator, _ in missing))
        msg = (
            f"the operator {operators} did not see every record of {shards}, although it ran to its end. Start the "
            f"query again: it reads batch {self.txid} again with the same rows, none of which is acked"
        )
        raise NotCoveredError(msg)

    def _turns(self, pins: Mapping[str, Pin]) -> dict[int, XorSum]:
        """Return the totals of the pinned turns, by the shard's index in the plan."""
        return {
            index: XorSum(pins[shard].rows, pins[shard].xor)
            for index, shard in enumerate(self.plan.shards)
            if shard in pins
        }
