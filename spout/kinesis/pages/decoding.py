"""Decodes GetRecords answers straight to Arrow, bypassing botocore's parser in the client's one hot spot.

It is many times as fast as boto3 (docs/benchmarks.md). `spout.kinesis.transport` passes the bodies of successful
GetRecords calls to `parsed_page`, and the `response_parser_factory` of the botocore session uses the result as the
response; botocore keeps signing, endpoints, credentials, retries and errors. A large answer is cut into columns as
text; what cannot be cut, and a small one, is decoded by msgspec record by record.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from botocore.parsers import ResponseParserError

from kinesis_trident.arrow_columns import numbers, texts
from kinesis_trident.spout.kinesis import Page
from kinesis_trident.spout.kinesis.pages.record_columns import RecordColumns
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.tracker.errors import UNREADABLE

__all__ = [
    "PAGE_SCHEMA",
    "page_from_response",
    "page_of",
    "page_of_event",
    "parsed_page",
]

log = logging.getLogger(__name__)

PAGE_SCHEMA = RECORD_SCHEMA.remove(RECORD_SCHEMA.get_field_index("subSequenceNumber"))


_Behind = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Record(
    msgspec.Struct,
    gc=False,
    rename={
        "data": "Data",
        "key": "PartitionKey",
        "sequence": "SequenceNumber",
        "arrival": "ApproximateArrivalTimestamp",
    },
):
    """One record of an answer: `data` is base64, `arrival` is in seconds since 1970 with three decimals."""

    data: bytes
    key: str
    sequence: str
    arrival: float = 0.0


class _Answer(
    msgspec.Struct,
    rename={
        "records": "Records",
        "next": "NextShardIterator",
        "behind": "MillisBehindLatest",
        "children": "ChildShards",
    },
):
    records: list[_Record]
    next: str | None = None
    behind: _Behind | None = None
    children: list[msgspec.Raw] | None = None


class _Event(
    msgspec.Struct,
    rename={
        "records": "Records",
        "next": "ContinuationSequenceNumber",
        "behind": "MillisBehindLatest",
        "children": "ChildShards",
    },
):
    records: list[_Record]
    next: str | None = None
    behind: _Behind | None = None
    children: list[msgspec.Raw] | None = None


_LONGEST_SEQUENCE = 129
"""The digits of the longest sequence number."""

_SEQUENCE_NUMBER = re.compile(rf"[0-9]{{1,{_LONGEST_SEQUENCE}}}")

_ZERO = np.uint8(ord("0"))
"""What is below it wraps around, beyond 9."""

_LAST_SECOND = 253_402_300_799
"""The end of the year 9999, in seconds since 1970: no arrival is later."""

_LARGE = 2**20
"""The bytes of a body that is worth the hundred calls to numpy with which it is cut."""

_TOGETHER = 256
"""The number of small payloads joined at a time: few enough to stay in the processor's cache."""

_SMALL = 4096
"""Mean bytes of payloads that are worth joining; joining larger ones would copy them in memory once more."""

AnswerT = TypeVar("AnswerT", _Answer, _Event)

_decoder = msgspec.json.Decoder(_Answer)
_event_decoder = msgspec.json.Decoder(_Event)


def page_of(body: bytes | memoryview, answered: int | None = None) -> Page:
    """Decode the page in a GetRecords body; `answered` is the server's time.

    Raises:
        msgspec.ValidationError: the body is not the JSON of a GetRecords answer.
    """
    return _page(_decoder, body, answered)


def parsed_page(body: memoryview) -> Page | bytes:
    """Decode as `page_of` does, but return a body that it refuses unchanged, for botocore's parser."""
    try:
        return page_of(body)
    except msgspec.ValidationError as error:
        log.debug("botocore's parser reads an answer to GetRecords (%d bytes): %s", len(body), error)
        return bytes(body)


def page_of_event(payload: bytes, answered: int | None = None) -> Page:
    """Decode the page in a SubscribeToShardEvent; `next_iterator` is the last sequence number, None at the end.

    Raises:
        msgspec.ValidationError: the payload is not the JSON of such an event.
    """
    return _page(_event_decoder, payload, answered)


def _decoded(decoder: msgspec.json.Decoder[AnswerT], data: bytes | memoryview) -> AnswerT:
    try:
        return decoder.decode(data)
    except UNREADABLE as error:
        raise msgspec.ValidationError(str(error)) from error


