"""Makes the bodies of PutRecords and reads the answers. Pure.

botocore checks each record, copies it, and encodes it in Python (docs/benchmarks.md has what that costs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from itertools import chain, repeat
from typing import Any, TypedDict

import msgspec

from kinesis_trident.spout.kinesis.put_entries import Entries

_SMALL = 320
"""Bytes of a record, on average, below which msgspec encodes data in less time than a call for each takes."""

_PLACE = msgspec.Raw(b'"\n"')
"""Stands for data in a body: JSON has the line break nowhere else, because in a text it is escaped."""

_encoder = msgspec.json.Encoder()


class _PutRecord(msgspec.Struct, gc=False, omit_defaults=True, rename="pascal"):
    """One record of a body."""

    data: bytes | msgspec.Raw
    partition_key: str | None = None
    explicit_hash_key: str | None = None


class _Result(TypedDict, total=False):
    """The used part of the answer for one record; the rest is not decoded."""

    ShardId: str | None
    ErrorCode: str | None
    ErrorMessage: str | None


class _PutAnswer(TypedDict):
    Records: list[_Result]


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_PutAnswer)


def encode_put(params: Mapping[str, Any]) -> bytes:
    """Return the body of a PutRecords request; its records may be in columns."""
    entries = Entries.of(params["Records"])
    data = entries.data.tolist()
    if entries.size < _SMALL * len(entries):
        return _encoder.encode({**params, "Records": _records(entries, data)})
    # Only a process that writes needs it.
    from pybase64 import b64encode

    around = _encoder.encode({**params, "Records": _records(entries, repeat(_PLACE))}).split(b"\n")
    end = around.pop()
    # All of its memory at once: what grows is copied, and takes up to twice as much.
    body = BytesIO()
    body.seek(sum(map(len, around)) + sum((len(one) + 2) // 3 * 4 for one in data) + len(end) - 1)
    body.write(end[-1:])
    body.seek(0)
    body.writelines(chain.from_iterable(zip(around, map(b64encode, data), strict=True)))
    body.write(end)
    return body.getvalue()


def _records(entries: Entries, data: Iterable[bytes | msgspec.Raw]) -> list[_PutRecord]:
    hashes = repeat(None) if entries.hashes is None else entries.hashes.tolist()
    return list(map(_PutRecord, data, entries.keys.tolist(), hashes))


def results_of(body: bytes | memoryview, count: int) -> list[dict[str, Any]]:
    """Return the results for `count` records.

    Raises:
        msgspec.ValidationError: they are not that many, or no results: a record without one would be lost.
    """
    results: list[dict[str, Any]] = _decoder.decode(body)["Records"]
    if len(results) != count:
        msg = f"it has {len(results)} results for {count} records"
        raise msgspec.ValidationError(msg)
    return results
