"""What the turns of a task are read with: a fetcher a shard, its bounds, the spool, and the rows they become."""

from __future__ import annotations

from spout.due import DueRecords, take_up
from spout.efo import RESUBSCRIBE_SECONDS, Subscriber
from spout.fetch import Bounds, FanOut, ShardFetcher
from spout.gone import GoneShard
from spout.kinesis import Kinesis
from spout.partition import ShardTurn, TurnsPartition
from spout.rows import Segment, TurnRows
from spout.spool import spool_of
from tracker.ids import tag
from tracker.records import Run

__all__ = ["TurnSource"]


class TurnSource:
    """Where the records of one partition's turns come from.

    Args:
        partition: of the task.
        kinesis: the calls.
        subscriber: subscribes where the partition names consumers.

    Attributes:
        gone: the shards that retention has removed from the stream: they are empty, and at their end.
        spool: what keeps the payload of failed records; None without.
    """

    def __init__(
        self, partition: TurnsPartition, kinesis: Kinesis, subscriber: Subscriber | None = None
    ) -> None:
        self._partition = partition
        self._options = partition.options
        self._kinesis = kinesis
        self._subscriber = subscriber if partition.consumers else None
        self._tag = tag(partition.epoch, partition.plan)
        self.gone: set[str] = set()
        self.spool = spool_of(partition.options, partition.layout)

    @property
    def pushed(self) -> bool:
        """Whether records are pushed, not polled for."""
        return self._subscriber is not None

    def fetcher(self, turn: ShardTurn) -> ShardFetcher:
        """What reads a turn's shard."""
        key = self._partition.layout.key_of(turn.shard)
        if turn.shard in self.gone:
            return ShardFetcher(GoneShard(self._kinesis), key.stream, key.shard, self._options)
        fan_out = None
        if self._subscriber is not None:
            fan_out = FanOut(self._subscriber, self._partition.consumers[key.stream])
        return ShardFetcher(
            self._kinesis, key.stream, key.shard, self._options, closed=turn.closed, fan_out=fan_out
        )

    def due(
        self, turn: ShardTurn, fetcher: ShardFetcher, runs: list[Run], *, everything: bool = False
    ) -> DueRecords:
        """Take runs up again, from the spool as far as it has them; `everything` where a pin says how much that was."""
        options = self._options
        most = None if everything else options.retry_bytes_per_shard
        return take_up(
            runs,
            lambda rest: fetcher.fetch_due(rest, options.retry_ranges_per_shard, most),
            self.spool,
            turn.shard,
        )

    @property
    def at_a_time(self) -> int:
        """How many turns are held at a time, each with its share of `maxFetchBytesPerTask`."""
        options = self._options
        most = options.max_fetch_bytes_per_task // options.max_fetch_bytes_per_shard
        return max(1, min(most, len(self._partition.turns)))

    def bounds(self, turn: ShardTurn) -> Bounds:
        """How far a turn reads."""
        options = self._options
        records = options.max_fetch_records_per_shard
        size = min(options.max_fetch_bytes_per_shard, options.max_fetch_bytes_per_task)
        if turn.limit is not None:
            records = min(records, turn.limit)
        if self._partition.limit_bytes is not None:
            size = min(size, self._partition.limit_bytes)
        return Bounds(
            records=records,
            bytes=size,
            memory=options.max_fetch_bytes_per_task // self.at_a_time,
            # The next subscription cannot begin sooner, so a turn that has more goes on until then.
            seconds=max(options.max_fetch_time, RESUBSCRIBE_SECONDS if self._subscriber else 0.0),
        )

    def rows(self, turn: ShardTurn, segments: list[Segment]) -> TurnRows:
        """What was read of a turn, as rows."""
        part = self._partition
        key = part.layout.key_of(turn.shard)
        return TurnRows(key.stream, key.shard, turn.index, part.txid, self._tag, segments)

    def where(self, shard: str) -> str:
        """A shard and its stream, for errors."""
        key = self._partition.layout.key_of(shard)
        return f"stream {key.stream!r}, shard {key.shard}"
