"""Several streams in memory, as one Kinesis."""

from __future__ import annotations

from typing import Any

from kinesis_trident.spout.kinesis import KinesisError, Page, Shard, Since, StreamInfo, StreamMissingError
from kinesis_trident.spout.testing import MemoryKinesis

__all__ = ["A", "MemoryStreams"]

A = "shardId-000000000000"


class MemoryStreams:
    """Several streams in memory, as one Kinesis."""

    def __init__(self, *streams: str, created: int = 1_600_000_000_000, **given: Any) -> None:
        self.held = {name: MemoryKinesis(name, created=created, **given) for name in streams}

    def put(self, stream: str, *numbers: int) -> None:
        """Write numbers to the first shard of a stream."""
        for number in numbers:
            self.held[stream].put(A, str(number).encode())

    def describe(self, stream: str) -> StreamInfo:
        """See `Kinesis.describe`."""
        return self._of(stream).describe(stream)

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        """See `Kinesis.list_shards`."""
        return self._of(stream).list_shards(stream, since)

    def iterator(self, stream: str, shard: str, position: str) -> str:
        """See `Kinesis.iterator`; it is one of this stream, not of a later one of its name."""
        held = self._of(stream)
        return f"{stream}|{held.describe(stream).created}|{held.iterator(stream, shard, position)}"

    def get_records(self, iterator: str, limit: int) -> Page:
        """See `Kinesis.get_records`."""
        stream, created, token = iterator.split("|")
        held = self._of(stream)
        if int(created) != held.describe(stream).created:
            msg = "Invalid ShardIterator"
            raise KinesisError(msg)
        page = held.get_records(token, limit)
        following = None if page.next_iterator is None else f"{stream}|{created}|{page.next_iterator}"
        return Page(page.records, following, page.behind_ms, page.size, page.server_time)

    def put_records(self, stream: str, records: list[tuple[bytes, str]]) -> None:
        """See `Kinesis.put_records`."""
        self._of(stream).put_records(stream, records)

    def _of(self, stream: str) -> MemoryKinesis:
        if stream not in self.held:
            msg = f"there is no stream {stream!r}"
            raise StreamMissingError(msg)
        return self.held[stream]
