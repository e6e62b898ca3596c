"""The narrow interface to Kinesis, so that everything else in the source is tested without AWS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, runtime_checkable

import pyarrow as pa

from kinesis_trident.spout.errors import SpoutError
from kinesis_trident.spout.positions import AtTimestamp, TrimHorizon
from kinesis_trident.tracker.records import RecordPosition

if TYPE_CHECKING:
    from tenacity import RetryCallState

__all__ = [
    "AccessDeniedError",
    "AfterShard",
    "AskIterator",
    "AskRecords",
    "CallsTogether",
    "ConsumerMissingError",
    "InUseError",
    "InvalidPositionError",
    "IteratorExpiredError",
    "KeyAwayError",
    "KeyUnusableError",
    "Kinesis",
    "KinesisError",
    "Page",
    "RequestTooLargeError",
    "Shard",
    "ShardMissingError",
    "Since",
    "StreamInfo",
    "StreamMissingError",
    "ThrottledError",
    "Unavailable",
    "lasting_error",
    "locate_error",
    "make_call",
    "make_calls",
    "raise_lasting",
]


class KinesisError(SpoutError):
    """Kinesis refused a call or could not be reached."""


class StreamMissingError(KinesisError):
    """The stream does not exist in the region."""


class ShardMissingError(KinesisError):
    """The stream has no such shard, or retention has removed it."""


class InvalidPositionError(KinesisError):
    """The shard never had a record at the position: it is of another stream or shard."""


class RequestTooLargeError(KinesisError):
    """Kinesis refused a request, for certain or possibly for its size: send the records in smaller ones."""


class AccessDeniedError(KinesisError):
    """The credentials are wrong, missing, expired, or lack a permission."""


class ThrottledError(KinesisError):
    """The shard has had too many calls or bytes; its turn ends."""


class InUseError(ThrottledError):
    """The consumer subscribed to the shard less than 5 seconds ago, or another subscription replaced this one."""


class ConsumerMissingError(KinesisError):
    """The stream has no enhanced fan-out consumer of that name."""


class IteratorExpiredError(KinesisError):
    """The shard iterator is older than five minutes: request a new one after the last delivered record."""


class KeyUnusableError(KinesisError):
    """AWS KMS does not let the key be used with which the stream, or these records of it, are encrypted."""


class KeyAwayError(KeyUnusableError, ThrottledError):
    """AWS KMS does not let the key be used now, which passes when somebody enables it: whoever reads waits."""


class Unavailable(KinesisError):
    """A temporary fault: a 5xx status, a broken connection, a timeout."""


class UnreadableAnswerError(Unavailable):
    """An answer came, and is not one of Kinesis: the message says which call, and what of it is wrong."""


def lasting_error(error: KinesisError) -> KinesisError:
    """Return the error of a call that is given up: a key that was waited for is unusable."""
    return KeyUnusableError(str(error)) if isinstance(error, KeyAwayError) else error


def raise_lasting(state: RetryCallState) -> NoReturn:
    """Raise the error of a call that was repeated, and is given up."""
    error = state.outcome and state.outcome.exception()
    assert isinstance(error, KinesisError)
    raise lasting_error(error) from error


def locate_error(error: KinesisError, stream: str, shard: str, position: object) -> KinesisError:
    """Return an error of a read with the place of the read in its text."""
    return type(error)(f"stream {stream!r}, shard {shard}, position {position}: {error}")


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """The identity and the limits of a stream. Times are epoch milliseconds by the server's clock.

    `max_record_bytes` covers payload and partition key together; None if the service does not report it. `is_auto`: the
    stream distributes records by itself, whatever their keys, and takes records without a key
    (`RecordDistributionStrategy` AUTO).
    """

    name: str
    arn: str
    created: int
    retention_hours: int
    status: str
    server_time: int
    max_record_bytes: int | None = None
    is_auto: bool = False

    @property
    def account(self) -> str:
        """Return the account that the stream belongs to; empty if its ARN does not tell."""
        return ":".join(self.arn.split(":")[4:5])


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard as ListShards returns it; `parents` are ids, listed or not.

    `sequences`: the first and the last sequence number, the last None while the shard is open. `hash_keys`: the first
    and the last. Both are None if the listing does not have them, and no part of the shard's identity.
    """

    id: str
    parents: tuple[str, ...] = ()
    closed: bool = False
    sequences: tuple[RecordPosition, RecordPosition | None] | None = field(default=None, compare=False)
    hash_keys: tuple[str, str] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class AfterShard:
    """A filter of a listing: only shards created after the one with this id. Kinesis numbers shards in order."""

    id: str


Since = TrimHorizon | AtTimestamp | AfterShard
"""A filter of a listing: leaves out shards that had expired or closed by then, or that are known already."""


@dataclass(frozen=True, slots=True)
class Page:
    """One GetRecords answer, or one event of a subscription, where `next_iterator` is its continuation.

    `records` has the columns of `spout.kinesis.record_batches.RECORD_SCHEMA`, in shard order. `next_iterator` is None
    at the end of a closed shard (`spout.reader.answers`). `behind_ms` is None if the answer does not report it. `size`
    is the sum of the payloads in bytes. `server_time` is the time of the answer by the server's clock, in epoch
    milliseconds rounded down, None if unknown. `closed`: the answer names child shards.
    """

    records: pa.RecordBatch
    next_iterator: str | None
    behind_ms: int | None
    size: int
    server_time: int | None = None
    closed: bool = False


class AskIterator(NamedTuple):
    """The arguments of `Kinesis.iterator`."""

    stream: str
    shard: str
    position: str


class AskRecords(NamedTuple):
    """The arguments of `Kinesis.get_records`."""

    iterator: str
    limit: int


@runtime_checkable
class CallsTogether(Protocol):
    """Makes several calls at once, in one thread."""

    def call_together(self, asked: Sequence[AskIterator | AskRecords]) -> Iterator[Any]:
        """Yield, for each call, what it returns, or the KinesisError that it raises.

        All are under way at once, and an answer is read when it is asked for: one of many large ones is in memory.
        """
        ...


class Kinesis(Protocol):
    """All calls that the source makes. Every method may raise any KinesisError."""

    def describe(self, stream: str) -> StreamInfo:
        """Call DescribeStreamSummary; the result includes the server's time."""
        ...

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        """Return all shards within retention, open and closed.

        `since` leaves out shards of no interest (ShardFilter of the API). A server may ignore it: callers filter again.
        """
        ...

    def iterator(self, stream: str, shard: str, position: str) -> str:
        """Return a shard iterator for a position in the text form of `spout.positions`."""
        ...

    def get_records(self, iterator: str, limit: int) -> Page:
        """Return one page of at most `limit` records (1 to 10,000)."""
        ...

    def put_records(self, stream: str, records: list[tuple[bytes, str]]) -> None:
        """Write (data, partition key) pairs in order, and retry refused ones until all are written."""
        ...


def make_calls(kinesis: Kinesis, asked: Sequence[AskIterator | AskRecords]) -> Iterator[Any]:
    """Yield, for each call, what it returns, or its error; together, if they can be made so."""
    if isinstance(kinesis, CallsTogether):
        yield from kinesis.call_together(asked)
    else:
        for one in asked:
            yield make_call(kinesis, one)


def make_call(kinesis: Kinesis, asked: AskIterator | AskRecords) -> str | Page | KinesisError:
    """Return what a call returns, or its error."""
    try:
        return kinesis.iterator(*asked) if isinstance(asked, AskIterator) else kinesis.get_records(*asked)
    except KinesisError as error:
        return error
