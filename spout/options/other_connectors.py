"""Option names of other connectors that this one does not have, each with what to use here, or why nothing is needed.

Those of awslabs' and Qubole's connectors and AWS Glue, of Databricks, Flink, the Kinesis Client Library and Spark's old
receivers. Names that mean what an option here means are that option's aliases (`spout.options.source`).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OTHERS", "OtherOption", "other_options_markdown", "sentence_for"]


@dataclass(frozen=True, slots=True)
class OtherOption:
    """Names as their connectors write them, without the prefix `kinesis.`, and one sentence."""

    names: tuple[str, ...]
    sentence: str


OTHERS = (
    OtherOption(
        ("stream", "stream.arn", "scan.stream"),
        "Use `streamName` or `streamARN`.",
    ),
    OtherOption(("kinesisRegion", "regionName", "aws.region"), "Use `region`."),
    OtherOption(("aws.endpoint",), "Use `endpointUrl`."),
    OtherOption(
        (
            "credentialProviderClass",
            "credentialProviderParam",
            "serviceCredential",
            "aws.credentials.provider",
        ),
        "No class or service of the platform gives credentials here: use `profile`, `roleArn`, `webIdentityTokenFile`, "
        "or what boto3 finds by itself.",
    ),
    OtherOption(("aws.credentials.role.arn",), "Use `roleArn`."),
    OtherOption(
        ("awsUseInstanceProfile",),
        "Not needed: where nothing else gives credentials, boto3 asks the instance or the container.",
    ),
    OtherOption(
        (
            "initialPositionInStream",
            "source.init.position",
            "scan.stream.initpos",
            "flink.stream.initpos",
        ),
        "Use `startingPosition`.",
    ),
    OtherOption(
        ("source.init.timestamp", "scan.stream.initpos-timestamp", "initialPositionInStreamExtended"),
        "Use `startingTimestamp`, or `startingPosition` with `AT_TIMESTAMP <time>`.",
    ),
    OtherOption(("executor.maxFetchTimeInMs",), "Use `maxFetchTime`."),
    OtherOption(
        (
            "executor.maxRecordPerRead",
            "maxRecords",
            "source.shard.get-records.max-record-count",
            "scan.shard.getrecords.maxrecordcount",
        ),
        "Use `maxRecordsPerFetch`.",
    ),
    OtherOption(
        (
            "executor.idleTimeBetweenReadsInMs",
            "idleTimeBetweenReadsInMillis",
            "scan.shard.getrecords.intervalmillis",
            "source.reader.empty-records-fetch-interval",
        ),
        "Use `minFetchPeriod`; a shard with nothing new is looked at once a second.",
    ),
    OtherOption(
        ("addIdleTimeBetweenReads", "executor.addIdleTimeBetweenReads"),
        "Not needed: calls to a shard are always paced, by `minFetchPeriod` and `maxFetchRate`.",
    ),
    OtherOption(
        (
            "source.shard.discovery.interval",
            "scan.shard.discovery.intervalmillis",
            "shardSyncIntervalMillis",
        ),
        "Use `describeShardInterval`.",
    ),
    OtherOption(
        ("maxShardsPerDescribe",),
        "Not needed: all shards are listed, however many, and later only new ones.",
    ),
    OtherOption(("clientRetryIntervalsMs",), "Use `clientRetryInterval`."),
    OtherOption(
        ("fetchBufferSize",),
        "Nothing is fetched ahead of a batch; what a task holds is bounded by `maxFetchBytesPerTask`.",
    ),
    OtherOption(
        ("coalesce", "coalesceThresholdBlockSize", "coalesceBinSize"),
        "Nothing is fetched ahead, so there are no blocks: use `shardsPerTask` or `maxPartitions`.",
    ),
    OtherOption(
        (
            "metadataCommitterType",
            "metadataPath",
            "metadataNumRetries",
            "metadataRetryIntervalsMs",
            "metadataMaxRetryIntervalMs",
            "dynamodb.tableName",
        ),
        "Not needed: positions are in Spark's checkpoint and in ZooKeeper (`zookeeper.hosts`, `applicationName`).",
    ),
    OtherOption(
        ("tableName", "checkpointAppName", "leaseTableName"),
        "No table in DynamoDB is used: `applicationName` names the state in ZooKeeper.",
    ),
    OtherOption(
        ("minBatchesToRetain",),
        "Not needed: what a settled batch leaves is removed; Spark's own logs follow "
        "`spark.sql.streaming.minBatchesToRetain`.",
    ),
    OtherOption(
        ("checkpointInterval", "checkpointIntervalMillis"),
        "Not needed: the checkpoint moves with every batch.",
    ),
    OtherOption(
        ("checkNewRecordThreads",),
        "Not needed: shards are looked at side by side.",
    ),
    OtherOption(
        (
            "workerIdentifier",
            "workerId",
            "failoverTimeMillis",
            "maxLeasesForWorker",
            "cleanupLeasesUponShardCompletion",
        ),
        "Not needed: there are no leases; Spark's tasks read the shards, and the newest start counts.",
    ),
    OtherOption(
        ("callProcessRecordsEvenForEmptyRecordList",),
        "Not possible: where nothing is to be read there is no micro-batch.",
    ),
    OtherOption(
        ("validateSequenceNumberBeforeCheckpointing",),
        "Not needed: only what was read is checkpointed.",
    ),
    OtherOption(
        ("storageLevel",),
        "Not needed: there is no receiver that stores blocks; a batch is read by its tasks.",
    ),
    OtherOption(
        ("retrievalMode", "scan.stream.recordpublisher"),
        "Use `consumerMode`: `polling` or `efo`.",
    ),
    OtherOption(
        ("consumerNamePrefix", "source.efo.consumer.name", "scan.stream.efo.consumername"),
        "Use `consumerName`: one name, by default the application's.",
    ),
    OtherOption(
        ("consumerARN", "fanoutConsumerARN", "registeredConsumerId"),
        "Use `consumerMode=efo` with the consumer's name in `consumerName`, and `consumerLifecycle=external`.",
    ),
    OtherOption(
        ("requireConsumerDeregistration",),
        "A consumer is never deregistered by a query (docs/fan-out.md has the command): see `consumerLifecycle`.",
    ),
    OtherOption(
        (
            "consumerRefreshInterval",
            "registerConsumerTimeoutInterval",
            "subscribeToShard.timeoutSec",
            "subscribeToShard.maxRetries",
            "source.efo.subscription.timeout",
        ),
        "Not needed: subscriptions are renewed, waited for and tried again by themselves (docs/fan-out.md).",
    ),
    OtherOption(
        ("addRecordTimestamp",),
        "Not needed: the column `approximateArrivalTimestamp` is always there.",
    ),
    OtherOption(
        ("emitConsumerLagMetrics",),
        "Not needed: the lag is in the query's progress, in `kinesis-trident` and in its metrics.",
    ),
    OtherOption(
        ("classification", "delimiter", "inferSchema"),
        "Rows hold the payload as it is in `data`: parse it in the query, with `from_json` or `reliable(...).map`.",
    ),
    OtherOption(
        ("sink.maxConnections", "executor.maxConnections"),
        "Of a write: use `maxRequestsInFlight`.",
    ),
    OtherOption(
        ("sink.recordTtl",),
        "Of a write: no record is dropped; `writeTimeout` says how long a task tries.",
    ),
    OtherOption(
        ("sink.aggregationEnabled", "executor.aggregationEnabled"),
        "Of a write: rows are written one record each, never aggregated.",
    ),
    OtherOption(
        (
            "sink.flushWaitTimeMs",
            "executor.flushwaittimemillis",
            "sink.recordMaxBufferedTimeMs",
            "executor.recordMaxBufferedTime",
        ),
        "Of a write: not needed, a task ends when all it has sent is acknowledged.",
    ),
)
"""All of them, in the order of the documentation."""

_BY_NAME = {name.lower(): other.sentence for other in OTHERS for name in other.names}


def sentence_for(key: str) -> str | None:
    """What to use in place of another connector's option, by its name in lower case; None for any other name."""
    return _BY_NAME.get(key)


def other_options_markdown() -> str:
    """The names as a Markdown table, for the documentation."""
    lines = ["| option elsewhere | here |", "|---|---|"]
    for other in OTHERS:
        names = ", ".join(f"`{name}`" for name in other.names)
        lines.append(f"| {names} | {other.sentence} |")
    return "\n".join(lines) + "\n"
