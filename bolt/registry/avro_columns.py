"""Reads a field of many Avro records at a time: a cursor stands in each record, and all go forward together. Pure.

fastavro makes a dict of each record, which costs ten times as much. What is not read here, or not with certainty, is
left to it: nested values that are wanted, arrays, maps, and each record that does not end where its last field ends.
The encoding is that of https://avro.apache.org/docs/1.12.0/specification/#binary-encoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kinesis_trident.common.arrow_columns import booleans, numbers, texts

Rows = npt.NDArray[np.int64]

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UTC = pa.timestamp("us", tz="UTC")
_TARGETS: dict[str, tuple[pa.DataType, ...]] = {
    "boolean": (pa.bool_(),),
    "int": _INTEGERS,
    "long": _INTEGERS,
    "float": (pa.float32(), pa.float64()),
    "double": (pa.float64(),),
    "string": (pa.string(),),
    "bytes": (pa.binary(),),
    "fixed": (pa.binary(),),
    "enum": (pa.string(),),
    "int date": (pa.date32(),),
    "long timestamp-millis": (_UTC,),
    "long timestamp-micros": (_UTC,),
    "long local-timestamp-millis": (pa.timestamp("us"),),
    "long local-timestamp-micros": (pa.timestamp("us"),),
}
"""The types of columns that a field, by its type and logical type, is read into here."""

# Years 1 to 9999, which Python's dates know: fastavro refuses others.
_DAYS = (-719_162, 2_932_896)
_MICROS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)


@dataclass(frozen=True, slots=True)
class Field:
    """How to read one field.

    Args:
        kind: Avro's type; `record` reads `fields` one after the other.
        logical: its logical type.
        null: the number of null in the union of null and this type; None without a union.
        size: of a `fixed`.
        symbols: of an `enum`.
        fields: of a `record`.
    """

    kind: str
    logical: str = ""
    null: int | None = None
    size: int = 0
    symbols: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()

    def fits(self, kind: pa.DataType) -> bool:
        """Return whether the field can be read into a column of this type here."""
        return kind in _TARGETS.get(_key(self.kind, self.logical), ())


def _key(kind: str, logical: str) -> str:
    return f"{kind} {logical}" if logical else kind


def plan_of(schema: Mapping[str, Any]) -> dict[str, Field] | None:
    """Return the fields of a record's schema, parsed by fastavro; None if one of them cannot be passed here."""
    named = schema["__named_schemas"]
    planned = {field["name"]: _field(field["type"], named, ()) for field in schema["fields"]}
    found = {name: field for name, field in planned.items() if field is not None}
    return found if len(found) == len(planned) else None


def _field(schema: Any, named: Mapping[str, Any], above: tuple[str, ...]) -> Field | None:
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        inner = _field(others[0], named, above) if len(schema) == 2 and len(others) == 1 else None
        return None if inner is None or inner.null is not None else replace(inner, null=schema.index("null"))
    if isinstance(schema, str):
        if schema not in named:
            return Field(schema) if schema in _TARGETS or schema == "null" else None
        schema = named[schema]
    kind, logical = schema["type"], schema.get("logicalType", "")
    if isinstance(kind, dict | list) or schema.get("name") in above:
        return None
    if kind == "record":
        fields = [_field(one["type"], named, (*above, schema["name"])) for one in schema["fields"]]
        found = tuple(one for one in fields if one is not None)
        return Field(kind, fields=found) if len(found) == len(fields) else None
    if _key(kind, logical) not in _TARGETS and kind != "null":
        # fastavro may refuse what it converts, such as a text that is no UUID: all of it is left to it.
        return None
    return Field(kind, logical, size=schema.get("size", 0), symbols=tuple(schema.get("symbols", ())))


