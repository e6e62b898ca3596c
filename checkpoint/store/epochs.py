"""The runs of an application over time: each start raises the epoch and so takes over from the run before it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence

from kazoo.protocol.states import KazooState
from kazoo.security import OPEN_ACL_UNSAFE
from msgspec.structs import replace

from kinesis_trident.checkpoint.errors import (
    CheckpointError,
    CorruptNodeError,
    FencedError,
    StateMissingError,
    TakeoverRefusedError,
)
from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.nodes import EpochNode, FencedNode, OwnerNode, PastNode
from kinesis_trident.checkpoint.model.run_status import run_name
from kinesis_trident.checkpoint.store.access import close_home
from kinesis_trident.checkpoint.store.fenced_nodes import RACES, Stored, StorePart
from kinesis_trident.checkpoint.zookeeper.node_watch import NodeWatch
from kinesis_trident.checkpoint.zookeeper.operations import (
    EXISTS,
    MISSING,
    Create,
    Delete,
    Found,
    Op,
    Refused,
    Write,
)

log = logging.getLogger(__name__)

TAKEOVERS = 3
TAKEOVER_WINDOW_MS = 5 * 60 * 1000

_AT_ONCE = 1_000
"""The number of epochs by which one multi raises the node, whose version rises by one with each write."""

_FARTHEST = 1_000_000
"""The number of epochs by which a start raises the node: more have not been lost, but come from a wrong offset."""


_NOTHING = PastNode(epoch=0, txid=0, lost_upto=0)


class Epochs(StorePart):
    """The nodes `epoch` and `owner`, and the notes of runs that had to stop."""

    def raise_epoch(
        self,
        host: str,
        pid: int,
        now_ms: int,
        *,
        known: PastNode | None = None,
        before: PastNode | None = None,
        above: int = 0,
        over: int | None = None,
        tool: str = "",
    ) -> int:
        """Take over: from now on only writes under the returned epoch succeed.

        Makes the base nodes at the very first start, and the ephemeral `owner`.

        Args:
            host: of this process, for display.
            pid: of this process, for display.
            now_ms: epoch milliseconds, for display.
            known: the newest batch that Spark's checkpoint names. If its epoch is not known here, ZooKeeper's data was
                lost or is older, which is noted with the takeover.
            before: what was used in the homes from which this one takes over its streams.
            above: an epoch that may have been used.
            over: the only run that may be taken over from; None for any.
            tool: who changes the state, and how, where that is no query.

        Returns:
            The epoch, 1 at the very first start; above that of the node `past`.

        Raises:
            FencedError: another run than `over` is the newest one.
            TakeoverRefusedError: active runs had to stop for a newer one three times within five minutes.
            StateMissingError: only a part of the application's nodes is there, or the epoch cannot be raised so far.
            ZooKeeperAccessError: there is a login, and nodes here belong to another one.
        """
        run = uuid.uuid4().hex
        layout = self._layout
        mine_now = EpochNode(run=run, host=host, pid=pid, since=now_ms, tool=tool)
        found = None
        for _ in range(RACES):
            found, owner = self._session.read([layout.epoch, layout.owner])
            if found is None:
                self._make_base()
                continue
            version: int = found.stat.version
            # True if the answer was lost together with the session.
            newest = decode(layout.epoch, found.data, EpochNode)
            is_ours = newest.run == run
            last = (newest.last if newest.tool else version) if tool else 0
            data = encode(replace(mine_now, last=last))
            if over not in (None, version) and not is_ours:
                msg = f"epoch {version} of {layout.base} has taken over from epoch {over}, whose batch it settles"
                raise FencedError(msg)
            noted = self._nodes.fetch(layout.past, PastNode)
            past = _highest(noted.node if noted is not None else _NOTHING, before or _NOTHING)
            if known is not None and not is_ours and known.epoch > max(version, past.epoch):
                past = _highest(past, known)
            epoch = max(version - is_ours, past.epoch, above) + 1
            if is_ours and epoch == version:
                break
            if epoch - version > _FARTHEST:
                raise self._too_far(version, epoch)
            takeovers = {} if is_ours else self._refuse_many_takeovers()
            mine = OwnerNode(epoch=epoch, host=host, pid=pid, since=now_ms)
            writes = [Write(layout.epoch, data, at) for at in range(version, epoch)]
            removed = [Delete(layout.owner)] if owner is not None else []
            if not self._write_raised(writes, [*self._puts(past, noted), *removed], mine):
                continue
            self._keep_owner(mine, epoch)
            if takeovers:
                self._forget_old_takeovers(takeovers, epoch)
            break
        else:
            raise self._cannot_raise(is_gone=found is None)
        # All earlier runs are fenced by now, and make no nodes any more.
        close_home(self._session, layout, layout.owner)
        return epoch

    def _write_raised(self, writes: Sequence[Op], beside: Sequence[Op], mine: OwnerNode) -> bool:
        """Write each epoch up to that of `mine`, and the owner; return whether no other run came in between."""
        # The note goes with the first: a run that is killed in between must not hide that something was lost.
        first = [*writes[:_AT_ONCE], *beside, Create(self._layout.owner, encode(mine), ephemeral=True)]
        try:
            self._session.commit(first)
            for at in range(_AT_ONCE, len(writes), _AT_ONCE):
                self._session.commit(writes[at : at + _AT_ONCE])
        except Refused:
            return False
        return True

    def _cannot_raise(self, *, is_gone: bool) -> CheckpointError:
        layout = self._layout
        if is_gone:
            return StateMissingError(
                f"{layout.base} exists, but {layout.epoch} is gone: somebody has deleted a part of the application's "
                "nodes. Restore them from a backup of ZooKeeper. Or delete all of them, and start the query: "
                "onCheckpointMismatch decides what happens then"
            )
        return TakeoverRefusedError(
            f"could not raise {layout.epoch}: {RACES} other runs started at the same time. Stop them, or start "
            "this one again later"
        )

    def past(self) -> PastNode:
        """Return what was used before, and is not among the other nodes."""
        return self._nodes.get(self._layout.past, PastNode) or _NOTHING

    def note_past(self, known: PastNode, epoch: int) -> None:
        """Note, for all later runs, a batch that Spark's checkpoint names and ZooKeeper does not know.

        Raises:
            FencedError: a newer run has taken over.
        """
        self._nodes.update(
            self._layout.past,
            PastNode,
            lambda noted: noted if (past := _highest(noted or _NOTHING, known)) == noted else past,
            epoch,
        )

    def _puts(self, past: PastNode, noted: Stored[PastNode] | None) -> list[Op]:
        """Return the write of the note, if it has changed."""
        if past == (noted.node if noted is not None else _NOTHING):
            return []
        path, data = self._layout.past, encode(past)
        return [Create(path, data) if noted is None else Write(path, data, noted.version)]

    def check_epoch(self, epoch: int) -> None:
        """Make sure, with the leader, that no newer run has taken over.

        Raises:
            FencedError: one has.
            StateMissingError: the epoch in ZooKeeper is older, or gone.
        """
        self._nodes.commit([], epoch)

    def watch_epoch(self, epoch: Callable[[], int], callback: Callable[[], object]) -> None:
        """Call `callback` once, in a separate thread, when a newer run takes over (or has already done so).

        The watch survives lost connections and sessions.
        """
        client = self._session.client

        def tell(found: Found | None) -> bool:
            if found is None or found.stat.version <= epoch():
                return True
            # In a separate thread, because kazoo's would be blocked for all other watches.
            client.handler.spawn(callback)
            return False

        NodeWatch(self._session, self._layout.epoch, tell)

    def report_fenced(self, epoch: int) -> None:
        """Leave a note that the active run of `epoch` had to stop for a newer one; does nothing if it had not."""
        found = self._session.read([self._layout.epoch])[0]
        if found is None or found.stat.version <= epoch:
            return
        try:
            by = decode(self._layout.epoch, found.data, EpochNode)
        except CorruptNodeError as error:
            # Nothing of this run depends on it any more; the newer run reports it.
            log.warning("the run that has taken over cannot be named: %s", error)
            return
        note = FencedNode(epoch=epoch, by_epoch=found.stat.version, by_host=by.host, by_pid=by.pid)
        try:
            self._session.commit([Create(self._layout.fenced_of(epoch), encode(note))])
        except Refused as refused:
            if refused.kind is not EXISTS:
                raise

    def owner(self) -> OwnerNode | None:
        """Return the process that has the epoch; None if it is not connected."""
        found = self._session.read([self._layout.owner])[0]
        return self._nodes.decode(self._layout.owner, found.data, OwnerNode) if found else None

    def newest_run(self) -> tuple[int, EpochNode] | None:
        """Return the newest run and its epoch; None if nothing was ever started here."""
        found = self._session.read([self._layout.epoch])[0]
        if found is None or found.stat.version == 0:
            return None
        run = self._nodes.decode(self._layout.epoch, found.data, EpochNode)
        return (found.stat.version, run) if run else None

    def takeovers(self) -> list[tuple[int, FencedNode]]:
        """Return the noted takeovers of the last starts: when, by ZooKeeper's clock, and who; the newest last."""
        names = self._session.children([self._layout.fenced])[0] or []
        paths = [f"{self._layout.fenced}/{name}" for name in names if name.isdigit()]
        found = self._nodes.fetch_many(paths, FencedNode)
        stats = self._session.stats(paths)
        return sorted(
            (
                (int(stat.ctime), stored.node)
                for stored, stat in zip(found, stats, strict=True)
                if stored is not None and stat is not None
            ),
            key=lambda one: one[0],
        )

    def _too_far(self, version: int, epoch: int) -> StateMissingError:
        return StateMissingError(
            f"{self._layout.epoch} is {version}, but Spark's checkpoint, or a copy, names epoch {epoch - 1}: they "
            "are not of one application. Use its own checkpointLocation, or another applicationName"
        )

    def _make_base(self) -> None:
        layout, session = self._layout, self._session
        # Applications with different logins may share the root; the nodes below it belong to one application.
        session.ensure(layout.root_path(layout.root) or "/", acl=OPEN_ACL_UNSAFE)
        session.ensure(layout.parent)
        never = encode(EpochNode(run="", host="", pid=0, since=0))
        ops = [Create(layout.base), *map(Create, layout.folders), Create(layout.epoch, never)]
        try:
            session.commit(ops)
        except Refused as refused:
            if refused.kind is not EXISTS:
                raise

    def _keep_owner(self, mine: OwnerNode, epoch: int) -> None:
        """Make `owner` again when our session has expired and another one takes its place."""
        client = self._session.client
        expired = False

        def again() -> None:
            try:
                self._nodes.commit([Create(self._layout.owner, encode(mine), ephemeral=True)], epoch)
            except FencedError:
                client.remove_listener(listen)
            except CheckpointError as error:
                # The node is only informative: a write that matters will meet the same error.
                log.info("%s was not made again: %s", self._layout.owner, error)

        def listen(state: str) -> None:
            nonlocal expired
            if state == KazooState.LOST:
                expired = True
            elif state == KazooState.CONNECTED and expired:
                expired = False
                client.handler.spawn(again)

        client.add_listener(listen)

    def _refuse_many_takeovers(self) -> dict[str, int]:
        """Return the notes of fenced runs, path to ZooKeeper's time; raise an error if there are too many."""
        names = self._session.children([self._layout.fenced])[0] or []
        paths = [f"{self._layout.fenced}/{name}" for name in names if name.isdigit()]
        taken = {
            path: stat.ctime
            for path, stat in zip(paths, self._session.stats(paths), strict=True)
            if stat is not None
        }
        if len(taken) >= TAKEOVERS:
            now = self._server_time()
            recent = sorted(path for path, ctime in taken.items() if _is_recent(ctime, now))
            if len(recent) >= TAKEOVERS:
                newest = self.newest_run()
                by = run_name(newest[1].host, newest[1].pid, newest[0]) if newest else "unknown"
                msg = (
                    f"application {self._layout.application!r} on {self._layout.what} was taken "
                    f"over {len(recent)} times in the last 5 minutes while it ran ({self._layout.fenced}); "
                    "this run does not start. Two queries, or two load() of one query, with one "
                    "applicationName fence each other: give each its own applicationName, or stop the other "
                    f"one (newest run: {by}). Then start again in 5 minutes, or delete the nodes there"
                )
                raise TakeoverRefusedError(msg)
        return taken

    def _server_time(self) -> int:
        """Return the epoch milliseconds by ZooKeeper's own clock, which dates the nodes."""
        path = f"{self._layout.fenced}/clock-{uuid.uuid4().hex}"
        self._session.commit([Create(path, ephemeral=True)])
        stat = self._session.stats([path])[0]
        if stat is not None:
            try:
                self._session.commit([Delete(path)])
            except Refused as refused:
                if refused.kind is not MISSING:
                    raise
        # The session ended between the two requests, and so did the node.
        return int(stat.ctime) if stat is not None else self._server_time()

    def _forget_old_takeovers(self, taken: dict[str, int], epoch: int) -> None:
        stat = self._session.stats([self._layout.epoch])[0]
        now = stat.mtime if stat is not None else 0
        old = [path for path, ctime in taken.items() if not _is_recent(ctime, now)]
        try:
            self._nodes.commit([Delete(path) for path in old], epoch)
        except Refused:
            # Another run is also cleaning up; the next start removes the rest.
            return


def _is_recent(ctime: int, now: int) -> bool:
    """Return whether a takeover counts: one of the future was noted by a clock that was ahead, nobody knows when."""
    return abs(now - ctime) < TAKEOVER_WINDOW_MS


def _highest(one: PastNode, other: PastNode) -> PastNode:
    """Return the highest epochs of two, and the highest txid with its plan."""
    last = max(one, other, key=lambda past: (past.txid, past.plan))
    return PastNode(
        epoch=max(one.epoch, other.epoch),
        txid=last.txid,
        plan=last.plan,
        lost_upto=max(one.lost_upto, other.lost_upto),
    )
