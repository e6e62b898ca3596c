"""Settings of Spark that a source meets: tests/e2e/test_spark_settings.py plays each, docs/spark.md lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["AT_START", "IN_SESSION", "Setting", "setting_rows"]

RECORDS = "records"
"""A `reliable` query over two shards, two starts: a record that fails comes again, and each is written once."""

STATE = "counts"
"""A plain query that counts by key, two starts: the counts are right."""

JOB = "job"
"""A job with a Spark of its own, two starts, as `RECORDS`."""

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_STORE = "spark.sql.streaming.stateStore"


@dataclass(frozen=True)
class Setting:
    """Settings that are played together, because one does nothing without the other; `plays` says with what."""

    values: Mapping[str, str]
    plays: str = RECORDS

    @property
    def name(self) -> str:
        """Return the settings as they are written in a configuration."""
        return ", ".join(f"{name}={value.rpartition('.')[2]}" for name, value in self.values.items())

    def row(self) -> tuple[str, str]:
        """Return the settings, and what was played."""
        return "<br>".join(f"`{one}`" for one in self.name.split(", ")), self.plays


def _each(plays: str, *lines: str) -> list[Setting]:
    """Return the settings of lines such as `spark.a=1 spark.b=2`."""
    return [
        Setting(dict(one.partition("=")[::2] for one in line.split()), plays)  # type: ignore[misc]
        for line in lines
    ]


IN_SESSION = [
    *_each(
        RECORDS,
        "spark.sql.adaptive.enabled=false",
        "spark.sql.adaptive.streaming.stateless.enabled=false",
        "spark.sql.shuffle.partitions=7",
        "spark.sql.ansi.enabled=false",
        "spark.sql.caseSensitive=true",
        "spark.sql.timestampType=TIMESTAMP_NTZ",
        "spark.sql.codegen.wholeStage=true spark.sql.codegen.factoryMode=CODEGEN_ONLY",
        "spark.sql.execution.arrow.maxRecordsPerBatch=1",
        "spark.sql.execution.arrow.maxBytesPerBatch=64",
        "spark.sql.execution.arrow.useLargeVarTypes=true",
        "spark.sql.execution.arrow.compression.codec=zstd",
        "spark.sql.execution.arrow.pyspark.enabled=true",
        "spark.sql.execution.python.udf.maxRecordsPerBatch=1",
        "spark.sql.execution.pythonUDF.arrow.enabled=false",
        "spark.sql.execution.pyspark.binaryAsBytes=false",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled=true",
        "spark.sql.execution.pyspark.udf.hideTraceback.enabled=true",
        "spark.sql.pyspark.udf.profiler=perf",
        "spark.sql.pyspark.dataSource.profiler=perf",
        "spark.sql.pyspark.worker.logging.enabled=true",
        "spark.sql.streaming.minBatchesToRetain=1 spark.sql.streaming.asyncLogPurge.enabled=false",
        "spark.sql.streaming.maxBatchesToRetainInMemory=0",
        "spark.sql.streaming.offsetLog.formatVersion=2",
        "spark.sql.streaming.metricsEnabled=true",
        "spark.sql.streaming.numRecentProgressUpdates=1",
        "spark.sql.streaming.pollingDelay=1ms",
    ),
    *_each(
        STATE,
        "spark.sql.streaming.noDataMicroBatches.enabled=false",
        f"{_STORE}.providerClass={_ROCKSDB}",
        f"{_STORE}.providerClass={_ROCKSDB} {_STORE}.rocksdb.changelogCheckpointing.enabled=true",
        f"{_STORE}.providerClass={_ROCKSDB} {_STORE}.checkpointFormatVersion=2",
        f"{_STORE}.minDeltasForSnapshot=1 spark.sql.streaming.minBatchesToRetain=1",
    ),
]
"""Settings that a session may change while it runs."""

AT_START = _each(
    JOB,
    "spark.python.worker.reuse=false",
    "spark.python.use.daemon=false",
    "spark.python.worker.faulthandler.enabled=true",
    "spark.python.unix.domain.socket.enabled=true",
    "spark.python.udf.pipelined.enabled=true",
    "spark.serializer=org.apache.spark.serializer.KryoSerializer",
    "spark.io.encryption.enabled=true",
)
"""Settings of a Spark that starts."""


def setting_rows() -> list[tuple[str, str]]:
    """Return the rows of the table in docs/spark.md."""
    return [one.row() for one in (*IN_SESSION, *AT_START)]
