"""The only implementation of `spout.kinesis.Kinesis` that calls AWS."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from kinesis_trident.common.per_process import PerProcess
from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    AskIterator,
    AskRecords,
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
    check_listing,
    consumer_of,
    open_shards_of,
    server_time,
    shard_of,
    shards_of,
    stream_of,
)
from kinesis_trident.spout.kinesis.api_positions import filter_of, subscription_start_of
from kinesis_trident.spout.kinesis.aws_errors import code_of, is_invalid, status_of, translate_error
from kinesis_trident.spout.kinesis.consumers import Consumer
from kinesis_trident.spout.kinesis.event_stream import EventStream, of_consumer
from kinesis_trident.spout.kinesis.patient_calls import EXPIRED_TOKEN, PatientCalls
from kinesis_trident.spout.kinesis.put_bodies import encode_put, results_of
from kinesis_trident.spout.kinesis.put_entries import SMALLER_REQUEST_BYTES, Entries, Entry
from kinesis_trident.spout.kinesis.shard_reads import ShardRead, is_ahead, read_of
from kinesis_trident.spout.kinesis.wire.calls import KinesisCalls
from kinesis_trident.spout.kinesis.wire.http_answers import HttpAnswer
from kinesis_trident.spout.options.connection import ConnectionOptions
from kinesis_trident.spout.positions import parse_position

T = TypeVar("T")

log = logging.getLogger(__name__)

_LISTINGS = 3
"""Attempts to list shards when a next page was requested too late."""


class BotoKinesis(PatientCalls):
    """All calls that the source makes; thread-safe. Errors name the stream, region and endpoint."""

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
                if code_of(error) != EXPIRED_TOKEN:
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
        made = read_of(self._arns, asked)
        try:
            return str(self._call(made.what, made.call, made.arguments, made.parse))
        except KinesisError as error:
            if not is_ahead(asked, error):
                raise
            made = read_of(self._arns, asked, from_now=True)
            return str(self._call(made.what, made.call, made.arguments, made.parse))

    def get_records(self, iterator: str, limit: int) -> Page:
        """See `Kinesis.get_records`."""
        made = read_of(self._arns, AskRecords(iterator, limit))
        page: Page = self._call(made.what, made.call, made.arguments, made.parse)
        return page

    def call_together(self, asked: Sequence[AskIterator | AskRecords]) -> Iterator[Any]:
        """See `CallsTogether.call_together`."""
        made, calls = [read_of(self._arns, one) for one in asked], self._access.value.calls
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
            if is_ahead(question, iterator):
                again = read_of(self._arns, question, from_now=True)
                iterator = self._finish(again, partial(calls.open, again.call, again.arguments))
            yield iterator

    def _finish(self, made: ShardRead, begun: Callable[[], HttpAnswer]) -> Any:
        """Return the outcome of a call that was begun, or its error; a remedy makes another call."""
        under_way = [begun]

        def read(calls: KinesisCalls) -> Any:
            waiting = under_way.pop() if under_way else calls.begin(made.call, made.arguments)
            return calls.read(made.call, waiting, made.parse)

        try:
            return self._attempt(made.what, read)
        except KinesisError as error:
            return error

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
            if not is_ahead(AskIterator(consumer, shard, position), error):
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

    def _check(self, stream: str, read: Callable[[list[ListedShard]], T], shards: list[ListedShard]) -> T:
        """Read a whole listing."""
        try:
            return read(shards)
        except ResponseParserError as error:
            raise translate_error(error, f"stream {stream!r}", self._where) from error


def _fail(error: Exception) -> HttpAnswer:
    raise error


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
