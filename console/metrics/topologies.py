"""The metrics of the states of a running Trident topology."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from kinesis_trident.console.metrics.readings import Readings
from kinesis_trident.trident.topology import RunningTopology


class TopologyMetrics(Collector):
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
        self._name = name
        self._running = running
        if registry is not None:
            registry.register(self)

    def describe(self) -> Iterator[Family]:
        """Yield nothing: several topologies may share a registry."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """Yield the metrics of all states."""
        readings = Readings()
        for state, found in self._running.state_metrics().items():
            for name, value in (
                ("updates_total", found.updates),
                ("replays_total", found.replays),
                ("read_keys_total", found.keys_read),
                ("written_keys_total", found.keys_written),
                ("retries_total", found.retries),
                ("late_tuples_total", found.late),
                ("store_seconds_total", found.seconds),
            ):
                readings.set(f"state_{name}", value, self._name, state)
        return readings.families()
