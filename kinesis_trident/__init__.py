"""Kinesis in Spark Structured Streaming, with the reliability of Storm and Trident.

    from kinesis_trident import reliable

    orders = spark.readStream.format("kinesis-trident").options(...).load()
    query = reliable(orders).map(parse, "id string").for_each_batch(write).start(checkpointLocation=...)

This is what most users import. Beside it are public: `kinesis_trident.trident` (topologies, operations, aggregators,
states), `kinesis_trident.trident.maps` (for authors of stores) and `kinesis_trident.testing` (fakes and servers for
tests). Everything else may change from one release to the next.

A name is imported when it is first asked for: Spark imports this package in each process that looks for a format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinesis_trident.common.lazy_names import lazy_names
from kinesis_trident.common.release import installed_version

if TYPE_CHECKING:
    from kinesis_trident.bolt.errors import (
        FailedException as FailedException,
        TopologyError as TopologyError,
    )
    from kinesis_trident.bolt.outcomes import Outcomes as Outcomes
    from kinesis_trident.bolt.registry.glue import GlueDecoder as GlueDecoder
    from kinesis_trident.bolt.reliable import (
        Reliable as Reliable,
        ReliableSink as ReliableSink,
        foreach_batch as foreach_batch,
        reliable as reliable,
    )
    from kinesis_trident.bolt.sinks.delta import write_delta as write_delta
    from kinesis_trident.bolt.sinks.fence import begin_fenced as begin_fenced
    from kinesis_trident.bolt.sinks.iceberg import write_iceberg as write_iceberg
    from kinesis_trident.bolt.sinks.merge import merge_into as merge_into
    from kinesis_trident.bolt.storm.api import (
        ArrowBolt as ArrowBolt,
        BasicBolt as BasicBolt,
        BasicOutputCollector as BasicOutputCollector,
        Bolt as Bolt,
        CustomGrouping as CustomGrouping,
        OutputCollector as OutputCollector,
        OutputFieldsDeclarer as OutputFieldsDeclarer,
        TopologyContext as TopologyContext,
        Tuple as Tuple,
    )
    from kinesis_trident.bolt.storm.spout import (
        DataFrameSpout as DataFrameSpout,
        KinesisSpout as KinesisSpout,
        string_scheme as string_scheme,
    )
    from kinesis_trident.bolt.storm.topology import TopologyBuilder as TopologyBuilder
    from kinesis_trident.checkpoint.embedded.java import ensure_java as ensure_java
    from kinesis_trident.common.errors import KinesisTridentError as KinesisTridentError
    from kinesis_trident.console.metrics.opentelemetry import (
        export_to_opentelemetry as export_to_opentelemetry,
    )
    from kinesis_trident.console.metrics.queries import (
        MetricsListener as MetricsListener,
        TopologyMetrics as TopologyMetrics,
    )
    from kinesis_trident.console.notebook import (
        ApplicationStatus as ApplicationStatus,
        status as status,
    )
    from kinesis_trident.spout.acks import Acks as Acks
    from kinesis_trident.spout.errors import (
        OptionsError as OptionsError,
        StopTimeoutError as StopTimeoutError,
    )
    from kinesis_trident.spout.failed_records.dead_letters import (
        DeadLetter as DeadLetter,
        read_dead_letters as read_dead_letters,
    )
    from kinesis_trident.spout.graceful_stop import stop as stop
    from kinesis_trident.spout.source import KinesisTridentSource as KinesisTridentSource
    from kinesis_trident.spout.termination import await_termination as await_termination
    from kinesis_trident.tracker.acker import (
        Acker as Acker,
        TreeOutcome as TreeOutcome,
    )
    from kinesis_trident.tracker.errors import (
        OrderError as OrderError,
        PermanentFailure as PermanentFailure,
        RetryLater as RetryLater,
    )
    from kinesis_trident.tracker.inflight.record_tracker import InflightRecordTracker as InflightRecordTracker
    from kinesis_trident.tracker.records import RecordPosition as RecordPosition
    from kinesis_trident.tracker.retry import (
        Backoff as Backoff,
        RetryHandler as RetryHandler,
        RetryPolicy as RetryPolicy,
    )

    __version__: str
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __version__=installed_version)
