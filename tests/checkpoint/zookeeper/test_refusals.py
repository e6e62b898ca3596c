"""What ZooKeeper refuses for reasons of its own: told with its number and the path, and never as a lost race."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from quota_server import MeanZooKeeper, limit

from kinesis_trident.checkpoint.errors import CheckpointError, NodeTooLargeError, ZooKeeperRefusedError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, SettledNode, StatesNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connected
from kinesis_trident.checkpoint.zookeeper.operations import Create, Refused, error_of, explain_refusal
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.console.examination import Examination
from kinesis_trident.console.target import Target
from kinesis_trident.tracker.records import Run


@pytest.fixture(scope="module")
def mean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeanZooKeeper]:
    with MeanZooKeeper(tmp_path_factory.mktemp("mean")) as server:
        yield server


@pytest.fixture
def near(mean: MeanZooKeeper) -> Iterator[KazooClient]:
    with connected(ZooKeeperConfig(mean.hosts)) as client:
        yield client


def test_a_quota_that_is_met_is_told_by_each_write(near: KazooClient) -> None:
    layout = Layout("/quota", "orders", "orders", 1)
    store = SourceStore(near, layout)
    limit(near, "/quota", 1)
    with pytest.raises(ZooKeeperRefusedError, match=r"/quota/orders.*\(-125, QuotaExceededError\).*setquota"):
        store.epochs.raise_epoch("h", 1, 1)
    limit(near, "/quota", 14)
    epoch = store.epochs.raise_epoch("h", 1, 1)
    limit(near, "/quota")
    with pytest.raises(ZooKeeperRefusedError, match=r"/quota/orders/orders@1/states \(-125"):
        store.states.put(StatesNode(applied={"a": 1}), epoch)
    with pytest.raises(ZooKeeperRefusedError, match="-125"):
        store.epochs.raise_epoch("h", 1, 1)


def test_a_folder_that_is_deleted_under_a_run_is_named(client: KazooClient, layout: Layout) -> None:
    store = SourceStore(client, layout)
    epoch = store.epochs.raise_epoch("h", 1, 1)
    client.delete(layout.inflight)
    held = InflightNode(txid=1, waiting=(Run("5", "5"),))
    done = CheckpointNode(checkpoint="4", txid=1, position="AFTER_SEQUENCE_NUMBER 5")
    with pytest.raises(CheckpointError, match=rf"{layout.inflight}/x cannot be written: it does not exist"):
        store.shards.settle({"x": (done, held)}, {}, None, SettledNode(txid=1, plan=""), epoch)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-4, "connection was lost"),
        (-118, "another server"),
        (-119, "only reads"),
        (-125, "quota"),
        (-127, "more requests than it takes"),
        (-1, "ZooKeeper's own log"),
        (-999, "ZooKeeper's own log"),
    ],
)
def test_each_number_is_told_with_what_to_do(code: int, said: str) -> None:
    what, remedy = explain_refusal("/a", error_of(code))
    assert f"/a ({code}, " in what
    assert said in remedy


def test_a_refusal_of_a_race_is_an_error_of_the_library(client: KazooClient) -> None:
    session = Session(client, 10)
    with pytest.raises(
        Refused, match=r"/missing/x cannot be written: it does not exist, or the node above it"
    ) as caught:
        session.commit([Create("/missing/x")])
    assert isinstance(caught.value, CheckpointError)


def test_a_server_that_takes_less_than_it_should_is_told(tmp_path: Path) -> None:
    server = MeanZooKeeper(tmp_path)
    server.most = 64 * 1024
    with server, connected(ZooKeeperConfig(server.hosts)) as client:
        session = Session(client, 20)
        assert session.commit([Create("/a", bytes(1_000))])
        parts = [Create(f"/{number}", bytes(10_000)) for number in range(10)]
        with pytest.raises(
            NodeTooLargeError,
            match=r"at a request of 10\d{4} bytes.*largest part is /\d with 10\d+ bytes.*jute\.maxbuffer",
        ):
            session.commit(parts)
        assert session.read(["/a", "/0"])[1] is None
        target = Target(ZooKeeperConfig(server.hosts), "/", "app")
        told = [one for one in Examination().of_zookeeper(target, None) if one.state == "failed"]
        assert ["jute.maxbuffer" in one.remedy for one in told] == [True]