def read_columns(
    content: npt.NDArray[np.uint8], starts: Rows, ends: Rows, plan: Mapping[str, Field], wanted: pa.Schema
) -> tuple[list[pa.Array], Rows] | None:
    """Read the wanted fields of records of one schema.

    Args:
        content: the bytes of all records.
        starts: where the first field of each record begins.
        ends: where each record ends.
        plan: all fields of the schema, in its order.
        wanted: names of fields, with the types of their columns.

    Returns:
        The columns, and the positions of the records that they have, ascending. None if one of the fields is not read
        here, or a column does not hold one of its values.
    """
    if not all(plan[field.name].fits(field.type) for field in wanted):
        return None
    cursors = _Cursors(content, starts.copy(), ends)
    everything = np.arange(len(starts))
    read = {}
    for name, field in plan.items():
        passed = len(cursors.texts)
        read[name] = cursors.read(field, everything)
        if name in wanted.names:
            # Their columns are checked when they are made.
            del cursors.texts[passed:]
    good = np.flatnonzero(cursors.good & (cursors.at == ends))
    try:
        for rows, text in cursors.texts:
            _check_text(content, text, cursors.good[rows])
        return [_column(content, read[one.name], plan[one.name], one.type, good) for one in wanted], good
    except pa.ArrowException:
        return None


@dataclass(slots=True)
class _Values:
    """The values of a field by record; of a text or binary where each begins, and its `sizes`."""

    values: npt.NDArray[Any]
    sizes: Rows | None = None
    there: npt.NDArray[np.bool_] | None = None


