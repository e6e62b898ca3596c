"""Metrics for Prometheus and OpenTelemetry: of applications in ZooKeeper, of queries, and of topologies."""

from kinesis_trident.trident.stores.options import require

require("prometheus_client", "metrics", "metrics", executors=False)
