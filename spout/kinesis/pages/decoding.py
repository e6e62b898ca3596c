"""Decodes GetRecords answers and events of subscriptions straight to Arrow, without botocore's parser.

It is many times as fast as boto3 (docs/benchmarks.md).

A record that cannot be decoded does not stop those beside it: it stays in its place, as the JSON that Kinesis sent
(`spout.kinesis.record_batches.UNREADABLE_SUB`). Only its sequence number has to be one.
"""

from __future__ import annotations

import math
from base64 import b64decode
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from kinesis_trident.common.arrow_columns import column_of, numbers, texts
from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.common.visible_text import make_reason
from kinesis_trident.spout.kinesis import Page
from kinesis_trident.spout.kinesis.answers import replace_half_pairs
from kinesis_trident.spout.kinesis.pages.payloads import decode_payloads, join_payloads
from kinesis_trident.spout.kinesis.record_batches import PLAIN_SUB, RECORD_SCHEMA, UNREADABLE_SUB
from kinesis_trident.tracker.failure import Failure, Kind, text_of

_NAMES = {
    "data": "Data",
    "key": "PartitionKey",
    "sequence": "SequenceNumber",
    "arrival": "ApproximateArrivalTimestamp",
}

_LONGEST_SEQUENCE = 129
"""The digits of the longest sequence number."""

_Sequence = Annotated[str, msgspec.Meta(pattern=rf"\A[0-9]{{1,{_LONGEST_SEQUENCE}}}\Z")]

_LAST_SECOND = 253_402_300_799
"""The end of the year 9999, in seconds since 1970: no arrival is later."""

_Second = Annotated[float, msgspec.Meta(ge=0, le=_LAST_SECOND)]

_Moment = Annotated[datetime, msgspec.Meta(tz=True)]


DataT = TypeVar("DataT", bytes, msgspec.Raw)


class _Record(msgspec.Struct, Generic[DataT], gc=False, rename=_NAMES):
    """One record of an answer: `data` is base64, `arrival` is in seconds since 1970 with three decimals.

    A stream that distributes its records by itself may have records without a partition key.
    """

    data: DataT
    sequence: str
    key: str | None = None
    arrival: float | None = 0.0


class _AnyRecord(msgspec.Struct, rename=_NAMES):
    """One record in the other notations that botocore takes: base64 in lines, a time as text."""

    data: str
    sequence: _Sequence
    key: str | None = None
    arrival: _Second | _Moment | None = None


class _Place(msgspec.Struct, rename=_NAMES):
    """The part of a record without which it has no place in its shard."""

    sequence: _Sequence


class _Time(msgspec.Struct, rename=_NAMES):
    arrival: _Second = 0.0


RecordT = TypeVar("RecordT", _Record[bytes], _Record[msgspec.Raw], msgspec.Raw)


class _Answer(
    msgspec.Struct,
    Generic[RecordT],
    rename={
        "records": "Records",
        "next": "NextShardIterator",
        "behind": "MillisBehindLatest",
        "children": "ChildShards",
    },
):
    records: list[RecordT]
    next: str | None = None
    behind: float | None = None
    children: list[msgspec.Raw] | None = None


class _Event(
    msgspec.Struct,
    Generic[RecordT],
    rename={
        "records": "Records",
        "next": "ContinuationSequenceNumber",
        "behind": "MillisBehindLatest",
        "children": "ChildShards",
    },
):
    records: list[RecordT]
    next: _Sequence | None = None
    behind: float | None = None
    children: list[msgspec.Raw] | None = None


_ZERO = np.uint8(ord("0"))
"""What is below it wraps around, beyond 9."""

_LARGE = 512 * 1024
"""Bytes of an answer from which on its payloads are decoded many at a time."""

_LONGEST_LAG = 2**53
"""Milliseconds, which a number of JSON holds exactly."""

_Decoders = tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]
"""Decode a small answer; a large one, whose payloads stay JSON; and any one, whose records stay JSON."""

_decoders: _Decoders = (
    msgspec.json.Decoder(_Answer[_Record[bytes]]),
    msgspec.json.Decoder(_Answer[_Record[msgspec.Raw]]),
    msgspec.json.Decoder(_Answer[msgspec.Raw]),
)
_event_decoders: _Decoders = (
    msgspec.json.Decoder(_Event[_Record[bytes]]),
    msgspec.json.Decoder(_Event[_Record[msgspec.Raw]]),
    msgspec.json.Decoder(_Event[msgspec.Raw]),
)
_decode_any = msgspec.json.Decoder(_AnyRecord).decode
_decode_place = msgspec.json.Decoder(_Place).decode
_decode_time = msgspec.json.Decoder(_Time).decode


def page_of(body: bytes | memoryview, answered: int | None = None) -> Page:
    """Decode the page in a GetRecords body; `answered` is the server's time.

    Raises:
        msgspec.ValidationError: the body is not the JSON of a GetRecords answer, or a record of it has no place in the
            shard.
    """
    return _page(_decoders, body, answered)


def page_of_event(payload: bytes, answered: int | None = None) -> Page:
    """Decode the page in a SubscribeToShardEvent; `next_iterator` is the last sequence number, None at the end.

    Raises:
        msgspec.ValidationError: as `page_of`, for such an event.
    """
    return _page(_event_decoders, payload, answered)


def why_not_decoded(record: bytes) -> str:
    """Return why a record, as JSON, cannot be decoded, as the reason of its failure."""
    try:
        _any_record(record)
    except (*UNREADABLE, ValueError, OverflowError) as error:
        return undecoded(make_reason(str(error)))
    return undecoded("this version can decode it, an earlier one could not")


