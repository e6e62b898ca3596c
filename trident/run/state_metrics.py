"""Brings the metrics of state updates from the tasks to the driver."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark import SparkContext
from pyspark.accumulators import AccumulatorParam

from kinesis_trident.trident.build.graph import TopologyNode, UpdateNode
from kinesis_trident.trident.maps.metering import StateMetrics

log = logging.getLogger(__name__)


class MetricsParam(AccumulatorParam[StateMetrics]):
    """Adds metrics."""

    def zero(self, value: StateMetrics) -> StateMetrics:
        """Return nothing counted."""
        return StateMetrics()

    def addInPlace(self, value1: StateMetrics, value2: StateMetrics) -> StateMetrics:
        """Add the second to the first."""
        return value1.add(value2)


def count_updates(nodes: Sequence[TopologyNode]) -> None:
    """Count what the updates among these nodes ask of their stores, from now on."""
    for node in nodes:
        if isinstance(node, UpdateNode):
            node.newest = None
            node.metrics = SparkContext.getOrCreate().accumulator(StateMetrics(), MetricsParam())


def read_metrics(parts: Mapping[str, Sequence[TopologyNode]]) -> dict[str, StateMetrics]:
    """Return the metrics of all updates, by their operations; of several streams with the stream before them.

    Operations of one name are numbered in the order of their declaration: `persistent_aggregate(Count)#2`.
    """
    found: dict[str, StateMetrics] = {}
    for stream, nodes in parts.items():
        for node in nodes:
            if isinstance(node, UpdateNode) and node.metrics is not None:
                operation = node.operation if len(parts) == 1 else f"{stream}/{node.operation}"
                same = sum(name.partition("#")[0] == operation for name in found)
                name = f"{operation}#{same + 1}" if same else operation
                found[name] = replace(node.metrics.value)
    return found


@contextmanager
def log_update(node: UpdateNode, txid: int | None) -> Iterator[None]:
    """Run an update, count it if it is a replay, and log at level debug what it asked of its store."""
    if txid is not None:
        if txid == node.newest and node.metrics is not None:
            node.metrics.add(StateMetrics(replays=1))
        node.newest = txid
    if node.metrics is None or not log.isEnabledFor(logging.DEBUG):
        yield
        return
    before = replace(node.metrics.value)
    yield
    log.debug("batch %s: %s: %s", txid, node.operation, node.metrics.value.since(before))
