"""The windows of a stream: nodes that put tuples into panes, and a state that keeps the open ones."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.moves import Move
from kinesis_trident.bolt.steps.border import read
from kinesis_trident.trident.aggregators import CombinerAggregator, Count, FirstN, Max
from kinesis_trident.trident.build.aggregation_nodes import (
    check_aggregator,
    check_update,
    combined_node,
    function_node,
    read_and_added,
    values_node,
)
from kinesis_trident.trident.build.chained_aggregation import Link, Together, as_aggregator, combine_of
from kinesis_trident.trident.build.checks import check_kind, with_storable_values
from kinesis_trident.trident.build.fields import Fields, Names, append_fields, choose_fields, key_fields
from kinesis_trident.trident.build.first_values import check_first_value
from kinesis_trident.trident.build.lambdas import name_of
from kinesis_trident.trident.build.nodes import (
    AnyAggregator,
    RepartitionNode,
    TopologyNode,
    WindowNode,
)
from kinesis_trident.trident.maps.window_shape import Shape
from kinesis_trident.trident.operations import ArrowFunction
from kinesis_trident.trident.order import ORDER, ORDER_FIELD
from kinesis_trident.trident.state import StateFactory, StateUpdater
from kinesis_trident.trident.stores.key_text import encode_keys
from kinesis_trident.trident.tuples import TridentTuple
from kinesis_trident.trident.windowing.updater import (
    AT,
    BUCKET,
    PANE,
    VALUE,
    CountWindowUpdater,
    OfCombiner,
    OfContent,
    TimeWindowUpdater,
    Windowed,
)
from kinesis_trident.trident.windowing.windows import SlidingCountWindow, WindowConfig, window_of

S = TypeVar("S")

_ARRIVAL = "approximateArrivalTimestamp"
_NO_TIME = timedelta(0)


@dataclass(frozen=True, slots=True)
class KeyedTuples(Generic[S]):
    """Tuples and their group fields: `made` makes a stream of a node, `called` the name of an operation."""

    node: TopologyNode
    keys: tuple[str, ...]
    made: Callable[[TopologyNode], S]
    called: Callable[[str], str]


class WindowOperations(ABC, Generic[S]):
    """Aggregations over windows: of all tuples, or of those of each group."""

    __slots__ = ()

    @abstractmethod
    def _groups(self) -> KeyedTuples[S]:
        """Return the tuples and their group fields."""

    def window(
        self,
        window: WindowConfig,
        state: StateFactory,
        aggregator: AnyAggregator,
        new: Fields,
        inputs: Names | None = None,
        *,
        time: str = _ARRIVAL,
        lateness: timedelta = _NO_TIME,
        buckets: int = 1,
        order: Names = (),
    ) -> S:
        """Aggregate windows of tuples: the stream has the group fields, `window_start`, `window_end`, and the new ones.

        Args:
            window: by count of tuples (of each group), or by event time.
            state: keeps the open windows; a place of its own, of a map state.
            aggregator: of a window's tuples. A combiner keeps one partial result for each pane of a window, others
                keep the tuples.
            new: the new fields.
            inputs: the fields that the aggregator reads; all of them by default.
            time: the field of the event time, for windows of time.
            lateness: how long after the greatest event time so far an earlier tuple still counts.
            buckets: the number of parts of the groups, each with a watermark and an entry of the state of its own.
            order: the fields by which the tuples of a batch come in order; by default that of the records and, of one
                record, of emission, or that of the windows before.

        Raises:
            TopologyError: a field is unknown, the state cannot store the values, or the tuples for windows by count
                have no order.
        """
        groups = self._groups()
        name = groups.called(f"window({name_of(aggregator)})")
        plan = _Plan(groups, name, state, window, time, lateness, buckets, order)
        return groups.made(plan.node(aggregator, new, inputs))

    def tumbling_window(
        self,
        size: int | timedelta,
        state: StateFactory,
        aggregator: AnyAggregator,
        new: Fields,
        inputs: Names | None = None,
        **options: Any,
    ) -> S:
        """Aggregate windows of that many tuples, or of that time, one after the other; see `window`."""
        return self.window(window_of(size), state, aggregator, new, inputs, **options)

    def sliding_window(
        self,
        size: int | timedelta,
        slide: int | timedelta,
        state: StateFactory,
        aggregator: AnyAggregator,
        new: Fields,
        inputs: Names | None = None,
        **options: Any,
    ) -> S:
        """Aggregate windows that overlap: one every `slide` tuples, or every `slide` of time; see `window`."""
        return self.window(window_of(size, slide), state, aggregator, new, inputs, **options)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The arguments of a window."""

    groups: KeyedTuples[Any]
    name: str
    state: StateFactory
    window: WindowConfig
    time: str
    lateness: timedelta
    buckets: int
    order: Names

    def node(self, aggregator: AnyAggregator, new: Fields, inputs: Names | None) -> WindowNode:
        """Make the nodes; return that of the windows.

        Raises:
            TopologyError: see `WindowOperations.window`.
        """
        parent, name = self.groups.node, self.name
        self._check(aggregator)
        read, added = read_and_added(parent, aggregator, new, inputs, name, StringType())
        if isinstance(aggregator, FirstN):
            aggregator.check(read, added, name)
        edge = LongType() if self._counts else TimestampType()
        kept = StructType([parent.schema[key] for key in self.groups.keys])
        edges = StructType([StructField("window_start", edge), StructField("window_end", edge)])
        schema = append_fields(append_fields(kept, edges, name), added, name)
        for field in kept:
            _check_key(name, self.state, field)
        order = self._order()
        values: CombinerAggregator
        windowed: Windowed
        if isinstance(aggregator, CombinerAggregator):
            kind = added.fields[0].dataType
            check_first_value(name, self.state, aggregator)
            check_kind(name, self.state, kind)
            if aggregator.in_spark is not None:
                parent = with_storable_values(name, self.state, kind, parent, read)
            values, windowed = aggregator, OfCombiner(combine_of(aggregator))
            link = Link(values, read, added)
        else:
            for one in read:
                check_kind(name, self.state, parent.schema[one].dataType)
            seen = read if self._counts else tuple(dict.fromkeys([AT, *order, *read]))
            known = StructType([StructField(AT, LongType()), *parent.schema, ORDER_FIELD])
            fields = StructType([known[one] for one in dict.fromkeys([AT, *seen])])
            values = Content(fields)
            windowed = OfContent(name, as_aggregator(aggregator), read, added.names, order)
            link = Link(values, seen, StructType([StructField(VALUE, ArrayType(fields))]))
        make = self._by_count if self._counts else self._by_time
        moved, needed, updater = make(parent, order, link, windowed)
        return WindowNode(name, schema, (moved,), self.state, needed, updater)

    @property
    def _counts(self) -> bool:
        return isinstance(self.window, SlidingCountWindow)

    def _check(self, aggregator: AnyAggregator) -> None:
        name = self.name
        check_aggregator(aggregator, name)
        given: object = self.window
        if not isinstance(given, WindowConfig):
            msg = f"{name}: {given!r} is not a window. Give TumblingCountWindow(100), or another of these"
            raise TopologyError(msg)
        check_update(self.groups.node, self.state, name)
        if self.buckets < 1 or self.lateness < _NO_TIME:
            msg = (
                f"{name}: buckets={self.buckets} and lateness={self.lateness} are not possible. Give at least one "
                "bucket, and a lateness of zero or more"
            )
            raise TopologyError(msg)

    def _order(self) -> tuple[str, ...]:
        """Return the fields that put the tuples of a batch in order; none for windows of time of tuples without one."""
        parent, name = self.groups.node, self.name
        if len(self.order):
            return key_fields(self.order, parent.schema, name)
        if self._counts and not parent.has_order:
            msg = (
                f"{name}: the tuples have no order after an aggregation, a join, a transform or an update of a state, "
                "so the windows would differ from run to run. Name the fields that order the tuples of a batch with "
                "order=[...]"
            )
            raise TopologyError(msg)
        return (ORDER,) if parent.has_order else ()

    def _by_time(
        self, parent: TopologyNode, order: tuple[str, ...], link: Link, windowed: Windowed
    ) -> tuple[TopologyNode, tuple[str, ...], StateUpdater[Any]]:
        """Return the partial results of each bucket, group and pane; the fields that the updater reads; the updater."""
        name, keys = self.name, self.groups.keys
        shape = self.window.shape(self.buckets)
        [time] = choose_fields([self.time], parent.schema, name)
        kind = parent.schema[time].dataType
        if not isinstance(kind, TimestampType):
            msg = (
                f"{name}: the event time {time!r} is {kind.simpleString()}, not a timestamp. Make one with map or "
                "transform, or name another field with time=..."
            )
            raise TopologyError(msg)
        # The order of the records is carried by itself.
        needed = [one for one in dict.fromkeys([*keys, *link.read]) if one not in (AT, ORDER)]
        kept = StructType([parent.schema[one] for one in needed])
        places = StructType().add(BUCKET, IntegerType()).add(PANE, LongType()).add(AT, LongType())
        place = PaneFunction(shape)
        placed = function_node(parent, name, place, (time, *keys), places, kept)
        links = [
            Link(Max(), (AT,), StructType().add(AT, LongType())),
            Link(Count(), (), StructType().add("__n", LongType())),
            link,
        ]
        together = Together(links)
        added = StructType([StructField(VALUE, together.result(kept))])
        partial = combined_node(
            placed, (BUCKET, *keys, PANE), together, tuple(dict.fromkeys([AT, *link.read])), added, name
        )
        moved = _move_groups(name, partial, (BUCKET,) if self.buckets > 1 else ())
        lateness_us = self.lateness // timedelta(microseconds=1)
        updater = TimeWindowUpdater(name, shape, keys, windowed, lateness_us)
        return moved, (BUCKET, *keys, PANE, VALUE), updater

    def _by_count(
        self, parent: TopologyNode, order: tuple[str, ...], link: Link, windowed: Windowed
    ) -> tuple[TopologyNode, tuple[str, ...], StateUpdater[Any]]:
        """Return the values of each group's tuples; the fields that the updater reads; the updater."""
        name, keys = self.name, self.groups.keys
        needed = tuple(dict.fromkeys([*keys, *order]))
        kept = tuple(one for one in needed if one != ORDER)
        added = StructType([StructField(VALUE, link.added.fields[0].dataType)])
        values = values_node(parent, kept, link.aggregator, link.read, added, name)  # type: ignore[arg-type]
        updater = CountWindowUpdater(name, self.window.shape(), keys, windowed, order)
        return _move_groups(name, values, keys), (*needed, VALUE), updater


