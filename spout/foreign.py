"""Whether a record that others have read up to is still in its stream.

A position that comes from elsewhere (`startingPosition` in JSON, Storm's checkpoints, an offset alone) does not tell
when its record arrived. Kinesis reads on from the oldest record where that one has expired, and says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from checkpoint.layout import ShardKey
from spout.kinesis import (
    IteratorExpiredError,
    Kinesis,
    ShardMissingError,
    StreamMissingError,
    ThrottledError,
    Unavailable,
)
from spout.positions import At
from tracker.records import RecordPosition

__all__ = ["still_there"]

_STEPS = 4
"""Calls to one shard, of the five a second that it allows."""

_SIDE_BY_SIDE = 32


def still_there(kinesis: Kinesis, records: Mapping[ShardKey, RecordPosition]) -> dict[ShardKey, bool | None]:
    """Whether each shard still holds its record; None where that cannot be known now.

    Raises:
        KinesisError: what is not passing, as that a position is not of this stream.
    """
    if not records:
        return {}
    with ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(records)), thread_name_prefix="foreign") as pool:
        found = pool.map(lambda pair: _is_there(kinesis, *pair), records.items())
        return dict(zip(records, found, strict=True))


def _is_there(kinesis: Kinesis, key: ShardKey, record: RecordPosition) -> bool | None:
    try:
        iterator = kinesis.iterator(key.stream, key.shard, str(At(RecordPosition(record.sequence))))
        for _ in range(_STEPS):
            page = kinesis.get_records(iterator, 1)
            if page.records.num_rows:
                return int(page.records.column("sequenceNumber")[0].as_py()) == record.sequence
            if page.next_iterator is None or page.behind_ms == 0:
                return False
            iterator = page.next_iterator
    except (IteratorExpiredError, ThrottledError, Unavailable):
        return None
    except (ShardMissingError, StreamMissingError):
        # What became of the shard, the next listing tells.
        return None
    return None
