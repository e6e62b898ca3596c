"""The only implementation of `spout.kinesis.Kinesis` that calls AWS."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from kinesis_trident.common.per_process import PerProcess
from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    AskIterator,
    AskRecords,
    ConsumerMissingError,
    InUseError,
    KinesisError,
    Page,
    RequestTooLargeError,
    Shard,
    Since,
    StreamInfo,
    StreamMissingError,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.kinesis.answers import (
    ListedShard,
    check_listing,
    consumer_of,
    iterator_of,
    open_shards_of,
    server_time,
    shard_of,
    shards_of,
    stream_of,
)
from kinesis_trident.spout.kinesis.api_positions import FROM_NOW, filter_of, start_of, subscription_start_of
from kinesis_trident.spout.kinesis.aws_errors import code_of, is_invalid, status_of, translate_error
from kinesis_trident.spout.kinesis.aws_session import create_calls, find_fixed_keys, open_session
from kinesis_trident.spout.kinesis.consumers import Consumer
from kinesis_trident.spout.kinesis.event_stream import EventStream, of_consumer
from kinesis_trident.spout.kinesis.pages.decoding import page_of
from kinesis_trident.spout.kinesis.put_bodies import encode_put, results_of
from kinesis_trident.spout.kinesis.put_entries import SMALLER_REQUEST_BYTES, Entries, Entry
from kinesis_trident.spout.kinesis.rate_limit import full_jitter
from kinesis_trident.spout.kinesis.remedies import Remedy, Renewed, RequestClock, remedy_of
from kinesis_trident.spout.kinesis.wire.calls import KinesisCalls
from kinesis_trident.spout.kinesis.wire.http_answers import HttpAnswer
from kinesis_trident.spout.log_lines import Seldom
from kinesis_trident.spout.options.connection import ConnectionOptions
from kinesis_trident.spout.positions import AtTimestamp, parse_position

T = TypeVar("T")

log = logging.getLogger(__name__)

_seldom = Seldom(600.0)

_OF = "|"
"""Separates a stream from its iterator when there are several ARNs: only the ARN reaches another account."""

_CREATIONS = 4
"""Attempts to create a client while the source of the credentials does not answer."""

_LISTINGS = 3
"""Attempts to list shards when a next page was requested too late."""

_READS = {"GetRecords", "GetShardIterator", "SubscribeToShard"}
"""The calls that are not repeated here."""

_EXPIRED_TOKEN = "ExpiredNextTokenException"


class _Access(NamedTuple):
    """The calls, their region and endpoint, and their credentials if these stay as they are."""

    keys: tuple[str | None, ...] | None
    calls: KinesisCalls
    where: str


class _Made(NamedTuple):
    """A call that reads a shard: what errors name, and how it is sent and read."""

    what: str
    call: str
    arguments: Mapping[str, Any]
    parse: Callable[[memoryview, int | None], Any]


class BotoKinesis:
    """All calls that the source makes; thread-safe. Errors name the stream, region and endpoint.

    Reads of records are never repeated: `spout.reader.fetch` decides what a throttle or a fault means for the shard's
    turn. All other calls are, up to `clientNumRetries` times, after a throttle or a passing fault.

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
        self._access = Renewed(self._create_patiently(), self._create)
        self._where = self._access.value.where

    def _create_patiently(self) -> _Access:
        """Create the calls; retry for some seconds while the source of the credentials does not answer."""
        for failures in range(1, _CREATIONS):
            try:
                return self._create()
            except Unavailable:
                self._sleep(full_jitter(failures, self._rng, base=1.0))
        return self._create()

    def _create(self, last: _Access | None = None) -> _Access:
        """Create the calls; return the `last` ones if their credentials are still the ones to use."""
        options = self._options
        try:
            session = open_session(options, self._clock)
            keys = find_fixed_keys(session)
            if last is not None and keys is not None and keys == last.keys:
                return last
            return _Access(keys, *create_calls(session, options, self._clock, self._steady))
        except (BotoCoreError, ValueError) as error:
            where = f"{options.region or 'no region'} ({options.endpoint_url or 'default endpoint'})"
            raise translate_error(error, f"stream {options.stream_name!r}", where) from error

    def __repr__(self) -> str:
        return f"BotoKinesis({self._where})"

    def describe(self, stream: str) -> StreamInfo:
        """See `Kinesis.describe`."""
        return self._call(
            f"stream {stream!r}",
            "DescribeStreamSummary",
            self._stream(stream),
            lambda body, answered: stream_of(body, answered or int(time.time() * 1000)),
        )

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        """See `Kinesis.list_shards`."""
        return [
            shard_of(found)
            for found in self._list_shards(stream, filter_of(since) if since is not None else None)
        ]

    def open_shards(self, stream: str) -> list[tuple[int, str]]:
        """Return the last hash key and the id of each open shard, in the order of the hash keys."""
        listed = self._list_shards(stream, {"Type": "AT_LATEST"})
        return self._check(stream, open_shards_of, listed)

    def _list_shards(self, stream: str, wanted: dict[str, Any] | None) -> list[ListedShard]:
        if wanted is not None:
            try:
                return self._list_patiently(stream, {"ShardFilter": wanted})
            except KinesisError as error:
                # AWS refuses a time before the trim horizon, and other servers may refuse any filter.
                if not is_invalid(error):
                    raise
        return self._list_patiently(stream, {})

    def _list_patiently(self, stream: str, which: dict[str, Any]) -> list[ListedShard]:
        for _ in range(_LISTINGS):
            try:
                return self._list_once(stream, which)
            except Unavailable as error:
                if code_of(error) != _EXPIRED_TOKEN:
                    raise
                expired = error
        raise expired

    def _list_once(self, stream: str, which: dict[str, Any]) -> list[ListedShard]:
        shards: list[ListedShard] = []
        tokens: set[str] = set()
        page = self._stream(stream) | which

        def read(body: memoryview, _: int | None) -> tuple[Sequence[ListedShard], str | None]:
            return shards_of(body, tokens)

        while page:
            listed, token = self._call(f"stream {stream!r}", "ListShards", page, read)
            shards += listed
            tokens.update([token] if token else [])
            # The token identifies the stream; Kinesis refuses both together.
            page = {"NextToken": token} if token else {}
        return self._check(stream, check_listing, shards)

    def iterator(self, stream: str, shard: str, position: str) -> str:
        """See `Kinesis.iterator`; a position inside an aggregate returns an iterator at the aggregate's record.

        Kinesis refuses a time ahead of its clock. The iterator is that of what arrives from now on, of which the reader
        leaves out what is before the time.
        """
        asked = AskIterator(stream, shard, position)
        made = self._make_call(asked)
        try:
            return str(self._call(made.what, made.call, made.arguments, made.parse))
        except KinesisError as error:
            if not _is_ahead(asked, error):
                raise
            made = self._make_call(asked, from_now=True)
            return str(self._call(made.what, made.call, made.arguments, made.parse))

    def get_records(self, iterator: str, limit: int) -> Page:
        """See `Kinesis.get_records`."""
        made = self._make_call(AskRecords(iterator, limit))
        page: Page = self._call(made.what, made.call, made.arguments, made.parse)
        return page

    def call_together(self, asked: Sequence[AskIterator | AskRecords]) -> Iterator[Any]:
        """See `CallsTogether.call_together`."""
        made, calls = [self._make_call(one) for one in asked], self._access.value.calls
        begun: list[Callable[[], HttpAnswer]] = []
        for one in made:
            try:
                begun.append(calls.begin(one.call, one.arguments))
            except (BotoCoreError, ClientError) as error:
                # It would be the same for the others, after as long a wait for each.
                begun += [partial(_fail, error)] * (len(made) - len(begun))
                break
        for question, one, waiting in zip(asked, made, begun, strict=True):
            if isinstance(question, AskRecords):
                # Nothing here refers to it while the next one is read.
                yield self._finish(one, waiting)
                continue
            iterator = self._finish(one, waiting)
            if _is_ahead(question, iterator):
                again = self._make_call(question, from_now=True)
                iterator = self._finish(again, partial(calls.open, again.call, again.arguments))
            yield iterator

    def _finish(self, made: _Made, begun: Callable[[], HttpAnswer]) -> Any:
        """Return the outcome of a call that was begun, or its error; a remedy makes another call."""
        under_way = [begun]

        def read(calls: KinesisCalls) -> Any:
            waiting = under_way.pop() if under_way else calls.begin(made.call, made.arguments)
            return calls.read(made.call, waiting, made.parse)

        try:
            return self._attempt(made.what, read)
        except KinesisError as error:
            return error

    def _make_call(self, asked: AskIterator | AskRecords, *, from_now: bool = False) -> _Made:
        """Return a call as it is sent; `from_now`: of an iterator of what arrives from now on."""
        several = len(self._arns) > 1
        if isinstance(asked, AskIterator):
            stream, shard, position = asked
            return _Made(
                f"stream {stream!r}, shard {shard}, position {position}",
                "GetShardIterator",
                {
                    **self._stream(stream),
                    "ShardId": shard,
                    **(FROM_NOW if from_now else start_of(parse_position(position))),
                },
                (lambda body, _: f"{stream}{_OF}{iterator_of(body)}")
                if several
                else lambda body, _: iterator_of(body),
            )
        iterator, limit = asked
        stream, of, token = iterator.partition(_OF) if several else (next(iter(self._arns), ""), "", iterator)
        arguments: dict[str, Any] = {"ShardIterator": token, "Limit": limit}
        if stream:
            arguments["StreamARN"] = self._arns[stream]
        return _Made(
            "GetRecords",
            "GetRecords",
            arguments,
            (lambda body, answered: _name_stream(page_of(body, answered), f"{stream}{of}"))
            if of
            else page_of,
        )

    def describe_consumer(self, stream_arn: str, name: str) -> Consumer:
        """See `spout.kinesis.consumers.ConsumerCalls`."""
        by_name = {"StreamARN": stream_arn, "ConsumerName": name}
        try:
            return self._call(
                f"consumer {name!r} of {stream_arn}",
                "DescribeStreamConsumer",
                {"ConsumerARN": name} if name.startswith("arn:") else by_name,
                lambda body, _: consumer_of(body),
            )
        except StreamMissingError as error:
            raise ConsumerMissingError(str(error)) from error
        except AccessDeniedError as error:
            raise of_consumer(error) from error

    def register_consumer(self, stream_arn: str, name: str) -> None:
        """See `spout.kinesis.consumers.ConsumerCalls`."""
        self._call(
            f"consumer {name!r} of {stream_arn}",
            "RegisterStreamConsumer",
            {"StreamARN": stream_arn, "ConsumerName": name},
            lambda body, _: None,
        )

    def subscribe(self, consumer: str, shard: str, position: str) -> EventStream:
        """See `spout.reader.fan_out.Subscriber`.

        Raises:
            InUseError: the consumer has a subscription to the shard, begun less than 5 seconds ago.
            ConsumerMissingError: there is no such consumer, or no such shard.
            KinesisError: Kinesis refuses it for any other reason.
        """
        what = f"consumer {consumer}, shard {shard}, position {position}"

        def open_at(start: dict[str, Any]) -> HttpAnswer:
            asked = {"ConsumerARN": consumer, "ShardId": shard, "StartingPosition": start}
            return self._attempt(what, lambda calls: calls.open("SubscribeToShard", asked))

        try:
            answer = open_at(subscription_start_of(parse_position(position)))
        except (AccessDeniedError, StreamMissingError) as error:
            raise of_consumer(error) from error
        except KinesisError as error:
            if not _is_ahead(AskIterator(consumer, shard, position), error):
                raise
            answer = open_at({"Type": "LATEST"})
        return EventStream(answer, what, self._where, server_time(answer.headers), self._steady)

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
            which = self._stream(stream)
            return self._call(
                f"stream {stream!r}",
                "PutRecords",
                which,
                lambda body, _: results_of(body, len(entries)),
                encode_put({**which, "Records": entries}),
            )
        except KinesisError as error:
            # The error texts of servers differ: a smaller request shows whether it was the size.
            too_large = is_invalid(error) and entries.size > SMALLER_REQUEST_BYTES
            if too_large or status_of(error) == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                raise RequestTooLargeError(str(error)) from error
            raise

    def _stream(self, name: str) -> dict[str, str]:
        # Only the ARN reaches a stream in another account.
        arn = name if name.startswith("arn:") else self._arns.get(name)
        return {"StreamName": name} if arn is None else {"StreamARN": arn}

    def _call(
        self,
        what: str,
        call: str,
        arguments: Mapping[str, Any],
        parse: Callable[[memoryview, int | None], T],
        body: bytes | None = None,
    ) -> T:
        """Make a call, and repeat it after a throttle or a passing fault if it is none of a read."""
        retries = 0 if call in _READS else self._options.client_num_retries
        failures = 0
        while True:
            try:
                return self._attempt(what, lambda calls: calls.call(call, arguments, parse, body))
            except (ThrottledError, Unavailable) as error:
                failures += 1
                # A token that has expired, and a consumer that exists, stay so.
                is_lasting = isinstance(error, InUseError) or code_of(error) == _EXPIRED_TOKEN
                if failures > retries or is_lasting:
                    raise
                self._sleep(full_jitter(failures, self._rng, base=1.0))

    def _attempt(self, what: str, make: Callable[[KinesisCalls], T]) -> T:
        """Make a call once, and once more for each remedy of a refusal."""
        tried: set[Remedy] = set()
        while True:
            access = self._access.value
            try:
                return make(access.calls)
            except (BotoCoreError, ClientError, ResponseParserError) as error:
                remedy = remedy_of(error)
                if remedy is None or remedy in tried or not self._apply(remedy, error, access):
                    raise translate_error(error, what, self._where) from error
                tried.add(remedy)

    def _apply(self, remedy: Remedy, error: Exception, refused: _Access) -> bool:
        """Apply a remedy; tell whether the call is worth another try."""
        if remedy is Remedy.SERVER_TIME:
            self._clock.correct(error)
            return True
        return self._access.renew(refused) is not refused

    def _check(self, stream: str, read: Callable[[list[ListedShard]], T], shards: list[ListedShard]) -> T:
        """Read a whole listing."""
        try:
            return read(shards)
        except ResponseParserError as error:
            raise translate_error(error, f"stream {stream!r}", self._where) from error


