"""The values that a state can store: one table, asked by Spark type at build, by column in Arrow, and by value.

| Python | Spark | in JSON | in msgpack |
|---|---|---|---|
| None, bool, str | null, boolean, string | as they are | as they are |
| int | integers | any size | 64 bits; else its text, as an extension of type 2 |
| float | float, double | finite ones; else `{"$decimal":{"float":"NaN"}}` | as they are |
| Decimal | decimal | `{"$decimal":"1.50"}` | its text, as an extension of type 1 |
| bytes | binary | not | as they are |
| list | array | of any of these | the same |
| dict | struct, map with string keys | of any of these; with a key `$decimal`: `{"$decimal":{"dict":...}}` | same |

What is built from these types is stored, and comes back equal. Anything else is refused: a tuple would come back as a
list, a time as a text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from kinesis_trident.common.arrow_columns import values_of
from kinesis_trident.trident.maps.values import OpaqueValue, TransactionalValue

_PLAIN = (
    T.NullType,
    T.BooleanType,
    T.IntegralType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.StringType,
    T.CharType,
    T.VarcharType,
)
_AS_THEY_ARE = frozenset({type(None), bool, str, int})
_INT64 = range(-(1 << 63), 1 << 64)
_MARK = "$decimal"
_DECIMAL, _INTEGER = 1, 2
"""The extension types of msgpack."""


def _in_json(value: Any) -> Any:
    if isinstance(value, Decimal):
        return {_MARK: str(value)}
    if isinstance(value, dict):
        return {_MARK: {"dict": value}}
    return {_MARK: {"float": {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]}}


def _in_msgpack(value: Any) -> Any:
    code = _DECIMAL if isinstance(value, Decimal) else _INTEGER
    return msgspec.msgpack.Ext(code, str(value).encode())


@dataclass(frozen=True, slots=True)
class Form:
    """How one format stores the values that it lacks."""

    plain: frozenset[type]
    """The types of which it takes the values as they are."""
    ints: range | None
    """But of integers only these; None: all."""
    marks: bool
    """It needs a mark around a dict that looks like one."""
    mark: Callable[[Any], Any]
    """Returns the stored form of a value that it lacks."""

    def takes_type(self, kind: T.DataType) -> bool:
        """Return whether all values of a Spark type can be stored."""
        if isinstance(kind, T.ArrayType):
            return self.takes_type(kind.elementType)
        if isinstance(kind, T.MapType):
            return isinstance(kind.keyType, T.StringType) and self.takes_type(kind.valueType)
        if isinstance(kind, T.StructType):
            return all(self.takes_type(field.dataType) for field in kind)
        return isinstance(kind, _PLAIN) or (isinstance(kind, T.BinaryType) and bytes in self.plain)

    def takes_all(self, values: Sequence[Any]) -> bool:
        """Return whether all values can be stored as they are, but for large integers, by a look at their types."""
        kinds = set(map(type, values))
        if kinds == {OpaqueValue}:
            kinds = {type(value.current) for value in values} | {type(value.previous) for value in values}
        elif kinds == {TransactionalValue}:
            kinds = {type(value.value) for value in values}
        return kinds <= self.plain

    def store(self, value: Any) -> Any:
        """Return the stored form of a value.

        Raises:
            TypeError: it would come back as another: a set as a list, a time as a text.
        """
        kind = type(value)
        if kind in self.plain:
            is_large = kind is int and self.ints is not None and value not in self.ints
            return self.mark(value) if is_large else value
        if kind is float and math.isfinite(value):
            return value
        if kind is float or kind is Decimal:
            return self.mark(value)
        if kind is OpaqueValue or kind is TransactionalValue:
            return kind(value.txid, *map(self.store, _values(value)))
        if kind is list:
            return [item if type(item) is str else self.store(item) for item in value]
        if kind is dict:
            return self._store_dict(value)
        if kind is tuple:
            msg = f"{value!r} is a tuple, which would come back as a list. Make it a list"
        else:
            where = f"{kind.__module__}.{kind.__qualname__}"
            msg = f"{value!r} is of type {where}, which would not come back unchanged"
        raise TypeError(msg)

    def _store_dict(self, value: dict[Any, Any]) -> Any:
        for key in value:
            if type(key) is not str:
                msg = f"the key {key!r} of a dict is a {type(key).__name__}, but keys must be strings"
                raise TypeError(msg)
        stored = {key: self.store(item) for key, item in value.items()}
        return self.mark(stored) if self.marks and _MARK in stored else stored


IN_JSON = Form(_AS_THEY_ARE, None, marks=True, mark=_in_json)
IN_MSGPACK = Form(_AS_THEY_ARE | {float, bytes}, _INT64, marks=False, mark=_in_msgpack)


def is_marked(data: bytes) -> bool:
    """Return whether JSON can have a mark in it."""
    return b'"$decimal"' in data


def restore(value: Any) -> Any:
    """Return a value of JSON with its marks undone.

    Raises:
        ValueError: a mark is none that `Form.store` makes.
    """
    kind = type(value)
    if kind is OpaqueValue or kind is TransactionalValue:
        return kind(value.txid, *map(restore, _values(value)))
    if kind is list:
        return list(map(restore, value))
    if kind is not dict:
        return value
    if value.keys() == {_MARK}:
        return _unmark(value[_MARK])
    return {key: restore(item) for key, item in value.items()}


def _unmark(marked: Any) -> Any:
    match marked:
        case str(text):
            return Decimal(text)
        case {"float": "NaN" | "Infinity" | "-Infinity" as text, **rest} if not rest:
            return float(text)
        case {"dict": dict(held), **rest} if not rest:
            return {key: restore(item) for key, item in held.items()}
    msg = f"{marked!r} marks no value"
    raise ValueError(msg)


def from_extension(code: int, data: memoryview) -> Any:
    """Return the value of an extension of msgpack.

    Raises:
        ValueError: it is of no type of this package.
    """
    if code not in (_DECIMAL, _INTEGER):
        msg = f"the extension type {code} is not of this package"
        raise ValueError(msg)
    text = bytes(data).decode()
    return Decimal(text) if code == _DECIMAL else int(text)


def find_not_finite(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which fractions of a column are NaN or infinite: a total of a state would be so for good."""
    found: npt.NDArray[np.bool_] = ~values_of(pc.or_kleene(pc.is_finite(column), column.is_null()))
    return found


def _values(stored: Any) -> tuple[Any, ...]:
    return (stored.current, stored.previous) if type(stored) is OpaqueValue else (stored.value,)
