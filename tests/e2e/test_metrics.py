"""Spark calls the listener of metrics with what the source reports."""

from __future__ import annotations

from collections.abc import Callable

from older_spark import needs_reports
from prometheus_client import CollectorRegistry
from stage import Stage

from kinesis_trident import MetricsListener


@needs_reports
def test_a_listener_of_the_session_exports_what_a_query_reports(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(2)
    stage.put(range(12))
    registry = CollectorRegistry()
    listener = MetricsListener(registry)
    stage.spark.streams.addListener(listener)
    try:
        query = stage.start_plain(stage.load().selectExpr("cast(data as string) text"))
        home = {"application": stage.app, "stream": stage.stream}

        def acked() -> float | None:
            return registry.get_sample_value("kinesis_trident_acked_records_total", home)

        stage.until(lambda: acked() is not None, "the first progress")
        # Spark reports nothing while a query is idle, and a batch is settled before the next.
        stage.put([12])
        stage.until(lambda: acked() == 12, "the metrics of the settled batch")
        assert registry.get_sample_value("kinesis_trident_read_bytes_total", home) == len(
            "".join(map(str, range(12)))
        )
        rows = registry.get_sample_value("kinesis_trident_query_input_rows_total", {"query": str(query.id)})
        assert rows == 13
        query.stop()
        stage.until(lambda: acked() is None, "the end of the metrics of a query that has ended")
    finally:
        stage.spark.streams.removeListener(listener)
