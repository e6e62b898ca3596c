"""Whether the stream of a turn was deleted, or created again, between its planning and its reading."""

from __future__ import annotations

import pyarrow as pa

from kinesis_trident.spout.data_loss import Losses, another_stream, deleted, recreated
from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    IteratorExpiredError,
    Kinesis,
    KinesisError,
    Page,
    Shard,
    ShardMissingError,
    Since,
    StreamInfo,
    StreamMissingError,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.kinesis.decoding import PAGE_SCHEMA
from kinesis_trident.spout.partition import ShardTurn, TurnsPartition
from kinesis_trident.spout.positions import AtTimestamp, TrimHorizon, parse_position
from kinesis_trident.spout.reader.fetch import Turn

__all__ = ["GoneShard", "Recreation", "is_gone"]

_OTHER_CAUSES = (AccessDeniedError, IteratorExpiredError, ThrottledError, Unavailable)
"""Refusals that have nothing to do with which stream is there."""


class Recreation:
    """Compares when the streams of one partition were created with what its plan says.

    Args:
        partition: of the task.
        kinesis: describes.

    Attributes:
        said: what is lost with a stream, by the shards of this task that were to be read from it.
    """

    def __init__(self, partition: TurnsPartition, kinesis: Kinesis) -> None:
        self._layout = partition.layout
        self._fail = partition.options.fail_on_data_loss
        self._kinesis = kinesis
        self._created: dict[str, int] = {}
        self.said: dict[str, str] = {}

    def explains(self, error: KinesisError, turn: ShardTurn) -> bool:
        """Whether a read was refused because the stream is another one by now, or none.

        Raises:
            StreamRecreatedError: it is another one, with `failOnDataLoss`.
            DataLossError: it was deleted, with `failOnDataLoss`.
            KinesisError: it cannot be described.
        """
        return not isinstance(error, _OTHER_CAUSES) and self._is_another(turn)

    def shows(self, read: Turn, turn: ShardTurn) -> bool:
        """Whether what was read is of another stream: from where it starts, any stream can be read.

        Raises:
            StreamRecreatedError: it is, with `failOnDataLoss`.
        """
        if not read.count or not isinstance(parse_position(turn.start), TrimHorizon | AtTimestamp):
            return False
        try:
            return self._is_another(turn)
        except (ThrottledError, Unavailable):
            # Who plans asks again within seconds, and says it then.
            return False

    def _is_another(self, turn: ShardTurn) -> bool:
        key = self._layout.key_of(turn.shard)
        if key.stream not in self._created:
            try:
                self._created[key.stream] = self._kinesis.describe(key.stream).created
            except StreamMissingError:
                what = deleted(key.stream, {key.shard: turn.start})
                Losses(self._fail).lost(what, turn.shard)
                self.said[turn.shard] = what
                return True
        created = self._created[key.stream]
        if created == key.created:
            return False
        what = recreated(key.stream, key.created, created, {key.shard: turn.start})
        if self._fail:
            raise another_stream(what, self._layout)
        self.said[turn.shard] = what
        return True


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
