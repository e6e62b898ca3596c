"""Everything that one application keeps in ZooKeeper for its stream or streams, typed: the one door to it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from typing import Any

from kazoo.client import KazooClient
from kazoo.recipe.watchers import DataWatch

from checkpoint.batchstore import BatchStore
from checkpoint.codec import encode
from checkpoint.errors import CheckpointError, StateMissingError
from checkpoint.fencing import RACES
from checkpoint.judging import Judging
from checkpoint.layout import Layout, unescape
from checkpoint.nodes import ExternalNode, StartNode, StreamsNode
from checkpoint.ops import EXISTS, MISSING, Create, Op, Refused, Write
from checkpoint.reportstore import ReportStore
from checkpoint.session import Session
from checkpoint.shardstore import ShardStore
from checkpoint.stopping import Stopping
from checkpoint.unitstore import Unit

__all__ = ["SourceStore", "find_applications", "find_layouts", "streams_of"]


class SourceStore(BatchStore, ReportStore, ShardStore, Judging, Stopping):
    """The state of one application and its home: that of one stream, or of several.

    Every operation is retried over lost connections and sessions until the session timeout has passed, then
    raises `ZooKeeperUnavailableError`. Every write but `add_external` and `report_fenced` takes the epoch of
    its run and raises `FencedError` once a newer run has taken over. Any read may raise `CorruptNodeError`.
    """

    def __init__(self, client: KazooClient, layout: Layout, timeout: float | None = None) -> None:
        super().__init__(client, layout, timeout)
        self._swept = False

    def streams(self) -> StreamsNode | None:
        """Which streams have their home here, where there are several; None before the first start."""
        found = self._fetch(self.layout.streams, StreamsNode)
        return found.node if found else None

    def put_streams(self, node: StreamsNode, epoch: int) -> None:
        """Store which streams have their home here: the last writer of the newest run wins.

        Raises:
            FencedError: a newer run has taken over.
        """
        self._move([Unit({self.layout.streams: node})], epoch)

    def start(self, stream: str, created: int) -> StartNode | None:
        """What a stream's LATEST was resolved to; None before it was."""
        found = self._fetch(self.layout.start_of(stream, created), StartNode)
        return found.node if found else None

    def put_start(self, stream: str, created: int, node: StartNode, epoch: int) -> StartNode:
        """Store what a stream's LATEST is resolved to, once; whoever comes later gets the first one's answer.

        Raises:
            FencedError: a newer run has taken over.
        """
        path = self.layout.start_of(stream, created)
        for _ in range(RACES):
            try:
                self._create(path, node, epoch)
            except Refused as refused:
                if refused.kind is not EXISTS:
                    raise
            else:
                return node
            found = self.start(stream, created)
            if found is not None:
                return found
        msg = f"{path} comes and goes: somebody else deletes it"
        raise CheckpointError(msg)

    def purge(self, txid_upto: int, epoch: int, keep: Collection[int] = ()) -> int:
        """Remove plans, pins and outcomes up to and including a txid, and parts of large nodes that nothing names.

        What belongs to the txids of `keep` stays.

        Returns:
            How many nodes were removed.

        Raises:
            FencedError: a newer run has taken over.
        """
        removed = super().purge(txid_upto, epoch, keep)
        if not self._swept:
            # A crash leaves such parts, so an older run: once is enough.
            removed += self.sweep_parts(epoch)
            self._swept = True
        return removed

    def external(self) -> dict[str, dict[str, ExternalNode]]:
        """What other processes have asked for: by shard, the nodes' names to the nodes, oldest first.

        `settle` removes those named in its `consumed`. All that was answered before this call is among them: a record
        that was acked in time must not time out.
        """
        shards = self._children(self.layout.external, fresh=True)
        listed = self._session.children(list(shards.values()))
        paths = [
            f"{folder}/{name}"
            for folder, names in zip(shards.values(), listed, strict=True)
            for name in names or []
        ]
        found = {
            path: stored
            for path, stored in zip(paths, self._fetch_many(paths, ExternalNode), strict=True)
            if stored is not None
        }
        asked: dict[str, dict[str, ExternalNode]] = {}
        for path in sorted(found, key=lambda path: found[path].created):
            folder, _, name = path.rpartition("/")
            shard = unescape(folder.rpartition("/")[2])
            asked.setdefault(shard, {})[name] = found[path].node
        return asked

    def add_external(self, shard: str, node: ExternalNode) -> str:
        """Ask the running query for something; any process may, so this is not fenced.

        Returns:
            The path of the request; it vanishes once a settled batch has taken it in.

        Raises:
            StateMissingError: there is no such application and stream.
        """
        folder = self.layout.external_of(shard)
        # A name of our own, so that a write whose answer was lost is recognised. ZooKeeper's order of
        # creation (czxid) takes the place of a sequence in the name.
        path = f"{folder}/{uuid.uuid4().hex}"
        # Writing the folder itself is what `watch_external` sees: one watch, whatever the shards.
        ops: list[Op] = [Create(path, encode(node)), Write(self.layout.external, b"")]
        try:
            self._session.commit(ops)
        except Refused as refused:
            if refused.kind is not MISSING:
                raise
            self._make_external_folder(folder)
            self._session.commit(ops)
        return path

    def watch_external(self, callback: Callable[[], object]) -> None:
        """Call `callback` now and whenever somebody has asked for something; it must be quick."""

        def look(_data: bytes | None, _stat: Any) -> None:
            callback()

        DataWatch(self._session.client, self.layout.external, look)

    def _make_external_folder(self, folder: str) -> None:
        try:
            self._session.commit([Create(folder)])
        except Refused as refused:
            if refused.kind is MISSING:
                msg = (
                    f"{self.layout.base} does not exist: no query of application {self.layout.application!r} "
                    f"has read {self.layout.what} yet. Check the names, zookeeper.hosts and "
                    "zookeeper.root"
                )
                raise StateMissingError(msg) from None
            if refused.kind is not EXISTS:
                raise


def find_applications(session: Session, root: str) -> list[str]:
    """The names of the applications below a root, sorted."""
    names = session.children([Layout.root_path(root) or "/"])[0] or []
    return sorted(unescape(name) for name in names if name != "zookeeper")


def find_layouts(session: Session, root: str, application: str) -> list[Layout]:
    """The homes of all streams that an application has read: several at once first, then the newest of a name last."""
    names = session.children([Layout.application_path(root, application)])[0] or []
    found = [Layout.parse(root, application, name) for name in names if "@" in name]
    return sorted(found, key=lambda layout: (layout.stream, layout.created))


def streams_of(store: SourceStore) -> dict[str, int]:
    """The streams that have their home in a store, name to creation time in epoch milliseconds."""
    if not store.layout.several:
        return {store.layout.stream: store.layout.created}
    node = store.streams()
    return node.streams if node else {}
