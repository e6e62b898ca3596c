"""The requests of other processes to a running query: acks, failures and replays of single records."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from kinesis_trident.checkpoint.errors import CorruptNodeError, StateMissingError
from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.layout import escape, unescape
from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.checkpoint.model.split_nodes import PART_SIZE
from kinesis_trident.checkpoint.store.fenced_nodes import (
    RACES,
    StorePart,
    stray_child_error,
    too_many_races,
)
from kinesis_trident.checkpoint.zookeeper.node_watch import NodeWatch
from kinesis_trident.checkpoint.zookeeper.operations import (
    EXISTS,
    MISSING,
    NOT_EMPTY,
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

_MOST_REJECTED = 100


class Requests(NamedTuple):
    """The requests of other processes.

    `asked`: by shard, the nodes by name. `unreadable`: by path, the error of a node.
    """

    asked: dict[str, dict[str, ExternalNode]]
    unreadable: dict[str, str]


class ExternalStore(StorePart):
    """The nodes below `external`, made by any process, and those below `rejected`, which nobody could read."""

    @property
    def folder(self) -> str:
        """The path of the folder of all requests."""
        return self._layout.external

    def read(self) -> Requests:
        """Return the requests of other processes, oldest first; `shards.settle` removes those it is told of.

        All requests answered before this call are included: a record that was acked in time must not time out.
        """
        requests = Requests({}, {})
        # Any process may write here, so read one at a time: an unreadable request must not hide others.
        for path, node in self.list_stored()[1]:
            folder, _, name = path.rpartition("/")
            try:
                shard = unescape(folder.rpartition("/")[2])
                # Whoever takes them in asks of which stream each is.
                self._layout.key_of(shard)
                request = decode(path, node.data, ExternalNode)
            except CorruptNodeError as error:
                requests.unreadable[path] = str(error)
            except ValueError as error:
                requests.unreadable[path] = f"{path} belongs to no shard: {error}"
            else:
                requests.asked.setdefault(shard, {})[name] = request
        return requests

    def list_stored(self) -> tuple[list[str], list[tuple[str, Found]]]:
        """Return the folders of shards, and the requests below them as they are stored, oldest first."""
        listed = self._session.children([self._layout.external], fresh=True)[0] or []
        folders = [f"{self._layout.external}/{name}" for name in listed]
        paths = [
            f"{folder}/{name}"
            for folder, names in zip(folders, self._session.children(folders), strict=True)
            for name in names or []
        ]
        found = zip(paths, self._session.read(paths), strict=True)
        there = [(path, node) for path, node in found if node is not None]
        # What was adopted in one multi has one czxid, and names in order.
        return folders, sorted(there, key=lambda one: (one[1].stat.czxid, one[0]))

    def adopt(self, old: ExternalStore, name_of: Callable[[str], str], epoch: int) -> None:
        """Move the requests of another home here, in their order, and close that home to later ones.

        Each moves in one multi, so a crash leaves it in one of the two homes. `name_of` returns the name of a shard
        here; a request whose folder is no shard's keeps that folder, so that this run puts it aside.

        Raises:
            CorruptNodeError: one has children, so it cannot be moved.
            FencedError: a newer run has taken over.
        """
        for _ in range(RACES):
            folders, stored = old.list_stored()
            moves: list[list[Op]] = []
            made: dict[str, str] = {}
            for folder in dict.fromkeys(path.rpartition("/")[0] for path, _ in stored):
                element = folder.rpartition("/")[2]
                with suppress(ValueError):
                    element = escape(name_of(unescape(element)))
                made[folder] = f"{self._layout.external}/{element}"
                self._nodes.make_folder(made[folder])
            for number, (path, node) in enumerate(stored):
                folder, _, name = path.rpartition("/")
                moves.append([Delete(path), Create(f"{made[folder]}/{number:06d}-{name}", node.data)])
            try:
                # The folder of all goes last: who asks there from now on is refused, and looks for the new home.
                closing: list[Op] = [Delete(old.folder), Write(self._layout.external, b"")]
                for pack in pack_writes([*moves, *([Delete(one)] for one in folders), closing], PACK_SIZE):
                    self._nodes.commit(pack, epoch)
            except Refused as refused:
                if refused.kind is NOT_EMPTY and refused.op.path not in (*folders, old.folder):
                    raise stray_child_error(refused.op.path) from None
                if refused.kind is MISSING and refused.op.path == old.folder:
                    # An earlier attempt has closed it.
                    return
                continue
            return
        raise too_many_races(old.folder)

    def close_other(self, old: ExternalStore, epoch: int) -> int:
        """Refuse requests in another home from now on, whose stream was created again.

        Returns:
            The number of requests that nobody has taken in there; they are of records that are gone, and are removed.

        Raises:
            FencedError: a newer run has taken over.
        """
        for _ in range(RACES):
            folders, stored = old.list_stored()
            gone = [*(path for path, _ in stored), *folders, old.folder]
            try:
                for pack in pack_writes([[Delete(path)] for path in gone], PACK_SIZE):
                    self._nodes.commit(pack, epoch)
            except Refused as refused:
                if refused.kind is MISSING and refused.op.path == old.folder:
                    return 0
                continue
            return len(stored)
        raise too_many_races(old.folder)

    def reject_many(self, paths: Sequence[str], epoch: int) -> dict[str, str]:
        """Move unreadable requests below `rejected`, many in a request; as `reject`, which sees to the odd ones.

        Returns:
            By path, its new one; the empty string if it is not kept. One that cannot be removed is left out.

        Raises:
            FencedError: a newer run has taken over.
        """
        self._nodes.make_folder(self._layout.rejected)
        room = _MOST_REJECTED - len(self._session.children([self._layout.rejected])[0] or ())
        kept = list(paths[: max(0, room)])
        found = dict(zip(kept, self._session.read(kept), strict=True))
        places = {
            path: f"{self._layout.rejected}/{path.split('/')[-2]}:{path.rpartition('/')[2]}" for path in kept
        }
        groups: list[list[Op]] = []
        for path in paths:
            node = found.get(path)
            groups.append([Delete(path), *([Create(places[path], node.data[:PART_SIZE])] if node else [])])
        done: dict[str, str] = {}
        for pack in pack_writes(groups, PACK_SIZE):
            some = [op.path for op in pack if isinstance(op, Delete)]
            try:
                self._nodes.commit(pack, epoch)
            except Refused:
                # One of them has children, is gone, or is there already: one by one shows which.
                for path in some:
                    with suppress(CorruptNodeError):
                        done[path] = self.reject(path, epoch)
            else:
                done |= {path: places.get(path, "") for path in some}
        return done

    def reject(self, path: str, epoch: int) -> str:
        """Move an unreadable request below `rejected`; at most 100 are kept.

        Returns:
            Its new path; the empty string if it is not kept.

        Raises:
            CorruptNodeError: it cannot be removed, because it has children.
            FencedError: a newer run has taken over.
        """
        folder, _, name = path.rpartition("/")
        place = f"{self._layout.rejected}/{folder.rpartition('/')[2]}:{name}"
        for _ in range(RACES):
            node = self._session.read([path])[0]
            kept = self._session.children([self._layout.rejected])[0]
            if node is None:
                return ""
            ops: list[Op] = [Delete(path)]
            room = len(kept or ()) < _MOST_REJECTED
            if room:
                ops.append(Create(place, node.data[:PART_SIZE]))
            try:
                if kept is None:
                    self._nodes.commit([Create(self._layout.rejected)], epoch)
                self._nodes.commit(ops, epoch)
            except Refused as refused:
                if refused.kind is NOT_EMPTY:
                    raise stray_child_error(path) from None
                if refused.kind is EXISTS and refused.op.path == place:
                    place += f":{node.stat.czxid}"
                continue
            return place if room else ""
        raise too_many_races(path)

    def list_rejected(self) -> list[str]:
        """Return the paths of the requests that nobody could read, sorted."""
        names = self._session.children([self._layout.rejected])[0] or []
        return [f"{self._layout.rejected}/{name}" for name in sorted(names)]

    def add(self, shard: str, node: ExternalNode, checks: Sequence[Check] = ()) -> str:
        """Leave a request for the running query; any process may, so this is not fenced.

        Args:
            shard: its name in this home.
            node: the request.
            checks: that the shard's stream still has its home here, and the shard is still known.

        Returns:
            The path of the request; it disappears once a settled batch includes it.

        Raises:
            StateMissingError: there is no such application and stream, or what is checked has changed.
        """
        folder = self._layout.external_of(shard)
        # ZooKeeper's order of creation (czxid) replaces a sequence in the name.
        path = f"{folder}/{uuid.uuid4().hex}"
        # `watch` sees the write of the folder itself: one watch for all shards.
        ops: list[Op] = [*checks, Create(path, encode(node)), Write(self._layout.external, b"")]
        try:
            try:
                self._commit_once(ops)
            except Refused as refused:
                if refused.kind is not MISSING or refused.op in checks:
                    raise
                self._nodes.make_folder(folder)
                self._commit_once(ops)
        except Refused as refused:
            if refused.op not in checks:
                raise
            msg = f"{refused.op.path} has changed since it was looked at. Repeat the request"
            raise StateMissingError(msg) from None
        return path

    def _commit_once(self, ops: Sequence[Op]) -> None:
        """Do these as `Session.commit`: once, also where a run takes a request in before a lost answer is noticed.

        What shows that they were done stays as long as this session can repeat them, also where the streams are put
        together meanwhile: it is in no folder that an adoption closes.
        """
        sent = Create(f"{self._layout.sent}-{uuid.uuid4().hex}", ephemeral=True)
        try:
            self._session.commit([sent, *ops], once=True)
        except Refused as refused:
            if refused.op != sent or refused.kind is not EXISTS:
                raise
        # Nobody waits for that: otherwise it goes with the session.
        self._session.begin([Delete(sent.path)])

    def withdraw(self, shard: str, name: str, left: ExternalNode | None) -> bool:
        """Take back a request, or replace it by what is `left` of it, unless a run has taken it in.

        Returns:
            False if a run has.
        """
        folder = self._layout.external_of(shard)
        ops: list[Op] = [Delete(f"{folder}/{name}"), Write(self._layout.external, b"")]
        if left is not None:
            ops.append(Create(f"{folder}/{uuid.uuid4().hex}", encode(left)))
        try:
            self._commit_once(ops)
        except Refused as refused:
            if refused.kind is not MISSING:
                raise
            return False
        return True

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` now and at each new request; it must be quick."""
        NodeWatch(self._session, self._layout.external, lambda _: callback())
