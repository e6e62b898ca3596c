"""Stores on the shared ZooKeeper, each test under an application name of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect

STREAM = "orders"
CREATED = 1_700_000_000_000


@pytest.fixture
def make_client() -> Iterator[Callable[..., KazooClient]]:
    """`make_client(hosts, **settings)`: a connected client, stopped after the test."""
    made: list[KazooClient] = []

    def make(hosts: str, **settings: object) -> KazooClient:
        made.append(connect(ZooKeeperConfig(hosts, **settings)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for client in made:
        client.stop()
        client.close()


@pytest.fixture
def client(zookeeper: EmbeddedZooKeeper, make_client: Callable[..., KazooClient]) -> KazooClient:
    return make_client(zookeeper.hosts)


@pytest.fixture
def layout(app: str) -> Layout:
    return Layout("/kinesis-trident", app, STREAM, CREATED)


@pytest.fixture
def store(client: KazooClient, layout: Layout) -> SourceStore:
    """A store nobody has started yet."""
    return SourceStore(client, layout)


@pytest.fixture
def older(
    zookeeper: EmbeddedZooKeeper, make_client: Callable[..., KazooClient], layout: Layout
) -> SourceStore:
    """A store of another process, as far as ZooKeeper can tell."""
    return SourceStore(make_client(zookeeper.hosts), layout)
