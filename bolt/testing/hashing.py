"""Spark's hashes of rows in Python: tuples go to the same tasks as in Spark."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import xxhash

from kinesis_trident.bolt.partitions import murmur3
from kinesis_trident.tracker.ids import to_signed

_Digest = Callable[[bytes, int], int]
_SEED = 42
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EXACT = Context(prec=100)
_MICROSECOND = dt.timedelta(microseconds=1)


def partitions_of(
    batch: pa.RecordBatch, names: Sequence[str], partitions: int, salt: int | None = None
) -> list[int]:
    """Return the partition of each row: `pmod(xxhash64(salt, names), partitions)` of Spark."""
    first = _SEED
    if salt is not None:
        # For Spark a number in Python is an int, if it fits.
        kind = pa.int32() if salt.bit_length() < 32 else pa.int64()
        first = _xxhash64(_bytes(salt, kind), _SEED)
    return [to_signed(value) % partitions for value in _hashes(batch, names, first, _xxhash64)]


def repartitions_of(batch: pa.RecordBatch, names: Sequence[str], partitions: int) -> list[int]:
    """Return the partition of each row: that to which `repartition(partitions, *names)` of Spark brings it."""
    return [value % partitions for value in _hashes(batch, names, _SEED, murmur3)]


def _hashes(batch: pa.RecordBatch, names: Sequence[str], first: int, digest: _Digest) -> list[int]:
    hashes = [first] * batch.num_rows
    for name in names:
        column = batch.column(name)
        hashes = [
            _hash(value, column.type, seed, digest)
            for value, seed in zip(column.to_pylist(), hashes, strict=True)
        ]
    return hashes


def _hash(value: Any, kind: pa.DataType, seed: int, digest: _Digest) -> int:
    if value is None:
        return seed
    if pa.types.is_list(kind):
        for item in value:
            seed = _hash(item, kind.value_type, seed, digest)
        return seed
    if pa.types.is_struct(kind):
        for field in kind:
            seed = _hash(value[field.name], field.type, seed, digest)
        return seed
    return digest(_bytes(value, kind), seed)


def _xxhash64(data: bytes, seed: int) -> int:
    return xxhash.xxh64_intdigest(data, seed=seed)


def _bytes(value: Any, kind: pa.DataType) -> bytes:
    """Return what Spark hashes of a value."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        return struct.pack("<f" if kind == pa.float32() else "<d", value + 0.0)
    size = 8 if kind == pa.int64() else 4
    if isinstance(value, dt.datetime):
        zoned = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        value, size = (zoned - _EPOCH) // _MICROSECOND, 8
    elif isinstance(value, dt.date):
        value = (value - _EPOCH.date()).days
    elif isinstance(value, Decimal):
        value, size = int(value.scaleb(kind.scale, _EXACT)), 8
        if kind.precision > 18:
            return _big(value)
    return int(value).to_bytes(size, "little", signed=True)


def _big(number: int) -> bytes:
    """Return the bytes of Java's BigInteger."""
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)