def _fail(error: Exception) -> HttpAnswer:
    raise error


def _name_stream(page: Page, prefix: str) -> Page:
    """Return a page whose next iterator names its stream."""
    following = page.next_iterator
    return page if following is None else replace(page, next_iterator=f"{prefix}{following}")


def _is_ahead(asked: AskIterator, answer: Any) -> bool:
    """Return whether Kinesis has refused a start because it is a time ahead of its clock, and log by how much."""
    position = parse_position(asked.position)
    if not (isinstance(position, AtTimestamp) and isinstance(answer, KinesisError) and is_invalid(answer)):
        return False
    assert isinstance(answer.__cause__, ClientError)
    now = server_time(answer.__cause__.response["ResponseMetadata"].get("HTTPHeaders", {}))
    if now is None or position.time < now:
        return False
    if _seldom(f"{asked.stream} {asked.position}"):
        log.warning(
            "stream %r, shard %s: the start %s is %.0f s ahead of Kinesis' clock: what arrives before is not read",
            asked.stream,
            asked.shard,
            position,
            (position.time - now) / 1000,
        )
    return True


_CLIENTS = 8
"""A client takes up to 12 MiB, a thread and a connection."""

KNOWN_FOR = 600.0
"""Seconds for which a process keeps what it knows of a stream that nobody asks for: a client is kept with that."""

_clients: PerProcess[ConnectionOptions, BotoKinesis] = PerProcess(most=_CLIENTS)


def connection_of(options: ConnectionOptions) -> ConnectionOptions:
    """Return the options of a connection among those of a query, a batch or a sink, which share its client."""
    return ConnectionOptions(**{one.name: getattr(options, one.name) for one in fields(ConnectionOptions)})


def kinesis_client(options: ConnectionOptions) -> BotoKinesis:
    """Return this process's client for a connection; the process keeps the last ones that were asked for.

    Raises:
        KinesisError: as `BotoKinesis`.
    """
    connection = connection_of(options)
    return _clients.get(connection, lambda: BotoKinesis(connection))
