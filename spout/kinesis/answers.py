"""Reads answers about streams, shards and consumers, and refusals. Pure.

Any endpoint may answer: another service, a proxy, a login page. What a refusal says is read by botocore.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from http import HTTPStatus
from typing import Annotated, TypeVar

import msgspec
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError, create_parser

from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.common.stream_names import STREAM_NAME
from kinesis_trident.common.visible_text import make_reason, shorten
from kinesis_trident.spout.kinesis import Shard, StreamInfo
from kinesis_trident.spout.kinesis.consumers import Consumer
from kinesis_trident.tracker.records import RecordPosition

_THROTTLED = "TooManyRequestsException"
"""A code that means a throttle."""

_Name = Annotated[str, msgspec.Meta(pattern=rf"\A{STREAM_NAME}\Z")]
_NameOrNone = Annotated[str, msgspec.Meta(pattern=rf"\A({STREAM_NAME})?\Z")]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Sequence = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,129}\Z")]
_HashKey = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,39}\Z")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_LAST_SECOND = 253_402_300_799
_Second = Annotated[float, msgspec.Meta(ge=0, le=_LAST_SECOND)]
"""Seconds since 1970, to the end of the year 9999."""
_Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class _Summary(msgspec.Struct, rename="pascal"):
    stream_name: _Name
    stream_arn: _Text = msgspec.field(name="StreamARN")
    stream_creation_timestamp: _Second | _Moment
    retention_period_hours: _Count
    stream_status: _Text
    record_distribution_strategy: str | None = None
    max_record_size_in_ki_b: _Count | None = msgspec.field(name="MaxRecordSizeInKiB", default=None)


class _Described(msgspec.Struct, rename="pascal"):
    stream_description_summary: _Summary


class _Sequences(msgspec.Struct, rename="pascal"):
    starting_sequence_number: _Sequence
    ending_sequence_number: _Sequence | None = None


class _HashKeys(msgspec.Struct, rename="pascal"):
    starting_hash_key: _HashKey
    ending_hash_key: _HashKey


class ListedShard(msgspec.Struct, rename="pascal"):
    """One shard of a listing."""

    shard_id: _Name
    sequence_number_range: _Sequences
    parent_shard_id: _NameOrNone | None = None
    adjacent_parent_shard_id: _NameOrNone | None = None
    hash_key_range: _HashKeys | None = None

    @property
    def is_closed(self) -> bool:
        """Return whether it has its last sequence number."""
        return self.sequence_number_range.ending_sequence_number is not None


class _Listing(msgspec.Struct, rename="pascal"):
    shards: list[ListedShard]
    next_token: str | None = None


class _Iterator(msgspec.Struct, rename="pascal"):
    shard_iterator: _Text


class _Consumer(msgspec.Struct, rename="pascal"):
    consumer_arn: _Text = msgspec.field(name="ConsumerARN")
    consumer_status: _Text


class _DescribedConsumer(msgspec.Struct, rename="pascal"):
    consumer_description: _Consumer


T = TypeVar("T")

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""An escape of JSON; half of a surrogate pair alone, which is no text, is its group."""

_described = msgspec.json.Decoder(_Described)
_listing = msgspec.json.Decoder(_Listing)
_iterator = msgspec.json.Decoder(_Iterator)
_consumer = msgspec.json.Decoder(_DescribedConsumer)


def read_body(call: str, read: Callable[[], T], body: bytes | memoryview) -> T:
    """Return what `read` makes of the body of an answer to `call`.

    Raises:
        ResponseParserError: it cannot be read.
    """
    try:
        return read()
    except UNREADABLE as error:
        msg = f"the answer to {call} cannot be read ({len(body)} bytes): {make_reason(str(error))}"
        raise ResponseParserError(msg) from error


def replace_half_pairs(body: bytes) -> bytes:
    """Return JSON with U+FFFD in place of each half of a surrogate pair: UTF-8 has none."""
    return _ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], body)


def _decode(decoder: msgspec.json.Decoder[T], body: bytes | memoryview) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # Half a pair in any member, known or not, is no text for the decoder.
        return decoder.decode(replace_half_pairs(bytes(body)))


def server_time(headers: Mapping[str, str]) -> int | None:
    """Return the `Date` of an answer (lower-case headers) in epoch milliseconds; None if missing or invalid."""
    return _milliseconds(headers.get("date"))


# It changes once a second, in answers that come much faster.
@lru_cache(maxsize=16)
def _milliseconds(date: str | None) -> int | None:
    try:
        return None if date is None else int(parsedate_to_datetime(date).timestamp()) * 1000
    except (OverflowError, TypeError, ValueError):
        return None


