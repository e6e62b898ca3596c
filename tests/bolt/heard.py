"""Reports of tasks that run in the test's process."""

from __future__ import annotations

from kinesis_trident.bolt.tracking.reports import FailedRun, Reports


class Heard:
    """The end of a carrier that keeps what it is sent."""

    def __init__(self) -> None:
        self.reports: Reports = {}

    def add(self, reports: Reports) -> None:
        """Keep a task's reports."""
        self.reports |= reports

    @property
    def runs(self) -> list[FailedRun]:
        """Return what failed, in order."""
        return sorted(run for runs in self.reports.values() for run in runs)

    @property
    def failed(self) -> dict[int, str]:
        """Return what failed, by ordinal."""
        return {n: run.reason for run in self.runs for n in range(run.first_ordinal, run.last_ordinal + 1)}
