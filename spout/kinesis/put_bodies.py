"""Makes the bodies of PutRecords and reads the answers, bypassing botocore's serializer and parser.

botocore checks each record, copies it, and encodes it in Python (docs/benchmarks.md has what that costs).
`spout.kinesis.fixed_requests` puts the bodies into its requests; it keeps endpoints, credentials, retries and errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import Any, TypedDict

import msgspec
import pybase64
from botocore.parsers import ResponseParserError

from kinesis_trident.spout.kinesis.put_entries import Entries
from kinesis_trident.tracker.errors import UNREADABLE

__all__ = ["RESULTS", "encode_put", "parsed_results", "results_of"]

RESULTS = "KinesisTridentResults"
"""The key under which a parsed PutRecords response holds its results, each with the types of `_Result`."""

_encoder = msgspec.json.Encoder()


class _Record(msgspec.Struct, gc=False, omit_defaults=True, rename="pascal"):
    """One record of a body."""

    data: bytes
    partition_key: str
    explicit_hash_key: str | None = None


class _Keys(msgspec.Struct, gc=False, omit_defaults=True, rename="pascal"):
    """A record of a body without its payload."""

    partition_key: str
    explicit_hash_key: str | None = None


_LARGE = 400
"""The mean bytes of payloads, with their keys, for which msgspec's base64 costs more than a call of pybase64."""


class _Result(TypedDict, total=False):
    """The used part of the answer for one record; the rest is not decoded."""

    ShardId: str | None
    ErrorCode: str | None
    ErrorMessage: str | None


class _Answer(TypedDict):
    Records: list[_Result]


_decoder = msgspec.json.Decoder(_Answer)


def encode_put(params: dict[str, Any]) -> bytes:
    """Return the body of a PutRecords request; its records may be in columns."""
    entries = Entries.of(params["Records"])
    hashes = repeat(None) if entries.hashes is None else entries.hashes.tolist()
    keys, payloads = entries.keys.tolist(), entries.data.tolist()
    if entries.size <= _LARGE * len(entries):
        return _encoder.encode(params | {"Records": list(map(_Record, payloads, keys, hashes))})
    # A call of pybase64 for each payload costs less than msgspec's own way, but not in a list of msgspec.
    before, between, after = _encoder.encode(params | {"Records": []}).partition(b'"Records":[')
    # Each key is a line until the lines' ends are where payloads belong: JSON has no end of a line in a text.
    lines = _encoder.encode_lines(list(map(_Keys, keys, hashes)))
    parts = [b""] * (2 * len(payloads))
    parts[::2] = map(pybase64.b64encode, payloads)
    parts[1::2] = (b'",' + lines[1:-1].replace(b"\n{", b',{"Data":"\n",')).split(b"\n")
    return b"".join([before, between, b'{"Data":"', *parts, after])


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
