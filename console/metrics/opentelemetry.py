"""Gives the same metrics to OpenTelemetry: an observable instrument for each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

from kinesis_trident.console.metrics.table import METRICS, Metric
from kinesis_trident.trident.stores.options import require

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

_TOGETHER = 1.0
"""Seconds for which one collection serves all instruments: OpenTelemetry asks them one after the other."""


def export_to_opentelemetry(collector: Collector, provider: MeterProvider | None = None) -> None:
    """Export the metrics of a collector through OpenTelemetry, under the same names without `_total`.

        export_to_opentelemetry(MetricsListener(registry=None).collector)

    Args:
        collector: of a `MetricsListener`, or a `TopologyMetrics`.
        provider: makes the meter; the global one by default.

    Raises:
        MissingExtraError: the extra `otel` is not installed.
    """
    require("opentelemetry", "otel", "export_to_opentelemetry", executors=False)
    from opentelemetry.metrics import get_meter_provider

    meter = (provider or get_meter_provider()).get_meter("kinesis_trident")
    collected = _Collected(collector)
    for one in METRICS:
        create = meter.create_observable_counter if one.kind == "counter" else meter.create_observable_gauge
        create(
            one.name.removesuffix("_total"),
            callbacks=[collected.observe(one)],
            unit=one.unit,
            description=one.sentence,
        )


class _Collected:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._lock = threading.Lock()
        self._until = 0.0
        self._found: dict[str, list[Observation]] = {}

    def observe(self, one: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """Return what observes one metric."""
        return lambda _options: self._now().get(one.name, [])

    def _now(self) -> dict[str, list[Observation]]:
        from opentelemetry.metrics import Observation

        with self._lock:
            if time.monotonic() >= self._until:
                self._found = {}
                for family in self._collector.collect():
                    for sample in family.samples:
                        self._found.setdefault(sample.name, []).append(
                            Observation(sample.value, sample.labels)
                        )
                self._until = time.monotonic() + _TOGETHER
            return self._found
