"""Checks the columns of a write, and converts rows to entries of PutRecords. Pure: randomness is an argument."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, CharType, DataType, StringType, StructType, VarcharType

from kinesis_trident.spout.errors import WriteError
from kinesis_trident.spout.kinesis.put_pools import Entry
from kinesis_trident.spout.options import parsers
from kinesis_trident.spout.reader.rows import SCHEMA

__all__ = [
    "KEY_CHARACTERS",
    "SURE_RECORD_BYTES",
    "WriteColumns",
    "entries_of",
    "has_stream_column",
    "streams_of",
]

SURE_RECORD_BYTES = 2**20
"""Every stream accepts a record of this size, payload and partition key together."""

KEY_CHARACTERS = 256

STREAM_COLUMN = "streamName"
"""The column with the stream of each row; the source's own column `stream` is where a row came from."""

_HASH_KEYS = 2**128
_SLICE = 1000
"""The number of rows that are Python objects at a time."""

_TEXT = (StringType, VarcharType, CharType)
_TAKEN: dict[str, tuple[type[DataType], ...]] = {
    "data": (BinaryType, *_TEXT),
    "partitionKey": _TEXT,
    "explicitHashKey": _TEXT,
    STREAM_COLUMN: _TEXT,
}
_TYPES = {
    "data": "binary or string",
    "partitionKey": "string",
    "explicitHashKey": "string",
    STREAM_COLUMN: "string",
}


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """The indexes of the columns in the frame; None for a missing one."""

    data: int
    partition_key: int | None
    explicit_hash_key: int | None
    stream_name: int | None = None

    @classmethod
    def of(cls, schema: StructType) -> WriteColumns:
        """Find the columns, in any case.

        Columns that only our own source has are accepted but not written, so that a stream can be copied unchanged.

        Raises:
            WriteError: naming all columns that are missing, duplicate, of a wrong type, or unknown.
        """
        names = {name.lower(): name for name in _TAKEN}
        found: dict[str, int] = {}
        wrong = []
        for index, column in enumerate(schema.fields):
            name = names.get(column.name.lower())
            if name is None:
                if column.name not in SCHEMA.names:
                    wrong.append(f"column {column.name} is unknown")
            elif name in found:
                wrong.append(f"column {name} is duplicate")
            else:
                found[name] = index
                if not isinstance(column.dataType, _TAKEN[name]):
                    wrong.append(f"column {name} is {column.dataType.simpleString()}, not {_TYPES[name]}")
        if "data" not in found:
            wrong.append("column data (binary or string) is missing")
        if wrong:
            msg = (
                f"the frame cannot be written to Kinesis: {'; '.join(wrong)}. Select data (binary or "
                "string), partitionKey, explicitHashKey and streamName (strings, optional), and pack others into "
                "data, as with to_json(struct(...))"
            )
            raise WriteError(msg)
        return cls(
            found["data"], found.get("partitionKey"), found.get("explicitHashKey"), found.get(STREAM_COLUMN)
        )


def has_stream_column(schema: StructType) -> bool:
    """Tell whether the rows of a frame name their streams."""
    return STREAM_COLUMN.lower() in (name.lower() for name in schema.names)


