"""The batch that `Tracking` judges: that of the source, or any DataFrame whose rows have anchors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from kinesis_trident.bolt.steps.watchdog import Watch
from kinesis_trident.bolt.tracking.coverage import Wiring
from kinesis_trident.bolt.tracking.failed import Failed
from kinesis_trident.bolt.tracking.operators import OutcomeFilter
from kinesis_trident.bolt.tracking.reports import Reports
from kinesis_trident.bolt.tracking.spans import Spans
from kinesis_trident.checkpoint.model.nodes import NotDone, Pin
from kinesis_trident.spout.failed_records.retry_spool import RetrySpool
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.records import Run


class JudgedBatch(Protocol):
    """A batch; each method as `CurrentBatch` has it."""

    spool: RetrySpool | None
    """The spool of failed records, if there is one."""
    deadly: Mapping[int, Failed]
    """The records known to end the worker that processes them."""
    watch: Watch | None
    """How the calls of users' functions are watched."""
    txid: int
    """The transaction id."""
    epoch: int
    """The epoch of the run that works on the batch."""
    again: Mapping[str, Sequence[Run]]
    """The records that are delivered again, by shard."""

    @property
    def verdict(self) -> OutcomeFilter | None:
        """The published outcome, if there is one."""
        ...

    def reports(self, reports: Reports) -> Reports:
        """Return the reports of this batch."""
        ...

    def pins(self) -> Mapping[str, Pin]:
        """Return the pins of the turns."""
        ...

    def is_unread(self, pins: Mapping[str, Pin]) -> bool:
        """Return whether not all turns are in `pins`."""
        ...

    def find_uncovered(
        self, wiring: Wiring, reports: Reports, pins: Mapping[str, Pin]
    ) -> list[tuple[str, str]]:
        """Return the operators, each with a shard whose records it has not all seen."""
        ...

    def spans(self, missing: Iterable[tuple[str, str]], pins: Mapping[str, Pin]) -> Spans:
        """Return spans of the shards in `missing`."""
        ...

    def require_covered(self, wiring: Wiring, reports: Reports, pins: Mapping[str, Pin]) -> None:
        """Check that every record was judged."""
        ...

    def failed(self, wiring: Wiring, reports: Reports, pins: Mapping[str, Pin]) -> dict[int, Failed]:
        """Return the failures of operators, by shard index."""
        ...

    def outcome(
        self, failed: Mapping[int, Failed], pins: Mapping[str, Pin], refused: Mapping[str, Failure]
    ) -> dict[str, tuple[NotDone, ...]]:
        """Return the records that are not done, by shard."""
        ...
