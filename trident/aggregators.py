"""Aggregators: what becomes of many tuples. Those that Spark knows itself say so, and run in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

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

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.trident.tuples import TridentCollector, TridentTuple

__all__ = ["Aggregator", "CombinerAggregator", "Count", "FirstN", "Max", "Min", "ReducerAggregator", "Sum"]

_WHOLE = (ByteType, ShortType, IntegerType, LongType)


class CombinerAggregator:
    """Each tuple becomes a value, and values are combined in any order: partly where they are, then once more.

    `in_spark` names the Spark function that does the same (`count`, `sum`, `min`, `max`): then that one runs.
    """

    in_spark: ClassVar[str | None] = None

    def init(self, tup: TridentTuple) -> Any:
        """The value of one tuple; an exception fails its record."""
        raise NotImplementedError

    def combine(self, left: Any, right: Any) -> Any:
        """Two values as one: associative and commutative."""
        raise NotImplementedError

    def zero(self) -> Any:
        """The value of no tuples, as in Trident. No topology calls it: of no tuples comes nothing (docs/trident.md)."""
        raise NotImplementedError

    def result(self, _inputs: StructType) -> DataType | None:
        """The type of the values, None if the user is to say."""
        return None


class ReducerAggregator:
    """Folds tuples into a value one after the other; with a state, into the stored one."""

    def init(self) -> Any:
        """The value before the first tuple."""
        raise NotImplementedError

    def reduce(self, current: Any, tup: TridentTuple) -> Any:
        """The value after one more tuple."""
        raise NotImplementedError


class Aggregator:
    """Sees all tuples of a group, or of a partition, and emits any number of new ones."""

    def init(self, batch_id: int | None, collector: TridentCollector) -> Any:
        """What is kept while the group is read; `batch_id` is the txid."""
        raise NotImplementedError

    def aggregate(self, value: Any, tup: TridentTuple, collector: TridentCollector) -> Any:
        """One more tuple: what is kept from here on."""
        raise NotImplementedError

    def complete(self, value: Any, collector: TridentCollector) -> None:
        """The group is read to its end."""
        raise NotImplementedError


class Count(CombinerAggregator):
    """How many tuples."""

    in_spark = "count"

    def init(self, tup: TridentTuple) -> int:
        """One."""
        return 1

    def combine(self, left: int, right: int) -> int:
        """The sum."""
        return left + right

    def zero(self) -> int:
        """None."""
        return 0

    def result(self, _inputs: StructType) -> DataType:
        """A bigint."""
        return LongType()


class Sum(CombinerAggregator):
    """The sum of one field of numbers; nulls add nothing."""

    in_spark = "sum"

    def init(self, tup: TridentTuple) -> Any:
        """The number."""
        return tup[0]

    def combine(self, left: Any, right: Any) -> Any:
        """The sum."""
        return left + right

    def zero(self) -> int:
        """Nothing."""
        return 0

    def result(self, inputs: StructType) -> DataType:
        """As Spark's sum: whole numbers as bigint, fractions as double, decimals ten digits wider.

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
        msg = f"Sum: the field {inputs.names[0]!r} is {kind.simpleString()}, not a number"
        raise TopologyError(msg)


class _Extreme(CombinerAggregator):
    def init(self, tup: TridentTuple) -> Any:
        """The value of the field."""
        return tup[0]

    def zero(self) -> None:
        """There is none of nothing."""

    def result(self, inputs: StructType) -> DataType:
        """The field's own type."""
        return inputs.fields[0].dataType


class Min(_Extreme):
    """The least value of one field; nulls do not count."""

    in_spark = "min"

    def combine(self, left: Any, right: Any) -> Any:
        """The lesser one."""
        return min(left, right)


class Max(_Extreme):
    """The greatest value of one field; nulls do not count."""

    in_spark = "max"

    def combine(self, left: Any, right: Any) -> Any:
        """The greater one."""
        return max(left, right)


class FirstN(Aggregator):
    """The first `n` tuples of a group, sorted by `field` if one is given; nulls and NaN come last."""

    def __init__(self, n: int, field: str | None = None, *, reverse: bool = False) -> None:
        self._n = n
        self._field = field
        self._reverse = reverse

    def check(self, read: Sequence[str], added: StructType, operation: str) -> None:
        """Check what it is given when the topology is built.

        Raises:
            TopologyError: it does not see the field that it sorts by, or the new fields are not as many as it emits.
        """
        if self._field is not None and self._field not in read:
            msg = (
                f"{operation}: sorts by {self._field!r}, and reads {', '.join(read)}: name it in inputs=[...]"
            )
            raise TopologyError(msg)
        if len(added) != len(read):
            msg = (
                f"{operation}: emits the tuples that it reads, so it needs {len(read)} new fields, not {len(added)}: "
                "inputs=[...] names what it reads"
            )
            raise TopologyError(msg)

    def init(self, batch_id: int | None, collector: TridentCollector) -> list[TridentTuple]:
        """None yet."""
        return []

    def aggregate(
        self, value: list[TridentTuple], tup: TridentTuple, collector: TridentCollector
    ) -> list[TridentTuple]:
        """Keep the tuple while it is among the first."""
        if self._field is not None:
            value.append(tup)
            if len(value) > 2 * self._n + 1000:
                return self._first(value)
        elif len(value) < self._n:
            value.append(tup)
        return value

    def complete(self, value: list[TridentTuple], collector: TridentCollector) -> None:
        """Emit them."""
        for tup in self._first(value):
            collector.emit(list(tup))

    def _first(self, value: list[TridentTuple]) -> list[TridentTuple]:
        if self._field is None:
            return value
        field = self._field
        known = [tup for tup in value if not _is_unknown(tup[field])]
        known.sort(key=lambda tup: tup[field], reverse=self._reverse)
        return [*known, *(tup for tup in value if _is_unknown(tup[field]))][: self._n]


def _is_unknown(value: Any) -> bool:
    """Whether a value has no place in an order: null, and NaN, which is not even equal to itself."""
    return value is None or bool(value != value)  # noqa: PLR0124
