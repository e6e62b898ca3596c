"""Whole queries on three ZooKeeper servers of which one lags: the query's processes there, its driver at another one.

tests/spout/test_lagging_servers.py has the same for plain queries and for acks of other processes, without Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from ensemble import Ensemble
from stage import Stage
from test_topology import contents, lines, ran
from thorough import cases

from kinesis_trident.bolt import foreach_batch as foreach_batch_module
from kinesis_trident.bolt.tracking.current_batch import open_store
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.trident import Count, Function, TridentTopology
from kinesis_trident.trident.stores import MemoryMapState

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]

RECORDS = [f"{'flaky' if number % 3 else 'good'} {number}" for number in range(31)]
OPTIONS = {"retryBackoff": "1ms..2ms x2", "maxRecordsPerTrigger": "16"}


class Flaky(Function):
    """The record's text; one that says so fails at its first delivery."""

    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        text = tup["data"].decode()
        if text.startswith("flaky") and tup["attempt"] == 1:
            raise ValueError(text)
        collector.emit([text])


@pytest.fixture(params=cases(0, 250, chaos=(50, 1000)))
def far(
    request: pytest.FixtureRequest, stage: Stage, ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    """A stage whose reader and tasks are at the server that lags so many milliseconds, and its driver is not."""

    def at_the_leader(options: SourceOptions) -> SourceStore:
        return open_store(replace(options, zookeeper_hosts=ensemble.leader))

    monkeypatch.setattr(foreach_batch_module, "open_store", at_the_leader)
    client = connect(ZooKeeperConfig(ensemble.leader))
    stage.put(RECORDS)
    with ensemble.lagging(request.param):
        yield replace(stage, hosts=ensemble.follower, zookeeper=client)
        stage.end()
    client.stop()
    client.close()


def test_each_record_is_written_once(far: Stage) -> None:
    def flaky(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        if text.startswith("flaky") and record.attempt == 1:
            raise ValueError(text)
        return text, record.attempt

    taken = far.drained(far.parsed(flaky, **OPTIONS))
    assert Counter(taken.texts) == Counter(RECORDS)


def test_each_record_counts_once_in_a_state(far: Stage) -> None:
    topology, counts = TridentTopology(far.spark), MemoryMapState.opaque()
    stream = lines(far, topology, **OPTIONS).each(["data", "attempt"], Flaky(), ["text"])
    stream.group_by("text").persistent_aggregate(counts, Count(), "n")
    ran(far, topology)
    assert contents(counts, *RECORDS) == [1] * len(RECORDS)