def undecoded(why: str) -> str:
    """Return the reason of the failure of a record that cannot be decoded."""
    return text_of(Failure(Kind.UNREADABLE, why))


def _page(decoders: _Decoders, body: bytes | memoryview, answered: int | None) -> Page:
    decoder, large_decoder, raw_decoder = decoders
    try:
        answer = (decoder if len(body) < _LARGE else large_decoder).decode(body)
        records = _batch_of(answer.records) if answer.records else _NO_RECORDS
    except (*UNREADABLE, ValueError):
        try:
            answer = raw_decoder.decode(replace_half_pairs(bytes(body)))
        except UNREADABLE as error:
            raise msgspec.ValidationError(str(error)) from error
        records = _decode_one_by_one(answer.records)
    behind = None if answer.behind is None else int(min(max(answer.behind, -_LONGEST_LAG), _LONGEST_LAG))
    size = records.column(1).buffers()[2].size if records.num_rows else 0
    return Page(records, answer.next or None, behind, size, answered, closed=bool(answer.children))


def _decode_one_by_one(raw: list[msgspec.Raw]) -> pa.RecordBatch:
    """Return records, each with its place in the shard, of which some cannot be decoded: they stay JSON."""
    records, subs = [], np.full(len(raw), PLAIN_SUB, np.int64)
    for index, one in enumerate(raw):
        try:
            records.append(_any_record(one))
        except (*UNREADABLE, ValueError, OverflowError):
            records.append(
                _Record(bytes(one), _sequence_of(one, f"record {index} of {len(raw)}"), None, _time_of(one))
            )
            subs[index] = UNREADABLE_SUB
    return _batch_of(records, subs)


def _any_record(raw: bytes | msgspec.Raw) -> _Record[bytes]:
    """Decode one record in any notation.

    Raises:
        ValueError, OverflowError, *UNREADABLE: it is none.
    """
    found = _decode_any(raw)
    at = found.arrival
    arrival = at.timestamp() if isinstance(at, datetime) else at
    if arrival is not None and arrival < 0:
        msg = f"the time {at} is before 1970"
        raise ValueError(msg)
    return _Record(b64decode("".join(found.data.split()), validate=True), found.sequence, found.key, arrival)


def _sequence_of(raw: msgspec.Raw, what: str) -> str:
    try:
        return _decode_place(raw).sequence
    except UNREADABLE as error:
        msg = f"{what} has no SequenceNumber: {error}"
        raise msgspec.ValidationError(msg) from error


def _time_of(raw: msgspec.Raw) -> float:
    try:
        return _decode_time(raw).arrival
    except UNREADABLE:
        return 0.0


def _batch_of(
    records: list[_Record[Any]], subs: np.ndarray[Any, np.dtype[np.int64]] | None = None
) -> pa.RecordBatch:
    """Return records in columns; all payloads are bytes, or all are JSON.

    Raises:
        ValueError: a payload as JSON is not base64.
        msgspec.ValidationError: a sequence number is none, or does not come after the one before; or an arrival is not
            in the years that a time can have.
    """
    sequences = texts([record.sequence for record in records])
    arrivals = np.array([record.arrival for record in records], dtype=np.float64)
    if len(records):
        if math.isnan(arrivals.min()):
            arrivals[np.isnan(arrivals)] = 0
        _check(sequences, arrivals)
    data = [record.data for record in records]
    payloads = decode_payloads(data) if data and isinstance(data[0], msgspec.Raw) else join_payloads(data)
    columns = [
        _keys([record.key for record in records]),
        payloads,
        sequences,
        numbers(np.full(len(records), PLAIN_SUB, np.int64) if subs is None else subs),
        # Round to the milliseconds of Kinesis: seconds in a float are not exact.
        numbers(np.rint(arrivals * 1000).astype(np.int64) * 1000, pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def _keys(keys: list[str | None]) -> pa.StringArray:
    try:
        # Nearly always all records have one.
        return texts(keys)  # type: ignore[arg-type]
    except TypeError:
        return column_of(keys, pa.string())


def _check(sequences: pa.StringArray, arrivals: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    """Check what the types of an answer do not show."""
    _, ends, content = sequences.buffers()
    # All at once: a column that was just built begins at the start of its buffers. A page may be small: few steps.
    bounds = np.frombuffer(ends, np.int32, len(sequences) + 1)
    lengths = bounds[1:] - bounds[:-1]
    width = int(lengths[0])
    same = bool((lengths == width).all())
    shortest, longest = (width, width) if same else (lengths.min(), lengths.max())
    digits = np.frombuffer(content, np.uint8, bounds[-1]) if bounds[-1] else np.zeros(1, np.uint8)
    if shortest == 0 or longest > _LONGEST_SEQUENCE or (digits - _ZERO).max() > 9:
        msg = "SequenceNumber: one is no number of up to 129 digits"
        raise msgspec.ValidationError(msg)
    # The service's numbers have the same digits nearly always: then they compare as texts.
    values = digits.view(f"S{width}") if same else np.array([*map(int, sequences.to_pylist())], object)
    is_late = values[1:] <= values[:-1]
    if is_late.any():
        at = int(np.argmax(is_late))
        msg = f"SequenceNumber: record {sequences[at + 1]} comes after record {sequences[at]}, out of order"
        raise msgspec.ValidationError(msg)
    if arrivals.max() > _LAST_SECOND or arrivals.min() < 0:
        bounds_of = f"{arrivals.min():g} to {arrivals.max():g}"
        msg = f"ApproximateArrivalTimestamp: those from {bounds_of} are not seconds since 1970"
        raise msgspec.ValidationError(msg)


_NO_RECORDS = _batch_of([])
"""Most pages of an idle shard."""
