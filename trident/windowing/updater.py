"""Keeps the open windows of a stream in a map state, and emits those that a batch closes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial as partial_of
from operator import itemgetter
from typing import Any, Protocol

import msgspec

from kinesis_trident.common.own_copies import fresh, fresh_all
from kinesis_trident.common.visible_text import shorten
from kinesis_trident.tracker.records import Number
from kinesis_trident.trident.aggregators import Aggregator, aggregate_group
from kinesis_trident.trident.errors import ForeignValueError, OperationError, name_group
from kinesis_trident.trident.maps.metering import current_metrics
from kinesis_trident.trident.maps.window_shape import Shape
from kinesis_trident.trident.order import put_in_order, window_order
from kinesis_trident.trident.state import Collector, Key, MapState, StateUpdater, ValueUpdater
from kinesis_trident.trident.steps.replay import raise_named
from kinesis_trident.trident.tuples import TridentTuple
from kinesis_trident.trident.windowing.windows import Arrival, Closed, advance, closed_windows, hashable

AT, BUCKET, PANE, VALUE = "__at", "__bucket", "__pane", "__value"
"""The fields between the operations of a window: event time, bucket, pane, and the value of a tuple, or of several.

That of several has the greatest event time, the number of tuples and the partial result, in this order.
"""

_Pane = tuple[Number, list[tuple[list[Any], Any]]]
_Stored = tuple[Number, list[_Pane], list[tuple[Number, Number, list[Any], Any]]]
"""What `advance` returns, as a state gives it back."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


Arrived = Callable[[int | None], tuple[Sequence[Arrival], int]]
"""The arrivals of a batch and its mark, given the mark before it."""


class Windowed(Protocol):
    """The aggregation of a window's tuples."""

    def stored(self, value: Any) -> Any:
        """Return a partial result in the form that the state keeps."""
        ...

    def combine(self, left: Any, right: Any) -> Any:
        """Combine two stored partial results."""
        ...

    def finish(self, partial: Any) -> Iterable[Sequence[Any]]:
        """Return the tuples that a window emits."""
        ...


class WindowUpdater(StateUpdater[MapState[Any]]):
    """`keys` are the group fields."""

    def __init__(self, operation: str, shape: Shape, keys: tuple[str, ...], windowed: Windowed) -> None:
        self.operation = operation
        self.shape = shape
        self.keys = keys
        self.windowed = windowed

    def update_state(
        self, state: MapState[Any], tuples: Sequence[TridentTuple], collector: Collector
    ) -> None:
        """Update each bucket that has tuples, and emit the windows that this closes.

        Raises:
            OperationError: the state is no map.
        """
        given: object = state
        if not isinstance(given, MapState):
            msg = (
                f"{self.operation}: windows need a MapState, but the factory made a {type(given).__name__}. "
                "Use another factory"
            )
            raise OperationError(msg)
        updates = self._updates(tuples)
        values = state.multi_update(list(updates), list(updates.values()))
        for bucket, value in zip(updates, values, strict=True):
            for window in closed_windows(value):
                named, group = self._window_fields(bucket, window), repr((bucket, window.key))
                try:
                    rows = self.windowed.finish(window.partial)
                except BaseException as error:
                    raise_named(error, self.operation, named[: len(self.keys)])
                for number, row in enumerate(rows):
                    collector.emit([*named, *row, window_order(window.start, group, number)])
        current_metrics().late += sum(one.tuples for update in updates.values() for one in update.late)

    def _advance(self, arrived: Arrived, group: Key = ()) -> Advance:
        return Advance(self.operation, self.shape, self.windowed.combine, arrived, group)

    @abstractmethod
    def _updates(self, tuples: Sequence[TridentTuple]) -> dict[Key, Advance]:
        """Return the update of each key of the state."""

    @abstractmethod
    def _window_fields(self, bucket: Key, window: Closed) -> list[Any]:
        """Return the group fields, the start and the end of a window."""


class TimeWindowUpdater(WindowUpdater):
    """Windows by event time: a key of the state holds a bucket of groups, and their common watermark.

    `lateness_us`: by how much the watermark stays behind the greatest event time.
    """

    def __init__(
        self, operation: str, shape: Shape, keys: tuple[str, ...], windowed: Windowed, lateness_us: int
    ) -> None:
        super().__init__(operation, shape, keys, windowed)
        self._lateness_us = lateness_us

    def _updates(self, tuples: Sequence[TridentTuple]) -> dict[Key, Advance]:
        arrivals: dict[Key, list[Arrival]] = {}
        greatest: dict[Key, int] = {}
        for tup in tuples:
            bucket, value = bucket_key(tup[BUCKET]), tup[VALUE]
            group = tuple(hashable(tup[name]) for name in self.keys)
            latest, count, result = value.values()
            partial = self.windowed.stored(result)
            arrivals.setdefault(bucket, []).append(Arrival(tup[PANE], group, count, partial))
            greatest[bucket] = max(latest, greatest.get(bucket, latest))
        return {
            bucket: self._advance(partial_of(of_time, found, greatest[bucket] - self._lateness_us))
            for bucket, found in arrivals.items()
        }

    def _window_fields(self, bucket: Key, window: Closed) -> list[Any]:
        return [*window.key, *times_of(self.operation, window)]


