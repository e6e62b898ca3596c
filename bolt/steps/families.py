"""Families of types: which values and columns may fit a type at all, and the words about those that do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from reprlib import repr as short_repr

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

FRACTIONAL = (float, np.floating, Decimal, Fraction)
_NUMBERS = (int, np.integer, *FRACTIONAL)


@dataclass(frozen=True, slots=True)
class _Family:
    """Types that take the same values.

    Attributes:
        has: tells whether a type belongs to it.
        classes: the Python classes whose values may fit.
        families: the columns that may: those of these families.
    """

    has: Callable[[pa.DataType], bool]
    classes: tuple[type, ...] = ()
    families: tuple[str, ...] = ()


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


FAMILIES: Mapping[str, _Family] = {
    "text": _Family(_is_text, (str, bytes), ("text", "bytes")),
    "bytes": _Family(_is_bytes, (bytes, bytearray, memoryview, str), ("bytes", "text")),
    "truth": _Family(pa.types.is_boolean, (bool, np.bool_), ("truth",)),
    "whole": _Family(pa.types.is_integer, _NUMBERS, ("whole", "broken", "decimal")),
    "broken": _Family(pa.types.is_floating, (int, np.integer, float, np.floating), ("whole", "broken")),
    "decimal": _Family(pa.types.is_decimal, (int, np.integer, Decimal), ("whole", "decimal")),
    "day": _Family(pa.types.is_date, (date,), ("day", "time")),
    "time": _Family(pa.types.is_timestamp, (datetime,), ("time",)),
    "length": _Family(pa.types.is_duration, (timedelta,), ("length",)),
    "list": _Family(_is_list, (list, tuple, np.ndarray, set, frozenset), ("list",)),
    "map": _Family(pa.types.is_map, (Mapping, list, tuple), ("map",)),
    "struct": _Family(pa.types.is_struct, (Mapping, tuple), ("struct",)),
}
"""What fits which types, in a value, if nothing of it is lost."""


_NAMES: dict[int, str] = {}


class UnfitError(ValueError):
    """A value does not fit."""


_MADE = {"time": "a datetime", "day": "a date"}


def described(value: object, family: str) -> str:
    """Return what a value is that does not fit a family; of a number or a text for a time, also what to do."""
    said = short_repr(value)
    if family not in _MADE or not isinstance(value, (str, *_NUMBERS)):
        return said
    other, why = ("string", "") if isinstance(value, str) else ("bigint", ", a number without a unit")
    return f"{said}{why}. Give {_MADE[family]}, or take the field as {other} and convert it"


def family_of(kind: pa.DataType) -> str:
    """Return the name of the family of a type; empty if it is in none."""
    found = _NAMES.get(kind.id)
    if found is None:
        found = _NAMES[kind.id] = next((name for name, family in FAMILIES.items() if family.has(kind)), "")
    return found


def reason_of_unfit(name: str, kind: pa.DataType, why: object) -> str:
    """Return why a value does not fit a field: a text says what it is, an error why not."""
    try:
        said = from_arrow_type(kind).simpleString()
    except TypeError:
        # Spark has no such type.
        said = str(kind)
    # A field of ours holds the results of operations, in fields that a user has named, or one without a name.
    known = name.partition(".")[2] if name.startswith("__") else name
    what = f"the field {known!r}" if known else "the result"
    return f"{what} is {said}, but a value is {why if isinstance(why, str) else f'not: {why}'}"


def refusal_of(name: str, kind: pa.DataType, why: object) -> UnfitError:
    """Return the error about a value that does not fit a field."""
    return UnfitError(reason_of_unfit(name, kind, why))
