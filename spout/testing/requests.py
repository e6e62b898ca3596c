"""The supported requests with their limits, from the Amazon Kinesis Data Streams API Reference."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

StreamName = Annotated[str, Meta(min_length=1, max_length=128, pattern="^[a-zA-Z0-9_.-]+$")]
PartitionKey = Annotated[str, Meta(min_length=1, max_length=256)]
Strategy = Literal["AUTO", "USER_PARTITION_KEY"]
HashKey = Annotated[str, Meta(pattern="^(0|[1-9][0-9]{0,38})$")]
IteratorType = Literal[
    "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"
]
Sequence = Annotated[str, Meta(pattern="^[0-9]{1,129}$")]


class OfStream(Struct, frozen=True, kw_only=True, rename="pascal"):
    """The identification of a stream: its name or its ARN."""

    stream_name: StreamName | None = None
    stream_arn: str | None = field(name="StreamARN", default=None)

    @property
    def stream(self) -> str:
        """Return the stream's name, or the empty string if the request has none."""
        return self.stream_name or (self.stream_arn or "").rpartition("/")[2]


class CreateStream(OfStream, frozen=True, kw_only=True):
    """See `CreateStream` of the API; the mode ON_DEMAND gives 4 shards."""

    shard_count: Annotated[int, Meta(ge=1)] | None = None
    record_distribution_strategy: Strategy = "USER_PARTITION_KEY"


class RecordDistribution(OfStream, frozen=True, kw_only=True):
    """See `UpdateStreamRecordDistributionStrategy` of the API."""

    record_distribution_strategy: Strategy


class DeleteStream(OfStream, frozen=True, kw_only=True):
    """See `DeleteStream` of the API."""


class DescribeStream(OfStream, frozen=True, kw_only=True):
    """See `DescribeStream` of the API."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 100
    exclusive_start_shard_id: str | None = None


class DescribeStreamSummary(OfStream, frozen=True, kw_only=True):
    """See `DescribeStreamSummary` of the API."""


class ShardFilter(Struct, frozen=True, kw_only=True, rename="pascal"):
    """See `ShardFilter` of the API; `timestamp` in seconds."""

    type: Literal[
        "AFTER_SHARD_ID",
        "AT_TRIM_HORIZON",
        "FROM_TRIM_HORIZON",
        "AT_LATEST",
        "AT_TIMESTAMP",
        "FROM_TIMESTAMP",
    ]
    shard_id: str | None = None
    timestamp: float | None = None


class ListShards(OfStream, frozen=True, kw_only=True):
    """See `ListShards` of the API."""

    next_token: str | None = None
    exclusive_start_shard_id: str | None = None
    max_results: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    shard_filter: ShardFilter | None = None


class GetShardIterator(OfStream, frozen=True, kw_only=True):
    """See `GetShardIterator` of the API; `timestamp` in seconds."""

    shard_id: str
    shard_iterator_type: IteratorType
    starting_sequence_number: Sequence | None = None
    timestamp: float | None = None


class GetRecords(OfStream, frozen=True, kw_only=True):
    """See `GetRecords` of the API."""

    shard_iterator: Annotated[str, Meta(min_length=1)]
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000


class _Entry(Struct, frozen=True, kw_only=True, rename="pascal"):
    data: bytes
    partition_key: PartitionKey | None = None
    explicit_hash_key: HashKey | None = None


class PutRecord(OfStream, frozen=True, kw_only=True):
    """See `PutRecord` of the API; `data` comes as base64."""

    data: bytes
    partition_key: PartitionKey | None = None
    explicit_hash_key: HashKey | None = None


class PutRecords(OfStream, frozen=True, kw_only=True):
    """See `PutRecords` of the API."""

    records: Annotated[list[_Entry], Meta(min_length=1, max_length=500)]


class SplitShard(OfStream, frozen=True, kw_only=True):
    """See `SplitShard` of the API."""

    shard_to_split: str
    new_starting_hash_key: HashKey


class MergeShards(OfStream, frozen=True, kw_only=True):
    """See `MergeShards` of the API."""

    shard_to_merge: str
    adjacent_shard_to_merge: str


class UpdateShardCount(OfStream, frozen=True, kw_only=True):
    """See `UpdateShardCount` of the API."""

    target_shard_count: Annotated[int, Meta(ge=1)]
    scaling_type: Literal["UNIFORM_SCALING"]


class Retention(OfStream, frozen=True, kw_only=True):
    """See `IncreaseStreamRetentionPeriod` and `DecreaseStreamRetentionPeriod` of the API."""

    retention_period_hours: Annotated[int, Meta(ge=24, le=8760)]


class NamedConsumer(OfStream, frozen=True, kw_only=True):
    """See `RegisterStreamConsumer` of the API."""

    consumer_name: StreamName


class SomeConsumer(OfStream, frozen=True, kw_only=True):
    """See `DescribeStreamConsumer` and `DeregisterStreamConsumer` of the API."""

    consumer_name: StreamName | None = None
    consumer_arn: str | None = field(name="ConsumerARN", default=None)


class ListStreamConsumers(OfStream, frozen=True, kw_only=True):
    """See `ListStreamConsumers` of the API."""

    next_token: str | None = None
    max_results: Annotated[int, Meta(ge=1, le=100)] = 100


class StartingPosition(Struct, frozen=True, kw_only=True, rename="pascal"):
    """See `StartingPosition` of the API; `timestamp` in seconds."""

    type: IteratorType
    sequence_number: Sequence | None = None
    timestamp: float | None = None

    def as_iterator(self, shard: str) -> GetShardIterator:
        """Return the request for an iterator at the same position."""
        return GetShardIterator(
            shard_id=shard,
            shard_iterator_type=self.type,
            starting_sequence_number=self.sequence_number,
            timestamp=self.timestamp,
        )


class SubscribeToShard(Struct, frozen=True, kw_only=True, rename="pascal"):
    """See `SubscribeToShard` of the API."""

    consumer_arn: str = field(name="ConsumerARN")
    shard_id: str
    starting_position: StartingPosition
