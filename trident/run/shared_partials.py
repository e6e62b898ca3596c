"""Partial results for several consumers of one node's tuples, computed in one pass, moved and held as one frame."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import pyarrow as pa
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import StructType

from kinesis_trident.bolt.names import quoted
from kinesis_trident.bolt.partitions import move_to_partitions
from kinesis_trident.bolt.tagged import STREAM, Tagged
from kinesis_trident.trident.run.arrow_aggregation import Groups, Partials, chunks


@dataclass(frozen=True)
class SharedPartials:
    """Aggregates the tuples of one node for several consumers in one pass: each row belongs to one of them.

    Args:
        consumers: the partial results of each.
        partitions: the number of partitions of each in `moved`, which hold rows of no other one; 0 if it is not there.
    """

    consumers: tuple[Partials, ...]
    partitions: tuple[int, ...]

    @property
    def fields(self) -> StructType:
        """The columns of all consumers."""
        return self._tagged.schema

    @property
    def wanted(self) -> set[str]:
        """Return the fields that are read."""
        return set().union(*(one.wanted for one in self.consumers))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the groups of all consumers; one may occur several times."""
        tag = self._tagged.tag
        groups = [Groups(one) for one in self.consumers]
        for chunk in chunks(batches):
            for i, one in enumerate(groups):
                yield from (tag(i, batch.num_rows, batch.columns) for batch in one.add(chunk))
        for i, one in enumerate(groups):
            yield from (tag(i, batch.num_rows, batch.columns) for batch in one.end())

    def move(self, frame: DataFrame) -> DataFrame:
        """Bring each group of a consumer to one of its partitions, all consumers at once."""
        there = [i for i, count in enumerate(self.partitions) if count]
        cases = []
        for i in there:
            keys = ", ".join(self._tagged.columns_of(i)[: len(self.consumers[i].keys)])
            # As Spark moves rows by their keys.
            within = f" + pmod(hash({keys}), {self.partitions[i]})" if keys else ""
            cases.append(f"WHEN {i} THEN {self.partitions_of(i).start}{within}")
        if len(there) < len(self.partitions):
            frame = frame.where(f"{STREAM} IN ({', '.join(map(str, there))})")
        # A column that is put together costs many calls of the JVM, a text one.
        place = F.expr(f"CASE {STREAM} {' '.join(cases)} END")
        return move_to_partitions(frame, sum(self.partitions), place)

    def of(self, frame: DataFrame, consumer: int) -> DataFrame:
        """Return the groups of one consumer."""
        names = self.consumers[consumer].fields.names
        columns = [
            f"{column} AS {quoted(name)}"
            for column, name in zip(self._tagged.columns_of(consumer), names, strict=True)
        ]
        return frame.where(f"{STREAM} = {consumer}").selectExpr(*columns)

    def partitions_of(self, consumer: int) -> range:
        """Return the partitions of one consumer among those of all."""
        first = sum(self.partitions[:consumer])
        return range(first, first + self.partitions[consumer])

    def consumer_of(self, partition: int) -> tuple[int, int]:
        """Return the consumer of a partition, and the partition's number among those of the consumer."""
        consumer = bisect_right([*accumulate(self.partitions)], partition)
        return consumer, partition - self.partitions_of(consumer).start

    def groups(self, batches: Iterable[pa.RecordBatch], consumer: int) -> Iterator[pa.RecordBatch]:
        """Yield the groups of one consumer, from the rows of its partitions."""
        for batch in batches:
            yield self._tagged.untag(batch, consumer)

    @cached_property
    def _tagged(self) -> Tagged:
        return Tagged.of(one.fields for one in self.consumers)