def streams_of(
    batch: pa.RecordBatch, columns: WriteColumns, default: str | None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each stream, in their order; `default` is the stream of rows that name none.

    Raises:
        WriteError: a row names no stream and there is no default, or names one that cannot exist.
    """
    if columns.stream_name is None:
        assert default is not None
        yield default, batch
        return
    column = batch.column(columns.stream_name)
    if column.null_count:
        if default is None:
            msg = (
                f"the column {STREAM_COLUMN} is null in a row, and the option {STREAM_COLUMN} is not set. Fill in the "
                "column, or set the option, which is the stream of such rows"
            )
            raise WriteError(msg)
        column = column.fill_null(default)
    names = column.dictionary_encode()
    codes = names.indices.to_numpy()
    found = [_checked_stream(name) for name in names.dictionary.to_pylist()]
    rows = batch.take(pa.array(np.argsort(codes, kind="stable"))) if len(found) > 1 else batch
    start = 0
    for name, count in zip(found, np.bincount(codes, minlength=len(found)).tolist(), strict=True):
        yield name, rows.slice(start, count)
        start += count


def _checked_stream(name: str) -> str:
    try:
        return parsers.single_name(name)
    except ValueError:
        msg = (
            f"the column {STREAM_COLUMN} is {name[:64]!r} in a row. Expected: the name of one stream, of 1 to 128 "
            "letters, digits, `_`, `.` or `-`"
        )
        raise WriteError(msg) from None


def entries_of(
    batch: pa.RecordBatch, columns: WriteColumns, *, limit: Callable[[], int], rng: random.Random
) -> Iterator[tuple[Entry, int]]:
    """Yield the rows of a batch, in order, as entries with their size in bytes (payload and partition key).

    Args:
        batch: the rows.
        columns: the indexes of the columns.
        limit: returns the maximum bytes of a record in this stream; called only for a record above 1 MiB.
        rng: draws the partition key of a row without one.

    Raises:
        WriteError: Kinesis would refuse or change a row; rows before it were yielded.
    """
    for start in range(0, batch.num_rows, _SLICE):
        part = batch.slice(start, _SLICE)
        data = part.column(columns.data)
        if not (pa.types.is_binary(data.type) or pa.types.is_large_binary(data.type)):
            data = data.cast(pa.large_binary())
        keys = _keys(part, columns, rng)
        hashes = (
            None if columns.explicit_hash_key is None else part.column(columns.explicit_hash_key).to_pylist()
        )
        payloads, texts = data.to_pylist(), keys.to_pylist()
        sizes = _sizes(data, keys)
        if sizes is None or hashes is not None:
            yield from _checked(payloads, texts, hashes, limit)
        else:
            entries = [
                {"Data": payload, "PartitionKey": key} for payload, key in zip(payloads, texts, strict=True)
            ]
            yield from zip(entries, sizes, strict=True)


def _keys(part: pa.RecordBatch, columns: WriteColumns, rng: random.Random) -> pa.Array:
    """Return the partition keys, random ones for rows without."""
    given = None if columns.partition_key is None else part.column(columns.partition_key)
    if given is not None and not given.null_count:
        return given
    texts = [None] * part.num_rows if given is None else given.to_pylist()
    return pa.array([f"{rng.getrandbits(64):016x}" if key is None else key for key in texts], pa.string())


def _sizes(data: pa.Array, keys: pa.Array) -> list[int] | None:
    """Return the sizes of rows; None if one is not certain to be accepted."""
    characters = pc.min_max(pc.utf8_length(keys)).as_py()
    if data.null_count or characters["min"] < 1 or characters["max"] > KEY_CHARACTERS:
        return None
    sizes = pc.add(pc.binary_length(data).cast(pa.int64()), pc.binary_length(keys).cast(pa.int64()))
    found: list[int] | None = sizes.to_pylist() if pc.max(sizes).as_py() <= SURE_RECORD_BYTES else None
    return found


def _checked(
    payloads: list[Any], keys: list[str], hashes: list[Any] | None, limit: Callable[[], int]
) -> Iterator[tuple[Entry, int]]:
    for payload, key, explicit in zip(payloads, keys, hashes or [None] * len(keys), strict=True):
        if payload is None:
            msg = f"data is null in {_row(key)}, but Kinesis has no null. Filter out such rows, or write empty data"
            raise WriteError(msg)
        size = len(payload) + _check_key(key)
        if size > SURE_RECORD_BYTES and size > (most := limit()):
            msg = (
                f"{_row(key)} has {size} bytes with its key, but the stream allows at most {most}. Store the "
                "payload elsewhere and send a reference, or raise the stream's maximum record size (10 MiB at most)"
            )
            raise WriteError(msg)
        entry: Entry = {"Data": payload, "PartitionKey": key}
        if explicit is not None:
            entry["ExplicitHashKey"] = _check_hash(explicit, key)
        yield entry, size


def _check_key(key: str) -> int:
    """Return the bytes of a partition key that Kinesis accepts."""
    if not 1 <= len(key) <= KEY_CHARACTERS:
        msg = (
            f"{_row(key)}: the key has {len(key)} characters, but Kinesis allows 1 to {KEY_CHARACTERS}. Shorten it, "
            "as with sha2(partitionKey, 256), or set it to null for a random one"
        )
        raise WriteError(msg)
    return len(key.encode())


def _check_hash(given: str, key: str) -> str:
    if re.fullmatch(r"0|[1-9][0-9]{0,38}", given) is None or int(given) >= _HASH_KEYS:
        msg = f"{_row(key)}: explicitHashKey is {given[:64]!r}. Expected: digits of a number from 0 to 2**128 - 1"
        raise WriteError(msg)
    return given


def _row(key: str) -> str:
    return f"the row with the partition key {key[:64]!r}{'...' if len(key) > 64 else ''}"
