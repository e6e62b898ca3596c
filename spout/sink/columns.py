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

from kinesis_trident.common.arrow_columns import find_invalid_texts
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.spout.errors import WriteError
from kinesis_trident.spout.kinesis.put_entries import REQUEST_BYTES, Column, Entries
from kinesis_trident.spout.options import parsers
from kinesis_trident.spout.reader.rows import SCHEMA

SURE_RECORD_BYTES = 2**20
"""Every stream accepts a record of this size, payload and partition key together."""

KEY_CHARACTERS = 256

STREAM_COLUMN = "streamName"
"""The column with the stream of each row; the source's own column `stream` is where a row came from."""

_HASH_KEYS = 2**128
_SURE_HASH_KEY = r"^(0|[1-9][0-9]{0,37})$"
"""An explicit hash key that is below `_HASH_KEYS` for certain."""

_SLICE = 2000
"""The most rows that are Python objects at a time."""

_TEXT = (StringType, VarcharType, CharType)
TAKEN: dict[str, tuple[type[DataType], ...]] = {
    "data": (BinaryType, *_TEXT),
    "partitionKey": _TEXT,
    "explicitHashKey": _TEXT,
    STREAM_COLUMN: _TEXT,
}
"""The types of each column that is written."""

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
        names = {name.lower(): name for name in TAKEN}
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
                if not isinstance(column.dataType, TAKEN[name]):
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
    """Return whether the rows of a frame name their streams."""
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
    _check_texts(STREAM_COLUMN, column)
    names = column.dictionary_encode()
    codes = names.indices.to_numpy()
    found = [_check_stream(name) for name in names.dictionary.to_pylist()]
    rows = batch.take(pa.array(np.argsort(codes, kind="stable"))) if len(found) > 1 else batch
    start = 0
    for name, count in zip(found, np.bincount(codes, minlength=len(found)).tolist(), strict=True):
        yield name, rows.slice(start, count)
        start += count


def _check_stream(name: str) -> str:
    try:
        return parsers.single_name(name)
    except ValueError:
        msg = (
            f"the column {STREAM_COLUMN} is {name[:64]!r} in a row. Expected: the name of one stream, of 1 to 128 "
            "letters, digits, `_`, `.` or `-`"
        )
        raise WriteError(msg) from None


def entries_of(
    batch: pa.RecordBatch,
    columns: WriteColumns,
    *,
    limit: Callable[[], int],
    is_auto: Callable[[], bool],
    rng: random.Random,
) -> Iterator[Entries]:
    """Yield the rows of a batch, in order, as entries, some at a time.

    A row without a partition key gets a random one, unless the stream takes records without.

    Args:
        batch: the rows.
        columns: the indexes of the columns.
        limit: returns the maximum bytes of a record in this stream; called only for a record above 1 MiB.
        is_auto: tells whether the stream distributes records by itself; called only for a row without a key.
        rng: draws partition keys.

    Raises:
        WriteError: Kinesis would refuse or change a row; of those before it some were yielded.
    """
    for part in _parts(batch, batch.column(columns.data)):
        data = part.column(columns.data)
        if not (pa.types.is_binary(data.type) or pa.types.is_large_binary(data.type)):
            data = data.cast(pa.large_binary())
        keys = _keys(part, columns, is_auto, rng)
        _check_texts("partitionKey", keys)
        hashes = None if columns.explicit_hash_key is None else part.column(columns.explicit_hash_key)
        if hashes is not None:
            _check_texts("explicitHashKey", hashes)
        sizes = _lengths(data) + _lengths(keys)
        entries = Entries(_objects(data), _objects(keys), sizes, None if hashes is None else _objects(hashes))
        for row in np.flatnonzero(_find_unsure(data, keys, sizes, hashes)).tolist():
            _check(entries, row, limit)
        yield entries


def _parts(batch: pa.RecordBatch, data: pa.Array) -> Iterator[pa.RecordBatch]:
    """Yield the rows, some at a time, with at most the payloads of a request, or one."""
    ends = np.cumsum(_lengths(data))
    start = 0
    while start < len(ends):
        most = REQUEST_BYTES + (ends[start - 1] if start else 0)
        end = max(start + 1, min(start + _SLICE, int(np.searchsorted(ends, most, side="right"))))
        yield batch.slice(start, end - start)
        start = end


