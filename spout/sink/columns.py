"""Which columns a write takes, and rows as the entries of PutRecords. Pure: randomness is an argument."""

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
"""A record of this size, payload and partition key together, fits every stream."""

KEY_CHARACTERS = 256
_HASH_KEYS = 2**128
_SLICE = 1000
"""Rows that are Python objects at one time."""

_TEXT = (StringType, VarcharType, CharType)
_TAKEN: dict[str, tuple[type[DataType], ...]] = {
    "data": (BinaryType, *_TEXT),
    "partitionKey": _TEXT,
    "explicitHashKey": _TEXT,
}
_TYPES = {"data": "binary or string", "partitionKey": "string", "explicitHashKey": "string"}


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """Where the columns are in the frame; None for one that is not there."""

    data: int
    partition_key: int | None
    explicit_hash_key: int | None

    @classmethod
    def of(cls, schema: StructType) -> WriteColumns:
        """Find them, in any case.

        Columns that only our own source has are let through and not written, so that a stream can be copied as
        it is.

        Raises:
            WriteError: naming all columns that are missing, doubled, of a wrong type, or not known.
        """
        names = {name.lower(): name for name in _TAKEN}
        found: dict[str, int] = {}
        wrong = []
        for index, column in enumerate(schema.fields):
            name = names.get(column.name.lower())
            if name is None:
                if column.name not in SCHEMA.names:
                    wrong.append(f"column {column.name} is none that is written")
            elif name in found:
                wrong.append(f"column {name} is there twice")
            else:
                found[name] = index
                if not isinstance(column.dataType, _TAKEN[name]):
                    wrong.append(f"column {name} is {column.dataType.simpleString()}, not {_TYPES[name]}")
        if "data" not in found:
            wrong.append("column data (binary or string) is missing")
        if wrong:
            msg = (
                f"the frame cannot be written to Kinesis: {'; '.join(wrong)}. It takes data (binary or string), "
                "partitionKey (string, optional) and explicitHashKey (string, optional): select those, and pack "
                "others into data, as with to_json(struct(...))"
            )
            raise WriteError(msg)
        return cls(found["data"], found.get("partitionKey"), found.get("explicitHashKey"))


def entries_of(
    batch: pa.RecordBatch, columns: WriteColumns, *, limit: Callable[[], int], rng: random.Random
) -> Iterator[tuple[Entry, int]]:
    """The rows of a batch, in order, as entries with their size in bytes (payload and partition key).

    Args:
        batch: with the columns where `columns` has them.
        columns: where.
        limit: the bytes that a record may have in this stream; called only for one above 1 MiB.
        rng: makes the partition key of a row that has none.

    Raises:
        WriteError: a row that Kinesis would not take, or not as it is; rows before it were yielded.
    """
    for start in range(0, batch.num_rows, _SLICE):
        part = batch.slice(start, _SLICE)
        payloads = _values(part, columns.data)
        keys = _values(part, columns.partition_key)
        hashes = _values(part, columns.explicit_hash_key)
        for payload, given, explicit in zip(payloads, keys, hashes, strict=True):
            key = f"{rng.getrandbits(64):016x}" if given is None else given
            if payload is None:
                msg = f"data is null in {_row(key)}; Kinesis has no null: filter such rows, or write an empty one"
                raise WriteError(msg)
            data = payload.encode() if isinstance(payload, str) else payload
            size = len(data) + _check_key(key)
            if size > SURE_RECORD_BYTES and size > (most := limit()):
                msg = (
                    f"{_row(key)} has {size} bytes with its key; the stream takes at most {most}: store the payload "
                    "elsewhere and send a reference, or raise the stream's maximum record size (10 MiB at most)"
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
    """The bytes of a partition key that Kinesis takes."""
    if not 1 <= len(key) <= KEY_CHARACTERS:
        msg = (
            f"{_row(key)}: the key has {len(key)} characters, Kinesis takes 1 to {KEY_CHARACTERS}; shorten it, "
            "as with sha2(partitionKey, 256), or leave it null for a random one"
        )
        raise WriteError(msg)
    return len(key.encode())


def _check_hash(given: str, key: str) -> str:
    if re.fullmatch(r"0|[1-9][0-9]{0,38}", given) is None or int(given) >= _HASH_KEYS:
        msg = f"{_row(key)}: explicitHashKey is {given[:64]!r}, not a whole number from 0 to 2**128 - 1 in digits"
        raise WriteError(msg)
    return given


def _row(key: str) -> str:
    return f"the row with the partition key {key[:64]!r}{'...' if len(key) > 64 else ''}"
