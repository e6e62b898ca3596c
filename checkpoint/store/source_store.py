"""The typed state of one application in ZooKeeper, for its stream or streams: the only access to it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, NamedTuple, Self

from kazoo.client import KazooClient
from kazoo.recipe.watchers import DataWatch

from kinesis_trident.checkpoint.errors import CheckpointError, CorruptNodeError, StateMissingError
from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.layout import Layout, unescape
from kinesis_trident.checkpoint.model.nodes import ExternalNode, StartNode, StreamsNode
from kinesis_trident.checkpoint.model.split_nodes import PART_SIZE
from kinesis_trident.checkpoint.store.atomic_writes import Unit
from kinesis_trident.checkpoint.store.batches import BatchStore
from kinesis_trident.checkpoint.store.fencing import RACES, too_many_races
from kinesis_trident.checkpoint.store.judging import Judging
from kinesis_trident.checkpoint.store.node_store import stray_below
from kinesis_trident.checkpoint.store.reports import ReportStore
from kinesis_trident.checkpoint.store.shards import ShardStore
from kinesis_trident.checkpoint.store.stop_requests import Stopping
from kinesis_trident.checkpoint.zookeeper.operations import (
    EXISTS,
    MISSING,
    NOT_EMPTY,
    Create,
    Delete,
    Op,
    Refused,
    Write,
)
from kinesis_trident.checkpoint.zookeeper.session import Session

__all__ = ["Requests", "SourceStore", "find_applications", "find_layouts", "streams_of"]


_MOST_REJECTED = 100


class Requests(NamedTuple):
    """The requests of other processes.

    `asked`: by shard, the nodes by name. `unreadable`: by path, the error of a node.
    """

    asked: dict[str, dict[str, ExternalNode]]
    unreadable: dict[str, str]


class SourceStore(BatchStore, ReportStore, ShardStore, Judging, Stopping):
    """The state of one application and its home: that of one stream, or of several.

    Every operation is retried over lost connections and sessions until the session timeout has passed, then
    raises `ZooKeeperUnavailableError`. Every write but `add_external` and `report_fenced` takes the epoch of
    its run and raises `FencedError` once a newer run has taken over. Any read may raise `CorruptNodeError`.
    """

    def __init__(self, client: KazooClient, layout: Layout, timeout: float | None = None) -> None:
        super().__init__(client, layout, timeout)
        self._swept = False

    def looking(self, on_corrupt: Callable[[CorruptNodeError], object]) -> Self:
        """Return the same store for a reader such as the console: a bad node counts as absent and is reported."""
        store = type(self)(self.client, self.layout, self._session.timeout)
        store.on_corrupt = on_corrupt
        return store

    def streams(self) -> StreamsNode | None:
        """Return the streams of a home of several; None before the first start."""
        found = self._fetch(self.layout.streams, StreamsNode)
        return found.node if found else None

    def put_streams(self, node: StreamsNode, epoch: int) -> None:
        """Store the streams of this home: the last writer of the newest run wins.

        Raises:
            FencedError: a newer run has taken over.
        """
        self._move([Unit({self.layout.streams: node})], epoch)

    def start(self, stream: str, created: int) -> StartNode | None:
        """Return the time to which a stream's LATEST was resolved; None before it was."""
        found = self._fetch(self.layout.start_of(stream, created), StartNode)
        return found.node if found else None

    def put_start(self, stream: str, created: int, node: StartNode, epoch: int) -> StartNode:
        """Store the time to which a stream's LATEST is resolved, once; later callers get the first answer.

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
        msg = f"{path} is being deleted by another process. Stop that process, and start the query again"
        raise CheckpointError(msg)

    def purge(self, txid_upto: int, epoch: int, keep: Collection[int] = ()) -> int:
        """Remove plans, pins and outcomes up to and including a txid, and parts of large nodes without a head.

        The nodes of the txids in `keep` stay.

        Returns:
            How many nodes were removed.

        Raises:
            FencedError: a newer run has taken over.
        """
        removed = super().purge(txid_upto, epoch, keep)
        if not self._swept:
            # Only a crash of an older run leaves such parts: once is enough.
            removed += self.sweep_parts(epoch)
            self._swept = True
        return removed

    def external(self) -> Requests:
        """Return the requests of other processes, oldest first; `settle` removes those named in its `consumed`.

        All requests answered before this call are included: a record that was acked in time must not time out.
        """
        requests = Requests({}, {})
        listed = self._session.children([self.layout.external], fresh=True)[0] or []
        folders = [f"{self.layout.external}/{name}" for name in listed]
        paths = [
            f"{folder}/{name}"
            for folder, names in zip(folders, self._session.children(folders), strict=True)
            for name in names or []
        ]
        # Any process may write here, so read one at a time: an unreadable request must not hide others.
        found = zip(paths, self._session.read(paths), strict=True)
        for path, node in sorted(
            ((path, node) for path, node in found if node is not None), key=lambda one: one[1].stat.czxid
        ):
            folder, _, name = path.rpartition("/")
            try:
                shard = unescape(folder.rpartition("/")[2])
                request = decode(path, node.data, ExternalNode)
            except CorruptNodeError as error:
                requests.unreadable[path] = str(error)
            except ValueError as error:
                requests.unreadable[path] = f"{path} belongs to no shard: {error}"
            else:
                requests.asked.setdefault(shard, {})[name] = request
        return requests

    def reject(self, path: str, epoch: int) -> str:
        """Move an unreadable request below `rejected`; at most 100 are kept.

        Returns:
            Its new path; the empty string if it is not kept.

        Raises:
            CorruptNodeError: it cannot be removed, because it has children.
            FencedError: a newer run has taken over.
        """
        folder, _, name = path.rpartition("/")
        place = f"{self.layout.rejected}/{folder.rpartition('/')[2]}:{name}"
        for _ in range(RACES):
            node = self._session.read([path])[0]
            kept = self._session.children([self.layout.rejected])[0]
            if node is None:
                return ""
            ops: list[Op] = [Delete(path)]
            room = len(kept or ()) < _MOST_REJECTED
            if room:
                ops.append(Create(place, node.data[:PART_SIZE]))
            try:
                if kept is None:
                    self._commit([Create(self.layout.rejected)], epoch)
                self._commit(ops, epoch)
            except Refused as refused:
                if refused.kind is NOT_EMPTY:
                    raise stray_below(path) from None
                if refused.kind is EXISTS and refused.op.path == place:
                    place += f":{node.stat.czxid}"
                continue
            return place if room else ""
        raise too_many_races(path)

    def add_external(self, shard: str, node: ExternalNode) -> str:
        """Leave a request for the running query; any process may, so this is not fenced.

        Returns:
            The path of the request; it disappears once a settled batch includes it.

        Raises:
            StateMissingError: there is no such application and stream.
        """
        folder = self.layout.external_of(shard)
        # A unique name, so that a write whose answer was lost is recognised. ZooKeeper's order of creation (czxid)
        # replaces a sequence in the name.
        path = f"{folder}/{uuid.uuid4().hex}"
        # `watch_external` sees the write of the folder itself: one watch for all shards.
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
        """Call `callback` now and at each new request; it must be quick."""

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
    """Return the names of the applications below a root, sorted; other nodes are skipped."""
    names = session.children([Layout.root_path(root) or "/"])[0] or []
    found = []
    for name in names:
        with suppress(ValueError):
            found.append(unescape(name))
    return sorted(name for name in found if name != "zookeeper")


def find_layouts(session: Session, root: str, application: str) -> list[Layout]:
    """Return the homes of all streams that an application has read: the shared one first, the newest of a name last."""
    names = session.children([Layout.application_path(root, application)])[0] or []
    found = []
    for name in names:
        with suppress(ValueError):
            found.append(Layout.parse(root, application, name))
    return sorted(found, key=lambda layout: (layout.stream, layout.created))


def streams_of(store: SourceStore) -> dict[str, int]:
    """Return the streams that have their home in a store, name to creation time in epoch milliseconds."""
    if not store.layout.several:
        return {store.layout.stream: store.layout.created}
    node = store.streams()
    return node.streams if node else {}
