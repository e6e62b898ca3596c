"""Test that what updates ask of their stores comes to the driver, for each state."""

from __future__ import annotations

import logging
import operator
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from batch_in_hand import EACH, SHARDS, batch_in_hand
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from samples_topology import a_stream, graph_of

from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.trident import Count, SqlState, StoreUnavailableError
from kinesis_trident.trident.build.nodes import SpoutNode
from kinesis_trident.trident.maps import StoreMap
from kinesis_trident.trident.maps.metering import measure
from kinesis_trident.trident.run.batches import TopologyAttempts
from kinesis_trident.trident.run.state_metrics import UpdateMetrics
from kinesis_trident.trident.state import Key, StateType
from kinesis_trident.trident.stores import MemoryMapState
from kinesis_trident.trident.stores.factory import map_state
from kinesis_trident.trident.stores.memory import MemoryByteStore
from kinesis_trident.trident.stores.serializers import JsonSerializer
from kinesis_trident.trident.stores.task import StateTask
from kinesis_trident.trident.topology import RunningTopology

cloudpickle.register_pickle_by_value(sys.modules[__name__])

LOGGER = "kinesis_trident.trident.run.state_metrics"


class Flaky(MemoryByteStore):
    """Does not answer the first reads."""

    failures = 0

    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Any]]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("no answer")
        return super().get_many(keys)


@pytest.mark.parametrize("kind", StateType)
def test_an_update_counts_its_keys_and_retries(kind: StateType) -> None:
    store = Flaky("here")
    keys: list[Key] = [("a",), ("b",), ("c",)]
    for attempt, (txid, failures) in enumerate([(1, 0), (2, 2), (2, 0)]):
        with measure() as metrics:
            backing = StoreMap(store, JsonSerializer(kind), task=StateTask(attempt), sleep=lambda _: None)
            state = map_state(backing, kind)
            state.begin_commit(txid)
            store.failures = failures
            state.multi_combine(keys, operator.add, [1, 2, 3])
            state.commit(txid)
        # A transactional state finds the batch applied.
        skips = kind is StateType.TRANSACTIONAL and attempt == 2
        assert (metrics.updates, metrics.keys_read, metrics.keys_written) == (1, 3, 0 if skips else 3)
        assert metrics.retries == failures
        assert metrics.seconds > 0


def test_the_driver_has_the_metrics_of_each_state(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    app: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = a_stream()
    spout = stream.node
    assert isinstance(spout, SpoutNode)
    assert spout.options is not None
    in_table = SqlState.opaque(f"sqlite:///{tmp_path}/state.db")
    stream.group_by("shardId").persistent_aggregate(in_table, Count(), "n")
    stream.persistent_aggregate(MemoryMapState.opaque(), Count(), "n")
    stream.name("numbers").group_by("data").persistent_aggregate(MemoryMapState.opaque(), Count(), "n")
    graph = graph_of(stream)
    metrics = UpdateMetrics(graph.nodes)
    running, other = (RunningTopology({}, {"lines": one}) for one in (metrics, UpdateMetrics(graph.nodes)))
    assert {one.updates for one in running.state_metrics().values()} == {0}
    with (
        batch_in_hand(spark, zookeeper.hosts, app) as (rows, batch),
        caplog.at_level(logging.DEBUG, LOGGER),
    ):
        TopologyAttempts(spout, graph, 2, metrics)(
            rows, batch, BatchHandler(spout.options, lambda *_: None, 0)
        )
    found = running.state_metrics()
    assert {name: (one.keys_read, one.keys_written) for name, one in found.items()} == {
        "persistent_aggregate(Count)": (len(SHARDS), len(SHARDS)),
        "persistent_aggregate(Count)#2": (1, 1),
        "numbers: persistent_aggregate(Count)": (EACH, EACH),
    }
    assert found["numbers: persistent_aggregate(Count)"].updates == 1
    # Of another start of the same topology.
    assert {one.updates for one in other.state_metrics().values()} == {0}
    assert all(one.seconds > 0 and one.retries == 0 for one in found.values())
    # Not what clients of other tests say meanwhile.
    said = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len(said) == 3
    assert said[1].startswith(
        "batch 7: persistent_aggregate(Count): StateMetrics(updates=1, keys_read=1, keys_written=1,"
    )
    both = RunningTopology({}, {"lines": metrics, "other": UpdateMetrics()}).state_metrics()
    assert list(both)[1] == "lines/persistent_aggregate(Count)#2"
