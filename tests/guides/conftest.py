"""The servers of the guides, whose applications have plain names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from guide import Orders, Unfinished
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.testing import MemoryKinesis, Quotas, ScriptedKinesis, SparkCheckpoint


@pytest.fixture
def hosts(zookeeper: EmbeddedZooKeeper, tmp_path: Path, app: str) -> Iterator[str]:
    """The shared ZooKeeper below a path of the test's own."""
    path = f"/{app}"
    client = KazooClient(zookeeper.hosts)
    client.start()
    client.ensure_path(path)
    client.stop()
    client.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KINESIS_TRIDENT_ZOOKEEPER", zookeeper.hosts + path)
        yield zookeeper.hosts + path


@pytest.fixture
def kinesis() -> Iterator[ScriptedKinesis]:
    """A Kinesis with the streams of the guides, which reshards as the service does."""
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        for stream in ("orders", "payments"):
            server.create_stream(stream)
            (shard,) = server.shards(stream)
            for number in range(3):
                server.put(stream, shard, f"{stream} {number}".encode())
        yield server


@pytest.fixture
def unfinished(tmp_path: Path, hosts: str) -> Iterator[Unfinished]:
    """`unfinished(application)`: see `Unfinished`; the run is connected until the test ends."""
    with ExitStack() as ending:

        def make(application: str) -> Orders:
            kinesis, checkpoint = MemoryKinesis("orders"), SparkCheckpoint()
            (shard,) = kinesis.open_shards
            options = {
                "streamName": "orders",
                "region": "us-east-1",
                "applicationName": application,
                "zookeeper.hosts": hosts,
                "startingPosition": "TRIM_HORIZON",
                "retryLimit": "1",
                "deadLetter": str(tmp_path / "letters"),
            }

            def begin(backoff: str, *data: bytes) -> Orders:
                for one in data:
                    kinesis.put(shard, one)
                query = Orders.start(options | {"retryBackoff": backoff}, kinesis, checkpoint)
                query.deliver()
                return query

            first = begin("1ms..1ms x1", b"one", b"broken", b"two")
            while not (tmp_path / "letters").exists():
                if first.plan() is not None:
                    first.deliver()
            assert first.plan() is None
            first.end()
            query = begin("24h..24h x1", b"three", b"late", b"four")
            ending.callback(query.end)
            assert query.plan() is None
            return query

        yield make
