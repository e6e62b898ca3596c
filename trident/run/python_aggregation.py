"""Aggregations in Python, in the executors: one value for each group of a partition."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kinesis_trident.bolt.steps.columns import batch_of
from kinesis_trident.trident.aggregators import Aggregator, CombinerAggregator, ReducerAggregator
from kinesis_trident.trident.build.nodes import AnyAggregator
from kinesis_trident.trident.steps.replay import convert_replay_requests
from kinesis_trident.trident.tuples import TridentCollector, TridentTuple, tuples_of

_CHUNK = 10_000

Key = tuple[Any, ...]


def keys_of(batch: pa.RecordBatch | pa.Table, names: Sequence[str]) -> list[Key]:
    """Return the values of the group fields of each row, such that equal groups have equal keys.

    Times with a zone are in UTC, because two times of one zone can look the same when its clocks are set back;
    there is one NaN and one zero, and lists become tuples.
    """
    if not names:
        return [()] * int(batch.num_rows)
    return list(zip(*(_comparable(batch.column(name)) for name in names), strict=True))


def _comparable(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp(kind.unit, "UTC"))
    values: list[Any] = column.to_pylist()
    return list(map(_one, values)) if pa.types.is_floating(kind) or pa.types.is_nested(kind) else values


def _one(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_one, value))
    if isinstance(value, float):
        # There is one NaN, and one zero.
        return math.nan if math.isnan(value) else value + 0.0
    return value


def partials_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return values as Python made them, those of a combiner above all: Arrow gives maps as lists of pairs."""
    values: list[Any] = column.to_pylist()
    return [_as_made(value, column.type) for value in values] if "map<" in str(column.type) else values


def _as_made(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: _as_made(one, kind.item_type) for key, one in value}
    if pa.types.is_list(kind):
        return [_as_made(one, kind.value_type) for one in value]
    if pa.types.is_struct(kind):
        return {field.name: _as_made(value[field.name], field.type) for field in kind}
    return value


def rows_by_key(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], inputs: Sequence[str]
) -> dict[Key, list[TridentTuple]]:
    """Return all tuples of a partition by group, each group's tuples in their order of arrival."""
    found: dict[Key, list[TridentTuple]] = {}
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in inputs]
        for key, tup in zip(keys_of(batch, keys), tuples_of(inputs, columns, batch.num_rows), strict=True):
            found.setdefault(key, []).append(tup)
    return found


@dataclass(frozen=True, slots=True)
class GroupAggregation:
    """Aggregates the groups of one partition: `schema` is the group fields and the aggregator's fields.

    The input of a combiner is the result of its `init` for each tuple, or partial results of the same kind.
    """

    operation: str
    keys: tuple[str, ...]
    inputs: tuple[str, ...]
    aggregator: AnyAggregator
    schema: pa.Schema
    txid: int | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the aggregated groups; nothing for a partition without tuples.

        Raises:
            BatchFailedError: the aggregator raised a `FailedException`.
        """
        with convert_replay_requests(self.operation):
            rows = list(self._emit(batches))
        for at in range(0, len(rows), _CHUNK):
            yield batch_of(rows[at : at + _CHUNK], self.schema)

    def _emit(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
        if isinstance(self.aggregator, Aggregator):
            return self._complete(self.aggregator, batches)
        if isinstance(self.aggregator, ReducerAggregator):
            return self._reduce(self.aggregator, batches)
        return self._combine(self.aggregator, batches)

    def _combine(
        self, aggregator: CombinerAggregator, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[Any, ...]]:
        values: dict[Key, Any] = {}
        combine = aggregator.combine
        # As in Spark, whose functions these are, nulls count for nothing, and nulls alone give nothing.
        without_nulls = aggregator.in_spark is not None
        for batch in batches:
            for key, value in zip(
                keys_of(batch, self.keys), partials_of(batch.column(self.inputs[0])), strict=True
            ):
                if value is not None or not without_nulls:
                    values[key] = combine(values[key], value) if key in values else value
        return ((*key, value) for key, value in values.items())

    def _reduce(
        self, aggregator: ReducerAggregator, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[Any, ...]]:
        for key, tuples in rows_by_key(batches, self.keys, self.inputs).items():
            value = aggregator.init()
            for tup in tuples:
                value = aggregator.reduce(value, tup)
            yield (*key, value)

    def _complete(
        self, aggregator: Aggregator, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[Any, ...]]:
        width = len(self.schema) - len(self.keys)
        for key, tuples in rows_by_key(batches, self.keys, self.inputs).items():
            collector = TridentCollector(self.operation, width)
            value = aggregator.init(self.txid, collector)
            for tup in tuples:
                value = aggregator.aggregate(value, tup, collector)
            aggregator.complete(value, collector)
            for values in collector.rows:
                yield (*key, *values)
