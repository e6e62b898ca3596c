"""Reads the dead letters of a stream, from its oldest record to what is there now."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.spout.errors import DeadLetterError
from kinesis_trident.spout.failed_records.dead_letters import DeadLetter, parse_letter
from kinesis_trident.spout.kinesis import Kinesis, KinesisError, ThrottledError, Unavailable

log = logging.getLogger(__name__)

_PATIENCE = 60.0
_RECORDS = 10_000


def read_stream_letters(
    kinesis: Kinesis, name: str, sleep: Callable[[float], None] = time.sleep
) -> Iterator[DeadLetter]:
    """Yield all dead letters of a stream, shard by shard; other records are left out, and the log counts them.

    Args:
        kinesis: the calls.
        name: of the stream.
        sleep: waits before a call that was throttled is made again.

    Raises:
        DeadLetterError: the stream cannot be read.
    """
    strange = 0
    calls = Retrying(
        retry=retry_if_exception_type((ThrottledError, Unavailable)),
        wait=wait_random_exponential(multiplier=0.2, max=5),
        stop=stop_after_delay(_PATIENCE),
        sleep=sleep,
        reraise=True,
    )
    try:
        for shard in calls(kinesis.list_shards, name):
            iterator: str | None = calls(kinesis.iterator, name, shard.id, "TRIM_HORIZON")
            while iterator is not None:
                page = calls(kinesis.get_records, iterator, _RECORDS)
                for data in page.records["data"].to_pylist():
                    try:
                        yield parse_letter(data)
                    except UNREADABLE:
                        strange += 1
                is_at_tip = not page.behind_ms if page.behind_ms is not None else not page.records.num_rows
                iterator = None if is_at_tip else page.next_iterator
    except KinesisError as error:
        msg = (
            f"cannot read dead letters from stream {name!r}: {error}. Check that it exists, and that this role may "
            "call ListShards, GetShardIterator and GetRecords on it"
        )
        raise DeadLetterError(msg) from error
    if strange:
        log.warning("%d records of stream %r are no dead letters, and are left out", strange, name)
