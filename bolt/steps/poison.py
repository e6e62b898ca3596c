"""Values that Arrow holds and nobody can read, by their type, and where they are in columns of any depth. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from kinesis_trident.common.arrow_columns import find_invalid_texts, values_of
from kinesis_trident.common.instants import find_outside_calendar

Mask = npt.NDArray[np.bool_]
Find = Callable[[pa.Array], Mask | None]
"""Returns which values of a column are wrong, or None if none is: nearly all columns are right."""

Path = tuple[int | None, ...]
"""The way to a value within another: the number of a field, or None for the elements of an array or a map."""


@dataclass(frozen=True, slots=True)
class Poison:
    """Values of a type with which a row fails alone.

    Attributes:
        words: what such a value is.
        find: finds them.
    """

    words: str
    find: Find


NO_TEXT = Poison("no valid UTF-8", find_invalid_texts)
NO_TIME = Poison("no time of the years 1 to 9999", find_outside_calendar)

POISONS: Mapping[type[T.DataType], Poison] = {
    T.StringType: NO_TEXT,
    T.DateType: NO_TIME,
    T.TimestampType: NO_TIME,
    T.TimestampNTZType: NO_TIME,
}
"""The values that no function and no sink can read. What is in an array, a map or a struct is as it is outside."""


@dataclass(frozen=True, slots=True)
class ColumnCheck:
    """Finds the rows whose value of a column is wrong, also where it is within the column's values.

    Attributes:
        column: its name.
        name: the same, with the names of the fields that lead to the value.
        poison: the values.
        path: of the value.
    """

    column: str
    name: str
    poison: Poison
    path: Path = ()

    def __call__(self, column: pa.Array) -> Mask | None:
        """Return which rows are wrong; None if none is."""
        return _find_within(column, self.path, self.poison.find)


def _find_within(column: pa.Array, path: Sequence[int | None], find: Find) -> Mask | None:
    if not path:
        return find(column)
    if path[0] is not None:
        return _find_within(pc.struct_field(column, path[0]), path[1:], find)
    column = entries_of(column)
    found = _find_within(pc.list_flatten(column), path[1:], find)
    if found is None:
        return None
    lengths = values_of(pc.list_value_length(column).fill_null(0))
    wrong = np.zeros(len(column), np.bool_)
    wrong[np.repeat(np.arange(len(column)), lengths)[found]] = True
    return wrong


def entries_of(column: pa.Array) -> pa.Array:
    """Return a column of maps as one of lists of entries: Arrow has no other way to those of a part of a map."""
    if not pa.types.is_map(column.type):
        return column
    entry = pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])
    return column.cast(pa.list_(entry))


def unreadable_within(column: str, of: T.DataType) -> Iterator[ColumnCheck]:
    """Yield the checks of a column of a type for what nobody can read."""
    for name, path, inner in types_within(column, of):
        if (poison := POISONS.get(type(inner))) is not None:
            yield ColumnCheck(column, name, poison, path)


def types_within(name: str, of: T.DataType, path: Path = ()) -> Iterator[tuple[str, Path, T.DataType]]:
    """Yield a type and all that it consists of, each with its name and the way to it."""
    yield name, path, of
    for inner, place, found in parts_of(name, of):
        yield from types_within(inner, found, (*path, *place))


def parts_of(name: str, of: T.DataType) -> Iterator[tuple[str, Path, T.DataType]]:
    """Yield the types that one consists of, each with its name and the way to it."""
    match of:
        case T.StructType():
            for place, field in enumerate(of.fields):
                yield f"{name}.{field.name}", (place,), field.dataType
        case T.ArrayType():
            yield name, (None,), of.elementType
        case T.MapType():
            yield name, (None, 0), of.keyType
            yield name, (None, 1), of.valueType
