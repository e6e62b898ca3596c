"""Tick tuples in the driver: the micro-batches that bring them to a bolt, and the tasks to which they go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame

from kinesis_trident.bolt.storm.components import Input
from kinesis_trident.bolt.storm.frames import add_component, add_tick_rows
from kinesis_trident.bolt.tracking.batch_run import BatchRun


class Ticks:
    """The last ticks of each bolt of one query."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}

    def is_due(self, bolt: str, interval: float | None, run: BatchRun) -> bool:
        """Return whether a bolt gets tick tuples in this batch: a further attempt at a batch decides as the first.

        `interval`: the seconds between two ticks; None means that there are none.
        """
        return interval is not None and run.once(("tick", bolt), lambda: self._decide(bolt, interval))

    def _decide(self, bolt: str, interval: float) -> bool:
        now = self._clock()
        is_due = bolt not in self._last or now - self._last[bolt] >= interval
        if is_due:
            self._last[bolt] = now
        return is_due


def with_ticks(frame: DataFrame, inputs: Sequence[Input], tasks: int, *, tracked: bool) -> DataFrame:
    """Add a row for each of a bolt's tasks, which is no tuple."""
    named = add_component(frame, inputs[0].name) if len(inputs) == 1 else frame
    return add_tick_rows(named, tasks, tracked=tracked)