class CountWindowUpdater(WindowUpdater):
    """Windows by count: a key of the state holds one group, and its number of tuples so far.

    The tuples of a batch are put in order, by the fields `order`: a replay with the same tuples gives the same windows.
    """

    def __init__(
        self,
        operation: str,
        shape: Shape,
        keys: tuple[str, ...],
        windowed: Windowed,
        order: tuple[str, ...],
    ) -> None:
        super().__init__(operation, shape, keys, windowed)
        self._order = order

    def _updates(self, tuples: Sequence[TridentTuple]) -> dict[Key, Advance]:
        groups: dict[Key, list[Any]] = {}
        for tup in put_in_order(tuples, self._order):
            group = tuple(hashable(tup[name]) for name in self.keys) or bucket_key(0)
            groups.setdefault(group, []).append(self.windowed.stored(tup[VALUE]))
        return {
            group: self._advance(partial_of(of_count, self.shape, values), group if self.keys else ())
            for group, values in groups.items()
        }

    def _window_fields(self, bucket: Key, window: Closed) -> list[Any]:
        return [*(bucket if self.keys else ()), max(window.start, 0), window.end]


class Advance(ValueUpdater[Any]):
    """Advances the windows of one key of the state; `arrived` returns arrivals and mark, given the mark before.

    `late` is what came too late. `group`: where the key of the state is that of a group, errors bear it.
    """

    def __init__(
        self,
        operation: str,
        shape: Shape,
        combine: Callable[[Any, Any], Any],
        arrived: Arrived,
        group: Key = (),
    ) -> None:
        self._operation = operation
        self._shape = shape
        self._combine = combine
        self._arrived = arrived
        self._group = group
        self.late: list[Arrival] = []

    def update(self, stored: Any) -> Any:
        """Return the windows after the batch."""
        if stored is not None:
            stored = _check_stored(self._operation, stored)
        arrivals, mark = self._arrived(None if stored is None else stored[0])
        try:
            value, self.late = advance(stored, arrivals, mark, self._shape, self._combine)
        except BaseException as error:
            name_group(error, self._group)
            raise
        return value


def _check_stored(operation: str, stored: Any) -> _Stored:
    """Return what the state holds, if it is what `advance` has returned.

    Raises:
        ForeignValueError: it is not.
    """
    try:
        checked: _Stored = msgspec.convert(stored, _Stored)
    except (msgspec.ValidationError, RecursionError) as error:
        msg = (
            f"{operation}: the state holds {shorten(repr(stored), 80)}, which are not the windows of this operation "
            f"({error}). Another operation or program has written it. Use another keyPrefix"
        )
        raise ForeignValueError(msg) from None
    return checked


@dataclass(frozen=True, slots=True)
class OfCombiner:
    """The windows of a combiner: its partial results, of which one is the result."""

    combiner: Callable[[Any, Any], Any]

    def combine(self, left: Any, right: Any) -> Any:
        """Combine copies: a pane is in several windows, and stays in the state."""
        return self.combiner(fresh(left), fresh(right))

    def stored(self, value: Any) -> Any:
        """Return the value."""
        return value

    def finish(self, partial: Any) -> list[list[Any]]:
        """Return the value as a tuple."""
        return [[partial]]


@dataclass(frozen=True, slots=True)
class OfContent:
    """The windows of any other aggregator: the tuples themselves, with their event time first.

    `aggregator` is given the tuples of a window in the order of their event time, or count.
    """

    operation: str
    aggregator: Aggregator
    fields: tuple[str, ...]
    names: Sequence[str]
    order: tuple[str, ...]

    def stored(self, value: Sequence[dict[str, Any]]) -> list[list[Any]]:
        """Return the tuples of a batch as lists, in the order in which those of one event time stay."""
        ordered = value if len(value) == 1 else put_in_order(value, self.order)
        return [[one[name] for name in (AT, *self.fields)] for one in ordered]

    def combine(self, left: list[Any], right: list[Any]) -> list[Any]:
        """Return all tuples."""
        return left + right

    def finish(self, partial: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """Aggregate the tuples."""
        # A tuple is in several windows, and stays in the state.
        tuples = (
            TridentTuple(self.fields, fresh_all(values)) for _, *values in sorted(partial, key=itemgetter(0))
        )
        return aggregate_group(self.operation, self.aggregator, self.names, None, tuples)


def of_count(shape: Shape, values: Sequence[Any], before: int | None) -> tuple[Sequence[Arrival], int]:
    """Return the arrivals and the mark of windows by count, after the tuples before: for `Advance`."""
    first = before or 0
    arrivals = [Arrival(shape.pane_of(at), (), 1, value) for at, value in enumerate(values, first)]
    return arrivals, first + len(values)


def of_time(arrivals: Sequence[Arrival], mark: int, _before: int | None) -> tuple[Sequence[Arrival], int]:
    """Return the arrivals and the mark of windows of time, whatever was the mark before: for `Advance`."""
    return arrivals, mark


def times_of(operation: str, window: Closed) -> list[datetime]:
    """Return the start and the end of a window of time.

    Raises:
        ForeignValueError: they are no times.
    """
    try:
        return [_EPOCH + timedelta(microseconds=at) for at in (window.start, window.end)]
    except OverflowError:
        msg = (
            f"{operation}: the state holds a window from {window.start} to {window.end} microseconds since 1970, which "
            "are no times. Another operation or program has written it. Use another keyPrefix"
        )
        raise ForeignValueError(msg) from None


def bucket_key(bucket: int) -> Key:
    """Return the key of a bucket in the state."""
    return (f"bucket-{bucket}",)
