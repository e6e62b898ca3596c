"""The rules that streams and batches share: retention, recreation, and whose clock a time is by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from kinesis_trident.checkpoint.model.layout import ShardKey
from kinesis_trident.checkpoint.model.nodes import CheckpointNode
from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    IteratorExpiredError,
    KeyUnusableError,
    Kinesis,
    KinesisError,
    Shard,
    ShardMissingError,
    StreamInfo,
    StreamMissingError,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.positions import At, AtTimestamp, Position, TrimHorizon
from kinesis_trident.tracker.records import RecordPosition

SERVER_SECOND_MS = 1_000
"""Milliseconds: the server reports its time in seconds, rounded down."""

LISTED_WITHIN_MS = 60_000
"""Milliseconds after which a listing shows a shard that was split or merged, at the latest."""

HOUR_MS = 3_600_000

_TRIMMED_MS = HOUR_MS
"""Milliseconds after a batch was loaded in which records may expire that were its oldest: some do before any read."""

_STEPS = 4
"""Calls to one shard, out of the five that it allows per second."""

_SIDE_BY_SIDE = 32


def children_of(shard: str, listed: Iterable[Shard]) -> list[Shard]:
    """Return the listed shards that came of one."""
    return [one for one in listed if shard in one.parents]


def are_all(children: Sequence[Shard], parent: Shard | None) -> bool:
    """Return whether these are all children of a closed shard: together they take its hash keys.

    Listings show a child a moment after its parent has closed. Where they have no hash keys one child is enough.
    """
    ranges = [parent.hash_keys if parent is not None else None, *(one.hash_keys for one in children)]
    if not children or None in ranges:
        return bool(children)
    (low, high), *parts = ((int(one[0]), int(one[1])) for one in ranges if one is not None)
    for begin, end in sorted(parts):
        if begin > low:
            return False
        low = max(low, end + 1)
    return low > high


def is_gone(kinesis: Kinesis, stream: str, shard: str, error: KinesisError) -> bool:
    """Return whether a read was refused because the shard no longer exists in an existing stream.

    Kinesis answers ResourceNotFoundException for both, and only its text differs: so the listing decides.

    Raises:
        KinesisError: the stream does not exist either, or cannot be listed.
    """
    if not isinstance(error, ShardMissingError | StreamMissingError):
        return False
    return all(listed.id != shard for listed in kinesis.list_shards(stream))


def find_known(position: Position, node: CheckpointNode | None, listed: int) -> int:
    """Return the time up to which no record of a query's shard was lost, in epoch milliseconds; 0 if unknown.

    A shard seen at its tip was read up to that time, however long ago its last record arrived. An unread shard has lost
    nothing from before it was `listed`, and records before an AT_TIMESTAMP position do not count.
    """
    seen = max(node.seen or 0, node.arrival or 0) if node is not None else 0
    return max(seen or listed, position.time if isinstance(position, AtTimestamp) else 0)


def find_known_at_load(start: Position, loaded: int, info: StreamInfo) -> int:
    """Return the time up to which no record of a batch's range was lost when it was loaded, 0 if unknown.

    The oldest record of a shard expires at any moment. A range that begins there has lost nothing as long as it is
    begun within an hour; so has one that begins at a time that has expired already.
    """
    oldest = max(info.created, loaded - info.retention_hours * HOUR_MS + _TRIMMED_MS)
    match start:
        case AtTimestamp(time):
            return max(time, oldest)
        case TrimHorizon():
            return oldest
    return 0


def is_past_retention(known: int, info: StreamInfo) -> bool:
    """Return whether records may have expired that arrived after the time up to which none was lost."""
    return 0 < known < info.server_time - info.retention_hours * HOUR_MS


def check_still_there(
    kinesis: Kinesis, records: Mapping[ShardKey, RecordPosition]
) -> dict[ShardKey, bool | None]:
    """Return whether each shard still has its record; None if that is not known now.

    Raises:
        KinesisError: a permanent error, such as a position of another stream.
    """
    if not records:
        return {}
    with ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(records)), thread_name_prefix="foreign") as pool:
        found = pool.map(
            lambda pair: is_still_there(kinesis, pair[0].stream, pair[0].shard, pair[1]), records.items()
        )
        return dict(zip(records, found, strict=True))


def is_still_there(kinesis: Kinesis, stream: str, shard: str, record: RecordPosition) -> bool | None:
    """Return whether a shard still has a record; None if that is not known now.

    Raises:
        KinesisError: a permanent error, such as a position of another stream.
    """
    try:
        iterator = kinesis.iterator(stream, shard, str(At(record.whole)))
        for _ in range(_STEPS):
            page = kinesis.get_records(iterator, 1)
            if page.records.num_rows:
                return RecordPosition(page.records.column("sequenceNumber")[0].as_py()) == record.whole
            if page.next_iterator is None or page.behind_ms == 0:
                return False
            iterator = page.next_iterator
    except (IteratorExpiredError, KeyUnusableError, ThrottledError, Unavailable):
        # The record before a position may have another key than those after it.
        return None
    except (ShardMissingError, StreamMissingError):
        # The next listing shows what happened to the shard.
        return None
    return None


def may_be_of_another_stream(error: KinesisError) -> bool:
    """Return whether a read may have been refused because the stream was deleted, or created again."""
    return not isinstance(error, AccessDeniedError | IteratorExpiredError | ThrottledError | Unavailable)


def find_creation(kinesis: Kinesis, stream: str) -> int | None:
    """Return when the stream of a name was created, in epoch milliseconds; None if there is none now.

    Raises:
        KinesisError: it cannot be described.
    """
    try:
        return kinesis.describe(stream).created
    except StreamMissingError:
        return None


def describe_streams(kinesis: Kinesis, names: Iterable[str]) -> dict[str, StreamInfo]:
    """Describe streams, by name.

    Raises:
        KinesisError: one of them does not exist, or cannot be described.
    """
    return {name: kinesis.describe(name) for name in names}


def bound_time(infos: Iterable[StreamInfo], passed_ms: int = 0) -> int:
    """Return a time by which it is now, by the server's clock, so long after a request for descriptions.

    An answer has the server's time of any moment between its request and its arrival, rounded down to a second.
    """
    return max((info.server_time for info in infos), default=0) + SERVER_SECOND_MS + passed_ms
