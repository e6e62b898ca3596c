"""Iterators and listing tokens as text, and where an iterator starts. Pure; times are epoch milliseconds."""

from __future__ import annotations

import msgspec

from kinesis_trident.spout.kinesis import KinesisError
from kinesis_trident.spout.testing.requests import GetShardIterator, ShardFilter
from kinesis_trident.spout.testing.shard import Cursor, HeldShard
from kinesis_trident.spout.testing.stream import HeldStream

GOOD_FOR_MS = 300_000
"""Milliseconds for which iterators and tokens are valid."""


class RefusedError(KinesisError):
    """A call is refused with an error code that has no error class of its own."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


def iterator_of(stream: HeldStream, shard: HeldShard, cursor: Cursor, now: int) -> str:
    """An iterator, made now."""
    parts = (stream.name, stream.created, shard.name, cursor.start, cursor.walked, shard.generation, now)
    return "/".join(map(str, parts))


def parts_of(iterator: str) -> tuple[str, int, str, int, int, int, int]:
    """Parse stream, its creation, shard, first sequence number, returned empty pages, generation, creation time.

    Raises:
        KinesisError: it is not an iterator.
    """
    try:
        name, created, shard, start, walked, generation, made = iterator.split("/")
        return name, int(created), shard, int(start), int(walked), int(generation), int(made)
    except ValueError:
        msg = "Invalid ShardIterator."
        raise KinesisError(msg) from None


def cursor_for(stream: HeldStream, shard: HeldShard, asked: GetShardIterator, now: int) -> Cursor:
    """Return the cursor of a new iterator.

    Raises:
        KinesisError: the request lacks a field that its type needs, or its position is not in the shard.
    """
    match asked.shard_iterator_type:
        case "TRIM_HORIZON":
            return Cursor(shard.first)
        case "LATEST":
            return stream.tip
        case "AT_TIMESTAMP":
            if asked.timestamp is None:
                msg = "Timestamp is needed for AT_TIMESTAMP"
                raise KinesisError(msg)
            since = round(asked.timestamp * 1000)
            if since > now:
                msg = (
                    "The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
                    f"timestampInMillis: {since}, currentTimestampInMillis: {now}"
                )
                raise KinesisError(msg)
            return shard.cursor_since(since, stream.tip.start)
        case kind:
            if asked.starting_sequence_number is None:
                msg = f"StartingSequenceNumber is needed for {kind}"
                raise KinesisError(msg)
            cursor = stream.cursor_at(shard, int(asked.starting_sequence_number))
            return cursor if kind == "AT_SEQUENCE_NUMBER" else Cursor(cursor.start + 1)


def listing_token(name: str, after: str, wanted: ShardFilter | None, now: int) -> str:
    """Encode the continuation of a listing of shards, after a shard."""
    return msgspec.json.encode((name, after, wanted, now)).decode()


def parse_listing_token(token: str, now: int) -> tuple[str, str, ShardFilter | None]:
    """Parse stream, last returned shard, and filter of a continued listing.

    Raises:
        KinesisError: it is not such a token.
        RefusedError: it is too old.
    """
    try:
        name, after, wanted, made = msgspec.json.decode(token, type=tuple[str, str, ShardFilter | None, int])
    except msgspec.DecodeError:
        msg = "NextToken is invalid."
        raise KinesisError(msg) from None
    if now - made > GOOD_FOR_MS:
        msg = "NextToken is expired."
        raise RefusedError(msg, code="ExpiredNextTokenException")
    return name, after, wanted
