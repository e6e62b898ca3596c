"""Reads and writes nodes of any size, for all parts of the store. Only the newest run of an application writes.

Every write carries a check of the epoch. The epoch is the znode version of `epoch`: made with version 0 (never
started), raised by each start, so the first run has epoch 1 and any multi can check it. A run that is replaced cannot
write anything any more, however late its requests arrive. A lock could not guarantee this: Spark leaves a stopped
query's reader alive, sessions included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from kinesis_trident.checkpoint.errors import (
    CheckpointError,
    CorruptNodeError,
    FencedError,
    StateMissingError,
)
from kinesis_trident.checkpoint.model.codec import corrupt, decode, encode
from kinesis_trident.checkpoint.model.layout import Layout, unescape
from kinesis_trident.checkpoint.model.nodes import (
    BatchNode,
    DeadLettersNode,
    EpochNode,
    InflightNode,
    Node,
    Pin,
    ShardsNode,
)
from kinesis_trident.checkpoint.model.run_status import run_name
from kinesis_trident.checkpoint.model.split_nodes import (
    WHOLE,
    head_of,
    is_part,
    join,
    part_paths,
    split,
)
from kinesis_trident.checkpoint.zookeeper.operations import (
    EXISTS,
    MISSING,
    PACK_SIZE,
    Check,
    Create,
    Delete,
    Found,
    Op,
    Refused,
    Write,
    pack_writes,
)
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.common.times import iso_time

NodeT = TypeVar("NodeT", bound=Node)

RACES = 20
"""Optimistic retries per operation; each lost race means that another process made progress."""

_TORN_READS = 5
_NAMING_SHARDS = frozenset({BatchNode, ShardsNode})
_TXID = re.compile(r"(0|[1-9][0-9]{0,17})\Z")


class Stored(msgspec.Struct, Generic[NodeT], frozen=True, gc=False):
    """A node as stored in ZooKeeper, with its version, its creation (czxid), the paths of its parts, and its mtime."""

    node: NodeT
    version: int
    created: int = 0
    parts: tuple[str, ...] = ()
    changed: int = 0


class NodeUpdate(msgspec.Struct, Generic[NodeT], frozen=True):
    """A node after a change and before it; `is_ours`: this call has surely written it, and no equal one stood there."""

    node: NodeT | None
    before: Stored[NodeT] | None
    is_ours: bool


class FencedNodes:
    """Typed nodes, split if they are too large for ZooKeeper, and writes under the epoch of a run.

    `on_corrupt` is called with the error of each bad node, which then counts as absent. None raises the error.
    """

    def __init__(
        self,
        session: Session,
        layout: Layout,
        on_corrupt: Callable[[CorruptNodeError], object] | None = None,
    ) -> None:
        self.session = session
        self.layout = layout
        self._on_corrupt = on_corrupt

    def commit(self, ops: Sequence[Op], epoch: int) -> bool:
        """Do `ops` in one multi if `epoch` is still the newest; without any it checks this, with the leader.

        Returns:
            As `Session.commit`.

        Raises:
            FencedError, StateMissingError: it is not.
            Refused: one of `ops` was not possible.
        """
        return self.begin(ops, epoch)()

    def begin(self, ops: Sequence[Op], epoch: int) -> Callable[[], bool]:
        """Send what `commit` does; return what waits for the answer, as `Session.begin` does."""
        finish = self.session.begin([Check(self.layout.epoch, epoch), *ops])

        def finish_fenced() -> bool:
            try:
                return finish()
            except Refused as refused:
                if refused.op.path != self.layout.epoch:
                    raise
            raise self._not_newest(epoch)

        return finish_fenced

    def _not_newest(self, epoch: int) -> FencedError | StateMissingError:
        path = self.layout.epoch
        found = self.session.read([path])[0]
        if found is None or found.stat.version < epoch:
            held = "is gone" if found is None else f"is {found.stat.version}"
            return StateMissingError(
                f"{path} {held}, but this run has epoch {epoch}: ZooKeeper's data was lost or replaced by an "
                "older state. Restore it, or start the query again; onCheckpointMismatch decides what happens "
                "then"
            )
        by = decode(path, found.data, EpochNode)
        at = f"{run_name(by.host, by.pid, found.stat.version)}, since {iso_time(by.since)}"
        if by.tool:
            return FencedError(
                f"kinesis-trident has changed the state of application {self.layout.application!r} on "
                f"{self.layout.what} and taken over from this run, of epoch {epoch}: {by.tool!r} ({at}; {path}). Start "
                "the query again: it goes on from what was changed",
                epoch,
                found.stat.version,
            )
        return FencedError(
            f"a newer run of application {self.layout.application!r} on {self.layout.what} has taken over: {at}; "
            f"this run has epoch {epoch} and stops ({path}). If both are meant to run (two queries, or two load() of "
            "one query), give each its own applicationName; if this is the older one, do nothing",
            epoch,
            found.stat.version,
        )

    def decode(self, path: str, data: bytes, kind: type[NodeT]) -> NodeT | None:
        """Return a node from its data; None if it is bad and such nodes count as absent."""
        try:
            return decode(path, data, kind)
        except CorruptNodeError as error:
            self.report_corrupt(error)
            return None

    def report_corrupt(self, error: CorruptNodeError) -> None:
        """Report a bad node, or raise its error if nobody wants to know."""
        if self._on_corrupt is None:
            raise error
        self._on_corrupt(error)

    def fetch(self, path: str, kind: type[NodeT], *, fresh: bool = False) -> Stored[NodeT] | None:
        """Return the node at a path; None if there is none. As `fetch_many`."""
        return self.fetch_many([path], kind, fresh=fresh)[0]

    def get(self, path: str, kind: type[NodeT], *, fresh: bool = False) -> NodeT | None:
        """Return the content of the node at a path; None if there is none. As `fetch_many`."""
        found = self.fetch(path, kind, fresh=fresh)
        return found.node if found is not None else None

    def fetch_many(
        self, paths: Sequence[str], kind: type[NodeT], *, fresh: bool = False
    ) -> list[Stored[NodeT] | None]:
        """Return the nodes at `paths`, None if there is none; one round trip, a second one for those in parts.

        `fresh`: as in `Session.read`, for nodes that decide and that another process has written.
        """
        found = self.fetch_each(dict.fromkeys(paths, kind), fresh=fresh)
        return [found[path] for path in paths]

    def fetch_each(
        self, kinds: Mapping[str, type[Any]], *, fresh: bool = False
    ) -> dict[str, Stored[Any] | None]:
        """Return the nodes at paths, each of its kind, as `fetch_many`."""
        whole: dict[str, Stored[Any] | None] = {}
        asked = list(kinds)
        torn = ""
        for _ in range(_TORN_READS):
            heads = dict(zip(asked, self.session.read(asked, fresh=fresh), strict=True))
            headed = {
                path: head
                for path, found in heads.items()
                if found is not None and (head := head_of(found.data)) is not None
            }
            parted = {path: part_paths(path, head) for path, head in headed.items()}
            parts = [part for names in parted.values() for part in names]
            largest = max((head.largest for head in headed.values()), default=0)
            held = dict(zip(parts, self.session.read(parts, largest), strict=True)) if parts else {}
            asked = []
            for path, found in heads.items():
                names = parted.get(path, ())
                missing = [name for name in names if held[name] is None] if names else ()
                if missing:
                    # Replaced between the two reads, or damaged: reading again shows which.
                    asked.append(path)
                    torn = missing[0]
                else:
                    whole[path] = self._make_stored(path, found, kinds[path], names, held)
            if not asked:
                return whole
        msg = (
            f"{asked[0]} is stored in parts, and {torn} is missing. Nothing was changed. Restore it from a "
            "backup, or from a copy that `checkpoints APP backups` lists"
        )
        self.report_corrupt(CorruptNodeError(msg))
        return whole | dict.fromkeys(asked)

    def _make_stored(
        self,
        path: str,
        found: Found | None,
        kind: type[NodeT],
        names: Sequence[str],
        held: dict[str, Found | None],
    ) -> Stored[NodeT] | None:
        if found is None:
            return None
        data = found.data
        head = head_of(data) if names else None
        try:
            if head is not None:
                data = join(path, head, [part.data for name in names if (part := held[name]) is not None])
            node = decode(path, data, kind)
            if kind in _NAMING_SHARDS:
                self._check_names(path, node)
        except CorruptNodeError as error:
            self.report_corrupt(error)
            return None
        return Stored(node, found.stat.version, found.stat.czxid, tuple(names), found.stat.mtime)

    def _check_names(self, path: str, node: Node) -> None:
        """Check that the shards a node names are shards of this home."""
        names: Iterable[str] = ()
        if isinstance(node, ShardsNode):
            # Not their parents: a parent that is no longer listed keeps its name from when the stream was read alone.
            names = node.shards
        elif isinstance(node, BatchNode):
            names = node.plan.positions
        for name in names:
            if not self._names_shard(name):
                raise corrupt(path, f"names {name!r}, which is not a shard of this home")

    def _names_shard(self, name: str) -> bool:
        try:
            self.layout.key_of(name)
        except ValueError:
            return False
        return True

    def children(self, folder: str, *, fresh: bool = False) -> dict[str, str]:
        """Return the nodes below a folder, without parts: unescaped name to path."""
        names = self.session.children([folder], fresh=fresh)[0] or []
        return self._name_parts(folder, [name for name in sorted(names) if not is_part(name)])

    def _name_parts(self, folder: str, elements: Iterable[str]) -> dict[str, str]:
        found = {}
        for element in elements:
            path = f"{folder}/{element}"
            try:
                found[unescape(element)] = path
            except ValueError:
                self.report_corrupt(stray_error(path))
        return found

    def _shards_below(self, folder: str) -> dict[str, str]:
        """Return the nodes below a folder with one node a shard: shard to path."""
        found = {}
        for shard, path in self.children(folder).items():
            if self._names_shard(shard):
                found[shard] = path
            else:
                self.report_corrupt(stray_error(path))
        return found

    def make_folder(self, folder: str) -> None:
        """Make a folder unless it is there, for any process.

        Raises:
            StateMissingError: this home is not there.
        """
        try:
            self.session.commit([Create(folder)])
        except Refused as refused:
            if refused.kind is MISSING:
                raise self.closed_error() from None
            if refused.kind is not EXISTS:
                raise

    def closed_error(self) -> StateMissingError:
        """Return the error for a home that takes nothing of other processes: it was left, or is not there."""
        there = self.session.stats([self.layout.base])[0] is not None
        return StateMissingError(
            f"{self.layout.base} takes nothing any more: {self.layout.what} of application "
            f"{self.layout.application!r} is read together with others by now, or was created again. Repeat "
            "the request for the streams as they are read now"
            if there
            else f"{self.layout.base} does not exist: no query of application {self.layout.application!r} "
            f"has read {self.layout.what} yet. Check the names, zookeeper.hosts and zookeeper.root"
        )

    def fetch_folder(self, folder: str, kind: type[NodeT]) -> dict[str, Stored[NodeT]]:
        """Return all nodes below a folder with one node a shard, by shard; two round trips."""
        paths = self._shards_below(folder)
        found = self.fetch_many(list(paths.values()), kind)
        return {name: stored for name, stored in zip(paths, found, strict=True) if stored is not None}

    def prepare(self, path: str, node: Node, epoch: int, kept: Collection[str] = ()) -> bytes:
        """Write the parts of a node, if it needs any, and return the data for `path`.

        `kept`: the paths of the parts that what is stored there now has: those are not written again. So the data must
        replace just this.
        """
        # There is one of these for each shard, and they are read together.
        whole = WHOLE if isinstance(node, InflightNode | Pin | DeadLettersNode) else None
        data, parts = split(path, encode(node, in_pieces=isinstance(node, InflightNode)), whole=whole)
        new: list[list[Op]] = [[Create(part, content)] for part, content in parts.items() if part not in kept]
        for pack in pack_writes(new, PACK_SIZE):
            self._create_parts(pack, epoch)
        return data

    def _create_parts(self, parts: Sequence[Op], epoch: int) -> None:
        try:
            self.commit(parts, epoch)
        except Refused as refused:
            # The name is derived from the content: an earlier attempt has written it, or what is there is damaged.
            if refused.kind is not EXISTS:
                raise
            if len(parts) == 1:
                self.commit([Write(op.path, op.data) for op in parts if isinstance(op, Create)], epoch)
                return
            for part in parts:
                self._create_parts([part], epoch)

    def create(self, path: str, node: Node, epoch: int, *, where: str | None = None) -> bool:
        """Make a node if `where` exists.

        Returns:
            False if the answer was lost and an equal node is there, made by this call or by another process.

        Raises:
            Refused: it exists, or a parent or `where` does not.
        """
        guard: list[Op] = [Check(where)] if where is not None else []
        return self.commit([*guard, Create(path, self.prepare(path, node, epoch))], epoch)

    def update(
        self,
        path: str,
        kind: type[NodeT],
        change: Callable[[NodeT | None], NodeT | None],
        epoch: int,
        *,
        where: str | None = None,
        is_new: bool = False,
    ) -> NodeUpdate[NodeT]:
        """Store what `change` makes of a node, or of None where there is none, as often as others are quicker.

        Args:
            path: of the node.
            kind: of the node.
            change: may return the very node that it was given: then nothing is sent.
            epoch: of this run.
            where: the path of a node that must exist for this one to be made.
            is_new: the node is hardly there: it is made before it is looked for.

        Raises:
            CheckpointError: other processes were quicker again and again.
            Refused: `where` or a parent does not exist.
        """
        last = None
        for attempt in range(RACES):
            found = None if is_new and not attempt else self.fetch(path, kind)
            before = found.node if found is not None else None
            node = change(before)
            try:
                if node is None or node is before:
                    return NodeUpdate(node, found, is_ours=False)
                if found is None:
                    return NodeUpdate(node, found, self.create(path, node, epoch, where=where))
                self.replace(path, node, found, epoch)
            except Refused as refused:
                if found is None and refused.kind is MISSING:
                    raise
                last = refused
                continue
            return NodeUpdate(node, found, is_ours=True)
        raise too_many_races(path, last)

    def replace(self, path: str, node: Node, found: Stored[NodeT], epoch: int) -> None:
        """Replace a node if it is still as found, and remove the parts that it leaves behind.

        Raises:
            Refused: it has changed.
        """
        data = self.prepare(path, node, epoch, found.parts)
        self.commit([Write(path, data, found.version), *delete_left_parts(path, data, found.parts)], epoch)


class StorePart:
    """Some of the nodes of a home."""

    def __init__(self, nodes: FencedNodes) -> None:
        self._nodes = nodes
        self._session = nodes.session
        self._layout = nodes.layout


def stray_error(path: str) -> CorruptNodeError:
    """Return the error for a node at a path that none of our nodes has."""
    return CorruptNodeError(
        f"{path} is not a node of kinesis-trident: another program has made it. Nothing was changed. Check its "
        "content, and delete it"
    )


def stray_child_error(path: str) -> CorruptNodeError:
    """Return the error for children of a node that must have none."""
    return stray_error(f"a child of {path}")


def txid_of(path: str, name: str) -> int:
    """Return the txid in a node's name.

    Raises:
        CorruptNodeError: the name is not a txid.
    """
    if _TXID.match(name) is None:
        raise stray_error(path)
    return int(name)


def delete_left_parts(path: str, data: bytes, parts: Sequence[str]) -> list[Delete]:
    """Return the removal of a node's former `parts` that its new `data` does not name."""
    if not parts:
        return []
    head = head_of(data)
    kept = set(part_paths(path, head)) if head is not None else set()
    return [Delete(part) for part in dict.fromkeys(parts) if part not in kept]


def too_many_races(path: str, last: Refused | None = None) -> CheckpointError:
    """Return the error for an operation that lost the race too often; `last`: why, as ZooKeeper said at last."""
    if last is not None and last.kind is MISSING:
        # Nobody is quicker: somebody has deleted a node that must be there.
        return last
    return CheckpointError(
        f"{path} was changed by other processes {RACES} times while it was written. Try again"
    )
