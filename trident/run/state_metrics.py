"""Brings the metrics of state updates from the tasks to the driver."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from pyspark.accumulators import Accumulator, AccumulatorParam

from kinesis_trident.bolt.tracking.batch_run import BatchRun
from kinesis_trident.trident.build.nodes import TopologyNode, UpdateNode
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


class UpdateMetrics:
    """Counts what the updates of one running query ask of their stores."""

    def __init__(self, nodes: Iterable[TopologyNode] = ()) -> None:
        from pyspark import SparkContext

        self._counts: dict[UpdateNode, Accumulator[StateMetrics]] = {
            node: SparkContext.getOrCreate().accumulator(StateMetrics(), MetricsParam())
            for node in nodes
            if isinstance(node, UpdateNode)
        }

    def of(self, node: UpdateNode) -> Accumulator[StateMetrics] | None:
        """Return what counts an update; None if nothing does."""
        return self._counts.get(node)

    def read(self) -> Iterator[tuple[str, StateMetrics]]:
        """Yield the operation of each update, and its metrics so far."""
        for node, counted in self._counts.items():
            yield node.operation, replace(counted.value)

    @contextmanager
    def log_update(self, node: UpdateNode, run: BatchRun | None) -> Iterator[None]:
        """Run an update, count it if it is a replay, and log at level debug what it asked of its store."""
        counted = self._counts.get(node)
        if run is not None:
            attempt = run.attempt
            first = run.once(node, lambda: attempt)
            if counted is not None and first != attempt:
                counted.add(StateMetrics(replays=1))
        if counted is None or not log.isEnabledFor(logging.DEBUG):
            yield
            return
        before = replace(counted.value)
        yield
        log.debug("batch %s: %s: %s", run and run.txid, node.operation, counted.value.since(before))


def read_metrics(parts: Mapping[str, UpdateMetrics]) -> dict[str, StateMetrics]:
    """Return the metrics of all updates, by their operations; of several streams with the stream before them.

    Operations of one name are numbered in the order of their declaration: `persistent_aggregate(Count)#2`.
    """
    found: dict[str, StateMetrics] = {}
    for stream, metrics in parts.items():
        for called, counted in metrics.read():
            name = operation = called if len(parts) == 1 else f"{stream}/{called}"
            number = 1
            while name in found:
                number += 1
                name = f"{operation}#{number}"
            found[name] = counted
    return found
