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

from kinesis_trident.lazy_names import lazy_names

if TYPE_CHECKING:
    from kinesis_trident.bolt.errors import FailedException, TopologyError
    from kinesis_trident.bolt.outcomes import Outcomes
    from kinesis_trident.bolt.reliable import Reliable, ReliableSink, foreach_batch, reliable
    from kinesis_trident.bolt.storm.api import (
        ArrowBolt,
        BasicBolt,
        BasicOutputCollector,
        Bolt,
        CustomGrouping,
        OutputCollector,
        OutputFieldsDeclarer,
        TopologyContext,
        Tuple,
    )
    from kinesis_trident.bolt.storm.spout import DataFrameSpout, KinesisSpout, string_scheme
    from kinesis_trident.bolt.storm.topology import TopologyBuilder
    from kinesis_trident.checkpoint.embedded.java import ensure_java
    from kinesis_trident.console.metrics.opentelemetry import export_to_opentelemetry
    from kinesis_trident.console.metrics.queries import MetricsListener
    from kinesis_trident.console.metrics.topologies import TopologyMetrics
    from kinesis_trident.console.notebook import ApplicationStatus, status
    from kinesis_trident.spout.acks import Acks
    from kinesis_trident.spout.errors import OptionsError, StopTimeoutError
    from kinesis_trident.spout.failed_records.dead_letters import DeadLetter, read_dead_letters
    from kinesis_trident.spout.graceful_stop import stop
    from kinesis_trident.spout.source import KinesisTridentSource
    from kinesis_trident.tracker.acker.acker import Acker
    from kinesis_trident.tracker.errors import KinesisTridentError
    from kinesis_trident.tracker.inflight.record_tracker import InflightRecordTracker

    __version__: str

__all__ = [
    "Acker",
    "Acks",
    "ApplicationStatus",
    "ArrowBolt",
    "BasicBolt",
    "BasicOutputCollector",
    "Bolt",
    "CustomGrouping",
    "DataFrameSpout",
    "DeadLetter",
    "FailedException",
    "InflightRecordTracker",
    "KinesisSpout",
    "KinesisTridentError",
    "KinesisTridentSource",
    "MetricsListener",
    "OptionsError",
    "Outcomes",
    "OutputCollector",
    "OutputFieldsDeclarer",
    "Reliable",
    "ReliableSink",
    "StopTimeoutError",
    "TopologyBuilder",
    "TopologyContext",
    "TopologyError",
    "TopologyMetrics",
    "Tuple",
    "__version__",
    "ensure_java",
    "export_to_opentelemetry",
    "foreach_batch",
    "read_dead_letters",
    "reliable",
    "status",
    "stop",
    "string_scheme",
]

_HOMES = {
    "Acker": "kinesis_trident.tracker.acker.acker",
    "Acks": "kinesis_trident.spout.acks",
    "ApplicationStatus": "kinesis_trident.console.notebook",
    "ArrowBolt": "kinesis_trident.bolt.storm.api",
    "BasicBolt": "kinesis_trident.bolt.storm.api",
    "BasicOutputCollector": "kinesis_trident.bolt.storm.api",
    "Bolt": "kinesis_trident.bolt.storm.api",
    "CustomGrouping": "kinesis_trident.bolt.storm.api",
    "DataFrameSpout": "kinesis_trident.bolt.storm.spout",
    "DeadLetter": "kinesis_trident.spout.failed_records.dead_letters",
    "FailedException": "kinesis_trident.bolt.errors",
    "InflightRecordTracker": "kinesis_trident.tracker.inflight.record_tracker",
    "KinesisSpout": "kinesis_trident.bolt.storm.spout",
    "KinesisTridentError": "kinesis_trident.tracker.errors",
    "KinesisTridentSource": "kinesis_trident.spout.source",
    "MetricsListener": "kinesis_trident.console.metrics.queries",
    "OptionsError": "kinesis_trident.spout.errors",
    "Outcomes": "kinesis_trident.bolt.outcomes",
    "OutputCollector": "kinesis_trident.bolt.storm.api",
    "OutputFieldsDeclarer": "kinesis_trident.bolt.storm.api",
    "Reliable": "kinesis_trident.bolt.reliable",
    "ReliableSink": "kinesis_trident.bolt.reliable",
    "StopTimeoutError": "kinesis_trident.spout.errors",
    "TopologyBuilder": "kinesis_trident.bolt.storm.topology",
    "TopologyContext": "kinesis_trident.bolt.storm.api",
    "TopologyError": "kinesis_trident.bolt.errors",
    "TopologyMetrics": "kinesis_trident.console.metrics.topologies",
    "Tuple": "kinesis_trident.bolt.storm.api",
    "ensure_java": "kinesis_trident.checkpoint.embedded.java",
    "export_to_opentelemetry": "kinesis_trident.console.metrics.opentelemetry",
    "foreach_batch": "kinesis_trident.bolt.reliable",
    "read_dead_letters": "kinesis_trident.spout.failed_records.dead_letters",
    "reliable": "kinesis_trident.bolt.reliable",
    "status": "kinesis_trident.console.notebook",
    "stop": "kinesis_trident.spout.graceful_stop",
    "string_scheme": "kinesis_trident.bolt.storm.spout",
}
"""The module of each name."""

if not TYPE_CHECKING:
    # A type checker reads the imports above, and so knows a wrong name.
    _load = lazy_names(__name__, _HOMES)

    def __getattr__(name: str) -> object:
        return _installed_version() if name == "__version__" else _load(name)


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kinesis-trident")
    except PackageNotFoundError:
        msg = f"module {__name__!r} has no attribute '__version__': kinesis-trident is on the path, but not installed"
        raise AttributeError(msg) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
