"""Makes a column of a type from Python values, or from a column of another type, if nothing of them is lost.

A value fits if it comes back equal, at any depth: no fraction is cut off, no number becomes infinite, or a time. What
is in an array, a map or a struct fits as it would outside; the fields of a struct go by name if the value has names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from reprlib import repr as short_repr
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kinesis_trident.bolt.steps.families import (
    FAMILIES,
    FRACTIONAL,
    UnfitError,
    described,
    family_of,
    refusal_of,
)
from kinesis_trident.bolt.steps.poison import NO_TIME, entries_of
from kinesis_trident.common.arrow_columns import booleans, plain_column, values_of
from kinesis_trident.common.visible_text import count_noun


def make_column(given: Sequence[Any] | pa.Array, field: pa.Field, name: str = "", but: int = 0) -> pa.Array:
    """Return a column of a field's type; `but`: so many nulls are of values whose whole is null."""
    name = name or field.name
    make = _of_column if isinstance(given, pa.Array) else _of_values
    made = make(given, field.type, name)
    if not field.nullable and made.null_count > but:
        msg = f"the field {name!r} is NOT NULL, but a value is null"
        raise UnfitError(msg)
    return made


def _of_values(given: Sequence[Any], kind: pa.DataType, name: str) -> pa.Array:
    classes = {*map(type, given)}
    found = plain_column(given, classes, kind)
    if found is not None:
        return found
    family = family_of(kind)
    if not family:
        return pa.array(given, type=kind)
    for one in classes - {NoneType}:
        # A boolean is a whole number in Python only.
        if not issubclass(one, FAMILIES[family].classes) or (one is bool and family != "truth"):
            raise refusal_of(
                name, kind, described(next(value for value in given if type(value) is one), family)
            )
    if (build := _NESTED.get(family)) is not None:
        return build(given, kind, name, classes)
    if family == "whole" and not classes <= {int, NoneType}:
        given = [_whole(value, kind, name) for value in given]
    if family in ("time", "length"):
        for value in given:
            # Those of pandas are more exact than a column.
            if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
                raise refusal_of(name, kind, str(value))
    try:
        made = pa.array(given, type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise refusal_of(name, kind, error) from error
    if family == "time" and NO_TIME.find(made) is not None:
        raise refusal_of(name, kind, NO_TIME.words)
    if family == "broken" and kind.bit_width < 64:
        _check_finite(
            pa.array(map(float, (0 if value is None else value for value in given)), pa.float64()), made, name
        )
    return made


def _whole(value: Any, kind: pa.DataType, name: str) -> Any:
    if not isinstance(value, FRACTIONAL):
        return value
    try:
        is_whole = value % 1 == 0
    except ArithmeticError:
        # Of an infinity, or of more digits than Python's decimals have.
        is_whole = False
    if not is_whole:
        raise refusal_of(name, kind, short_repr(value))
    return int(value)


def _check_finite(before: pa.Array, made: pa.Array, name: str) -> None:
    # Nearly no column has one.
    if not np.isinf(values_of(made)).any():
        return
    became = pc.and_(pc.is_inf(made), pc.is_finite(before))
    if became.true_count:
        raise refusal_of(name, made.type, f"{before.filter(became)[0].as_py()!r}, which would be infinite")


def _without_nulls(given: Sequence[Any], classes: set[type]) -> Sequence[Any]:
    return given if NoneType not in classes else [value for value in given if value is not None]


def _parts_of_buffers(given: Sequence[Any], classes: set[type]) -> list[pa.Buffer | None]:
    """Return the buffers of lists: where they are null, and where each begins."""
    whole = given if NoneType not in classes else [() if value is None else value for value in given]
    starts = np.zeros(len(given) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, whole), np.int32, len(given)), out=starts[1:])
    return [_validity(given, classes), pa.py_buffer(starts)]


def _validity(given: Sequence[Any], classes: set[type]) -> pa.Buffer | None:
    if NoneType not in classes:
        return None
    return booleans(np.fromiter((value is not None for value in given), np.bool_, len(given))).buffers()[1]


def _lists(given: Sequence[Any], kind: pa.DataType, name: str, classes: set[type]) -> pa.Array:
    if not pa.types.is_list(kind):
        return pa.array(given, type=kind)
    if np.ndarray in classes:
        given = [_plain(value) if isinstance(value, np.ndarray) else value for value in given]
    flat = list(chain.from_iterable(_without_nulls(given, classes)))
    inner = make_column(flat, kind.value_field, name)
    return pa.Array.from_buffers(kind, len(given), _parts_of_buffers(given, classes), children=[inner])


def _plain(array: np.ndarray) -> list[Any]:
    """Return the values of an array, as pandas has those of a list, in Python's classes."""
    if array.dtype.kind != "M":
        made: list[Any] = array.tolist()
        return made
    times: list[Any] = pa.array(array).cast(pa.timestamp("us")).to_pylist()
    return times


def _maps(given: Sequence[Any], kind: pa.DataType, name: str, classes: set[type]) -> pa.Array:
    if classes <= {dict, NoneType}:
        maps = _without_nulls(given, classes)
        flat = list(chain.from_iterable(maps)), [one for value in maps for one in value.values()]
    else:
        flat = _entries(given, kind, name)
    keys = make_column(flat[0], kind.key_field, name)
    items = make_column(flat[1], kind.item_field, name)
    inner = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, len(given), _parts_of_buffers(given, classes), children=[inner])


