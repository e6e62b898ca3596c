"""Aggregators: combine many tuples. Those that Spark also has run in Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Context, Decimal
from functools import cmp_to_key
from operator import itemgetter
from types import CoroutineType
from typing import Any, ClassVar, Generic, TypeVar, cast

from pyspark.sql.types import (
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructType,
)

from kinesis_trident.bolt.calls import refuse_not_run, refuse_returned
from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.common.own_copies import fresh
from kinesis_trident.trident.errors import OperationError
from kinesis_trident.trident.tuples import TridentCollector, TridentTuple, copied

T = TypeVar("T")

Comparator = Callable[[Any, Any], int]
"""Compares two values: below 0 if the first comes first, above 0 if it comes last."""

_WHOLE = (ByteType, ShortType, IntegerType, LongType)

_DECIMALS = Context(prec=100)
"""Decimals are added exactly: Spark's have up to 38 digits, Python's own context rounds to 28."""


class CombinerAggregator:
    """Turns each tuple into a value and combines values in any order: first partially in place, then finally.

    `in_spark` names the Spark function that does the same (`count`, `sum`, `min`, `max`) and runs instead.
    """

    in_spark: ClassVar[str | None] = None

    def init(self, tup: TridentTuple) -> Any:
        """Return the value of one tuple; an exception fails its record."""
        raise NotImplementedError

    def combine(self, left: Any, right: Any) -> Any:
        """Combine two values: associative and commutative."""
        raise NotImplementedError

    def zero(self) -> Any:
        """Return the value of no tuples, as in Trident. Only its type is used, when a topology is built."""
        raise NotImplementedError

    def result(self, _inputs: StructType) -> DataType | None:
        """Return the type of the values; None if the field declares it, or `zero` returns a value of it."""
        return None


class ReducerAggregator:
    """Folds tuples into a value one after the other; with a state, into the stored one."""

    def init(self) -> Any:
        """Return the value before the first tuple."""
        raise NotImplementedError

    def reduce(self, current: Any, tup: TridentTuple) -> Any:
        """Return the value after one more tuple."""
        raise NotImplementedError


class Aggregator:
    """Reads all tuples of a group, or of a partition, and emits any number of new ones."""

    def init(self, batch_id: int | None, collector: TridentCollector) -> Any:
        """Return the initial value for a group; `batch_id` is the txid."""
        raise NotImplementedError

    def aggregate(self, value: Any, tup: TridentTuple, collector: TridentCollector) -> Any:
        """Return the value after one more tuple; None, as by a method that changes `value`, keeps it."""
        raise NotImplementedError

    def complete(self, value: Any, collector: TridentCollector) -> None:
        """Emit the result, at the end of the group."""
        raise NotImplementedError


class MultiReducer(Generic[T]):
    """Reads the tuples of several streams, of all or of each group, and emits any number of new ones."""

    def init(self, collector: TridentCollector) -> T:
        """Return the value of a group, which `execute` changes."""
        raise NotImplementedError

    def execute(self, value: T, stream: int, tup: TridentTuple, collector: TridentCollector) -> None:
        """Take one more tuple; `stream` is the number of its stream, from 0."""
        raise NotImplementedError

    def complete(self, value: T, collector: TridentCollector) -> None:
        """Emit the result, at the end of the group."""


class GroupedMultiReducer(Generic[T]):
    """A `MultiReducer` of streams that are grouped, which gets the group, too: the values of its fields.

    The group's fields have the names of those of the first stream.
    """

    def init(self, collector: TridentCollector, group: TridentTuple) -> T:
        """Return the value of a group, which `execute` changes."""
        raise NotImplementedError

    def execute(
        self, value: T, stream: int, group: TridentTuple, tup: TridentTuple, collector: TridentCollector
    ) -> None:
        """Take one more tuple; `stream` is the number of its stream, from 0."""
        raise NotImplementedError

    def complete(self, value: T, group: TridentTuple, collector: TridentCollector) -> None:
        """Emit the result, at the end of the group."""


def value_of(operation: str, method: str, value: T) -> T:
    """Return the value of a group that a method has returned.

    Raises:
        OperationError: it is a coroutine: the method has not run.
    """
    # A generator may be a value, which runs from tuple to tuple.
    if type(value) is CoroutineType:
        refuse_not_run(f"{operation}: {method}()", value, OperationError)
    return value


def aggregate_group(
    operation: str,
    aggregator: Aggregator,
    names: Sequence[str],
    batch_id: int | None,
    tuples: Iterable[TridentTuple],
) -> list[tuple[Any, ...]]:
    """Return what an aggregator emits, with these names, for the tuples of a group.

    Raises:
        OperationError: a method returned what nobody reads or runs.
    """
    collector = TridentCollector(operation, names)
    value = aggregator.init(batch_id, collector)
    # Groups can be as many as tuples, so what is nearly never wrong costs no call.
    if type(value) is CoroutineType:
        value_of(operation, "init", value)
    for tup in tuples:
        changed = aggregator.aggregate(value, tup, collector)
        if changed is not None:
            value = changed
    if type(value) is CoroutineType:
        value_of(operation, "aggregate", value)
    returned: object = aggregator.complete(value, collector)  # type: ignore[func-returns-value]
    if returned is not None:
        refuse_returned(f"{operation}: complete()", returned, OperationError)
    return collector.close()


class Count(CombinerAggregator):
    """Counts tuples."""

    in_spark = "count"

    def init(self, tup: TridentTuple) -> int:
        """Return 1."""
        return 1

    def combine(self, left: int, right: int) -> int:
        """The sum."""
        return left + right

    def zero(self) -> int:
        """Return 0."""
        return 0

    def result(self, _inputs: StructType) -> DataType:
        """Return bigint."""
        return LongType()


class Sum(CombinerAggregator):
    """Sums one field of numbers; nulls add nothing."""

    in_spark = "sum"

    def init(self, tup: TridentTuple) -> Any:
        """Return the number."""
        return tup[0]

    def combine(self, left: Any, right: Any) -> Any:
        """The sum; exact for decimals."""
        return _DECIMALS.add(left, right) if isinstance(left, Decimal) else left + right

    def zero(self) -> int:
        """Return 0."""
        return 0

    def result(self, inputs: StructType) -> DataType:
        """Return the type of Spark's sum: whole numbers as bigint, fractions as double, decimals ten digits wider.

        Raises:
            TopologyError: the field does not hold numbers.
        """
        kind = inputs.fields[0].dataType
        if isinstance(kind, _WHOLE):
            return LongType()
        if isinstance(kind, FloatType | DoubleType):
            return DoubleType()
        if isinstance(kind, DecimalType):
            return DecimalType(min(38, kind.precision + 10), kind.scale)
        msg = (
            f"Sum: the field {inputs.names[0]!r} is {kind.simpleString()}, not a number. Cast it, or choose "
            "another field"
        )
        raise TopologyError(msg)


class _Extreme(CombinerAggregator):
    def init(self, tup: TridentTuple) -> Any:
        """Return the value of the field."""
        return tup[0]

    def zero(self) -> None:
        """Return None: no tuples have no value."""

    def result(self, inputs: StructType) -> DataType:
        """Return the field's own type."""
        return inputs.fields[0].dataType


