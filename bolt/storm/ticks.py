"""Tick tuples in the driver: the micro-batches that bring them to a bolt, and the tasks to which they go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kinesis_trident.bolt.storm.api import SYSTEM
from kinesis_trident.bolt.storm.bolt_task import COMPONENT, TASK
from kinesis_trident.bolt.storm.components import Input
from kinesis_trident.spout.reader.rows import ANCHORS, SCHEMA

__all__ = ["Ticks", "with_ticks"]


class Ticks:
    """The last ticks of each bolt of one query."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, tuple[int, float]] = {}

    def is_due(self, bolt: str, interval: float | None, txid: int) -> bool:
        """Return True if a bolt gets tick tuples in this batch: a further attempt at a batch decides as the first.

        `interval`: the seconds between two ticks; None means that there are none.
        """
        if interval is None:
            return False
        now = self._clock()
        last = self._last.get(bolt)
        if last is not None and last[0] != txid and now - last[1] < interval:
            return False
        if last is None or last[0] != txid:
            self._last[bolt] = txid, now
        return True


def with_ticks(frame: DataFrame, inputs: Sequence[Input], tasks: int, *, tracked: bool) -> DataFrame:
    """Add a row for each of a bolt's tasks: a task without rows would not know its number, or not run at all."""
    if len(inputs) == 1:
        frame = frame.withColumn(COMPONENT, F.lit(inputs[0].name))
    ours = {TASK: F.col("id").cast("int"), COMPONENT: F.lit(SYSTEM)}
    if tracked:
        ours[ANCHORS] = F.array().cast(SCHEMA[ANCHORS].dataType)
    rows = frame.sparkSession.range(0, tasks, 1, 1).select(*(one.alias(name) for name, one in ours.items()))
    return frame.unionByName(rows, allowMissingColumns=True)
