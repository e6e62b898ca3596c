"""Kinesis through botocore: the only implementation of `spout.kinesis.Kinesis` that calls AWS."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from kinesis_trident.common.per_process import PerProcess
from kinesis_trident.spout.kinesis import (
    AfterShard,
    ConsumerMissingError,
    KinesisError,
    Page,
    RequestTooLargeError,
    Shard,
    Since,
    StreamInfo,
    StreamMissingError,
    Unavailable,
)
from kinesis_trident.spout.kinesis.answers import (
    ListedShard,
    consumer_of,
    iterator_of,
    open_shards_of,
    refuse_circles,
    shard_of,
    shards_of,
    stream_of,
)
from kinesis_trident.spout.kinesis.aws_errors import translated
from kinesis_trident.spout.kinesis.aws_session import create_clients, fixed_keys, open_session
from kinesis_trident.spout.kinesis.consumers import Consumer
from kinesis_trident.spout.kinesis.event_stream import EventStream, of_consumer
from kinesis_trident.spout.kinesis.pages.decoding import page_from_response
from kinesis_trident.spout.kinesis.pages.parser import EVENTS, PAGE, server_time
from kinesis_trident.spout.kinesis.put_bodies import results_of
from kinesis_trident.spout.kinesis.put_entries import Entries, Entry
from kinesis_trident.spout.kinesis.rate_limit import full_jitter
from kinesis_trident.spout.kinesis.remedies import Remedy, Renewed, RequestClock, remedy_of
from kinesis_trident.spout.options.connection import ConnectionOptions
from kinesis_trident.spout.positions import (
    After,
    At,
    AtTimestamp,
    Position,
    ShardEnd,
    TrimHorizon,
    parse_position,
)

T = TypeVar("T")

_OF = "|"
"""Separates a stream from its iterator when there are several ARNs: only the ARN reaches another account."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_CREATIONS = 4
"""Attempts to create a client while the source of the credentials does not answer."""

_LISTINGS = 3
"""Attempts to list shards when a next page was requested too late."""

_READS = {"get_records", "get_shard_iterator", "subscribe_to_shard"}
"""The calls that botocore does not retry."""

_INVALID = {"InvalidArgumentException", "SerializationException", "ValidationException"}


class _Clients(NamedTuple):
    """Two boto clients, and their credentials if these stay as they are."""

    keys: tuple[str | None, ...] | None
    calls: Any
    reads: Any


