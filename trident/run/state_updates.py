"""State updates in the executors: one partition of a batch, in bulk."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import pyarrow as pa
from pyspark.accumulators import Accumulator
from pyspark.sql.types import StructType

from kinesis_trident.bolt.calls import refuse_returned
from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.steps.border import column as column_that_fits, read
from kinesis_trident.bolt.tracking.place import current_place
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.trident.aggregators import CombinerAggregator, ReducerAggregator
from kinesis_trident.trident.build.nodes import PersistentAggregateNode, PersistNode, UpdateNode
from kinesis_trident.trident.errors import OperationError
from kinesis_trident.trident.maps.metering import StateMetrics, measure
from kinesis_trident.trident.maps.stored_map import Check, StoredMap
from kinesis_trident.trident.maps.transactions import TransactionMap
from kinesis_trident.trident.run.arrow_aggregation import Partials
from kinesis_trident.trident.run.python_aggregation import (
    Copied,
    keys_of,
    refuse_unfit,
    rows_by_key,
    rows_of_groups,
)
from kinesis_trident.trident.state import (
    CombinerValueUpdater,
    Key,
    MapState,
    ReducerValueUpdater,
    Snapshottable,
    State,
    StateFactory,
    StateUpdater,
)
from kinesis_trident.trident.steps.replay import (
    call_whole,
    convert_replay_requests,
    named_errors,
)
from kinesis_trident.trident.stores.task import StateTask
from kinesis_trident.trident.tuples import TridentCollector, tuples_of
from kinesis_trident.trident.windowing.updater import WindowUpdater

_CHUNK = 10_000
_UPDATED = pa.RecordBatch.from_arrays([pa.nulls(1, pa.int8())], names=["__nothing"])
"""The row that tells the driver that a state was updated whose new values nobody reads."""
NOTHING = StructType().add("__nothing", "byte")
"""Its fields: Spark needs a column even for a step that yields no rows."""

_IN_C: Mapping[str | None, Callable[[Any, Any], Any]] = {
    "count": operator.add,
    "sum": operator.add,
    "min": min,
    "max": max,
}
"""Functions that combine two results of the Spark functions: C functions are the fastest for `multi_combine`."""


class Work(Protocol):
    """The work of an update: changes a state with the tuples of a partition."""

    def __call__(self, state: Any, batches: Sequence[pa.RecordBatch]) -> Iterable[tuple[Any, ...]]:
        """Update the state; return the tuples that it emits."""
        ...


@dataclass(frozen=True, slots=True)
class ReplayCheck:
    """Checks, before a replay writes anything, that it updates the keys that the attempt before was to update."""

    keys: tuple[str, ...]

    def __call__(self, state: Any, batches: Sequence[pa.RecordBatch]) -> Iterable[tuple[Any, ...]]:
        """Check one partition; nothing is emitted."""
        found = list(dict.fromkeys(key for batch in batches for key in keys_of(batch, self.keys)))
        _check_replay(state, found if self.keys or not found else None, store=False)
        return ()


@dataclass(frozen=True, slots=True)
class Combined:
    """Combines partial results into a map state, one a group, or into a snapshottable, one for all."""

    operation: str
    keys: tuple[str, ...]
    value: str
    aggregator: CombinerAggregator

    def __call__(self, state: Any, batches: Sequence[pa.RecordBatch]) -> Iterable[tuple[Any, ...]]:
        """Update the state: the group fields and the new value."""
        table = pa.Table.from_batches(batches)
        partials = read(table.column(self.value))
        combine: Callable[[Any, Any], Any] = self.aggregator.combine
        field = table.schema.field(self.value)
        check = _check_of(state, self.operation, field, self.keys)
        kind = field.type
        # Python's own sum of decimals rounds to 28 digits, and the least of NaN and a number is the first of them.
        if not (
            pa.types.is_decimal(kind) or (pa.types.is_floating(kind) and self.aggregator.in_spark != "sum")
        ):
            combine = _IN_C.get(self.aggregator.in_spark, combine)
        if self.keys:
            keys = keys_of(table, self.keys)
            _check_replay(state, keys)
            values = _map_state(state, self.operation).multi_combine(keys, combine, partials)
            return _rows(keys, values, self.operation, check)
        _check_replay(state, None)
        total = partials[0]
        for partial in partials[1:]:
            total = combine(total, partial)
        updater = CombinerValueUpdater(self.aggregator, total)
        value = _snapshottable(state, self.operation).update(updater)
        return _rows([()], [value], self.operation, check)


@dataclass(frozen=True, slots=True)
class Reduced:
    """Reduces tuples into the stored value of their group."""

    operation: str
    keys: tuple[str, ...]
    inputs: tuple[str, ...]
    value: pa.Field
    aggregator: ReducerAggregator

    def __call__(self, state: Any, batches: Sequence[pa.RecordBatch]) -> Iterable[tuple[Any, ...]]:
        """Update the state: the group fields and the new value."""
        groups = rows_by_key(batches, self.keys, self.inputs)
        nested = any(pa.types.is_nested(batches[0].schema.field(name).type) for name in self.inputs)
        updaters = [
            ReducerValueUpdater[Any](self.aggregator, Copied(tuples) if nested else tuples, key)
            for key, tuples in groups.items()
        ]
        check = _check_of(state, self.operation, self.value, self.keys)
        if not self.keys:
            _check_replay(state, None)
            value = _snapshottable(state, self.operation).update(updaters[0])
            return _rows([()], [value], self.operation, check)
        keys = list(groups)
        _check_replay(state, keys)
        values = _map_state(state, self.operation).multi_update(keys, updaters)
        return _rows(keys, values, self.operation, check)


@dataclass(frozen=True, slots=True)
class Persisted:
    """Calls the user's updater with all tuples of the partition."""

    operation: str
    inputs: tuple[str, ...]
    updater: StateUpdater[Any]
    conf: Mapping[str, Any]
    schema: pa.Schema

    def __call__(self, state: Any, batches: Sequence[pa.RecordBatch]) -> Iterable[tuple[Any, ...]]:
        """Update the state; return the tuples that the updater emits."""
        tuples = [
            tup
            for batch in batches
            for tup in tuples_of(
                self.inputs, [read(batch.column(name)) for name in self.inputs], batch.num_rows
            )
        ]
        collector = TridentCollector(self.operation, self.schema.names)
        # The updater may change a key twice.
        if isinstance(state, TransactionMap):
            state.hold_writes(copies=not isinstance(self.updater, WindowUpdater))
        elif isinstance(state, MapState):
            state.hold_writes()
        with named_errors(f"{self.operation}: prepare()"):
            call_whole(f"{self.operation}: prepare()", self.updater.prepare, dict(self.conf))
        try:
            returned: object = self.updater.update_state(state, tuples, collector)
            emitted = collector.close()
        finally:
            with named_errors(f"{self.operation}: cleanup()"):
                call_whole(f"{self.operation}: cleanup()", self.updater.cleanup)
        refuse_returned(f"{self.operation}: update_state()", returned)
        if emitted:
            # What does not fit fails before the state commits.
            keys = len(self.updater.keys) if isinstance(self.updater, WindowUpdater) else 0
            rows_of_groups(self.operation, keys, emitted, self.schema)
        return emitted


