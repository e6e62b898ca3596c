"""Updates of several states from one frame: planned once, and run one state after the other.

A plan of Spark has a cost, whatever it computes: for a state that sees few groups it is most of the cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from kinesis_trident.bolt.tracking.fusion import Promptly
from kinesis_trident.bolt.tracking.place import current_place
from kinesis_trident.trident.run.frames import run_partitions
from kinesis_trident.trident.run.shared_partials import SharedPartials
from kinesis_trident.trident.run.state_updates import NOTHING, StateUpdate

__all__ = ["SharedUpdates"]


@dataclass(frozen=True, slots=True)
class SharedUpdates:
    """Updates the states of some consumers, by their numbers, each in the consumer's own partitions."""

    shared: SharedPartials
    updates: Mapping[int, StateUpdate]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run in a task of one consumer; yield one row if its state was updated."""
        consumer, partition = self.shared.consumer_of(current_place().partition)
        yield from self.updates[consumer].at(self.shared.groups(batches, consumer), partition)

    def planned(self, frame: DataFrame) -> DataFrame:
        """Return the frame of all updates, from the rows of all consumers: for `run`."""
        return self.shared.moved(frame).mapInArrow(Promptly(self), NOTHING)

    def run(self, planned: DataFrame, consumer: int) -> bool:
        """Update the state of one consumer; return True if there was something to update it with."""
        return run_partitions(planned, self.shared.partitions_of(consumer))