class BotoKinesis:
    """All calls that the source makes; thread-safe. Errors name the stream, region and endpoint.

    botocore never retries reads of records: `spout.reader.fetch` decides what a throttle or a fault means for the
    shard's turn. It retries all other calls `clientNumRetries` times.

    A call whose credentials are refused is made once more if there are newer ones: files, processes and containers
    replace them while this process lives. One that is refused for the machine's clock is made once more with AWS's.

    Args:
        options: of the connection.
        sleep: seconds.
        rng: draws the waits.
        clock: the time to sign with.
        steady: seconds that never step back, for the deadlines of answers.

    Raises:
        KinesisError: the options name no usable region, profile or endpoint.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        *,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
        clock: RequestClock | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rng = rng or random.Random()
        self._options = options
        self._sleep = sleep
        self._clock = clock or RequestClock()
        self._steady = steady
        self._arns = options.arns
        self._clients = Renewed(self._create_patiently(), self._create)
        meta = self._clients.value.calls.meta
        self._where = f"{meta.region_name} ({meta.endpoint_url})"

    def _create_patiently(self) -> _Clients:
        """Create the clients; retry for some seconds while the source of the credentials does not answer."""
        for failures in range(1, _CREATIONS):
            try:
                return self._create()
            except Unavailable:
                self._sleep(full_jitter(failures, self._rng, base=1.0))
        return self._create()

    def _create(self, last: _Clients | None = None) -> _Clients:
        """Create the clients; return the `last` ones if their credentials are still the ones to use."""
        options = self._options
        try:
            session = open_session(options, self._clock)
            keys = fixed_keys(session)
            if last is not None and keys is not None and keys == last.keys:
                return last
            return _Clients(
                keys, *create_clients(session, options, options.client_num_retries, 0, clock=self._steady)
            )
        except (BotoCoreError, ValueError) as error:
            where = f"{options.region or 'no region'} ({options.endpoint_url or 'default endpoint'})"
            raise translated(error, f"stream {options.stream_name!r}", where) from error

    def __repr__(self) -> str:
        return f"BotoKinesis({self._where})"

    def describe(self, stream: str) -> StreamInfo:
        """See `Kinesis.describe`."""
        answer = self._call(f"stream {stream!r}", "describe_stream_summary", **self._stream(stream))
        answered = server_time(answer["ResponseMetadata"]["HTTPHeaders"]) or int(time.time() * 1000)
        return self._read(f"stream {stream!r}", stream_of, answer, answered)

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        """See `Kinesis.list_shards`."""
        return [
            shard_of(found)
            for found in self._list_shards(stream, _filter(since) if since is not None else None)
        ]

    def open_shards(self, stream: str) -> list[tuple[int, str]]:
        """Return the last hash key and the id of each open shard, in the order of the hash keys."""
        listed = self._list_shards(stream, {"Type": "AT_LATEST"})
        return self._read(f"stream {stream!r}", open_shards_of, listed)

    def _list_shards(self, stream: str, wanted: dict[str, Any] | None) -> list[ListedShard]:
        if wanted is not None:
            try:
                return self._list_patiently(stream, {"ShardFilter": wanted})
            except KinesisError as error:
                # AWS refuses a time before the trim horizon, and other servers may refuse any filter.
                if not _is_invalid(error):
                    raise
        return self._list_patiently(stream, {})

    def _list_patiently(self, stream: str, which: dict[str, Any]) -> list[ListedShard]:
        for _ in range(_LISTINGS):
            try:
                return self._list_once(stream, which)
            except Unavailable as error:
                if _code(error) != "ExpiredNextTokenException":
                    raise
                expired = error
        raise expired

    def _list_once(self, stream: str, which: dict[str, Any]) -> list[ListedShard]:
        shards: list[ListedShard] = []
        tokens: set[str] = set()
        page = self._stream(stream) | which
        while page:
            answer = self._call(f"stream {stream!r}", "list_shards", **page)
            listed, token = self._read(f"stream {stream!r}", shards_of, answer, tokens)
            shards += listed
            tokens |= {token} if token else set()
            # The token identifies the stream; Kinesis refuses both together.
            page = {"NextToken": token} if token else {}
        self._read(f"stream {stream!r}", refuse_circles, shards)
        return shards

    def iterator(self, stream: str, shard: str, position: str) -> str:
        """See `Kinesis.iterator`; a position inside an aggregate returns an iterator at the aggregate's record.

        An AT_TIMESTAMP iterator may start up to a second early, because some versions of botocore send whole
        seconds.
        """
        what = f"stream {stream!r}, shard {shard}, position {position}"
        answer = self._call(
            what,
            "get_shard_iterator",
            **self._stream(stream),
            ShardId=shard,
            **_start(parse_position(position)),
        )
        iterator = self._read(what, iterator_of, answer)
        return f"{stream}{_OF}{iterator}" if len(self._arns) > 1 else iterator

    def get_records(self, iterator: str, limit: int) -> Page:
        """See `Kinesis.get_records`."""
        several = len(self._arns) > 1
        stream, of, token = iterator.partition(_OF) if several else (next(iter(self._arns), ""), "", iterator)
        which = {"StreamARN": self._arns[stream]} if stream else {}
        answer = self._call("GetRecords", "get_records", ShardIterator=token, Limit=limit, **which)
        page: Page | None = answer.get(PAGE)
        if page is None:
            answered = server_time(answer["ResponseMetadata"]["HTTPHeaders"])
            page = self._read("GetRecords", page_from_response, answer, answered)
        if of and page.next_iterator is not None:
            return replace(page, next_iterator=f"{stream}{of}{page.next_iterator}")
        return page

    def describe_consumer(self, stream_arn: str, name: str) -> Consumer:
        """See `spout.kinesis.consumers.ConsumerCalls`."""
        what = f"consumer {name!r} of {stream_arn}"
        try:
            answer = self._call(what, "describe_stream_consumer", StreamARN=stream_arn, ConsumerName=name)
        except StreamMissingError as error:
            raise ConsumerMissingError(str(error)) from error
        return self._read(what, consumer_of, answer)

    def register_consumer(self, stream_arn: str, name: str) -> None:
        """See `spout.kinesis.consumers.ConsumerCalls`."""
        self._call(
            f"consumer {name!r} of {stream_arn}",
            "register_stream_consumer",
            StreamARN=stream_arn,
            ConsumerName=name,
        )

    def subscribe(self, consumer: str, shard: str, position: str) -> EventStream:
        """See `spout.reader.fan_out.Subscriber`.

        Raises:
            InUseError: the consumer has a subscription to the shard, begun less than 5 seconds ago.
            ConsumerMissingError: there is no such consumer, or no such shard.
            KinesisError: Kinesis refuses it for any other reason.
        """
        what = f"consumer {consumer}, shard {shard}, position {position}"
        try:
            answer = self._call(
                what,
                "subscribe_to_shard",
                ConsumerARN=consumer,
                ShardId=shard,
                StartingPosition=_starting(parse_position(position)),
            )
        except StreamMissingError as error:
            raise of_consumer(error) from error
        if EVENTS not in answer:
            msg = f"{what} in {self._where}: the events are not JSON. Set consumerMode=polling"
            raise KinesisError(msg)
        began = server_time(answer["ResponseMetadata"]["HTTPHeaders"])
        return EventStream(answer[EVENTS], what, self._where, began, self._steady)

    def put_records(self, stream: str, records: list[tuple[bytes, str]]) -> None:
        """See `Kinesis.put_records`; after a broken connection a request may be written twice.

        Raises:
            ThrottledError, Unavailable: Kinesis accepted nothing for two minutes.
            KinesisError: a record is larger than Kinesis allows.
        """
        from kinesis_trident.spout.kinesis.put_records import put_all

        put_all(
            lambda entries: self.put_entries(stream, entries),
            records,
            sleep=self._sleep,
            where=f"stream {stream!r}",
        )

    def put_entries(self, stream: str, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """Call PutRecords once; return one result per entry, with an `ErrorCode` if it was refused.

        Args:
            stream: its name or its ARN.
            entries: the records.

        Raises:
            RequestTooLargeError: it was refused for its size (HTTP 413), or has more than 5 MiB and was refused as
                invalid.
            KinesisError: naming stream, region and endpoint.
        """
        entries = Entries.of(entries)
        try:
            answer = self._call(f"stream {stream!r}", "put_records", Records=entries, **self._stream(stream))
        except KinesisError as error:
            from kinesis_trident.spout.kinesis.put_pools import SMALLER_REQUEST_BYTES

            # The error texts of servers differ: a smaller request shows whether it was the size.
            too_large = _is_invalid(error) and entries.size > SMALLER_REQUEST_BYTES
            if too_large or _status(error) == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                raise RequestTooLargeError(str(error)) from error
            raise
        return self._read(f"stream {stream!r}", results_of, answer, len(entries))

    def _stream(self, name: str) -> dict[str, str]:
        # Only the ARN reaches a stream in another account.
        arn = name if name.startswith("arn:") else self._arns.get(name)
        return {"StreamName": name} if arn is None else {"StreamARN": arn}

    def _call(self, what: str, call: str, **arguments: Any) -> dict[str, Any]:
        untried = set(Remedy)
        while True:
            clients = self._clients.value
            try:
                answer: dict[str, Any] = getattr(clients.reads if call in _READS else clients.calls, call)(
                    **arguments
                )
            # A TypeError: botocore takes the `__type` of any refusal for a text.
            except (BotoCoreError, ClientError, ResponseParserError, TypeError) as error:
                remedy = remedy_of(error)
                if remedy not in untried or not self._apply(remedy, error, clients):
                    raise translated(error, what, self._where) from error
                untried.remove(remedy)
            else:
                return answer

    def _apply(self, remedy: Remedy, error: Exception, refused: _Clients) -> bool:
        """Apply a remedy; tell whether the call is worth another try."""
        if remedy is Remedy.SERVER_TIME:
            self._clock.correct(error)
            return True
        return self._clients.renew(refused) is not refused

    def _read(self, what: str, read: Callable[..., T], answer: object, *more: Any) -> T:
        """Read an answer, or a part of it, that botocore has parsed."""
        try:
            return read(answer, *more)
        except ResponseParserError as error:
            raise translated(error, what, self._where) from error


def _filter(since: Since) -> dict[str, Any]:
    match since:
        case TrimHorizon():
            return {"Type": "FROM_TRIM_HORIZON"}
        case AtTimestamp(time):
            return {"Type": "FROM_TIMESTAMP", "Timestamp": _EPOCH + timedelta(milliseconds=time)}
        case AfterShard(shard):
            return {"Type": "AFTER_SHARD_ID", "ShardId": shard}


def _is_invalid(error: KinesisError) -> bool:
    """Return whether Kinesis refused a call as invalid."""
    return _code(error) in _INVALID


def _code(error: KinesisError) -> str:
    """Return the error code of Kinesis; empty if Kinesis did not refuse the call."""
    cause = error.__cause__
    return str(cause.response.get("Error", {}).get("Code", "")) if isinstance(cause, ClientError) else ""


def _status(error: KinesisError) -> int:
    """Return the HTTP status with which Kinesis, or a proxy before it, refused a call; 0 if it did not."""
    cause = error.__cause__
    return int(cause.response["ResponseMetadata"]["HTTPStatusCode"]) if isinstance(cause, ClientError) else 0


def _start(position: Position) -> dict[str, Any]:
    match position:
        case TrimHorizon():
            return {"ShardIteratorType": "TRIM_HORIZON"}
        case AtTimestamp(time):
            return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": _EPOCH + timedelta(milliseconds=time)}
        case After(record):
            kind = "AFTER_SEQUENCE_NUMBER" if record.sub < 0 else "AT_SEQUENCE_NUMBER"
            return {"ShardIteratorType": kind, "StartingSequenceNumber": str(record.sequence)}
        case At(record):
            return {
                "ShardIteratorType": "AT_SEQUENCE_NUMBER",
                "StartingSequenceNumber": str(record.sequence),
            }
        case ShardEnd():
            msg = "a shard that is read to its end has no iterator"
            raise KinesisError(msg)


def _starting(position: Position) -> dict[str, Any]:
    """Return a position as SubscribeToShard expects it: as GetShardIterator does, under other names."""
    found = _start(position)
    names = {"ShardIteratorType": "Type", "StartingSequenceNumber": "SequenceNumber"}
    return {names.get(name, name): value for name, value in found.items()}


_clients: PerProcess[ConnectionOptions, BotoKinesis] = PerProcess()


def kinesis_client(options: ConnectionOptions) -> BotoKinesis:
    """Return this process's client for `options`; it lives as long as the process.

    Raises:
        KinesisError: as `BotoKinesis`.
    """
    return _clients.get(options, lambda: BotoKinesis(options))