def page_from_response(response: Mapping[str, Any], answered: int | None = None) -> Page:
    """Convert a response that botocore has parsed: slow, for bodies that the decoder refuses and other protocols.

    Raises:
        ResponseParserError: the response is not an answer to GetRecords.
    """
    try:
        behind = response.get("MillisBehindLatest")
        # Checked like a decoded body: botocore's parser takes any value for a text or a number.
        answer = msgspec.convert(
            {
                **response,
                "Records": [_record_from_response(record) for record in response["Records"]],
                "MillisBehindLatest": None if behind is None else int(behind),
                "ChildShards": [msgspec.Raw(b"{}") for _ in response.get("ChildShards") or ()],
            },
            _Answer,
        )
        return _page_from(answer, _columns_of(answer.records), answered)
    except (*UNREADABLE, AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        msg = f"it is not an answer to GetRecords: {error!r}"
        raise ResponseParserError(msg) from error


def _record_from_response(record: Mapping[str, Any]) -> dict[str, Any]:
    arrival = record.get("ApproximateArrivalTimestamp")
    # Arrow accepts no half of a surrogate pair.
    key = record["PartitionKey"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return {
        **record,
        "PartitionKey": key,
        "ApproximateArrivalTimestamp": arrival.timestamp() if arrival is not None else 0.0,
    }


def _page(decoder: msgspec.json.Decoder[AnswerT], body: bytes | memoryview, answered: int | None) -> Page:
    if len(body) >= _LARGE:
        # Not before the first one: the planning process and the driver never read a large page.
        from kinesis_trident.spout.kinesis.pages.text_columns import columns_of

        if (found := columns_of(body)) is not None:
            columns, rest = found
            with suppress(msgspec.ValidationError):
                answer = _decoded(decoder, rest)
                if not answer.records:
                    return _page_from(answer, columns, answered)
    answer = _decoded(decoder, body)
    return _page_from(answer, _columns_of(answer.records), answered)


def _columns_of(records: list[_Record]) -> RecordColumns:
    return RecordColumns(
        texts([record.key for record in records]),
        _payloads([record.data for record in records]),
        texts([record.sequence for record in records]),
        np.array([record.arrival for record in records], dtype=np.float64),
    )


def _page_from(answer: _Answer | _Event, columns: RecordColumns, answered: int | None) -> Page:
    _check(columns.sequences, columns.arrivals)
    batch = pa.RecordBatch.from_arrays(
        [columns.keys, columns.data, columns.sequences, _timestamps(columns.arrivals)], schema=PAGE_SCHEMA
    )
    size = columns.data.buffers()[2].size
    return Page(batch, answer.next or None, answer.behind, size, answered, closed=bool(answer.children))


def _check(sequences: pa.StringArray, arrivals: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    """Check what the types of an answer do not show.

    Raises:
        msgspec.ValidationError: a sequence number is none, or an arrival is not in the years that a time can have.
    """
    if not len(sequences):
        return
    _, ends, content = sequences.buffers()
    # All at once: a column that was just built begins at the start of its buffers.
    lengths = np.diff(np.frombuffer(ends, np.int32, len(sequences) + 1))
    beyond = (
        np.frombuffer(content, np.uint8, lengths.sum()) - _ZERO if lengths.any() else np.empty(0, np.uint8)
    )
    if (beyond > 9).any() or lengths.min() == 0 or lengths.max() > _LONGEST_SEQUENCE:
        wrong = next(one for one in sequences.to_pylist() if not _SEQUENCE_NUMBER.fullmatch(one))
        msg = f"{wrong[:40]!r} is not a sequence number"
        raise msgspec.ValidationError(msg)
    if arrivals.max() > _LAST_SECOND or arrivals.min() < 0:
        msg = f"the arrivals from {arrivals.min():g} to {arrivals.max():g} are not seconds since 1970"
        raise msgspec.ValidationError(msg)


def _payloads(data: list[bytes]) -> pa.Array:
    """Build a column of exactly the payloads' size: Arrow's own builder grows by doubling and copies each time."""
    ends = np.zeros(len(data) + 1, dtype=np.int32)
    np.cumsum(np.fromiter(map(len, data), np.int32, len(data)), out=ends[1:])
    joined = pa.allocate_buffer(int(ends[-1]))
    if joined.size:
        into = memoryview(joined).cast("B")
        together = _TOGETHER if joined.size < _SMALL * len(data) else 1
        for first in range(0, len(data), together):
            last = min(first + together, len(data))
            into[ends[first] : ends[last]] = b"".join(data[first:last])
    return pa.Array.from_buffers(pa.binary(), len(data), [None, pa.py_buffer(ends), joined])


def _timestamps(arrivals: np.ndarray[Any, np.dtype[np.float64]]) -> pa.Array:
    # Round to the milliseconds of Kinesis: seconds in a float are not exact.
    micros = np.rint(arrivals * 1000).astype(np.int64) * 1000
    return numbers(micros, pa.timestamp("us", tz="UTC"))
