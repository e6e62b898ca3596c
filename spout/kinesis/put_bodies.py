"""Makes the bodies of PutRecords and reads the answers, bypassing botocore's serializer and parser.

botocore checks each record, copies it, and encodes it in Python (docs/benchmarks.md has what that costs). Handlers of
its events put the bodies into its requests; it keeps endpoints, credentials, signatures, retries and errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from itertools import chain, repeat
from typing import Any, TypedDict

import msgspec
from botocore.parsers import ResponseParserError

from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.spout.kinesis.put_entries import Entries

RESULTS = "KinesisTridentResults"
"""The key under which a parsed PutRecords response holds its results, each with the types of `_Result`."""

_GIVEN = "kinesis_trident_put"
"""The key under which the context of a call holds its parameters."""

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


_decoder = msgspec.json.Decoder(_PutAnswer)


def encode_puts_of(client: Any) -> None:
    """Make a boto client of Kinesis, whose protocol is JSON, send the bodies of `encode_put`."""
    events = client.meta.events
    events.register("provide-client-params.kinesis.PutRecords", _keep_records)
    events.register("before-call.kinesis.PutRecords", _replace_body)


def _keep_records(params: dict[str, Any], context: dict[str, Any], **_: object) -> dict[str, Any]:
    """Give botocore one small record in place of all."""
    context[_GIVEN] = params
    return params | {"Records": [{"Data": b"", "PartitionKey": "-"}]}


def _replace_body(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
    params["body"] = encode_put(context.pop(_GIVEN))


def encode_put(params: dict[str, Any]) -> bytes:
    """Return the body of a PutRecords request; its records may be in columns."""
    entries = Entries.of(params["Records"])
    data = entries.data.tolist()
    if entries.size < _SMALL * len(entries):
        return _encoder.encode(params | {"Records": _records(entries, data)})
    # Only a process that writes needs it.
    from pybase64 import b64encode

    around = _encoder.encode(params | {"Records": _records(entries, repeat(_PLACE))}).split(b"\n")
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


def parsed_results(body: bytes | memoryview) -> list[_Result] | bytes:
    """Decode the results in the body of a PutRecords answer; return another body unchanged, for botocore's parser."""
    try:
        return _decoder.decode(body)["Records"]
    except UNREADABLE:
        return bytes(body)


def _is_result(given: object) -> bool:
    return isinstance(given, dict) and all(
        isinstance(given.get(name, ""), str | None) for name in ("ErrorCode", "ErrorMessage")
    )


def results_of(answer: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the results for `count` records.

    Raises:
        ResponseParserError: they are not that many, or no results: a record without one would be lost.
    """
    results = answer.get(RESULTS)
    if results is None:
        results = answer.get("Records")
        if not isinstance(results, list) or not all(map(_is_result, results)):
            msg = "the answer to PutRecords cannot be read"
            raise ResponseParserError(msg)
    if len(results) != count:
        msg = f"the answer to PutRecords has {len(results)} results for {count} records"
        raise ResponseParserError(msg)
    return results
