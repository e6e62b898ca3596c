"""The options of the source, in one table: key, parser, default, sentence and aliases.

The table is the fields of `SourceOptions` themselves; `docs/options.md` is rendered from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.options import parsers
from kinesis_trident.spout.options.connection import ConnectionOptions
from kinesis_trident.spout.options.effects import find_unused
from kinesis_trident.spout.options.modes import (
    AckMode,
    ConsumerLifecycle,
    ConsumerMode,
    LogFormat,
    OnCheckpointMismatch,
    OnExhausted,
    RetryOrder,
    ShardOrdering,
    SpoutMode,
)
from kinesis_trident.spout.options.rules import OTHER_WAYS, check, fold, refuse_unused, warn_of_unused
from kinesis_trident.spout.options.starting_position import position_spec
from kinesis_trident.spout.options.table import Option, by_field, by_name, option, options_of, read_options
from kinesis_trident.spout.options.zookeeper import ZooKeeperOptions
from kinesis_trident.spout.positions import TRIM_HORIZON

__all__ = ["TABLE", "Option", "SourceOptions", "zookeeper_options"]


@dataclass(frozen=True, kw_only=True, repr=False)
class SourceOptions(ZooKeeperOptions, ConnectionOptions):
    """The options of a query. Times are in seconds, sizes in bytes; picklable and hashable.

    `spout.options.starting_position.PositionSpec` parses `starting_position` and `ending_position`. In a batch,
    `application_name` and `zookeeper_hosts` are None.
    """

    stream_name: str = option(
        "streamName",
        parsers.stream_names,
        None,
        "The stream's name, or several separated by commas; this or `streamARN` is required.",
    )
    stream_arn: str | None = option(
        "streamARN",
        parsers.arns,
        None,
        "The stream's ARN, which includes its region; needed for a stream in another account. Several ARNs of one "
        "region are separated by commas.",
    )
    starting_position: str = option(
        "startingPosition",
        position_spec,
        "LATEST",
        "Where a new application starts: LATEST, TRIM_HORIZON, EARLIEST, `AT_TIMESTAMP <ISO 8601 or epoch>`, or JSON "
        "by stream and shard (docs/positions.md). The default of a batch (`spark.read`) is TRIM_HORIZON.",
        "initialPosition",
    )
    ending_position: str | None = option(
        "endingPosition",
        position_spec,
        None,
        "Where a batch (`spark.read`) ends (exclusive), in the forms of `startingPosition`. The default "
        "is LATEST: all records that had arrived when the batch was loaded.",
    )
    filter_pushdown: bool = option(
        "filterPushdown",
        parsers.boolean,
        "false",
        "With PySpark 4.1 and newer: `true` lets filters choose the times and shards "
        "that are read (docs/backfill.md).",
    )
    spout: SpoutMode = option(
        "spout",
        parsers.choice(SpoutMode),
        "opaque",
        "`transactional` replays a batch identically or stops, `opaque` continues with the records that are left, "
        "whatever `failOnDataLoss` says, `nontransactional` delivers at least once.",
    )
    ack_mode: AckMode = option(
        "ackMode",
        parsers.choice(AckMode),
        "batch",
        "When a record is done: with its `batch`, or `explicit`: when any process acks it by `Acks` (docs/acks.md).",
    )
    message_timeout: float = option(
        "messageTimeout",
        parsers.timeout,
        "30s",
        "How long a bolt may hold a record, from batch to batch, before it fails; with `ackMode=explicit`: how long "
        "after its batch a record waits for its ack.",
    )
    max_inflight_records: int = option(
        "maxInflightRecords",
        parsers.count(1),
        "10000",
        "The maximum of unfinished records of a shard; at the limit it reads nothing new.",
    )
    retry_limit: int = option(
        "retryLimit",
        parsers.count(0),
        "3",
        "How many times a failed record is delivered again; 3 means up to four deliveries.",
        "recordRetryLimit",
        "maxRetries",
    )
    retry_backoff: str = option(
        "retryBackoff",
        parsers.backoff,
        "1s..60s x2",
        "The delay before a retry, exponential with full jitter: `<first>..<longest> x<factor>`. Retries are due at "
        "whole seconds, so that neighbours come together: a shorter delay lasts until the next one.",
    )
    no_retry_for: frozenset[str] = option(
        "noRetryFor",
        parsers.reasons,
        "",
        "The failures after which no retry can help, such as `JSONDecodeError,KeyError,TIMEOUT`: classes of errors, "
        "with their subclasses, and words of reasons. Such a record does not come again (docs/retries.md).",
    )
    max_record_age: float | None = option(
        "maxRecordAge",
        parsers.timeout,
        None,
        "A record that arrived longer ago when it is read, or when its retry is due, is not delivered: it fails with "
        "AGED, and goes where `onExhausted` says (docs/retries.md).",
    )
    retry_order: RetryOrder = option(
        "retryOrder",
        parsers.choice(RetryOrder),
        "none",
        "`none` delivers other records while failed ones wait; `key` those of other partition keys, for functions of "
        "`map`; `shard` reads nothing new of a shard and of its children until what failed is done or dead-lettered "
        "(docs/retries.md).",
    )
    record_timeout: float | None = option(
        "recordTimeout",
        parsers.timeout,
        None,
        "How long one call of a function or a bolt may take: a record with which it does not end fails alone, with "
        "TIMED_OUT (docs/retries.md). A function over DataFrames or Arrow batches has it for a whole batch of rows.",
    )
    on_exhausted: OnExhausted = option(
        "onExhausted",
        parsers.choice(OnExhausted),
        "fail",
        "What happens after the last retry: `deadLetter`, `skip`, or `fail` the query. "
        "The default is `deadLetter` if the option `deadLetter` is set.",
    )
    dead_letter: str | None = option(
        "deadLetter",
        parsers.folder_or_stream,
        None,
        "Where records go after their last retry: `kinesis://name`, or a folder (local, S3, HDFS, ...) of JSON lines.",
    )
    max_failed_share: float | None = option(
        "maxFailedShare",
        parsers.share,
        None,
        "A batch of whose new records more fail, such as `0.5`, fails as a whole: it is tried again in place, with the "
        "waits of `retryBackoff`, and no record uses up a delivery (docs/retries.md).",
    )
    max_retrying_records: int = option(
        "maxRetryingRecords",
        parsers.count(1, 65_536),
        "1000",
        "The maximum of groups of failed neighbours that wait in one shard, up to 65536; at the limit it reads nothing "
        "new.",
    )
    retry_ranges_per_shard: int = option(
        "retryRangesPerShard",
        parsers.count(1),
        "2",
        "The maximum of ranges of a shard that a batch reads again for due retries.",
    )
    retry_bytes_per_shard: int = option(
        "retryBytesPerShard",
        parsers.size,
        "4MiB",
        "The maximum size of such a range; fewer ranges may be as large together. At least one answer of Kinesis is "
        "always read.",
    )
    retry_spool: str | None = option(
        "retrySpool",
        parsers.folder,
        None,
        "A folder (local, S3, HDFS, ...) that keeps failed records; retries are read from it instead of the stream.",
    )
    deaggregate: bool = option(
        "deaggregate",
        parsers.boolean,
        "true",
        "Splits records that the KPL has aggregated into their user records (docs/aggregates.md).",
    )
    max_records_per_trigger: int | None = option(
        "maxRecordsPerTrigger",
        parsers.count(1),
        None,
        "The maximum of new records in one batch, over all shards.",
        "maxOffsetsPerTrigger",
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        parsers.size,
        None,
        "The maximum of new payload in one batch, over all shards; each shard that is read gives at least one record.",
    )
    max_fetch_records_per_shard: int = option(
        "maxFetchRecordsPerShard",
        parsers.count(1, 50_000_000),
        "100000",
        "The maximum of new records of one shard in one batch.",
        "executor.maxFetchRecordsPerShard",
    )
    max_fetch_bytes_per_shard: int = option(
        "maxFetchBytesPerShard",
        parsers.size,
        "16MiB",
        "The maximum of new payload of one shard in one batch; at least one record is always read.",
    )
    max_fetch_bytes_per_task: int = option(
        "maxFetchBytesPerTask",
        parsers.size,
        "128MiB",
        "The memory of one task for the shards it reads in parallel, all columns counted (docs/deploying.md, Memory).",
    )
    max_shard_skew: float | None = option(
        "maxShardSkew",
        parsers.skew,
        "auto",
        "How far, by arrival, a shard is read ahead of the oldest unread record of all shards; a watermark has to "
        "allow for it (docs/watermarks.md). `auto`: 5 minutes, or three times the time between two batches if that is "
        "longer; `off`: any distance.",
    )
    max_fetch_time: float = option(
        "maxFetchTime",
        parsers.duration,
        "1s",
        "How long a batch reads from a shard that has more.",
        "maxFetchTimeInMs",
        "maxFetchDuration",
        "maxFetchTimePerShardSec",
        "executor.maxFetchTimePerShardSec",
    )
    max_records_per_fetch: int = option(
        "maxRecordsPerFetch",
        parsers.count(1, 10_000),
        "10000",
        "The Limit of one GetRecords call.",
        "maxRecordPerRead",
        "numberOfRecordsPerFetch",
        "getRecords.numberOfRecordsPerFetch",
    )
    min_fetch_period: float = option(
        "minFetchPeriod",
        parsers.duration,
        "200ms",
        "The average time between GetRecords calls to a shard (Kinesis allows 5 a second); `0ms` means no limit.",
        "fetchIntervalMs",
        "getRecords.fetchIntervalMs",
        "idleTimeBetweenReadsInMs",
    )
    idle_poll_interval: float = option(
        "idlePollInterval",
        parsers.timeout,
        "400ms",
        "How often an idle shard is checked for new records; each check is one of the 5 GetRecords calls a second of a "
        "shard: `400ms` costs half of them, `500ms` 2 of 5, `1s` 1 of 5, `250ms` 4 of 5 (docs/deploying.md, Latency).",
    )
    prefetch: bool = option(
        "prefetch",
        parsers.boolean,
        "false",
        "`true` reads the next batch's records beside the running batch: up to 4 MiB of all shards and 960 KiB of one, "
        "within the limits of a shard (docs/deploying.md, Latency).",
    )
    max_fetch_rate: float = option(
        "maxFetchRate",
        parsers.megabytes,
        "2",
        "The maximum rate of reads from one shard in MiB a second (Kinesis allows 2).",
    )
    client_retry_interval: float = option(
        "clientRetryInterval",
        parsers.timeout,
        "200ms",
        "The longest wait after a refused read of a shard; it doubles with each consecutive refusal (full jitter).",
        "clientRetryIntervalMs",
        "retryIntervalMs",
        "client.retryIntervalMs",
    )
    client_max_retry_interval: float = option(
        "clientMaxRetryInterval",
        parsers.timeout,
        "10s",
        "The upper bound of `clientRetryInterval`.",
        "clientMaxRetryIntervalMs",
        "maxRetryIntervalMs",
        "client.maxRetryIntervalMs",
    )
    read_timeout: float = option(
        "readTimeout",
        parsers.timeout,
        "2m",
        "How long a task retries a read that Kinesis does not answer; then it fails, and Spark retries the task. "
        "The time is looked at after each attempt, of which one without an answer takes up to 30 seconds.",
    )
    shards_per_task: int | None = option(
        "shardsPerTask",
        parsers.auto_count,
        "auto",
        "The number of shards that one Spark task reads; `auto`: more if few records are expected "
        "(docs/deploying.md, Tasks).",
    )
    max_partitions: int | None = option(
        "maxPartitions",
        parsers.count(1),
        None,
        "The maximum of Spark tasks in a batch; fewer if few records are expected.",
    )
    consumer_mode: ConsumerMode = option(
        "consumerMode",
        # The names in awslabs' connector.
        parsers.choice(ConsumerMode, GetRecords="polling", SubscribeToShard="efo"),
        "polling",
        "`polling` (GetRecords), or `efo`: enhanced fan-out (SubscribeToShard) with a dedicated 2 MB/s per shard "
        "(docs/fan-out.md).",
        "consumerType",
        "source.reader.type",
    )
    consumer_name: str | None = option(
        "consumerName",
        parsers.consumer_name,
        None,
        "The consumer's name; by default the application's.",
    )
    consumer_arn: str | None = option(
        "consumerARN",
        parsers.consumer_arns,
        None,
        "The ARN of an existing consumer, of another account for example, instead of `consumerName`; one "
        "for each stream, separated by commas. It includes the stream's ARN; such a consumer is never registered.",
        "fanoutConsumerARN",
    )
    consumer_lifecycle: ConsumerLifecycle = option(
        "consumerLifecycle",
        # The names in Flink's source.
        parsers.choice(ConsumerLifecycle, job_managed="managed", self_managed="external"),
        "managed",
        "`managed` registers a missing consumer, `external` requires an existing one. Neither "
        "deregisters it.",
        "source.efo.lifecycle",
    )
    describe_shard_interval: float = option(
        "describeShardInterval",
        parsers.timeout,
        "10s",
        "How often the shards are listed to find splits and merges.",
        "shardFetchInterval",
        "client.describeShardInterval",
    )
    shard_ordering: ShardOrdering = option(
        "shardOrdering",
        parsers.choice(ShardOrdering),
        "parentFirst",
        "`parentFirst` reads a shard after its parents; `none` reads all shards at once.",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        parsers.boolean,
        "true",
        "Stops the query, or a batch, when unread records are lost; `false` continues and logs the loss "
        "(docs/guarantees.md). About records that leave the stream after their batch was read, `spout` decides.",
    )
    on_checkpoint_mismatch: OnCheckpointMismatch = option(
        "onCheckpointMismatch",
        parsers.choice(OnCheckpointMismatch),
        "stop",
        "What happens when Spark's checkpoint and ZooKeeper disagree.",
    )
    log_format: LogFormat = option(
        "logFormat",
        parsers.choice(LogFormat),
        "text",
        "The form of the log where nobody has configured Python's logging: `text`, or `json`, one object a line.",
    )

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Parse a user's options; keys in any case, with or without the prefix `kinesis.`, or under an alias.

        Options that have no effect with the others are logged, once per process.

        Raises:
            OptionsError: an unknown option (with the nearest known one), a missing one, an invalid value, or
                options that conflict.
        """
        return cls._read(given, warn=True)

    @classmethod
    def parse_batch(cls, given: Mapping[str, str]) -> SourceOptions:
        """Parse a user's options for a batch (`spark.read`), which keeps nothing in ZooKeeper; raises as `parse`."""
        return cls._read(given, batch=True, warn=True)

    @classmethod
    def parse_either(cls, given: Mapping[str, str]) -> tuple[SourceOptions | None, SourceOptions | None]:
        """Parse a user's options as those of a stream and of a batch; None for the one they are not valid for.

        Raises:
            OptionsError: they are valid for neither; the message says why.
        """
        found: list[SourceOptions | None] = []
        errors = []
        for batch in (False, True):
            try:
                found.append(cls._read(given, batch=batch))
            except OptionsError as error:
                found.append(None)
                errors.append(str(error))
        if found == [None, None]:
            one, other = errors
            both = f"as a stream (readStream): {one}; as a batch (spark.read): {other}"
            raise OptionsError(one if one == other else both)
        return found[0], found[1]

    @classmethod
    def _read(cls, given: Mapping[str, str], *, batch: bool = False, warn: bool = False) -> SourceOptions:
        found = read_options(_BY_NAME, given)
        named = [_BELONGS_TO.get(key, key) for key in found]
        fold(found)
        defaults = {one.metadata["option"].key: one.default for one in fields(cls)}
        check(found, defaults, batch=batch)
        unused = list(find_unused(named, {**defaults, **found}, defaults, batch=batch))
        refuse_unused(unused)
        if warn:
            warn_of_unused(unused)
        if batch:
            found.setdefault("startingPosition", str(TRIM_HORIZON))
        return cls(**by_field(cls, found))


def _table() -> Iterator[Option]:
    for own in options_of(SourceOptions).values():
        yield own
        yield from (other for other in OTHER_WAYS if other.part_of == own.key)


TABLE: tuple[Option, ...] = tuple(_table())
"""All options, in the order of the documentation."""

_BY_NAME = by_name(TABLE)

_BELONGS_TO = {line.key: line.part_of for line in TABLE if line.part_of is not None}


def zookeeper_options(application: str, given: Mapping[str, str]) -> ZooKeeperOptions:
    """Return those of a query's options that locate its state, for whoever looks at it from outside.

    `zookeeper_hosts` is None if it is missing.

    Raises:
        OptionsError: an unknown option, or an invalid value.
    """
    found = read_options(_BY_NAME, {**given, "applicationName": application})
    known = {line.key for line in options_of(ZooKeeperOptions).values()}
    mine = {key: value for key, value in found.items() if key in known}
    return ZooKeeperOptions(**by_field(ZooKeeperOptions, mine))