def refusal_of(call: str, status: int, headers: Mapping[str, str], body: bytes) -> ClientError:
    """Return botocore's error for an answer of another status than 200.

    Raises:
        ResponseParserError: it is no refusal, or cannot be read.
    """
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        # Whoever throttles, the service or a proxy before it, and whatever the body is.
        body = msgspec.json.encode({"__type": _THROTTLED, "message": body.decode(errors="replace")})
    answer = {"status_code": status, "headers": headers, "body": body, "context": {"operation_name": call}}
    try:
        found = create_parser("json").parse(answer, None)  # type: ignore[arg-type]
    except Exception as error:
        # botocore's parser trusts the body: on a bad one it raises whatever its steps do.
        msg = f"the answer to {call} cannot be read ({len(body)} bytes): {make_reason(str(error))}"
        raise ResponseParserError(msg) from error
    if "Error" not in found:
        msg = f"the answer to {call} cannot be read: HTTP {status}"
        raise ResponseParserError(msg)
    return ClientError(found, call)


def stream_of(body: bytes | memoryview, server_time: int) -> StreamInfo:
    """Return the stream of a DescribeStreamSummary answer.

    Raises:
        msgspec.ValidationError: it is no such answer; also the others.
    """
    found = _decode(_described, body).stream_description_summary
    created, largest = found.stream_creation_timestamp, found.max_record_size_in_ki_b
    if isinstance(created, datetime):
        created = created.timestamp()
        if not 0 <= created <= _LAST_SECOND:
            msg = f"StreamCreationTimestamp: {created:.0f} s are not within the years 1970 to 9999"
            raise msgspec.ValidationError(msg)
    return StreamInfo(
        name=found.stream_name,
        arn=found.stream_arn,
        created=round(created * 1000),
        retention_hours=found.retention_period_hours,
        status=found.stream_status,
        server_time=server_time,
        max_record_bytes=largest * 1024 if largest else None,
        is_auto=found.record_distribution_strategy == "AUTO",
    )


def shards_of(body: bytes | memoryview, tokens: Set[str]) -> tuple[Sequence[ListedShard], str | None]:
    """Return the shards of a ListShards answer, and the token of the next page; None after the last.

    `tokens`: of the pages before, none of which may come again: the listing would never end.
    """
    found = _decode(_listing, body)
    if found.next_token is not None and found.next_token in tokens:
        msg = f"NextToken {found.next_token[:40]!r} has come before"
        raise msgspec.ValidationError(msg)
    return found.shards, found.next_token or None


def check_listing(listed: Sequence[ListedShard]) -> list[ListedShard]:
    """Return the shards of a whole listing, each once; one that is closed meanwhile may be there as both.

    Raises:
        ResponseParserError: a shard is there twice and differs, or is among its own ancestors: it would be read after
            itself, which is never.
    """
    shards: dict[str, ListedShard] = {}
    for one in listed:
        known = shards.setdefault(one.shard_id, one)
        if known != one:
            # It was closed while the pages of the listing were asked for.
            closed = one if one.is_closed else known
            if _without_end(known) != _without_end(one) or one.is_closed == known.is_closed:
                msg = f"ShardId: {one.shard_id} is listed twice, and not alike"
                raise _unreadable_error(msg)
            shards[one.shard_id] = closed
    parents = {
        one.shard_id: [*filter(None, (one.parent_shard_id, one.adjacent_parent_shard_id))]
        for one in shards.values()
    }
    try:
        TopologicalSorter(parents).prepare()
    except CycleError as error:
        msg = f"ParentShardId: shard {error.args[1][0]} is among its own ancestors"
        raise _unreadable_error(msg) from error
    return [*shards.values()]


def _without_end(shard: ListedShard) -> ListedShard:
    numbers = msgspec.structs.replace(shard.sequence_number_range, ending_sequence_number=None)
    return msgspec.structs.replace(shard, sequence_number_range=numbers)


def open_shards_of(listed: Sequence[ListedShard]) -> list[tuple[int, str]]:
    """Return the last hash key and the id of each open shard, in the order of the hash keys."""
    found = []
    for one in listed:
        if not one.is_closed:
            if one.hash_key_range is None:
                msg = f"shard {one.shard_id} has no HashKeyRange"
                raise _unreadable_error(msg)
            found.append((int(one.hash_key_range.ending_hash_key), one.shard_id))
    return sorted(found)


def shard_of(found: ListedShard) -> Shard:
    """Return a shard as `spout.kinesis` has it."""
    numbers, keys = found.sequence_number_range, found.hash_key_range
    first, last = numbers.starting_sequence_number, numbers.ending_sequence_number
    parents = (found.parent_shard_id, found.adjacent_parent_shard_id)
    return Shard(
        id=found.shard_id,
        parents=tuple(parent for parent in parents if parent),
        closed=last is not None,
        sequences=(RecordPosition(first), None if last is None else RecordPosition(last)),
        hash_keys=(keys.starting_hash_key, keys.ending_hash_key) if keys else None,
    )


def iterator_of(body: bytes | memoryview) -> str:
    """Return the iterator of a GetShardIterator answer."""
    return _decode(_iterator, body).shard_iterator


def consumer_of(body: bytes | memoryview) -> Consumer:
    """Return the consumer of a DescribeStreamConsumer answer."""
    found = _decode(_consumer, body).consumer_description
    return Consumer(found.consumer_arn, found.consumer_status)


def _unreadable_error(why: object) -> ResponseParserError:
    return ResponseParserError(f"the answer to ListShards cannot be read: {shorten(str(why))}")