def _move_groups(name: str, node: TopologyNode, keys: tuple[str, ...]) -> RepartitionNode:
    """Bring each bucket, or group, to one partition."""
    return RepartitionNode(name, node.schema, (node,), Move.of_groups(keys))


def _check_key(name: str, state: StateFactory, field: StructField) -> None:
    if isinstance(field.dataType, FloatType | DoubleType):
        msg = (
            f"{name}: the field {field.name!r} is {field.dataType.simpleString()}, which cannot be a key of a window. "
            "Round it, or group by a text"
        )
        raise TopologyError(msg)
    check_kind(f"{name}: the field {field.name!r}", state, field.dataType)


class PaneFunction(ArrowFunction):
    """Returns the bucket of each tuple, the pane, and the event time in microseconds; reads the time, then the keys."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def execute(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        """Place the tuples.

        Raises:
            ValueError: an event time is null, or a window that it is in has no start or end in the calendar.
        """
        name = batch.schema.names[0]
        if batch.column(0).null_count:
            msg = f"the event time {name!r} is null"
            raise ValueError(msg)
        times = pc.cast(batch.column(0), pa.timestamp("us", "UTC"))
        at = times.cast(pa.int64()).to_numpy(zero_copy_only=False)
        if at.size:
            self._shape.check_calendar(name, int(at.min()), int(at.max()))
        columns = [pa.array(self._buckets_of(batch)), pa.array(self._shape.pane_of(at)), pa.array(at)]
        return pa.RecordBatch.from_arrays(columns, [BUCKET, PANE, AT]), np.arange(batch.num_rows)

    def _buckets_of(self, batch: pa.RecordBatch) -> np.ndarray:
        if self._shape.buckets == 1:
            return np.zeros(batch.num_rows, np.int32)
        keys = list(zip(*map(read, batch.columns[1:]), strict=True))
        names = encode_keys(keys) if keys and keys[0] else [""] * batch.num_rows
        return np.array([zlib.crc32(name.encode()) % self._shape.buckets for name in names], np.int32)


class Content(CombinerAggregator):
    """Keeps the tuples themselves: a list of structs, with the event time if there is one."""

    def __init__(self, fields: StructType) -> None:
        self._fields = fields
        self._names = fields.names[1:]

    def init(self, tup: TridentTuple) -> list[dict[str, Any]]:
        """Return a list of the tuple."""
        return [{AT: tup[AT] if AT in tup.fields else 0, **{name: tup[name] for name in self._names}}]

    def combine(self, left: list[Any], right: list[Any]) -> list[Any]:
        """Return all of them."""
        return left + right

    def zero(self) -> list[Any]:
        """Return an empty list."""
        return []

    def result(self, _inputs: StructType) -> DataType:
        """Return a list of structs."""
        return ArrayType(self._fields)
