"""The windows of a stream: nodes that put tuples into panes, and a state that keeps the open ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from pyspark.sql.types import (
    ArrayType,
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
from kinesis_trident.trident.build.fields import Fields, Names, append_fields, choose_fields
from kinesis_trident.trident.build.first_values import check_first_value
from kinesis_trident.trident.build.graph import AnyAggregator, Grouping, Node, PersistNode, RepartitionNode
from kinesis_trident.trident.build.lambdas import name_of
from kinesis_trident.trident.build.window_steps import Content, Place
from kinesis_trident.trident.state import StateFactory, StateUpdater
from kinesis_trident.trident.windowing.config import SlidingCountWindow, WindowConfig, window_of
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

__all__ = ["Groups", "WindowOperations"]

S = TypeVar("S")

_ARRIVAL = "approximateArrivalTimestamp"
_ORDER = (_ARRIVAL, "stream", "shardId", "sequenceNumber", "subSequenceNumber")
"""The columns of the source that put the tuples of a batch in order, if the stream still has them."""

_NO_TIME = timedelta(0)


@dataclass(frozen=True, slots=True)
class Groups(Generic[S]):
    """Tuples and their group fields: `made` makes a stream of a node, `called` the name of an operation."""

    node: Node
    keys: tuple[str, ...]
    made: Callable[[Node], S]
    called: Callable[[str], str]


class WindowOperations(ABC, Generic[S]):
    """Aggregations over windows: of all tuples, or of those of each group."""

    __slots__ = ()

    @abstractmethod
    def _groups(self) -> Groups[S]:
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

        Raises:
            TopologyError: a field is unknown, or the state cannot store the values.
        """
        groups = self._groups()
        name = groups.called(f"window({name_of(aggregator)})")
        plan = _Plan(groups, name, state, window, time, lateness, buckets)
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

    groups: Groups[Any]
    name: str
    state: StateFactory
    window: WindowConfig
    time: str
    lateness: timedelta
    buckets: int

    def node(self, aggregator: AnyAggregator, new: Fields, inputs: Names | None) -> PersistNode:
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
        values: CombinerAggregator
        windowed: Windowed
        if isinstance(aggregator, CombinerAggregator):
            kind = added.fields[0].dataType
            check_first_value(name, self.state, aggregator)
            check_kind(name, self.state, kind)
            if aggregator.in_spark is not None:
                parent = with_storable_values(name, self.state, kind, parent, read)
            values, windowed = aggregator, OfCombiner(combine_of(aggregator))
            link = Link(values, read, StructType([StructField("value", kind)]))
        else:
            for one in read:
                check_kind(name, self.state, parent.schema[one].dataType)
            fields = StructType([StructField(AT, LongType()), *(parent.schema[one] for one in read)])
            values = Content(fields)
            windowed = OfContent(name, as_aggregator(aggregator), read, len(added))
            link = Link(values, (AT, *read), StructType([StructField("value", ArrayType(fields))]))
        make = self._by_count if self._counts else self._by_time
        moved, needed, updater = make(parent, read, link, windowed)
        return PersistNode(name, schema, (moved,), self.state, needed, updater)

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

    def _by_time(
        self, parent: Node, read: tuple[str, ...], link: Link, windowed: Windowed
    ) -> tuple[Node, tuple[str, ...], StateUpdater[Any]]:
        """Return the partial results of each bucket, group and pane; the fields that the updater reads; the updater."""
        name, keys, panes = self.name, self.groups.keys, self.window.panes
        [time] = choose_fields([self.time], parent.schema, name)
        kind = parent.schema[time].dataType
        if not isinstance(kind, TimestampType):
            msg = (
                f"{name}: the event time {time!r} is {kind.simpleString()}, not a timestamp. Make one with map or "
                "transform, or name another field with time=..."
            )
            raise TopologyError(msg)
        kept = StructType([parent.schema[one] for one in dict.fromkeys([*keys, *read])])
        places = StructType().add(BUCKET, IntegerType()).add(PANE, LongType()).add(AT, LongType())
        place = Place(panes.width, self.buckets)
        placed = function_node(parent, name, place, (time, *keys), places, kept)
        whole = StructType([parent.schema[one] for one in read])
        links = [
            Link(Max(), (AT,), StructType().add("at", LongType())),
            Link(Count(), (), StructType().add("n", LongType())),
            link,
        ]
        together = Together(links)
        added = StructType([StructField(VALUE, together.result(whole))])
        partial = combined_node(
            placed, (BUCKET, *keys, PANE), together, tuple(dict.fromkeys((AT, *read))), added, name
        )
        moved = _moved(name, partial, (BUCKET,) if self.buckets > 1 else ())
        lateness = self.lateness // timedelta(microseconds=1)
        updater = TimeWindowUpdater(name, panes, keys, windowed, lateness)
        return moved, (BUCKET, *keys, PANE, VALUE), updater

    def _by_count(
        self, parent: Node, read: tuple[str, ...], link: Link, windowed: Windowed
    ) -> tuple[Node, tuple[str, ...], StateUpdater[Any]]:
        """Return the values of each group's tuples; the fields that the updater reads; the updater."""
        name, keys = self.name, self.groups.keys
        order = tuple(one for one in _ORDER if one in parent.schema.names)
        kept = tuple(dict.fromkeys([*keys, *order]))
        added = StructType([StructField(VALUE, link.added.fields[0].dataType)])
        values = values_node(parent, kept, link.aggregator, read, added, name)  # type: ignore[arg-type]
        updater = CountWindowUpdater(name, self.window.panes, keys, windowed, order)
        return _moved(name, values, keys), (*kept, VALUE), updater


def _moved(name: str, node: Node, keys: tuple[str, ...]) -> RepartitionNode:
    """Bring each bucket, or group, to one partition."""
    grouping = Grouping.FIELDS if keys else Grouping.GLOBAL
    return RepartitionNode(name, node.schema, (node,), grouping, keys)


def _check_key(name: str, state: StateFactory, field: StructField) -> None:
    if isinstance(field.dataType, FloatType | DoubleType):
        msg = (
            f"{name}: the field {field.name!r} is {field.dataType.simpleString()}, which cannot be a key of a window. "
            "Round it, or group by a text"
        )
        raise TopologyError(msg)
    check_kind(f"{name}: the field {field.name!r}", state, field.dataType)
