"""Test the metrics of a driver: the progress of queries, states of topologies, to Prometheus and OpenTelemetry."""

from __future__ import annotations

import json
import uuid
from typing import Any

from by_hand import Lives
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector
from pyspark.accumulators import Accumulator
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent
from samples_topology import a_stream, graph_of

from kinesis_trident import MetricsListener, TopologyMetrics, export_to_opentelemetry
from kinesis_trident.bolt.tracking.batch_run import BatchRuns
from kinesis_trident.console.metrics.table import LISTENER, METRICS, TOPOLOGY
from kinesis_trident.spout.planner.offsets import offset_from_plan
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis
from kinesis_trident.trident import Count
from kinesis_trident.trident.build.nodes import UpdateNode
from kinesis_trident.trident.maps.metering import StateMetrics
from kinesis_trident.trident.run.state_metrics import MetricsParam, UpdateMetrics
from kinesis_trident.trident.stores import MemoryMapState
from kinesis_trident.trident.topology import RunningTopology

A = "shardId-000000000000"
RUN = "6c2f5f5a-1111-4222-8333-123456789abc"


def progress(report: dict[str, Any] | None, rows: int, batch: int, name: str | None = "orders-query") -> Any:
    """Spark's event after a batch, with another source beside ours."""
    source = {
        "description": "PythonMicroBatchStream",
        "startOffset": "{}",
        "endOffset": "{}",
        "latestOffset": json.dumps(report),
        "numInputRows": rows,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "metrics": {},
    }
    told = {
        "id": "0d6c5a55-1111-4222-8333-123456789abc",
        "runId": RUN,
        "name": name,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "batchId": batch,
        "batchDuration": 1200,
        "durationMs": {"triggerExecution": 1500},
        "eventTime": {},
        "stateOperators": [],
        "sources": [source | {"latestOffset": "17", "numInputRows": 1000}, source],
        "sink": {"description": "s", "numOutputRows": rows, "metrics": {}},
        "numInputRows": rows,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "observedMetrics": {},
    }
    return QueryProgressEvent.fromJson({"progress": told})


def terminated() -> Any:
    return QueryTerminatedEvent(uuid.uuid4(), uuid.UUID(RUN), None, None)


def values(collector: Collector) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("kinesis_trident_"), *sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


def test_a_spark_that_shows_offsets_in_its_progress_gives_the_query_s_own_metrics(lives: Lives) -> None:
    """Spark 4.0 and 4.1 do."""
    query = lives.begin(MemoryKinesis())
    listener = MetricsListener(None)
    listener.onQueryProgress(progress(offset_from_plan(query.run.initial()), 4, 1))
    assert values(listener.collector) == {
        ("query_last_batch", "orders-query"): 1,
        ("query_batch_seconds", "orders-query"): 1.5,
        ("query_input_rows_total", "orders-query"): 4,
    }


def test_a_query_is_seen_through_its_progress(lives: Lives, app: str) -> None:
    lives.clock = time = FakeTime()
    kinesis = MemoryKinesis(clock=time.milliseconds)
    for number in range(4):
        kinesis.put(A, str(number).encode())
    query = lives.begin(kinesis, retryBackoff="1h..1h x1")
    registry = CollectorRegistry()
    listener = MetricsListener(registry, steady=time)
    assert values(registry) == {}
    query.batch(failing=[0])
    query.plan()
    listener.onQueryProgress(progress(query.run.report(), 4, 1))
    listener.onQueryProgress(progress(query.run.report(), 2, 2))
    found = values(registry)
    shard = (app, "orders", A)
    assert (found["retrying_records", *shard], found["in_flight_records", *shard]) == (1, 1)
    assert found["acked_records_total", app, "orders"] == 3
    assert found["failed_records_total", app, "orders", "ValueError"] == 1
    assert found["lag_seconds", *shard] == 0
    # Of our source alone, and of both batches.
    assert found["query_input_rows_total", "orders-query"] == 6
    assert (found["query_batch_seconds", "orders-query"], found["query_last_batch", "orders-query"]) == (
        1.5,
        2,
    )
    known = {one.name.removeprefix("kinesis_trident_") for one in METRICS if LISTENER in one.places}
    assert {name for name, *_ in found} <= known
    # Nothing comes from an idle query: that everything is read holds for some seconds.
    time.sleep(11)
    assert ("lag_seconds", *shard) not in values(registry)
    report = query.run.report()
    report["shards"][A] |= {"behindMs": 5_000, "retentionLeftMs": 60_000, "throttledMs": 2_000}
    listener.onQueryProgress(progress(report, 0, 3))
    assert values(registry)["refused_seconds", *shard, "throttled"] == 2
    time.sleep(20)
    found = values(registry)
    assert (found["lag_seconds", *shard], found["retention_left_seconds", *shard]) == (25, 40)
    assert ("refused_seconds", *shard, "throttled") not in found
    listener.onQueryTerminated(terminated())
    assert values(registry) == {}


def test_other_sources_are_left_alone(lives: Lives) -> None:
    listener = MetricsListener(None)
    for report in (None, {"shards": {}}, {"topic": {"0": 17}}):
        listener.onQueryProgress(progress(report, 1, 1))
    listener.onQueryTerminated(terminated())
    assert values(listener.collector) == {}


def test_a_topology_has_the_numbers_of_its_states_and_they_reach_opentelemetry() -> None:
    stream = a_stream()
    stream.name("counts").group_by("data").persistent_aggregate(MemoryMapState.opaque(), Count(), "n")
    [node] = [one for one in graph_of(stream).nodes if isinstance(one, UpdateNode)]
    updates = UpdateMetrics()
    counted = updates._counts[node] = Accumulator(-4711, StateMetrics(), MetricsParam())
    runs = BatchRuns()
    for txid in (1, 2, 2, 3):
        with updates.log_update(node, runs.next(txid, 1)):
            counted.add(StateMetrics(updates=2, keys_read=10, keys_written=9, seconds=0.25))
    registry = CollectorRegistry()
    metrics = TopologyMetrics("orders", RunningTopology({}, {"lines": updates}), registry)
    [state] = {labels[1] for name, *labels in values(registry)}
    assert "counts" in state
    assert values(registry) == {
        ("state_updates_total", "orders", state): 8,
        ("state_replays_total", "orders", state): 1,
        ("state_read_keys_total", "orders", state): 40,
        ("state_written_keys_total", "orders", state): 36,
        ("state_retries_total", "orders", state): 0,
        ("state_late_tuples_total", "orders", state): 0,
        ("state_store_seconds_total", "orders", state): 1,
    }
    assert {name for name, *_ in values(registry)} == {
        one.name.removeprefix("kinesis_trident_") for one in METRICS if TOPOLOGY in one.places
    }

    reader = InMemoryMetricReader()
    export_to_opentelemetry(metrics, MeterProvider([reader]))
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        one.name: one for of in data.resource_metrics for scope in of.scope_metrics for one in scope.metrics
    }
    seconds = found["kinesis_trident_state_store_seconds"]
    assert seconds.unit == "s"
    [point] = seconds.data.data_points
    assert (point.value, dict(point.attributes)) == (1, {"topology": "orders", "state": state})  # type: ignore[union-attr,arg-type]
    assert seconds.data.is_monotonic  # type: ignore[union-attr]
