"""Aggregations in Python, in the executors: one value for each group of a partition."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from kinesis_trident.bolt.steps.border import Unfit, read, rows_that_fit
from kinesis_trident.trident.aggregators import (
    Aggregator,
    CombinerAggregator,
    ReducerAggregator,
    aggregate_group,
)
from kinesis_trident.trident.build.nodes import AnyAggregator
from kinesis_trident.trident.errors import OperationError
from kinesis_trident.trident.steps.replay import convert_replay_requests, in_group, raise_named
from kinesis_trident.trident.tuples import TridentTuple, copied, tuples_of

_CHUNK = 10_000

Key = tuple[Any, ...]


def keys_of(batch: pa.RecordBatch | pa.Table, names: Sequence[str]) -> list[Key]:
    """Return the values of the group fields of each row, such that equal groups have equal keys.

    Times with a zone are in UTC, because two times of one zone can look the same when its clocks are set back;
    there is one NaN and one zero, and lists and structs become tuples.
    """
    if not names:
        return [()] * int(batch.num_rows)
    return list(zip(*(_comparable(batch.column(name)) for name in names), strict=True))


def _comparable(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    found = read(column, "UTC")
    return (
        list(map(_one, found))
        if pa.types.is_floating(column.type) or pa.types.is_nested(column.type)
        else found
    )


def _one(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_one, value))
    if isinstance(value, dict):
        return tuple(map(_one, value.values()))
    if isinstance(value, float):
        # There is one NaN, and one zero.
        return math.nan if math.isnan(value) else value + 0.0
    return value


def known_group(names: Sequence[str], values: Sequence[Any]) -> Key:
    """Return the values of group fields that a user knows: panes and buckets of windows are ours."""
    return tuple(value for name, value in zip(names, values, strict=False) if not name.startswith("__"))


def rows_of_groups(
    operation: str, keys: int, rows: Sequence[tuple[Any, ...]], schema: pa.Schema
) -> pa.RecordBatch:
    """Return rows of group fields, so many, and values as a batch.

    Raises:
        OperationError: a value does not fit its field; it names the operation and the group.
    """
    made, _, unfit = rows_that_fit(rows, schema)
    refuse_unfit(operation, unfit, lambda place: known_group(schema.names[:keys], rows[place]))
    return made


def refuse_unfit(operation: str, unfit: Unfit, key_at: Callable[[int], Key]) -> None:
    """Refuse values that do not fit their field, once they belong to no single record.

    Raises:
        OperationError: there is one; it names the operation and the group.
    """
    if unfit:
        place = min(unfit)
        msg = (
            f"{operation}: {unfit[place]}{in_group(key_at(place))}. Write another type beside the field's name, as in "
            "'total double', or let the aggregator return values of this one"
        )
        raise OperationError(msg)


def rows_by_key(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], inputs: Sequence[str]
) -> dict[Key, list[TridentTuple]]:
    """Return all tuples of a partition by group, each group's tuples in their order of arrival."""
    found: dict[Key, list[TridentTuple]] = {}
    for batch in batches:
        columns = [read(batch.column(name)) for name in inputs]
        for key, tup in zip(keys_of(batch, keys), tuples_of(inputs, columns, batch.num_rows), strict=True):
            found.setdefault(key, []).append(tup)
    return found


class Copied(Sequence[TridentTuple]):
    """Tuples of which each use gets copies: a reducer whose key another writer has changed gets them again."""

    def __init__(self, tuples: Sequence[TridentTuple]) -> None:
        self._tuples = tuples

    def __getitem__(self, at: Any) -> Any:
        found = self._tuples[at]
        return Copied(found) if isinstance(at, slice) else copied(found)

    def __len__(self) -> int:
        return len(self._tuples)


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
            OperationError: it raised another error.
        """
        aggregator = self.aggregator
        with convert_replay_requests(self.operation):
            rows = (
                self._combine(aggregator, batches)
                if isinstance(aggregator, CombinerAggregator)
                else self._read_all(aggregator, batches)
            )
        for at in range(0, len(rows), _CHUNK):
            yield rows_of_groups(self.operation, len(self.keys), rows[at : at + _CHUNK], self.schema)

    def _combine(
        self, aggregator: CombinerAggregator, batches: Iterable[pa.RecordBatch]
    ) -> list[tuple[Any, ...]]:
        values: dict[Key, Any] = {}
        combine = aggregator.combine
        # As in Spark, whose functions these are, nulls count for nothing, and nulls alone give nothing.
        without_nulls = aggregator.in_spark is not None
        for batch in batches:
            read_here = zip(keys_of(batch, self.keys), read(batch.column(self.inputs[0])), strict=True)
            key: Key = ()
            try:
                for key, value in read_here:
                    if value is not None or not without_nulls:
                        values[key] = combine(values[key], value) if key in values else value
            except BaseException as error:
                raise_named(error, self.operation, known_group(self.keys, key))
        return [(*key, value) for key, value in values.items()]

    def _read_all(
        self, aggregator: ReducerAggregator | Aggregator, batches: Iterable[pa.RecordBatch]
    ) -> list[tuple[Any, ...]]:
        of_group: Callable[[Sequence[TridentTuple]], Iterable[tuple[Any, ...]]]
        if isinstance(aggregator, Aggregator):
            names = self.schema.names[len(self.keys) :]
            of_group = partial(aggregate_group, self.operation, aggregator, names, self.txid)
        else:
            of_group = partial(_reduced, aggregator)
        rows: list[tuple[Any, ...]] = []
        for key, tuples in rows_by_key(batches, self.keys, self.inputs).items():
            try:
                for values in of_group(tuples):
                    rows.append((*key, *values))
            except BaseException as error:
                raise_named(error, self.operation, key)
        return rows


def _reduced(aggregator: ReducerAggregator, tuples: Sequence[TridentTuple]) -> list[tuple[Any, ...]]:
    value = aggregator.init()
    for tup in tuples:
        value = aggregator.reduce(value, tup)
    return [(value,)]
