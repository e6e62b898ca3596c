"""The narrow interface to Kinesis: everything else in the source is tested without AWS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from kinesis_trident.spout.errors import SpoutError
from kinesis_trident.spout.positions import AtTimestamp, TrimHorizon

__all__ = [
    "AccessDeniedError",
    "AfterShard",
    "ConsumerMissingError",
    "InUseError",
    "IteratorExpiredError",
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
]


class KinesisError(SpoutError):
    """Kinesis refused or could not be reached."""


class StreamMissingError(KinesisError):
    """There is no stream of that name in that region."""


class ShardMissingError(KinesisError):
    """The stream has no such shard, or no longer: it was closed, and is past retention with all that it held."""


class RequestTooLargeError(KinesisError):
    """A request of more than 5 MiB was refused, perhaps for its size: send its records in smaller ones."""


class AccessDeniedError(KinesisError):
    """The credentials are wrong, missing, expired, or lack a permission."""


class ThrottledError(KinesisError):
    """Too many calls or bytes for this shard: its turn ends."""


class InUseError(ThrottledError):
    """The same consumer subscribed to the same shard less than 5 seconds ago, or has taken this subscription over."""


class ConsumerMissingError(KinesisError):
    """The stream has no such consumer with enhanced fan-out."""


class IteratorExpiredError(KinesisError):
    """The shard iterator is older than five minutes: make a new one from the last record delivered."""


class Unavailable(KinesisError):
    """A passing fault: 5xx, a cut connection, a time-out."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What identifies a stream and bounds what it holds. Times are epoch milliseconds by the server's clock.

    `max_record_bytes` is for payload and partition key together; None where the service does not say.
    """

    name: str
    arn: str
    created: int
    retention_hours: int
    status: str
    server_time: int
    max_record_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard as ListShards gives it; `parents` are ids, listed or not."""

    id: str
    parents: tuple[str, ...] = ()
    closed: bool = False


@dataclass(frozen=True, slots=True)
class AfterShard:
    """Of a listing: only shards that were made after this one, by its id; Kinesis numbers them as it makes them."""

    id: str


Since = TrimHorizon | AtTimestamp | AfterShard
"""What a listing may leave out: shards that were past retention, or closed, by then; or were known already."""


@dataclass(frozen=True, slots=True)
class Page:
    """One GetRecords answer, or one event of a subscription, whose continuation `next_iterator` then is.

    `records` has the columns partitionKey (string), data (binary), sequenceNumber (string) and
    approximateArrivalTimestamp (timestamp[us, UTC]), in shard order. `next_iterator` is None at the end of a closed
    shard (`spout.kinesis.closing`). `behind_ms` is None where the answer does not tell. `size` is the sum of
    the payloads in
    bytes. `server_time` is when the server answered, by its clock, in epoch milliseconds rounded down; None where that
    is not known. `closed`: the answer names child shards.
    """

    records: pa.RecordBatch
    next_iterator: str | None
    behind_ms: int | None
    size: int
    server_time: int | None = None
    closed: bool = False


class Kinesis(Protocol):
    """All calls the source makes. Every method may raise any KinesisError."""

    def describe(self, stream: str) -> StreamInfo:
        """DescribeStreamSummary, with the server's time from its answer."""
        ...

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        """The shards within retention, open and closed, all pages.

        `since` saves what is of no interest (ShardFilter of the API). A server may list that all the same: who asks
        leaves it out by itself.
        """
        ...

    def iterator(self, stream: str, shard: str, position: str) -> str:
        """A shard iterator for a position in the text form of `spout.positions`."""
        ...

    def get_records(self, iterator: str, limit: int) -> Page:
        """One page of at most `limit` records (1 to 10,000)."""
        ...

    def put_records(self, stream: str, records: list[tuple[bytes, str]]) -> None:
        """Write (data, partition key) pairs, in order, retrying what was refused until all are in."""
        ...
