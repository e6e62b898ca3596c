"""The typed state of one application in ZooKeeper, for its stream or streams: the only access to it.

It also removes what is not needed any more: the nodes of settled batches, and parts that a crash has left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Self

from kazoo.client import KazooClient

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.home import HOME, OnePer, Until
from kinesis_trident.checkpoint.model.layout import Layout, unescape
from kinesis_trident.checkpoint.model.nodes import (
    JudgingNode,
    StatesNode,
    StopNode,
    StreamsNode,
)
from kinesis_trident.checkpoint.model.pauses import PausesNode
from kinesis_trident.checkpoint.model.run_status import FailingNode, RunEndsNode, StatusNode
from kinesis_trident.checkpoint.model.split_nodes import is_part, owner_of
from kinesis_trident.checkpoint.store.application_names import layout_of, read_names
from kinesis_trident.checkpoint.store.atomic_writes import UnitWriter
from kinesis_trident.checkpoint.store.batches import BatchStore, ReportStore
from kinesis_trident.checkpoint.store.changes import ChangeStore
from kinesis_trident.checkpoint.store.epochs import Epochs
from kinesis_trident.checkpoint.store.external_requests import ExternalStore
from kinesis_trident.checkpoint.store.fenced_nodes import (
    RACES,
    FencedNodes,
    StorePart,
    stray_child_error,
    too_many_races,
    txid_of,
)
from kinesis_trident.checkpoint.store.notes import (
    EndsNote,
    JudgingNote,
    Note,
    PausesNote,
    StatusNote,
    StopNote,
    StreamsNote,
)
from kinesis_trident.checkpoint.store.shards import ShardStore
from kinesis_trident.checkpoint.zookeeper.client import session_timeout
from kinesis_trident.checkpoint.zookeeper.operations import (
    NOT_EMPTY,
    PACK_SIZE,
    REQUEST_LIMIT,
    Check,
    Delete,
    Op,
    Refused,
    pack_writes,
)
from kinesis_trident.checkpoint.zookeeper.session import Session


class Leftovers(StorePart):
    """Removes plans, pins, outcomes and reports of settled batches, and parts of large nodes without a head."""

    def __init__(self, nodes: FencedNodes, writer: UnitWriter) -> None:
        super().__init__(nodes)
        self._writer = writer
        self._swept = False

    def purge(self, txid_upto: int, epoch: int, keep: Collection[int] = ()) -> int:
        """Remove plans, pins and outcomes up to and including a txid, and parts of large nodes without a head.

        The nodes of the txids in `keep` stay.

        Returns:
            The number of removed nodes.

        Raises:
            FencedError: a newer run has taken over.
        """
        removed = self._purge_batches(txid_upto, epoch, frozenset(keep))
        if not self._swept:
            # Only a crash of an older run leaves such parts: once is enough.
            removed += self.sweep_parts(epoch)
            self._swept = True
        return removed

    def sweep_parts(self, epoch: int) -> int:
        """Remove parts of in-flight nodes and lineages that a crash has left without a head; return their number."""
        with self._writer.lock:
            return self._sweep(epoch)

    def _purge_batches(self, txid_upto: int, epoch: int, keep: frozenset[int]) -> int:
        removed = 0
        for _ in range(RACES):
            ops = self._removals(txid_upto, keep)
            try:
                for pack in pack_writes(ops, PACK_SIZE):
                    self._nodes.commit(pack, epoch)
                    removed += len(pack)
            except Refused as refused:
                folder = refused.op.path.rpartition("/")[0]
                if refused.kind is NOT_EMPTY and folder not in (
                    self._layout.batches,
                    self._layout.reports,
                ):
                    raise stray_child_error(refused.op.path) from None
                # A late task has made a pin between the listing and the removal.
                continue
            return removed
        raise too_many_races(self._layout.batches)

    def _removals(self, txid_upto: int, keep: frozenset[int]) -> list[list[Op]]:
        """Return the removals in groups that go together: the pins of a batch with its plan.

        Otherwise a late task could pin its turn again while a pin is gone and the plan is not.
        """
        layout = self._layout
        folders = [
            f"{layout.base}/{name}"
            for name in dict.fromkeys(spec.name for spec in HOME if spec.until is Until.BATCH)
        ]
        listed = self._session.children(folders)
        old = {
            folder: [
                name
                for name in names or []
                if (txid := txid_of(f"{folder}/{name}", owner_of(name))) <= txid_upto and txid not in keep
            ]
            for folder, names in zip(folders, listed, strict=True)
        }
        parents = [f"{folder}/{name}" for folder in (layout.batches, layout.reports) for name in old[folder]]
        below = self._session.children(parents)
        groups: list[list[Op]] = []
        for parent, names in zip(parents, below, strict=True):
            # Children first: ZooKeeper does not remove a node with children.
            removed: list[Op] = [*(Delete(f"{parent}/{name}") for name in names or []), Delete(parent)]
            groups += pack_writes([[op] for op in removed], REQUEST_LIMIT - PACK_SIZE)
        groups += ([Delete(f"{layout.acks}/{name}")] for name in old[layout.acks])
        return groups

    def _sweep(self, epoch: int) -> int:
        layout = self._layout
        removed: list[Op] = []
        for spec in HOME:
            if not spec.split or spec.kind is None:
                continue
            folder, kind = (
                layout.base if spec.one_per is OnePer.HOME else f"{layout.base}/{spec.name}",
                spec.kind,
            )
            names = [name for name in self._session.children([folder])[0] or [] if is_part(name)]
            heads = sorted({f"{folder}/{owner_of(name)}" for name in names})
            found = self._nodes.fetch_many(heads, kind)
            named = {part for stored in found if stored is not None for part in stored.parts}
            removed += [Delete(f"{folder}/{name}") for name in names if f"{folder}/{name}" not in named]
        for pack in pack_writes([[op] for op in removed], PACK_SIZE):
            self._nodes.commit(pack, epoch)
        return len(removed)


class SourceStore:
    """The state of one application and its home: that of one stream, or of several.

    Every operation is retried over lost connections and sessions until the session timeout has passed, then
    raises `ZooKeeperUnavailableError`. Every write but those that `HOME` names as unfenced takes the epoch of its run
    and raises `FencedError` once a newer run has taken over. Any read may raise `CorruptNodeError`.

    Args:
        client: started.
        layout: the paths of the state.
        timeout: the seconds for which an operation is tried; the client's session timeout if None.
        on_corrupt: called with the error of each bad node, which then counts as absent. None raises the error.

    Attributes:
        epochs: the runs of the application: who has taken over from whom.
        streams: the streams of this home, and where they start.
        batches: plans, pins and outcomes.
        shards: checkpoints, records in flight, dead letters and the lineage.
        reports: of tasks to their driver.
        external: requests of other processes about single records.
        pauses: what people have told the query not to read.
        stop: the request to end, and its answer.
        status: what the newest run sees.
        ends: how the last runs ended.
        changes: what people change, with backups and an audit trail.
        judging: the note of a driver that judges its records.
        failing: what a driver has noted of a batch of which most records have failed.
        states: the note of the batches that were applied to a topology's states.
        leftovers: what settled batches and crashes leave, removed.
    """

    def __init__(
        self,
        client: KazooClient,
        layout: Layout,
        timeout: float | None = None,
        on_corrupt: Callable[[CorruptNodeError], object] | None = None,
    ) -> None:
        self.layout = layout
        self._session = Session(client, session_timeout(client) if timeout is None else timeout)
        nodes = FencedNodes(self._session, layout, on_corrupt)
        writer = UnitWriter(nodes)
        self.epochs = Epochs(nodes)
        self.streams = StreamsNote(nodes, layout.streams, StreamsNode)
        self.batches = BatchStore(nodes)
        self.shards = ShardStore(nodes, writer)
        self.reports = ReportStore(nodes)
        self.external = ExternalStore(nodes)
        self.pauses = PausesNote(nodes, layout.paused, PausesNode)
        self.stop = StopNote(nodes, layout.stop, StopNode)
        self.status = StatusNote(nodes, layout.status, StatusNode)
        self.ends = EndsNote(nodes, layout.ends, RunEndsNode)
        self.changes = ChangeStore(nodes)
        self.judging = JudgingNote(nodes, layout.judging, JudgingNode)
        self.failing = Note(nodes, layout.failing, FailingNode)
        self.states = Note(nodes, layout.states, StatesNode)
        self.leftovers = Leftovers(nodes, writer)

    @property
    def client(self) -> KazooClient:
        """The connection."""
        return self._session.client

    @property
    def requests(self) -> int:
        """The number of operations sent to ZooKeeper so far: each read, `sync` or multi counts one."""
        return self._session.requests

    @property
    def written(self) -> int:
        """The bytes written to ZooKeeper so far, the paths and headers of the writes included."""
        return self._session.written

    def written_at(self, *paths: str) -> list[int | None]:
        """Return when nodes were last written, in epoch milliseconds by ZooKeeper's clock; None for a missing one."""
        return [stat.mtime if stat is not None else None for stat in self._session.stats(paths)]

    def open_for_looking(self, on_corrupt: Callable[[CorruptNodeError], object]) -> Self:
        """Return the same store for a reader such as the console: a bad node counts as absent and is reported."""
        return type(self)(self.client, self.layout, self._session.timeout, on_corrupt)


