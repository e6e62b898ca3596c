"""Reports of tasks that run in the test's process."""

from __future__ import annotations

from kinesis_trident import Outcomes
from kinesis_trident.bolt.tracking.failed import Failed
from kinesis_trident.bolt.tracking.reports import Reports


def told_by(failed: Failed) -> dict[int, str]:
    """Return what people read of failures, by ordinal."""
    return {
        ordinal: str(failure)
        for first, last, failure in zip(failed.firsts, failed.lasts, failed.failures, strict=True)
        for ordinal in range(first, last + 1)
    }


class Heard:
    """The end of a carrier that keeps what it is sent."""

    def __init__(self) -> None:
        self.reports: Reports = {}

    def add(self, reports: Reports) -> None:
        """Keep a task's reports."""
        self.reports |= reports

    @property
    def failed(self) -> dict[int, str]:
        """Return what failed, by ordinal."""
        return {n: why for failed in self.reports.values() for n, why in told_by(failed).items()}


def told(outcomes: Outcomes) -> dict[str, str]:
    """Return the reasons of the records that a sink refused."""
    return {message_id: str(failure) for message_id, failure in outcomes.failures.items()}
