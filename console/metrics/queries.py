"""The metrics of the queries of a Spark session, from the progress that Spark reports after each batch."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kinesis_trident.checkpoint.model.facts import ShardFigures
from kinesis_trident.checkpoint.model.run_status import FRESH_MS, RunCounts
from kinesis_trident.checkpoint.model.standing import Share, cause_of
from kinesis_trident.console.metrics.application import home_of, read_counts
from kinesis_trident.console.metrics.table import (
    APART,
    SHARD,
    UPDATE,
    Readings,
    ReadingsCollector,
    in_seconds,
)
from kinesis_trident.trident.topology import RunningTopology


class TopologyMetrics(ReadingsCollector):
    """Collects what the updates of a topology's states have asked of their stores since its start.

        TopologyMetrics("orders", topology.start(...))
        prometheus_client.start_http_server(9464)

    Args:
        name: the label `topology`; the label `state` is the name of the update in `state_metrics()`.
        running: the topology.
        registry: where the metrics are registered; the default one of prometheus_client. None to register elsewhere.
    """

    def __init__(
        self, name: str, running: RunningTopology, registry: CollectorRegistry | None = REGISTRY
    ) -> None:
        super().__init__(self.readings)
        self._name = name
        self._running = running
        if registry is not None:
            registry.register(self)

    def readings(self) -> Readings:
        """Return the metrics of all states as of now."""
        readings = Readings()
        for state, found in self._running.state_metrics().items():
            readings.show(UPDATE, found, self._name, state)
        return readings


@dataclass(slots=True)
class _Query:
    """The last progress of a query: of its sources that are ours, Spark's numbers, and when it came."""

    name: str
    sources: list[dict[str, Any]]
    batch: int
    seconds: float | None
    at: float


class MetricsListener(StreamingQueryListener):
    """Exports the metrics of the queries that read `kinesis-trident`, as of their last progress.

        spark.streams.addListener(MetricsListener())
        prometheus_client.start_http_server(9464)

    Spark 4.0 and 4.1 do not ask a source what it reports: there these are the query's own metrics alone, and
    `kinesis-trident metrics` has the others.

    The metrics of a query end with it. Spark reports nothing while a query is idle: what the last progress says of its
    lag is unknown 10 seconds later, and grows if something was unread.

    Args:
        registry: where they are registered; the default one of prometheus_client. None to register them elsewhere:
            `collector` is what a registry takes.
        steady: seconds of a clock that never steps back.

    Attributes:
        collector: collects the metrics.
    """

    def __init__(
        self, registry: CollectorRegistry | None = REGISTRY, *, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._steady = steady
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}
        self._rows: Counter[str] = Counter()
        self.collector = ReadingsCollector(self.readings)
        if registry is not None:
            registry.register(self.collector)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the first progress comes after the first batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Take over what a query reports of its sources."""
        progress = event.progress
        found = [
            (source, report)
            for source in progress.sources
            if (report := _report(source.latestOffset)) is not None
        ]
        if not found:
            return
        milliseconds = progress.durationMs.get("triggerExecution")
        seconds = None if milliseconds is None else milliseconds / 1000
        name = progress.name or str(progress.id)
        with self._lock:
            self._queries[str(progress.runId)] = _Query(
                name, [report for _, report in found], progress.batchId, seconds, self._steady()
            )
            self._rows[name] += sum(source.numInputRows for source, _ in found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the last progress stays."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget a query."""
        with self._lock:
            query = self._queries.pop(str(event.runId), None)
            if query is not None and query.name not in {other.name for other in self._queries.values()}:
                del self._rows[query.name]

    def readings(self) -> Readings:
        """Return the metrics as of now."""
        readings = Readings()
        with self._lock:
            now = self._steady()
            for query in self._queries.values():
                readings.set("query_last_batch", query.batch, query.name)
                readings.set("query_batch_seconds", query.seconds, query.name)
                readings.set("query_input_rows_total", self._rows[query.name], query.name)
                for report in filter(None, query.sources):
                    read_report(readings, report, round((now - query.at) * 1000))
        return readings


def _report(latest_offset: str | None) -> dict[str, Any] | None:
    """Return what a source reports: nothing where Spark shows its offset there, None if it is not ours."""
    try:
        report = json.loads(latest_offset or "null")
    except ValueError:
        return None
    if not isinstance(report, dict):
        return None
    if {"application", "streams", "shards", "behindMs", "counts"} <= report.keys():
        return report
    return {} if {"txid", "plan", "streams", "positions"} <= report.keys() else None


def read_report(readings: Readings, report: dict[str, Any], age: int) -> None:
    """Add what a source has reported `age` milliseconds ago."""
    home = home_of(report["application"], tuple(report["streams"]))
    readings.set("settled_txid", report["txid"], *home)
    readings.set("losses_total", report.get("losses", 0), *home)
    read_counts(readings, home, msgspec.convert(report["counts"], RunCounts))
    for name, shard in report["shards"].items():
        # Of several streams, a shard is named with its stream.
        stream, slash, shard_id = name.rpartition("/")
        labels = (home[0], stream if slash else home[1], shard_id)
        figures = msgspec.convert(shard, ShardFigures).aged(age)
        standing = cause_of(figures.standing)
        is_apart = standing is not None and standing.share is Share.APART
        readings.show(SHARD | APART if is_apart else SHARD, figures, *labels)
        reasons = ("throttled", "unavailable", "unreadable", "unusableKey")
        for reason in reasons if age <= FRESH_MS else ():
            readings.set("refused_seconds", in_seconds(shard.get(f"{reason}Ms")), *labels, reason)
        readings.set("shard_blocked", bool(figures.blocked), *labels)
        if figures.standing:
            readings.set("shard_standing", 1, *labels, figures.standing)