def find_applications(session: Session, root: str) -> list[str]:
    """Return the names of the applications below a root, sorted; other nodes are skipped."""
    names = session.children([Layout.root_path(root) or "/"])[0] or []
    found = []
    for name in names:
        with suppress(ValueError):
            found.append(unescape(name))
    found = [name for name in found if name != "zookeeper"]
    notes = read_names(session, root, found)
    return sorted(name for name, note in notes.items() if not note.renamed)


def find_layouts(session: Session, root: str, application: str) -> list[Layout]:
    """Return the homes of all streams that an application has read: the shared one first, the newest of a name last.

    Raises:
        RenamedError: it has another name now.
    """
    several = layout_of(session, root, application)
    found = []
    for name in session.children([several.parent])[0] or []:
        with suppress(ValueError):
            found.append(several.of_element(name))
    return sorted(found, key=lambda layout: (layout.stream, layout.created))


def streams_of(store: SourceStore) -> dict[str, int]:
    """Return the streams that have their home in a store, name to creation time in epoch milliseconds."""
    if not store.layout.several:
        return {store.layout.stream: store.layout.created}
    node = store.streams.get()
    return node.streams if node else {}


def look_at_shards(store: SourceStore) -> tuple[frozenset[str], tuple[Check, ...]]:
    """Return the names of the shards of a home, and the checks that these and its streams stay the same.

    A home of one stream is closed to requests when it is left.
    """
    streams = store.streams.check() if store.layout.several else None
    lineage, checks = store.shards.checked_lineage()
    return frozenset((*store.shards.checkpoints(), *lineage)), (*([streams] if streams else ()), *checks)