class _Cursors:
    """Where the next field of each record begins; `good` is False where one cannot be read."""

    def __init__(self, content: npt.NDArray[np.uint8], at: Rows, ends: Rows) -> None:
        self._content = content
        self._ends = ends
        self.at = at
        self.good = np.ones(len(at), np.bool_)
        self.texts: list[tuple[Rows, _Values]] = []

    def read(self, field: Field, rows: Rows) -> _Values:
        """Read one field of some records, whose cursors go on behind it."""
        if field.null is None:
            return self._read(field, rows)
        branch = self._long(rows)
        self._refuse(rows, (branch != 0) & (branch != 1))
        there = branch == 1 - field.null
        inner = self._read(field, rows[there])
        found = _Values(np.zeros(len(rows), inner.values.dtype), None, there)
        found.values[there] = inner.values
        if inner.sizes is not None:
            found.sizes = np.zeros(len(rows), np.int64)
            found.sizes[there] = inner.sizes
        return found

    def _read(self, field: Field, rows: Rows) -> _Values:
        nothing = np.zeros(len(rows), np.bool_)
        match field.kind:
            case "null":
                found = _Values(nothing)
            case "record":
                for one in field.fields:
                    self.read(one, rows)
                found = _Values(nothing)
            case "boolean":
                byte = self._fixed(rows, 1)[:, 0]
                self._refuse(rows, byte > 1)
                found = _Values(byte == 1)
            case "float":
                found = _Values(self._fixed(rows, 4).view("<f4")[:, 0])
            case "double":
                found = _Values(self._fixed(rows, 8).view("<f8")[:, 0])
            case "string" | "bytes":
                found = self._skip(rows, self._long(rows))
                if field.kind == "string":
                    self.texts.append((rows, found))
            case "fixed":
                found = self._skip(rows, np.full(len(rows), field.size, np.int64))
            case _:
                found = _Values(self._number(field, rows))
        return found

    def _number(self, field: Field, rows: Rows) -> Rows:
        """Read numbers, the numbers of an enum's symbols, days, or microseconds."""
        number, scale = self._long(rows), 1
        if field.kind == "enum":
            first, last = 0, len(field.symbols) - 1
        elif field.logical == "date":
            first, last = _DAYS
        elif "timestamp" in field.logical:
            first, last = _MICROS
            scale = 1000 if field.logical.endswith("millis") else 1
        else:
            return number
        wrong = (number < -(-first // scale)) | (number > last // scale)
        self._refuse(rows, wrong)
        return np.where(wrong, 0, number) * scale

    def _refuse(self, rows: Rows, wrong: npt.NDArray[np.bool_]) -> None:
        """Give up some records: their cursors stand at the end, where nothing more is read."""
        if wrong.any():
            refused = rows[wrong]
            self.good[refused] = False
            self.at[refused] = self._ends[refused]

    def _skip(self, rows: Rows, sizes: Rows) -> _Values:
        at = self.at[rows]
        wrong = (sizes < 0) | (sizes > self._ends[rows] - at)
        sizes = np.where(wrong, 0, sizes)
        self.at[rows] = at + sizes
        self._refuse(rows, wrong)
        return _Values(at, sizes)

    def _fixed(self, rows: Rows, size: int) -> npt.NDArray[np.uint8]:
        """Read values of one size, with a row of bytes each."""
        at = self.at[rows]
        there = at + size <= self._ends[rows]
        found = np.zeros((len(rows), size), np.uint8)
        found[there] = self._content[at[there, None] + np.arange(size)]
        self.at[rows] = at + size
        self._refuse(rows, ~there)
        return found

    def _long(self, rows: Rows) -> Rows:
        """Read numbers: seven bits a byte, the lowest first, then zigzag."""
        number = np.zeros(len(rows), np.uint64)
        at, ends = self.at[rows], self._ends[rows]
        wrong = np.zeros(len(rows), np.bool_)
        left = np.arange(len(rows))
        for shift in range(0, 70, 7):
            there = at[left] < ends[left]
            if not there.all():
                wrong[left[~there]] = True
                left = left[there]
            byte = self._content[at[left]]
            number[left] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[left] += 1
            if shift == 63:
                # Of the tenth byte a number of 64 bits has one bit.
                wrong[left[byte > 1]] = True
            left = left[byte > 0x7F]
            if not len(left):
                break
        self.at[rows] = at
        self._refuse(rows, wrong)
        half = (number >> np.uint64(1)).view(np.int64)
        return half ^ -(number & np.uint64(1)).view(np.int64)


def _column(
    content: npt.NDArray[np.uint8], read: _Values, field: Field, kind: pa.DataType, rows: Rows
) -> pa.Array:
    """Return the values of some records as a column.

    Raises:
        pyarrow.ArrowException: a value does not fit the type, or is not UTF-8.
    """
    values = read.values[rows]
    there = None if read.there is None else read.there[rows]
    if read.sizes is not None:
        found = _binaries(content, values, read.sizes[rows]).cast(kind)
    elif field.kind == "boolean":
        found = booleans(values)
    elif field.kind == "enum":
        found = pa.DictionaryArray.from_arrays(numbers(values.astype(np.int32)), texts(field.symbols)).cast(
            kind
        )
    elif pa.types.is_date(kind):
        found = numbers(values.astype(np.int32), kind)
    elif pa.types.is_timestamp(kind):
        found = numbers(values, kind)
    else:
        found = numbers(values).cast(kind)
    if there is None or there.all():
        return found
    valid = booleans(there).buffers()[1]
    return pa.Array.from_buffers(found.type, len(found), [valid, *found.buffers()[1:]])


def _check_text(content: npt.NDArray[np.uint8], read: _Values, good: npt.NDArray[np.bool_]) -> None:
    """Check texts that become no column: fastavro would refuse their records.

    Raises:
        pyarrow.ArrowException: one is not UTF-8.
    """
    assert read.sizes is not None
    _binaries(content, read.values[good], read.sizes[good]).cast(pa.string())


def _binaries(content: npt.NDArray[np.uint8], starts: Rows, sizes: Rows) -> pa.Array:
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    joined = content[np.repeat(starts - bounds[:-1], sizes) + np.arange(bounds[-1])]
    return pa.Array.from_buffers(
        pa.binary(), len(sizes), [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(joined)]
    )
