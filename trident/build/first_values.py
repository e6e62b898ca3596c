"""The value that an aggregator starts from tells its type, and whether a state can store it, when it is built."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    TimestampType,
)

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.trident.aggregators import CombinerAggregator, ReducerAggregator
from kinesis_trident.trident.state import StateFactory
from kinesis_trident.trident.stores.factory import MapStateFactory, stored_form

_KINDS: dict[type, DataType] = {
    bool: BooleanType(),
    int: LongType(),
    float: DoubleType(),
    str: StringType(),
    bytes: BinaryType(),
    Decimal: DecimalType(38, 18),
    datetime: TimestampType(),
    date: DateType(),
}
"""The Spark types of values whose Python type leaves no choice; those that Spark itself infers."""


def type_of_first_value(aggregator: CombinerAggregator | ReducerAggregator) -> DataType | None:
    """Return the type of what a combiner's `zero` or a reducer's `init` returns; None if that does not tell it.

    A list tells the type if it holds values of one type; None, an empty list, a dict or an error tell nothing.
    """
    return _kind(_first_value(aggregator))


def check_first_value(
    operation: str, factory: StateFactory, aggregator: CombinerAggregator | ReducerAggregator
) -> None:
    """Check that a state can store what a combiner's `zero` or a reducer's `init` returns.

    Raises:
        TopologyError: its serializer refuses the value. Each update would fail, after the records were done.
    """
    value = _first_value(aggregator)
    if value is None or not isinstance(factory, MapStateFactory):
        return
    try:
        factory.serializer.serialize(stored_form(factory.kind, value))
    except Exception as error:
        msg = (
            f"{operation}: {_name(aggregator)} returns {value!r}, which the state's "
            f"{type(factory.serializer).__name__} cannot store: {error}. Use values of other types, or give the "
            "state a kinesis_trident.trident.Serializer that takes them"
        )
        raise TopologyError(msg) from error


def _first_value(aggregator: CombinerAggregator | ReducerAggregator) -> Any:
    """Return what the aggregator starts from; None if it does not say: the executors may have what it needs.

    Those that Spark has know the type of their values, and never store their zero.
    """
    if isinstance(aggregator, CombinerAggregator) and aggregator.in_spark is not None:
        return None
    try:
        return aggregator.zero() if isinstance(aggregator, CombinerAggregator) else aggregator.init()
    except Exception:
        return None


def _name(aggregator: CombinerAggregator | ReducerAggregator) -> str:
    return "zero()" if isinstance(aggregator, CombinerAggregator) else "init()"


def _kind(value: Any) -> DataType | None:
    if isinstance(value, list | tuple):
        kinds = [_kind(item) for item in value]
        return (
            ArrayType(kinds[0])
            if kinds and kinds[0] is not None and kinds.count(kinds[0]) == len(kinds)
            else None
        )
    return _KINDS.get(type(value))
