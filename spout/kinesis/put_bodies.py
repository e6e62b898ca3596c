"""Makes the bodies of PutRecords and reads the answers, bypassing botocore's serializer and parser.

botocore checks each record, copies it, and encodes it in Python (docs/benchmarks.md has what that costs). Here it gets
a placeholder, and the body with the records replaces the one that it made, before it signs the request; it keeps
endpoints, credentials, retries and errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, TypedDict

import msgspec
from botocore.parsers import ResponseParserError

from kinesis_trident.spout.kinesis.put_entries import Entries, Entry
from kinesis_trident.tracker.errors import UNREADABLE

__all__ = ["RESULTS", "put_answer", "results_of", "send_bodies"]

RESULTS = "KinesisTridentResults"
"""The key under which a parsed PutRecords response holds its results, each with the types of `_Result`."""

_BODY = "kinesis_trident_body"
"""The key of a call's context under which the body waits until botocore has made its own."""

_PLACEHOLDER = [{"Data": b"", "PartitionKey": "-"}]
"""Records that botocore accepts and encodes in no time."""

_encoder = msgspec.json.Encoder()


class _Record(msgspec.Struct, gc=False, omit_defaults=True, rename="pascal"):
    """One record of a body."""

    data: bytes
    partition_key: str
    explicit_hash_key: str | None = None


class _Result(TypedDict, total=False):
    """The used part of the answer for one record; the rest is not decoded."""

    ShardId: str | None
    ErrorCode: str | None
    ErrorMessage: str | None


class _Answer(TypedDict):
    Records: list[_Result]


_decoder = msgspec.json.Decoder(_Answer)


def send_bodies(client: Any) -> None:
    """Make a boto client of Kinesis, whose protocol is JSON, send our bodies in its PutRecords calls."""
    events = client.meta.events
    events.register("before-parameter-build.kinesis.PutRecords", _encode)
    events.register("before-call.kinesis.PutRecords", _replace)


def _encode(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
    context[_BODY] = _encoder.encode(params | {"Records": _records(params["Records"])})
    params["Records"] = _PLACEHOLDER


def _records(given: Sequence[Entry]) -> list[_Record]:
    entries = Entries.of(given)
    hashes = repeat(None) if entries.hashes is None else entries.hashes.tolist()
    return list(map(_Record, entries.data.tolist(), entries.keys.tolist(), hashes))


def _replace(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
    params["body"] = context.pop(_BODY)


def put_answer(body: bytes) -> list[dict[str, Any]] | None:
    """Decode the results in the body of a PutRecords answer; None if it is not such an answer."""
    try:
        return [*_decoder.decode(body)["Records"]]
    except UNREADABLE:
        return None


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