def _entries(given: Sequence[Any], kind: pa.DataType, name: str) -> tuple[list[Any], list[Any]]:
    """Return the keys and the values of maps, of which some are lists of pairs."""
    entries = [value.items() if isinstance(value, Mapping) else value for value in given]
    pairs = list(chain.from_iterable(one for one in entries if one is not None))
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise refusal_of(name, kind, "no map")
    if any(not isinstance(one, Mapping | NoneType) and _has_twice([key for key, _ in one]) for one in given):
        raise refusal_of(name, kind, "a map with one key twice")
    return [key for key, _ in pairs], [value for _, value in pairs]


def _has_twice(keys: Sequence[Any]) -> bool:
    try:
        return len({*keys}) < len(keys)
    except TypeError:
        # Structs and arrays are of classes that no set has.
        return any(key in keys[:at] for at, key in enumerate(keys))


def _structs(given: Sequence[Any], kind: pa.DataType, name: str, classes: set[type]) -> pa.Array:
    names = [field.name for field in kind]
    nulls = sum(value is None for value in given) if NoneType in classes else 0
    if classes <= {dict, NoneType}:
        places: Sequence[Any] = names
    else:
        given, places = [_in_order(value, kind, name, names) for value in given], range(len(names))
    inner = []
    for field, place in zip(kind, places, strict=True):
        try:
            content = (
                [None if value is None else value[place] for value in given]
                if nulls
                else list(map(itemgetter(place), given))
            )
        except KeyError as error:
            raise _no_field(name, kind, error) from error
        inner.append(make_column(content, field, f"{name}.{field.name}", nulls))
    return pa.Array.from_buffers(kind, len(given), [_validity(given, classes)], children=inner)


def _in_order(value: Any, kind: pa.DataType, name: str, names: Sequence[str]) -> Sequence[Any] | None:
    if value is None:
        return None
    try:
        found = by_name(value, names)
    except KeyError as error:
        raise _no_field(name, kind, error) from error
    if found is None and len(value) != len(names):
        raise refusal_of(name, kind, f"a tuple of {count_noun(len(value), 'value')}")
    return value if found is None else found


def _no_field(name: str, kind: pa.DataType, missing: KeyError) -> UnfitError:
    return refusal_of(name, kind, f"without its field {missing.args[0]!r}")


_NESTED: Mapping[str, Callable[[Sequence[Any], pa.DataType, str, set[type]], pa.Array]] = {
    "list": _lists,
    "map": _maps,
    "struct": _structs,
}


def by_name(value: Any, names: Sequence[str]) -> list[Any] | None:
    """Return the parts of a value that has names, such as a dict, a Row or a named tuple, in the order of `names`.

    None if it has none: its parts go by place.

    Raises:
        KeyError: it has no part of a name.
    """
    if isinstance(value, Mapping):
        return [value[name] for name in names]
    if isinstance(value, tuple) and (
        own := getattr(value, "__fields__", None) or getattr(value, "_fields", None)
    ):
        found = dict(zip(own, value, strict=True))
        return [found[name] for name in names]
    return None


def _of_column(given: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    has = given.type
    if has == kind and not (kind.num_fields and _refuses_nulls(kind)):
        return given
    family = family_of(kind)
    if pa.types.is_dictionary(has):
        return _of_column(given.dictionary_decode(), kind, name)
    if given.null_count == len(given):
        return pa.nulls(len(given), kind)
    if family and family_of(has) not in FAMILIES[family].families:
        raise refusal_of(name, kind, str(has))
    if family == "struct":
        return _of_structs(given, kind, name)
    if family in ("list", "map") and not pa.types.is_large_list(kind):
        return _of_lists(given, kind, name)
    try:
        if family == "decimal" and pa.types.is_integer(has):
            given = given.cast(pa.decimal256(76, kind.scale))
        made = given.cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise refusal_of(name, kind, error) from error
    if family == "broken" and pa.types.is_floating(has) and kind.bit_width < has.bit_width:
        _check_finite(given, made, name)
    return made


@lru_cache(256)
def _refuses_nulls(kind: pa.DataType) -> bool:
    """Return whether a value of a type may not have nulls somewhere within; the keys of a map never are."""
    if pa.types.is_map(kind):
        return not kind.item_field.nullable or _refuses_nulls(kind.item_type) or _refuses_nulls(kind.key_type)
    inner = (kind.field(number) for number in range(kind.num_fields))
    return any(not field.nullable or _refuses_nulls(field.type) for field in inner)


def _of_structs(given: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    inner = []
    for field in kind:
        place = given.type.get_field_index(field.name)
        if place < 0:
            raise refusal_of(name, kind, f"without its field {field.name!r}")
        part = pc.struct_field(given, place)
        inner.append(make_column(part, field, f"{name}.{field.name}", given.null_count))
    valid = booleans(values_of(given.is_valid())).buffers()[1] if given.null_count else None
    return pa.Array.from_buffers(kind, len(given), [valid], children=inner)


def _of_lists(given: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    given = entries_of(given)
    flat = pc.list_flatten(given)
    if pa.types.is_map(kind):
        keys, items = (
            make_column(pc.struct_field(flat, place), field, name)
            for place, field in enumerate((kind.key_field, kind.item_field))
        )
        inner = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    else:
        inner = make_column(flat, kind.value_field, name)
    starts = np.zeros(len(given) + 1, np.int32)
    np.cumsum(values_of(pc.list_value_length(given).fill_null(0)), out=starts[1:])
    valid = booleans(values_of(given.is_valid())).buffers()[1] if given.null_count else None
    return pa.Array.from_buffers(kind, len(given), [valid, pa.py_buffer(starts)], children=[inner])
