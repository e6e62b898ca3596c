"""Detects streams and shards that disappeared between the planning and the reading of a turn."""

from __future__ import annotations

from kinesis_trident.spout.data_loss import DataLossLog, describe_deleted, describe_recreated, recreated_error
from kinesis_trident.spout.kinesis import (
    Kinesis,
    KinesisError,
    Page,
    Shard,
    Since,
    StreamInfo,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.kinesis.record_batches import NO_RECORDS, arrival_at
from kinesis_trident.spout.partition import ShardTurn, TurnsPartition
from kinesis_trident.spout.positions import AtTimestamp, TrimHorizon, parse_position
from kinesis_trident.spout.reader.fetch import Turn
from kinesis_trident.spout.shard_rules import find_creation, may_be_of_another_stream

_CREATED_AFTER_MS = 10_000
"""Milliseconds from a description of a stream until another one of its name may hold a record, at the earliest."""


class Recreation:
    """Compares the creation times of the streams of one partition with its plan.

    Args:
        partition: of the task.
        kinesis: describes the streams.

    Attributes:
        said: descriptions of the lost streams, by the shards of this task that were to be read.
    """

    def __init__(self, partition: TurnsPartition, kinesis: Kinesis) -> None:
        self._layout = partition.layout
        self._fail = partition.options.fail_on_data_loss
        self._kinesis = kinesis
        self._described = partition.described
        self._created: dict[str, int] = {}
        self.said: dict[str, str] = {}

    def explains(self, error: KinesisError, turn: ShardTurn) -> bool:
        """Return whether a read was refused because the stream was recreated or deleted.

        Raises:
            StreamRecreatedError: with `failOnDataLoss`, the stream was recreated.
            DataLossError: with `failOnDataLoss`, the stream was deleted.
            KinesisError: the stream cannot be described.
        """
        return may_be_of_another_stream(error) and self._is_another(turn)

    def shows(self, read: Turn, turn: ShardTurn) -> bool:
        """Return whether the records are from another stream: the start position is valid in any stream.

        Raises:
            StreamRecreatedError: with `failOnDataLoss`, they are.
        """
        if not read.count or not isinstance(parse_position(turn.start), TrimHorizon | AtTimestamp):
            return False
        described = self._described.get(self._layout.key_of(turn.shard).stream)
        known = described.server_time if described is not None else 0
        if arrival_at(read.batches[0], 0) <= known + _CREATED_AFTER_MS:
            # It is of the stream that was described; the other records come after it, by its iterators.
            return False
        try:
            return self._is_another(turn)
        except (ThrottledError, Unavailable):
            # The planner checks again within seconds, and reports it then.
            return False

    def _is_another(self, turn: ShardTurn) -> bool:
        key = self._layout.key_of(turn.shard)
        if key.stream not in self._created:
            found = find_creation(self._kinesis, key.stream)
            if found is None:
                what = describe_deleted(key.stream, {key.shard: turn.start})
                DataLossLog(self._fail).report(what)
                self.said[turn.shard] = what
                return True
            self._created[key.stream] = found
        created = self._created[key.stream]
        if created == key.created:
            return False
        what = describe_recreated(key.stream, key.created, created, {key.shard: turn.start})
        if self._fail:
            raise recreated_error(what, self._layout)
        self.said[turn.shard] = what
        return True


class EmptyShard:
    """Stands for a missing shard: it has ended and has no records.

    Args:
        kinesis: answers all calls that do not read the shard.
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
        """Return an iterator whose first answer is the end."""
        return f"{stream}/{shard}/{position}"

    def get_records(self, iterator: str, limit: int) -> Page:
        """Return a page without records and without a next iterator."""
        return Page(NO_RECORDS, None, 0, 0, closed=True)

    def put_records(self, stream: str, records: list[tuple[bytes, str]]) -> None:
        """See `Kinesis.put_records`."""
        self._kinesis.put_records(stream, records)