class Min(_Extreme):
    """Finds the least value of one field; ignores nulls, and NaN if there is a number."""

    in_spark = "min"

    def combine(self, left: Any, right: Any) -> Any:
        """Return the lesser value."""
        return _one_of(min, left, right)


class Max(_Extreme):
    """Finds the greatest value of one field; ignores nulls, and NaN if there is a number."""

    in_spark = "max"

    def combine(self, left: Any, right: Any) -> Any:
        """Return the greater value."""
        return _one_of(max, left, right)


class FirstN(Aggregator):
    """Emits the first `n` tuples of a group, sorted by `field` if one is given; nulls and NaN come last.

    Args:
        n: the number of tuples.
        field: the field to sort by.
        reverse: sort descending.
        comparator: compares two values of the field, or, without a field, two tuples.
    """

    def __init__(
        self,
        n: int,
        field: str | None = None,
        *,
        reverse: bool = False,
        comparator: Comparator | None = None,
    ) -> None:
        self._n = n
        self._field = field
        self._reverse = reverse
        self._comparator = comparator

    def check(self, read: Sequence[str], added: StructType, operation: str) -> None:
        """Check the fields when the topology is built.

        Raises:
            TopologyError: it does not read its sort field, or the number of new fields differs from the fields
                read.
        """
        if self._field is not None and self._field not in read:
            msg = (
                f"{operation}: sorts by {self._field!r}, but reads only {', '.join(read)}. Name the field in "
                "inputs=[...]"
            )
            raise TopologyError(msg)
        if len(added) != len(read):
            msg = (
                f"{operation}: emits the {len(read)} fields that it reads, but there are {len(added)} new fields. "
                "Choose the fields with inputs=[...]"
            )
            raise TopologyError(msg)

    def init(self, batch_id: int | None, collector: TridentCollector) -> list[TridentTuple]:
        """Return an empty list."""
        return []

    def aggregate(
        self, value: list[TridentTuple], tup: TridentTuple, collector: TridentCollector
    ) -> list[TridentTuple]:
        """Keep the tuple if it is among the first."""
        if self._is_sorted:
            value.append(tup)
            if len(value) > 2 * self._n + 1000:
                return self._first(value)
        elif len(value) < self._n:
            value.append(tup)
        return value

    def complete(self, value: list[TridentTuple], collector: TridentCollector) -> None:
        """Emit the tuples."""
        for tup in self._first(value):
            collector.emit(list(tup))

    @property
    def _is_sorted(self) -> bool:
        return self._field is not None or self._comparator is not None

    def _first(self, value: list[TridentTuple]) -> list[TridentTuple]:
        if not self._is_sorted:
            return value
        unknown: list[TridentTuple] = []
        known = value
        key: Callable[[TridentTuple], Any] = _whole
        if self._field is not None:
            key = itemgetter(self._field)
            unknown = [tup for tup in value if _is_unknown(key(tup))]
            known = [tup for tup in value if not _is_unknown(key(tup))]
        known = sorted(known, key=self._order(key), reverse=self._reverse)
        return [*known, *unknown][: self._n]

    def _order(self, key: Callable[[TridentTuple], Any]) -> Callable[[TridentTuple], Any]:
        if self._comparator is None:
            return key
        comparator, copy = self._comparator, cast(Callable[[Any], Any], copied if key is _whole else fresh)
        # Each is compared several times, and then emitted.
        compared = cmp_to_key(lambda one, other: comparator(copy(one), copy(other)))
        return lambda tup: compared(key(tup))


def _whole(tup: TridentTuple) -> TridentTuple:
    return tup


def _one_of(choose: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    if _is_unknown(left):
        return right
    return left if _is_unknown(right) else choose(left, right)


def _is_unknown(value: Any) -> bool:
    """Return whether a value has no place in an order: null, and NaN, which is not even equal to itself."""
    return value is None or bool(value != value)  # noqa: PLR0124
