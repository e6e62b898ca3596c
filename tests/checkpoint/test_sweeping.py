"""Test that what a crash left behind is swept beside everything else, and takes nothing that is being written."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, SettledNode
from kinesis_trident.checkpoint.model.split_nodes import is_part
from kinesis_trident.checkpoint.store.atomic_writes import UnitWriter
from kinesis_trident.checkpoint.store.epochs import Epochs
from kinesis_trident.checkpoint.store.fenced_nodes import FencedNodes
from kinesis_trident.checkpoint.store.shards import ShardStore
from kinesis_trident.checkpoint.store.source_store import Leftovers
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect, session_timeout
from kinesis_trident.checkpoint.zookeeper.operations import Create, Op, Write
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.tracker.records import Noted, Run

SHARD = "shardId-000000000000"


class SweptNodes(FencedNodes):
    """Sweeps in another thread in the moment before a shard's in-flight head is written over its parts."""

    leftovers: Leftovers
    sweeper: threading.Thread | None = None

    def begin(self, ops: Sequence[Op], epoch: int) -> Callable[[], None]:
        head = self.layout.inflight_of(SHARD)
        if self.sweeper is None and any(isinstance(op, Create | Write) and op.path == head for op in ops):
            self.sweeper = threading.Thread(target=self.leftovers.sweep_parts, args=(epoch,))
            self.sweeper.start()
            # It has to wait for us; where it does not, it is done long before this.
            self.sweeper.join(2)
        return super().begin(ops, epoch)


@pytest.fixture
def nodes(zookeeper: EmbeddedZooKeeper, app: str) -> Iterator[SweptNodes]:
    client = connect(ZooKeeperConfig(zookeeper.hosts))
    yield SweptNodes(Session(client, session_timeout(client)), Layout("/kinesis-trident", app, "orders", 1))
    client.stop()
    client.close()


def test_parts_without_their_head_yet_are_not_swept(nodes: SweptNodes) -> None:
    writer = UnitWriter(nodes)
    shards, nodes.leftovers = ShardStore(nodes, writer), Leftovers(nodes, writer)
    epoch = Epochs(nodes).raise_epoch("here", 1, 1)
    rng, failures = random.Random(1), (Noted(1, "x" * 200),)
    runs = tuple(
        Run("", str(n), failures=failures) for n in sorted(rng.randrange(10**30) for _ in range(2000))
    )
    inflight = InflightNode(txid=1, waiting=runs)
    checkpoint = CheckpointNode(checkpoint="9", txid=1, position="TRIM_HORIZON")
    shards.settle({SHARD: (checkpoint, inflight)}, {}, None, SettledNode(txid=1, plan="p"), epoch)
    assert nodes.sweeper is not None
    nodes.sweeper.join()
    assert shards.inflight() == {SHARD: inflight}
    names = nodes.session.children([nodes.layout.inflight])[0] or []
    assert any(map(is_part, names))
