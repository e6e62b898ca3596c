"""Checks the columns of a write, and converts rows to entries of PutRecords. Pure: randomness is an argument."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, CharType, DataType, StringType, StructType, VarcharType

from kinesis_trident.spout.errors import WriteError
from kinesis_trident.spout.kinesis.put_records import Entry
from kinesis_trident.spout.reader.rows import SCHEMA

__all__ = ["KEY_CHARACTERS", "SURE_RECORD_BYTES", "WriteColumns", "entries_of"]

SURE_RECORD_BYTES = 2**20
"""Every stream accepts a record of this size, payload and partition key together."""

KEY_CHARACTERS = 256
_HASH_KEYS = 2**128
_SLICE = 1000
"""The number of rows that are Python objects at a time."""

_TEXT = (StringType, VarcharType, CharType)
_TAKEN: dict[str, tuple[type[DataType], ...]] = {
    "data": (BinaryType, *_TEXT),
    "partitionKey": _TEXT,
    "explicitHashKey": _TEXT,
}
_TYPES = {"data": "binary or string", "partitionKey": "string", "explicitHashKey": "string"}


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """The indexes of the columns in the frame; None for a missing one."""

    data: int
    partition_key: int | None
    explicit_hash_key: int | None

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
                "string), partitionKey (string, optional) and explicitHashKey (string, optional), and pack "
                "others into data, as with to_json(struct(...))"
            )
            raise WriteError(msg)
        return cls(found["data"], found.get("partitionKey"), found.get("explicitHashKey"))


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
        payloads = _values(part, columns.data)
        keys = _values(part, columns.partition_key)
        hashes = _values(part, columns.explicit_hash_key)
        for payload, given, explicit in zip(payloads, keys, hashes, strict=True):
            key = f"{rng.getrandbits(64):016x}" if given is None else given
            if payload is None:
                msg = f"data is null in {_row(key)}, but Kinesis has no null. Filter out such rows, or write empty data"
                raise WriteError(msg)
            data = payload.encode() if isinstance(payload, str) else payload
            size = len(data) + _check_key(key)
            if size > SURE_RECORD_BYTES and size > (most := limit()):
                msg = (
                    f"{_row(key)} has {size} bytes with its key, but the stream allows at most {most}. Store the "
                    "payload elsewhere and send a reference, or raise the stream's maximum record size (10 MiB at most)"
                )
                raise WriteError(msg)
            entry: Entry = {"Data": data, "PartitionKey": key}
            if explicit is not None:
                entry["ExplicitHashKey"] = _check_hash(explicit, key)
            yield entry, size


def _values(batch: pa.RecordBatch, column: int | None) -> list[Any]:
    values: list[Any] = [None] * batch.num_rows if column is None else batch.column(column).to_pylist()
    return values


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