def work_of(node: UpdateNode, conf: Mapping[str, Any], emitted: StructType, *, check: bool = False) -> Work:
    """Return the work of a topology's update, which emits these fields; with `check` what a replay checks before it.

    Raises:
        TopologyError: it updates no state.
    """
    if isinstance(node, PersistNode):
        return Persisted(node.operation, node.inputs, node.updater, conf, arrow_schema(emitted))
    if not isinstance(node, PersistentAggregateNode):
        msg = f"{node.operation} updates no state. This is a defect: please report it"
        raise TopologyError(msg)
    if check:
        return ReplayCheck(node.keys)
    if isinstance(node.aggregator, CombinerAggregator):
        return Combined(node.operation, node.keys, node.added.names[0], node.aggregator)
    value = arrow_schema(node.added).field(0)
    return Reduced(node.operation, node.keys, node.inputs, value, node.aggregator)


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """Updates the state of one partition within its transaction; does nothing for a partition without tuples.

    `partials` first combines the rows of a group from several workers.
    """

    operation: str
    factory: StateFactory
    work: Work
    conf: Mapping[str, Any]
    txid: int | None
    schema: pa.Schema
    partials: Partials | None = None
    metrics: Accumulator[StateMetrics] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run in a task; yield the new values stream, or, if nobody reads it, one row if the state was updated."""
        return self.at(batches, current_place().partition)

    def at(self, batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[pa.RecordBatch]:
        """Update one partition; yield what `__call__` does."""
        if len(self.schema):
            yield from self.run(batches, partition)
        elif self._update(batches, partition) is not None:
            yield _UPDATED

    def run(self, batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[pa.RecordBatch]:
        """Update one partition; yield the new values stream.

        Raises:
            BatchFailedError: the state, or its updater, raised a `FailedException`.
            OperationError: one raised an error that is not of this package.
        """
        emitted = self._update(batches, partition)
        while emitted is not None and len(self.schema) and (rows := list(islice(emitted, _CHUNK))):
            yield rows_of_groups(self.operation, 0, rows, self.schema)

    def _update(self, batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[tuple[Any, ...]] | None:
        """Update the state, and return the tuples that it emits; None if there was nothing to update it with."""
        given = batches if self.partials is None else self.partials.merge(batches, self.operation)
        held = [batch for batch in given if batch.num_rows]
        if not held and not isinstance(self.work, ReplayCheck):
            return None
        with measure() as metrics, convert_replay_requests(self.operation), named_errors(self.operation):
            state: State = self.factory.make_state(self.conf, partition, StateTask.of(self.conf).partitions)
            call_whole(f"{self.operation}: begin_commit()", state.begin_commit, self.txid)
            emitted = iter(self.work(state, held))
            call_whole(f"{self.operation}: commit()", state.commit, self.txid)
        if self.metrics is not None:
            self.metrics.add(metrics)
        return emitted


def _check_replay(state: Any, keys: Sequence[Any] | None, *, store: bool = True) -> None:
    """Check the keys of an update; None: the state's one value."""
    if isinstance(state, MapState):
        state.check_replay(keys, store=store)