def _keys(
    part: pa.RecordBatch, columns: WriteColumns, is_auto: Callable[[], bool], rng: random.Random
) -> pa.Array:
    """Return the partition keys; a row without one has none, or a random one."""
    given = None if columns.partition_key is None else part.column(columns.partition_key)
    if given is not None and not given.null_count:
        return given
    if is_auto():
        return pa.nulls(part.num_rows, pa.string()) if given is None else given
    drawn = pa.array(random_keys(part.num_rows, rng), pa.string())
    return drawn if given is None else pc.coalesce(given, drawn.cast(given.type))


def random_keys(count: int, rng: random.Random) -> list[str]:
    """Return partition keys that spread records over the shards."""
    digits = rng.randbytes(8 * count).hex()
    return [digits[start : start + 16] for start in range(0, len(digits), 16)]


def _objects(column: pa.Array) -> Column:
    """Return a column as Python objects, which Arrow makes all at once."""
    found: Column = column.to_numpy(zero_copy_only=False)
    return found


def _lengths(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the bytes of each value, 0 for null."""
    found: np.ndarray[Any, np.dtype[np.int64]] = (
        pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return found


def _check_texts(name: str, column: pa.Array) -> None:
    wrong = find_invalid_texts(column)
    if wrong is not None:
        value = column.cast(pa.large_binary())[int(np.argmax(wrong))].as_py()
        rows = count_noun(int(np.count_nonzero(wrong)), "row")
        msg = (
            f"the column {name} is no valid UTF-8 in {rows}, the first has {value[:64]!r}. "
            f"Filter out such rows, which is_valid_utf8({name!r}) finds"
        )
        raise WriteError(msg)


def _find_unsure(
    data: pa.Array, keys: pa.Array, sizes: np.ndarray[Any, np.dtype[np.int64]], hashes: pa.Array | None
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows are not certain to be accepted."""
    characters = pc.utf8_length(keys).fill_null(1).to_numpy(zero_copy_only=False)
    unsure: np.ndarray[Any, np.dtype[np.bool_]] = (
        (sizes > SURE_RECORD_BYTES) | (characters < 1) | (characters > KEY_CHARACTERS)
    )
    if data.null_count:
        unsure |= data.is_null().to_numpy(zero_copy_only=False)
    if hashes is not None and hashes.null_count < len(hashes):
        sure = pc.match_substring_regex(hashes, _SURE_HASH_KEY).fill_null(True)
        unsure |= ~sure.to_numpy(zero_copy_only=False)
    return unsure


def _check(entries: Entries, row: int, limit: Callable[[], int]) -> None:
    key, size = entries.keys[row], int(entries.sizes[row])
    if entries.data[row] is None:
        msg = (
            f"data is null in {_row(key)}, but Kinesis has no null. Filter out such rows, or write empty data"
        )
        raise WriteError(msg)
    if key is not None:
        _check_key(key)
    if size > SURE_RECORD_BYTES and size > (most := limit()):
        msg = (
            f"{_row(key)} has {size} bytes with its key, but the stream allows at most {most}. Store the "
            "payload elsewhere and send a reference, or raise the stream's maximum record size (10 MiB at most)"
        )
        raise WriteError(msg)
    explicit = None if entries.hashes is None else entries.hashes[row]
    if explicit is not None:
        _check_hash(explicit, key)


def _check_key(key: str) -> None:
    if not 1 <= len(key) <= KEY_CHARACTERS:
        msg = (
            f"{_row(key)}: the key has {len(key)} characters, but Kinesis allows 1 to {KEY_CHARACTERS}. Shorten it, "
            "as with sha2(partitionKey, 256), or set it to null for a random one"
        )
        raise WriteError(msg)


def _check_hash(given: str, key: str | None) -> None:
    if re.fullmatch(r"0|[1-9][0-9]{0,38}", given) is None or int(given) >= _HASH_KEYS:
        msg = f"{_row(key)}: explicitHashKey is {given[:64]!r}. Expected: digits of a number from 0 to 2**128 - 1"
        raise WriteError(msg)


def _row(key: str | None) -> str:
    if key is None:
        return "a row without a partition key"
    return f"the row with the partition key {key[:64]!r}{'...' if len(key) > 64 else ''}"
