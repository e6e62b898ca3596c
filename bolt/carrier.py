"""How the reports of tasks come to the driver."""

from __future__ import annotations

from typing import Protocol

from pyspark import SparkContext
from pyspark.accumulators import Accumulator

from bolt.reports import ReportParam, Reports

__all__ = ["AccumulatorCarrier", "Carrier", "Sender"]


class Sender(Protocol):
    """The end in the tasks: it is pickled with the operator."""

    def add(self, reports: Reports) -> None:
        """Send a task's reports, once its input is exhausted."""
        ...


class Carrier(Protocol):
    """The end in the driver."""

    @property
    def sender(self) -> Sender:
        """What operators are given."""
        ...

    @property
    def reports(self) -> Reports:
        """All that has come since `clear`."""
        ...

    def clear(self) -> None:
        """Forget what came: another attempt begins."""
        ...


class AccumulatorCarrier:
    """A Spark accumulator: exact, because Spark delivers a task's update with its end, or not at all.

    One for all batches, because Spark keeps each for good; what it holds is of the batch in hand.
    """

    def __init__(self) -> None:
        self.sender: Accumulator[Reports] = SparkContext.getOrCreate().accumulator({}, ReportParam())

    @property
    def reports(self) -> Reports:
        """All that has come since `clear`."""
        return self.sender.value

    def clear(self) -> None:
        """Forget what came."""
        self.sender.value = {}
