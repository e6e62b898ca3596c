"""Readings of metrics, and the families of samples that Prometheus' client makes of them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from kinesis_trident.console.metrics.table import METRICS, Metric, metric


class Readings:
    """The values of metrics, by their labels; what is unknown has no value."""

    def __init__(self) -> None:
        self._values: dict[Metric, dict[tuple[str, ...], float]] = {}

    def set(self, name: str, value: float | None, *labels: str) -> None:
        """Set a value, unless it is unknown. `name` as `metric` takes it; one label for each of the metric's."""
        one = metric(name)
        assert len(labels) == len(one.labels), (name, labels)
        if value is not None:
            self._values.setdefault(one, {})[labels] = value

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add to a value."""
        self.set(name, self._values.get(metric(name), {}).get(labels, 0) + value, *labels)

    def families(self) -> Iterator[Family]:
        """Yield the metrics that have values, in the order of the table."""
        for one in METRICS:
            values = self._values.get(one)
            if not values:
                continue
            family: CounterMetricFamily | GaugeMetricFamily
            if one.kind == "counter":
                family = CounterMetricFamily(one.name, one.sentence, labels=one.labels)
            else:
                family = GaugeMetricFamily(one.name, one.sentence, labels=one.labels)
            for labels, value in sorted(values.items()):
                family.add_metric(labels, value)
            yield family
