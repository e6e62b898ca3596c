"""A call as its caller sends it: its signature, and iterators and listing tokens as text. Pure; times are epoch ms."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

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
            return stream.tip(shard)
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
            return shard.cursor_since(since, stream.tip(shard).start)
        case kind:
            if asked.starting_sequence_number is None:
                msg = f"StartingSequenceNumber is needed for {kind}"
                raise KinesisError(msg)
            cursor = stream.cursor_at(shard, stream.number_of(asked.starting_sequence_number))
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


_FORM = "%Y%m%dT%H%M%SZ"


class Signatures(msgspec.Struct, frozen=True):
    """The signatures that are accepted.

    Args:
        key: the id of the access key; None for any.
        code: the error of any other key.
        seconds: the most between the time of a signature and the endpoint's; None for any time.
    """

    key: str | None = None
    code: str = ""
    seconds: float | None = None

    def check(self, headers: Mapping[str, str], now: int) -> None:
        """Check the headers of a call (lower-case names).

        Raises:
            RefusedError: another key signed it, or it was signed at another time.
        """
        signed = headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]
        if self.key is not None and signed != self.key:
            msg = "The security token included in the request is invalid."
            raise RefusedError(msg, code=self.code)
        if self.seconds is None:
            return
        stamp = headers.get("x-amz-date", "")
        at = datetime.strptime(stamp, _FORM).replace(tzinfo=UTC).timestamp() * 1000
        early, late = (now + sign * self.seconds * 1000 for sign in (-1, 1))
        if early <= at <= late:
            return
        if at < early:
            msg = f"Signature expired: {stamp} is now earlier than {_text(early)} ({_text(now)} - {self._minutes})"
        else:
            bound = f"{_text(late)} ({_text(now)} + {self._minutes})"
            msg = f"Signature not yet current: {stamp} is still later than {bound}"
        raise RefusedError(msg, code="InvalidSignatureException")

    @property
    def _minutes(self) -> str:
        return f"{(self.seconds or 0) / 60:g} min."


def _text(time: float) -> str:
    return datetime.fromtimestamp(time / 1000, UTC).strftime(_FORM)