def _check_of(state: Any, operation: str, field: pa.Field, keys: Sequence[str]) -> Check | None:
    """Return the check of values that a state of the user's own has written; one of ours makes it before it writes."""

    def check(values: Sequence[Any], key_at: Callable[[int], Key]) -> None:
        unfit = column_that_fits(values, field)[1]
        refuse_unfit(operation, unfit, key_at if keys else lambda _: ())

    if not isinstance(state, StoredMap):
        return check
    state.check_values(check)
    return None


def _rows(
    keys: Sequence[Any], values: Sequence[Any], operation: str, check: Check | None
) -> Iterator[tuple[Any, ...]]:
    """Return the group fields and the new value, made only if they are read; each value is checked now.

    Raises:
        OperationError: a value does not fit its field, or there are more or fewer values than groups.
    """
    if len(keys) != len(values):
        msg = (
            f"{operation}: the state returned {len(values)} values for {len(keys)} groups. It must return one for "
            "each"
        )
        raise OperationError(msg)
    if check is not None:
        check(values, keys.__getitem__)
    return ((*key, value) for key, value in zip(keys, values, strict=True))


def _map_state(state: Any, operation: str) -> MapState[Any]:
    if not isinstance(state, MapState):
        msg = (
            f"{operation}: an aggregation of groups needs a MapState, but the factory made a "
            f"{type(state).__name__}. Use another factory"
        )
        raise OperationError(msg)
    return state


def _snapshottable(state: Any, operation: str) -> Snapshottable[Any]:
    if not isinstance(state, Snapshottable):
        msg = (
            f"{operation}: an aggregation of all tuples needs a Snapshottable, but the factory made a "
            f"{type(state).__name__}. Make it with map_state, which gives both"
        )
        raise OperationError(msg)
    return state
