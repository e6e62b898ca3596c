"""Reports as nodes in a real ZooKeeper: what tasks say comes to the driver's attempt that asked for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kinesis_trident.bolt.tracking.carriers import NodeCarrier
from kinesis_trident.bolt.tracking.failed import NONE, Failed
from kinesis_trident.bolt.tracking.reports import ReportKey
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import BatchMissingError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.tracker.failure import BEHIND, Failure
from kinesis_trident.tracker.ids import hash_of

SHARD = "shardId-000000000000"
KEY = ReportKey(7, -(2**62), "map", 0, 12, 2**63 - 1, stage=3, partition=1)


def failed(*ordinals: int, reason: str = "ValueError: no") -> Failed:
    places = [str(10**55 + ordinal) for ordinal in ordinals]
    return Failed.over(ordinals, ordinals, [Failure.said(reason)] * len(ordinals), places, places)


@pytest.fixture
def config(zookeeper: EmbeddedZooKeeper) -> ZooKeeperConfig:
    return ZooKeeperConfig(zookeeper.hosts)


@pytest.fixture
def store(config: ZooKeeperConfig, app: str) -> Iterator[SourceStore]:
    client = connect(config)
    store = SourceStore(client, Layout("/kinesis-trident", app, "orders", 1))
    epoch = store.epochs.raise_epoch("here", 1, 0)
    plan = Plan(txid=7, plan="p", streams={"orders": 1}, positions={SHARD: "TRIM_HORIZON"}, read=(SHARD,))
    store.batches.put(plan, epoch)
    yield store
    client.stop()
    client.close()


def test_reports_come_as_they_were_sent_and_repeats_add_nothing(
    store: SourceStore, config: ZooKeeperConfig
) -> None:
    carrier = NodeCarrier(store, config)
    assert carrier.reports == {}
    other = KEY._replace(operator="other", emitted=3, produced=-5)
    for _ in range(2):
        carrier.sender.add({KEY: failed(3), other: NONE})
    assert carrier.reports == {KEY: failed(3), other: NONE}


def test_the_keys_of_records_come_with_them(store: SourceStore, config: ZooKeeperConfig) -> None:
    carrier = NodeCarrier(store, config)
    keys = {at: hash_of(str(at)) for at in range(0, 1400, 2)}
    keyed, other = failed(*keys).with_keys(keys), KEY._replace(operator="other")
    carrier.sender.add({KEY: keyed, other: failed(3)})
    assert carrier.reports[KEY].keys == keys
    assert carrier.reports[KEY] == keyed
    assert not carrier.reports[other].keys
    assert [node.keys != () for _, node in store.reports.of_attempt(carrier._attempt)].count(True) > 1


def test_very_many_neighbours_that_wait_for_one_record_go_into_several_nodes(
    store: SourceStore, config: ZooKeeperConfig
) -> None:
    carrier, keys = NodeCarrier(store, config), {at: hash_of(str(at % 500)) for at in range(5, 90_005)}
    bad = Failed.over([4], [4], [Failure.said("no")], ["3"], ["3"], ["2"])
    behind = bad.union(Failed.over([5], [90_004], [BEHIND], ["4"], ["9"], ["3"])).with_keys(keys)
    carrier.sender.add({KEY: behind})
    assert carrier.reports[KEY] == behind
    assert carrier.reports[KEY].keys == keys
    assert carrier.reports[KEY].is_placed


def test_a_record_that_failed_in_any_run_of_a_task_has_failed(
    store: SourceStore, config: ZooKeeperConfig
) -> None:
    carrier = NodeCarrier(store, config)
    for runs in (NONE, failed(3), failed(5, reason="other")):
        carrier.sender.add({KEY: runs})
    assert carrier.reports == {KEY: failed(3).union(failed(5, reason="other"))}


def test_what_is_sent_to_an_earlier_attempt_does_not_count(
    store: SourceStore, config: ZooKeeperConfig
) -> None:
    carrier = NodeCarrier(store, config)
    late = carrier.sender
    late.add({KEY: failed(3)})
    carrier.clear()
    late.add({KEY: failed(4)})
    assert carrier.reports == {}
    carrier.sender.add({KEY: failed(3)})
    assert carrier.reports == {KEY: failed(3)}


def test_very_many_failures_go_into_several_nodes(store: SourceStore, config: ZooKeeperConfig) -> None:
    carrier = NodeCarrier(store, config)
    runs = failed(*range(0, 6_000, 2), reason="ValueError: " + "x" * 200)
    carrier.sender.add({KEY: runs})
    assert carrier.reports == {KEY: runs}


def test_reports_of_many_spans_share_nodes(store: SourceStore, config: ZooKeeperConfig) -> None:
    carrier = NodeCarrier(store, config)
    reports = {KEY._replace(span=span): failed(span) if span % 7 == 0 else NONE for span in range(2_000)}
    carrier.sender.add(reports)
    assert carrier.reports == reports
    assert len(store.reports.of_attempt(carrier.sender.attempt)) < 10


def test_reports_are_removed_with_their_batch_and_late_ones_refused(
    store: SourceStore, config: ZooKeeperConfig
) -> None:
    carrier = NodeCarrier(store, config)
    carrier.sender.add({KEY: NONE})
    store.leftovers.purge(7, 1)
    assert carrier.reports == {}
    with pytest.raises(BatchMissingError, match="batches/7 does not exist"):
        carrier.sender.add({KEY: NONE})
