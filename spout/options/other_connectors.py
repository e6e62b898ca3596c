"""Options of other connectors that do not exist here, each with what to use instead, or why none is needed.

They come from awslabs' and Qubole's connectors, AWS Glue, Databricks, Flink, the Kinesis Client Library and Spark's old
receivers. A name with the meaning of an option here is an alias of that option (`spout.options.source` and `.sink`).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OF_SINKS", "OTHERS", "OtherOption", "sentence_for"]


@dataclass(frozen=True, slots=True)
class OtherOption:
    """Names as their connectors spell them, without the prefix `kinesis.`, and one sentence; `*` is any text."""

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
        "Credential providers of the platform are not used: set `profile`, `roleArn` or `webIdentityTokenFile`, or "
        "rely on the credentials that boto3 finds.",
    ),
    OtherOption(("aws.credentials.role.arn",), "Use `roleArn`."),
    OtherOption(("aws.credentials.role.externalId",), "Use `roleExternalId`."),
    OtherOption(("aws.credentials.role.sessionName",), "Use `roleSessionName`."),
    OtherOption(("aws.credentials.role.stsEndpoint",), "Use `stsEndpointUrl`."),
    OtherOption(("aws.credentials.profile.name",), "Use `profile`."),
    OtherOption(("aws.credentials.webIdentityToken.file",), "Use `webIdentityTokenFile`."),
    OtherOption(
        ("aws.credentials.basic.accesskeyid", "aws.credentials.basic.secretkey"),
        "Use `awsAccessKeyId` and `awsSecretAccessKey`.",
    ),
    OtherOption(
        ("aws.credentials.profile.path", "aws.credentials.role.provider", "aws.credentials.custom.class"),
        "Credentials are those that boto3 finds: AWS_SHARED_CREDENTIALS_FILE names another file.",
    ),
    OtherOption(
        ("awsUseInstanceProfile",),
        "Not needed: without other credentials, boto3 asks the instance or the container.",
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
        (
            "source.init.timestamp",
            "source.init.timestamp.format",
            "scan.stream.initpos-timestamp",
            "scan.stream.initpos-timestamp-format",
            "initialPositionInStreamExtended",
        ),
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
        "Use `minFetchPeriod`; `idlePollInterval` is how often an idle shard is checked.",
    ),
    OtherOption(
        ("addIdleTimeBetweenReads", "executor.addIdleTimeBetweenReads"),
        "Not needed: `minFetchPeriod` and `maxFetchRate` always pace the calls to a shard.",
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
        "Not needed: all shards are listed at the start, and only new ones afterwards.",
    ),
    OtherOption(("clientRetryIntervalsMs",), "Use `clientRetryInterval`."),
    OtherOption(
        ("fetchBufferSize",),
        "Nothing is fetched ahead of a batch; `maxFetchBytesPerTask` bounds the memory of a task.",
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
        "Not needed: the state of settled batches is removed; Spark's own logs follow "
        "`spark.sql.streaming.minBatchesToRetain`.",
    ),
    OtherOption(
        ("checkpointInterval", "checkpointIntervalMillis"),
        "Not needed: the checkpoint moves with every batch.",
    ),
    OtherOption(
        ("checkNewRecordThreads",),
        "Not needed: shards are read in parallel.",
    ),
    OtherOption(
        (
            "workerIdentifier",
            "workerId",
            "failoverTimeMillis",
            "maxLeasesForWorker",
            "maxLeasesToStealAtOneTime",
            "maxLeaseRenewalThreads",
            "cleanupLeasesUponShardCompletion",
            "leaseAssignmentIntervalMillis",
            "enablePriorityLeaseAssignment",
            "leaseTable*",
            "initialLeaseTable*",
            "migrateAllEntitiesToLeaseTable",
            "tableMigrationCompleteBakeTimeSeconds",
            "skipShardSyncAtWorkerInitializationIfLeasesExist",
            "scan.shard-assigner",
        ),
        "Not needed: there are no leases; Spark's tasks read the shards, and the newest query takes over.",
    ),
    OtherOption(
        ("callProcessRecordsEvenForEmptyRecordList",),
        "Not possible: empty micro-batches are never created.",
    ),
    OtherOption(
        ("validateSequenceNumberBeforeCheckpointing",),
        "Not needed: only positions that were read are checkpointed.",
    ),
    OtherOption(
        ("storageLevel",),
        "Not needed: there is no receiver that stores blocks; the tasks of a batch read it.",
    ),
    OtherOption(
        ("retrievalMode", "scan.stream.recordpublisher"),
        "Use `consumerMode`: `polling` or `efo`.",
    ),
    OtherOption(
        ("consumerNamePrefix", "source.efo.consumer.name", "scan.stream.efo.consumername"),
        "Use `consumerName`; one name, by default the application's.",
    ),
    OtherOption(
        ("consumerARN", "fanoutConsumerARN", "registeredConsumerId", "scan.stream.efo.consumerarn*"),
        "Use `consumerMode=efo` with the consumer's name in `consumerName`, and `consumerLifecycle=external`.",
    ),
    OtherOption(
        (
            "requireConsumerDeregistration",
            "deregisterConsumerTimeoutInterval",
            "source.efo.deregister.timeout",
            "scan.stream.deregisterstreamconsumer.*",
        ),
        "A query never deregisters a consumer (docs/fan-out.md has the command); see `consumerLifecycle`.",
    ),
    OtherOption(
        (
            "consumerRefreshInterval",
            "registerConsumerTimeoutInterval",
            "subscribeToShard.timeoutSec",
            "subscribeToShard.maxRetries",
            "source.efo.subscription.timeout",
            "source.efo.describe.*",
            "scan.stream.describestreamconsumer.*",
            "scan.stream.registerstreamconsumer.*",
            "scan.shard.subscribetoshard.*",
            "scan.stream.efo.http-client.*",
        ),
        "Not needed: subscriptions are renewed and retried automatically (docs/fan-out.md).",
    ),
    OtherOption(("scan.stream.efo.registration",), "Use `consumerLifecycle`."),
    OtherOption(
        (
            "scan.list.shards.*",
            "scan.stream.describe.*",
            "scan.shard.getiterator.*",
            "scan.shard.getrecords.*",
            "shard.consumer.error.recoverable*",
            "listShardsBackoffTimeInMillis",
            "maxListShardsRetryAttempts",
            "taskBackoffTimeMillis",
            "schedulerInitializationBackoffTimeMillis",
        ),
        "Not needed: calls that fail for a passing reason are repeated, with backoff.",
    ),
    OtherOption(
        ("scan.shard.adaptivereads",),
        "Not needed: `minFetchPeriod` and `maxFetchRate` always pace the calls to a shard.",
    ),
    OtherOption(
        ("scan.watermark.*", "scan.shard.idle.interval"),
        "Set Spark's own watermark, on the column `approximateArrivalTimestamp` or on a time of the payload.",
    ),
    OtherOption(
        ("parentShardPollIntervalMillis", "ignoreUnexpectedChildShards", "shardPrioritization"),
        "Not needed: children are read after their parents; see `shardOrdering`.",
    ),
    OtherOption(
        ("metricsLevel", "metricsBufferTimeMillis", "metricsMaxQueueSize", "metricsEnabledDimensions"),
        "Nothing is sent to CloudWatch: the figures are in the query's progress, and in `kinesis-trident`.",
    ),
    OtherOption(("shutdownGraceMillis",), "Use `kinesis_trident.stop(query, timeout)`."),
    OtherOption(("logWarningForTaskAfterMillis",), "Not needed: Spark's page shows the time of each task."),
    OtherOption(
        ("aws.trust.all.certificates",),
        "Not possible: certificates are always checked. AWS_CA_BUNDLE names those of your own authority.",
    ),
    OtherOption(
        ("connector", "format"),
        "Omit it: the format is that of `readStream.format(...)`, and `data` has the raw payload.",
    ),
    OtherOption(
        ("addRecordTimestamp",),
        "Not needed: the column `approximateArrivalTimestamp` always exists.",
    ),
    OtherOption(
        ("emitConsumerLagMetrics",),
        "Not needed: the lag is in the query's progress, in `kinesis-trident` and in its metrics.",
    ),
    OtherOption(
        ("classification", "delimiter", "inferSchema"),
        "The column `data` has the raw payload: parse it in the query, with `from_json` or `reliable(...).map`.",
    ),
    OtherOption(
        ("sink.requests.*", "sink.http-client.*", "sink.producer.*"),
        "For a write: use `maxRequestsInFlight`.",
    ),
    OtherOption(
        ("sink.partitioner", "sink.partitioner-field-delimiter"),
        "For a write: the column `partitionKey` chooses the shard, or `explicitHashKey`.",
    ),
    OtherOption(
        ("sink.recordTtl",),
        "For a write: no record is dropped; `writeTimeout` says how long a task retries.",
    ),
    OtherOption(
        ("sink.batch.max-size", "sink.flush-buffer.*", "sink.fail-on-error"),
        "For a write: not needed; a task ends when Kinesis has acknowledged everything it sent.",
    ),
)
"""All options of other connectors, in the order of the documentation."""

OF_SINKS = OtherOption(
    (
        "sink.aggregationEnabled",
        "sink.maxConnections",
        "sink.recordMaxBufferedTimeMs",
        "sink.flushWaitTimeMs",
        "executor.aggregationEnabled",
        "executor.maxConnections",
        "executor.recordMaxBufferedTime",
        "kniesis.executor.flushWaitTimeMillis",
    ),
    "For a write, which accepts it (docs/writing.md).",
)
"""Options of other sinks that are aliases of an option here (`spout.options.sink`), so only a read refuses them."""

_BY_NAME = {name.lower(): other.sentence for other in (*OTHERS, OF_SINKS) for name in other.names}
_BY_START = {name.rstrip("*"): sentence for name, sentence in _BY_NAME.items() if name.endswith("*")}


def sentence_for(key: str) -> str | None:
    """Return what to use instead of another connector's option, by its name in lower case; None if unknown."""
    starts = (sentence for start, sentence in _BY_START.items() if key.startswith(start))
    return _BY_NAME.get(key) or next(starts, None)
