"""A shard that retention has removed from the stream: there is nothing in it, and nothing will come."""

from __future__ import annotations

import pyarrow as pa

from spout.kinesis import (
    Kinesis,
    KinesisError,
    Page,
    Shard,
    ShardMissingError,
    Since,
    StreamInfo,
    StreamMissingError,
)
from spout.pages import PAGE_SCHEMA

__all__ = ["GoneShard", "is_gone"]


def is_gone(kinesis: Kinesis, stream: str, shard: str, error: KinesisError) -> bool:
    """Whether a read was refused because the shard is no longer there, though its stream is.

    Kinesis answers ResourceNotFoundException for both, and only the text tells them apart: so the listing decides.

    Raises:
        KinesisError: the stream is not there either, or cannot be listed.
    """
    if not isinstance(error, ShardMissingError | StreamMissingError):
        return False
    return all(listed.id != shard for listed in kinesis.list_shards(stream))


class GoneShard:
    """What is left of such a shard, read as any other: an end without records.

    Args:
        kinesis: answers everything that is not about the shard.
    """

    def __init__(self, kinesis: Kinesis) -> None:
        self._kinesis = kinesis

    def describe(self, stream: str) -> StreamInfo:
        """See `Kinesis.describe`."""
        return self._kinesis.describe(stream)

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        """See `Kinesis.list_shards`."""
        return self._kinesis.list_shards(stream, since)

    def iterator(self, stream: str, shard: str, position: str) -> str:
        """An iterator whose first answer is the end."""
        return f"{stream}/{shard}/{position}"

    def get_records(self, iterator: str, limit: int) -> Page:
        """No records, and no next iterator."""
        return Page(pa.RecordBatch.from_pylist([], schema=PAGE_SCHEMA), None, 0, 0, closed=True)

    def put_records(self, stream: str, records: list[tuple[bytes, str]]) -> None:
        """See `Kinesis.put_records`."""
        self._kinesis.put_records(stream, records)
