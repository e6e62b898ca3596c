"""The options of the source, in one table: key, parser, default, sentence and aliases.

The table is the fields of `Options` themselves; `docs/options.md` is rendered from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.options import parsers
from kinesis_trident.spout.options.connection import ConnectionOptions
from kinesis_trident.spout.options.rules import OTHER_WAYS, check, fold, warn_of_unused
from kinesis_trident.spout.options.starting_position import places_text
from kinesis_trident.spout.options.table import (
    Option,
    by_field,
    by_name,
    markdown,
    option,
    options_of,
    read_options,
)
from kinesis_trident.spout.options.zookeeper import ZooKeeperOptions
from kinesis_trident.spout.positions import TRIM_HORIZON

__all__ = ["TABLE", "Option", "Options", "options_markdown"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Options(ZooKeeperOptions, ConnectionOptions):
    """What a query asked for. Times are in seconds, sizes in bytes; picklable and hashable.

    `starting_position` and `ending_position` are as `spout.options.starting_position.Places` parses them. Of a
    batch `application_name`
    and `zookeeper_hosts` are None.
    """

    stream_name: str = option(
        "streamName",
        parsers.stream_names,
        None,
        "The stream, or several with commas between; this or `streamARN` is required.",
    )
    stream_arn: str | None = option(
        "streamARN",
        parsers.arns,
        None,
        "The stream by its ARN, which names its region too; needed for a stream of another account. Or several of "
        "one region with commas between.",
    )
    starting_position: str = option(
        "startingPosition",
        places_text,
        "LATEST",
        "Where a new application starts: LATEST, TRIM_HORIZON, EARLIEST, `AT_TIMESTAMP <ISO 8601 or epoch>`, or JSON "
        "by stream and shard (docs/positions.md). A batch (`spark.read`) starts at TRIM_HORIZON.",
        "initialPosition",
    )
    ending_position: str | None = option(
        "endingPosition",
        places_text,
        None,
        "Of a batch (`spark.read`) only: where it ends, in the forms of `startingPosition`; what is there is not read. "
        "By default LATEST: what had arrived when the batch was loaded.",
    )
    spout: str = option(
        "spout",
        parsers.choice("opaque", "transactional", "nontransactional"),
        "opaque",
        "`transactional` replays a batch identically or stops, `opaque` goes on with what is left, "
        "`nontransactional` is at least once.",
    )
    ack_mode: str = option(
        "ackMode",
        parsers.choice("batch", "explicit"),
        "batch",
        "When a record is done: with its `batch`, or once `Acks` has acked it, from any process (docs/acks.md).",
    )
    message_timeout: float = option(
        "messageTimeout",
        parsers.timeout,
        "30s",
        "`ackMode=explicit` only: how long after its batch a record waits for its ack; then it fails.",
    )
    max_inflight_records: int = option(
        "maxInflightRecords",
        parsers.count(1),
        "10000",
        "`ackMode=explicit` only: records of a shard that are read and not done; at the bound it reads nothing new.",
    )
    retry_limit: int = option(
        "retryLimit",
        parsers.count(0),
        "3",
        "How often a failed record comes back: 3 means up to four deliveries, 0 none.",
        "recordRetryLimit",
        "maxRetries",
    )
    retry_backoff: str = option(
        "retryBackoff",
        parsers.backoff,
        "1s..60s x2",
        "The delay before a retry, exponential with full jitter: `<first>..<longest> x<factor>`.",
    )
    on_exhausted: str = option(
        "onExhausted",
        parsers.choice("deadLetter", "skip", "fail"),
        "fail",
        "What happens after the last retry: `deadLetter`, `skip`, or `fail` the query. "
        "Where `deadLetter` is set, that is the default.",
    )
    dead_letter: str | None = option(
        "deadLetter",
        parsers.folder,
        None,
        "Where exhausted records go: `kinesis://name`, or a folder (local, S3, HDFS, ...) of JSON lines.",
    )
    max_retrying_records: int = option(
        "maxRetryingRecords",
        parsers.count(1),
        "1000",
        "Failed runs of records a shard may have waiting; at the bound it reads nothing new.",
    )
    retry_ranges_per_shard: int = option(
        "retryRangesPerShard",
        parsers.count(1),
        "2",
        "The ranges of a shard that a batch reads again for its due retries.",
    )
    retry_bytes_per_shard: int = option(
        "retryBytesPerShard",
        parsers.size,
        "4MiB",
        "How much of a shard one such range reads at most; at least one answer is always read.",
    )
    retry_spool: str | None = option(
        "retrySpool",
        parsers.folder,
        None,
        "A folder (local, S3, HDFS, ...) that keeps failed records: retries are read from it, not from the stream.",
    )
    deaggregate: bool = option(
        "deaggregate",
        parsers.boolean,
        "true",
        "Whether records that the KPL has aggregated are split into their user records (docs/aggregates.md).",
    )
    max_records_per_trigger: int | None = option(
        "maxRecordsPerTrigger",
        parsers.count(1),
        None,
        "New records of all shards in one batch, at most.",
        "maxOffsetsPerTrigger",
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        parsers.size,
        None,
        "New payload of all shards in one batch, at most; a shard that is read gives at least one record.",
    )
    max_fetch_records_per_shard: int = option(
        "maxFetchRecordsPerShard",
        parsers.count(1, 50_000_000),
        "100000",
        "New records of one shard in one batch, at most.",
        "executor.maxFetchRecordsPerShard",
    )
    max_fetch_bytes_per_shard: int = option(
        "maxFetchBytesPerShard",
        parsers.size,
        "16MiB",
        "New payload of one shard in one batch, at most; one record is always taken.",
    )
    max_fetch_bytes_per_task: int = option(
        "maxFetchBytesPerTask",
        parsers.size,
        "128MiB",
        "What one task holds for the shards it reads side by side, all columns counted (docs/deploying.md, Memory).",
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
        "The average period of GetRecords calls to a shard (Kinesis allows 5 a second); `0ms`: no limit.",
        "fetchIntervalMs",
        "getRecords.fetchIntervalMs",
        "idleTimeBetweenReadsInMs",
    )
    max_fetch_rate: float = option(
        "maxFetchRate", parsers.megabytes, "2", "MiB a second read from one shard (Kinesis allows 2)."
    )
    client_retry_interval: float = option(
        "clientRetryInterval",
        parsers.timeout,
        "200ms",
        "The longest wait after a shard refused a read; it doubles with each refusal in a row (full jitter).",
        "clientRetryIntervalMs",
        "retryIntervalMs",
        "client.retryIntervalMs",
    )
    client_max_retry_interval: float = option(
        "clientMaxRetryInterval",
        parsers.timeout,
        "10s",
        "What `clientRetryInterval` grows to.",
        "clientMaxRetryIntervalMs",
        "maxRetryIntervalMs",
        "client.maxRetryIntervalMs",
    )
    shards_per_task: int | None = option(
        "shardsPerTask", parsers.auto_count, "auto", "Shards that one Spark task serves."
    )
    max_partitions: int | None = option(
        "maxPartitions", parsers.count(1), None, "Spark tasks of a batch, at most."
    )
    consumer_mode: str = option(
        "consumerMode",
        parsers.consumer_mode,
        "polling",
        "`polling` (GetRecords), or `efo`: enhanced fan-out, SubscribeToShard by a consumer with 2 MB/s a shard of its "
        "own (docs/fan-out.md).",
        "consumerType",
        "source.reader.type",
    )
    consumer_name: str | None = option(
        "consumerName",
        parsers.consumer_name,
        None,
        "`efo` only: the consumer's name; by default the application's.",
    )
    consumer_lifecycle: str = option(
        "consumerLifecycle",
        parsers.consumer_lifecycle,
        "managed",
        "`efo` only: `managed` registers the consumer if it is missing, `external` needs it to be there. Neither "
        "deregisters it.",
        "source.efo.lifecycle",
    )
    describe_shard_interval: float = option(
        "describeShardInterval",
        parsers.timeout,
        "10s",
        "How often the shards are listed, to find splits and merges.",
        "shardFetchInterval",
        "client.describeShardInterval",
    )
    shard_ordering: str = option(
        "shardOrdering",
        parsers.choice("parentFirst", "none"),
        "parentFirst",
        "`parentFirst` reads a shard after all it came from; `none` reads all at once.",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        parsers.boolean,
        "true",
        "Whether the query stops when records are gone unread; otherwise it goes on, and says so (docs/guarantees.md).",
    )
    on_checkpoint_mismatch: str = option(
        "onCheckpointMismatch",
        parsers.choice("stop", "continue"),
        "stop",
        "What happens when Spark's checkpoint and ZooKeeper disagree.",
    )

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Read what a user gave; keys in any case, with or without the prefix `kinesis.`, or under an alias.

        What has no use beside the other options is said in the log, once in a process.

        Raises:
            OptionsError: an unknown option (with the nearest known one), a missing one, a value that is not
                accepted, or options that contradict each other.
        """
        return cls._read(given, warn=True)

    @classmethod
    def parse_batch(cls, given: Mapping[str, str]) -> Options:
        """Read what a user gave for a batch (`spark.read`), which keeps nothing in ZooKeeper; raises as `parse`."""
        return cls._read(given, batch=True)

    @classmethod
    def parse_either(cls, given: Mapping[str, str]) -> tuple[Options | None, Options | None]:
        """Read what a user gave where nothing says yet what it is for: as a stream's and as a batch's, else None.

        Raises:
            OptionsError: they are neither's; it says why.
        """
        found: list[Options | None] = []
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
    def _read(cls, given: Mapping[str, str], *, batch: bool = False, warn: bool = False) -> Options:
        found = read_options(_BY_NAME, given)
        fold(found)
        check(found, batch=batch)
        if warn:
            warn_of_unused(found)
        if batch:
            found.setdefault("startingPosition", str(TRIM_HORIZON))
        return cls(**by_field(cls, found))


def _table() -> Iterator[Option]:
    for own in options_of(Options).values():
        yield own
        yield from (other for other in OTHER_WAYS if other.part_of == own.key)


TABLE: tuple[Option, ...] = tuple(_table())
"""All options, in the order of the documentation."""

_BY_NAME = by_name(TABLE)


def options_markdown() -> str:
    """The table as Markdown, for the documentation."""
    return markdown(TABLE)
