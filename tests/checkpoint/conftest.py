"""Stores on the shared ZooKeeper, each test under an application name of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.store.source_store import SourceStore

STREAM = "orders"
CREATED = 1_700_000_000_000


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
