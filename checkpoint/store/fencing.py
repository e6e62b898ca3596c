"""Lets only the newest run of an application write: every write carries a check of the epoch.

The epoch is the znode version of `epoch`: made with version 0 (never started), raised by each start, so the first
run has epoch 1 and any multi can check it. A run that is replaced cannot write anything any more, however late its
requests arrive. A lock could not guarantee this: Spark leaves a stopped query's reader alive, sessions included.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState
from kazoo.recipe.watchers import DataWatch
from kazoo.security import OPEN_ACL_UNSAFE

from kinesis_trident.checkpoint.errors import (
    CheckpointError,
    CorruptNodeError,
    FencedError,
    StateMissingError,
    TakeoverRefusedError,
)
from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import EpochNode, FencedNode, Node, OwnerNode
from kinesis_trident.checkpoint.store.access import close_home
from kinesis_trident.checkpoint.zookeeper.client import session_timeout
from kinesis_trident.checkpoint.zookeeper.operations import (
    EXISTS,
    MISSING,
    Check,
    Create,
    Delete,
    Op,
    Refused,
    Write,
)
from kinesis_trident.checkpoint.zookeeper.session import Session

__all__ = ["RACES", "TAKEOVERS", "TAKEOVER_WINDOW_MS", "Fencing", "too_many_races"]

log = logging.getLogger(__name__)

NodeT = TypeVar("NodeT", bound=Node)

TAKEOVERS = 3
TAKEOVER_WINDOW_MS = 5 * 60 * 1000

RACES = 20
"""Optimistic retries per operation; each lost race means that another process made progress."""


class Fencing:
    """The epoch of one application's state, and writes under it.

    Args:
        client: started.
        layout: the paths of the state.
        timeout: the seconds for which an operation is tried; the client's session timeout if None.

    Attributes:
        on_corrupt: for readers such as the console: called with the error of each bad node, which then counts as
            absent. None raises the error.
    """

    on_corrupt: Callable[[CorruptNodeError], object] | None = None

    def __init__(self, client: KazooClient, layout: Layout, timeout: float | None = None) -> None:
        self.layout = layout
        self._session = Session(client, session_timeout(client) if timeout is None else timeout)

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

    def raise_epoch(self, host: str, pid: int, now_ms: int) -> int:
        """Take over: from now on only writes under the returned epoch succeed.

        Makes the base nodes at the very first start, and the ephemeral `owner`.

        Args:
            host: of this process, for display.
            pid: of this process, for display.
            now_ms: epoch milliseconds, for display.

        Returns:
            The epoch, 1 at the very first start.

        Raises:
            TakeoverRefusedError: active runs had to stop for a newer one three times within five minutes.
            ZooKeeperAccessError: there is a login, and nodes here belong to another one.
        """
        epoch = self._take_over(host, pid, now_ms)
        # All earlier runs are fenced by now, and make no nodes any more.
        close_home(self._session, self.layout, self.layout.owner)
        return epoch

    def _take_over(self, host: str, pid: int, now_ms: int) -> int:
        run = uuid.uuid4().hex
        layout = self.layout
        for _ in range(RACES):
            found, owner = self._session.read([layout.epoch, layout.owner])
            if found is None:
                self._make_base()
                continue
            version: int = found.stat.version
            if decode(layout.epoch, found.data, EpochNode).run == run:
                # The answer was lost together with the session, but the epoch is ours.
                return version
            takeovers = self._refuse_many_takeovers()
            epoch = version + 1
            node = EpochNode(run=run, host=host, pid=pid, since=now_ms)
            mine = OwnerNode(epoch=epoch, host=host, pid=pid, since=now_ms)
            ops: list[Op] = [Write(layout.epoch, encode(node), version)]
            if owner is not None:
                ops.append(Delete(layout.owner))
            ops.append(Create(layout.owner, encode(mine), ephemeral=True))
            try:
                self._session.commit(ops)
            except Refused:
                continue
            self._keep_owner(mine, epoch)
            if takeovers:
                self._forget_old_takeovers(takeovers, epoch)
            return epoch
        msg = (
            f"could not raise {layout.epoch}: {RACES} other runs started at the same time. Stop them, or start "
            "this one again later"
        )
        raise TakeoverRefusedError(msg)

    def check_epoch(self, epoch: int) -> None:
        """Make sure, with the leader, that no newer run has taken over.

        Raises:
            FencedError: one has.
            StateMissingError: the epoch in ZooKeeper is older, or gone.
        """
        self._commit([], epoch)

    def watch_epoch(self, epoch: int, callback: Callable[[], object]) -> None:
        """Call `callback` once, in a separate thread, when a newer run takes over (or has already done so).

        The watch survives lost connections and sessions.
        """
        client = self._session.client

        def look(_data: bytes | None, stat: Any) -> bool:
            if stat is None or stat.version <= epoch:
                return True
            # In a separate thread, because kazoo's would be blocked for all other watches.
            client.handler.spawn(callback)
            return False

        DataWatch(client, self.layout.epoch, look)

    def report_fenced(self, epoch: int) -> None:
        """Leave a note that the active run of `epoch` had to stop for a newer one; does nothing if it had not."""
        found = self._session.read([self.layout.epoch])[0]
        if found is None or found.stat.version <= epoch:
            return
        try:
            by = decode(self.layout.epoch, found.data, EpochNode)
        except CorruptNodeError as error:
            # Nothing of this run depends on it any more; the newer run reports it.
            log.warning("the run that has taken over cannot be named: %s", error)
            return
        note = FencedNode(epoch=epoch, by_epoch=found.stat.version, by_host=by.host, by_pid=by.pid)
        try:
            self._session.commit([Create(self.layout.fenced_of(epoch), encode(note))])
        except Refused as refused:
            if refused.kind is not EXISTS:
                raise

    def owner(self) -> OwnerNode | None:
        """Return the process that has the epoch; None if it is not connected."""
        found = self._session.read([self.layout.owner])[0]
        return self._decoded(self.layout.owner, found.data, OwnerNode) if found else None

    def newest_run(self) -> tuple[int, EpochNode] | None:
        """Return the newest run and its epoch; None if nothing was ever started here."""
        found = self._session.read([self.layout.epoch])[0]
        if found is None or found.stat.version == 0:
            return None
        run = self._decoded(self.layout.epoch, found.data, EpochNode)
        return (found.stat.version, run) if run else None

    def _decoded(self, path: str, data: bytes, kind: type[NodeT]) -> NodeT | None:
        try:
            return decode(path, data, kind)
        except CorruptNodeError as error:
            self._corrupt(error)
            return None

    def _corrupt(self, error: CorruptNodeError) -> None:
        if self.on_corrupt is None:
            raise error
        self.on_corrupt(error)

    def _commit(self, ops: Sequence[Op], epoch: int) -> None:
        """Do `ops` in one multi if `epoch` is still the newest.

        Raises:
            FencedError, StateMissingError: it is not.
            Refused: one of `ops` was not possible.
        """
        try:
            self._session.commit([Check(self.layout.epoch, epoch), *ops])
        except Refused as refused:
            if refused.op.path != self.layout.epoch:
                raise
        else:
            return
        raise self._not_newest(epoch)

    def _not_newest(self, epoch: int) -> FencedError | StateMissingError:
        path = self.layout.epoch
        found = self._session.read([path])[0]
        if found is None or found.stat.version < epoch:
            held = "is gone" if found is None else f"is {found.stat.version}"
            return StateMissingError(
                f"{path} {held}, but this run has epoch {epoch}: ZooKeeper's data was lost or replaced by an "
                "older state. Restore it, or start the query again; onCheckpointMismatch decides what happens "
                "then"
            )
        by = decode(path, found.data, EpochNode)
        try:
            since = datetime.fromtimestamp(by.since / 1000, UTC).isoformat(timespec="seconds")
        except (ValueError, OverflowError, OSError):
            since = f"{by.since} ms"
        return FencedError(
            f"a newer run of application {self.layout.application!r} on {self.layout.what} has taken over: epoch "
            f"{found.stat.version}, host {by.host}, pid {by.pid}, since {since}; this run has epoch {epoch} and "
            f"stops ({path}). If both are meant to run (two queries, or two load() of one query), give each its "
            "own applicationName; if this is the older one, do nothing",
            epoch,
            found.stat.version,
        )

    def _make_base(self) -> None:
        layout, session = self.layout, self._session
        # Applications with different logins may share the root; the nodes below it belong to one application.
        session.ensure(layout.root_path(layout.root) or "/", acl=OPEN_ACL_UNSAFE)
        session.ensure(layout.application_path(layout.root, layout.application))
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
                self._commit([Create(self.layout.owner, encode(mine), ephemeral=True)], epoch)
            except FencedError:
                client.remove_listener(listen)
            except (CheckpointError, Refused) as error:
                # The node is only informative: a write that matters will meet the same error.
                log.info("%s was not made again: %s", self.layout.owner, error)

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
        names = self._session.children([self.layout.fenced])[0] or []
        paths = [f"{self.layout.fenced}/{name}" for name in names if name.isdigit()]
        taken = {
            path: stat.ctime
            for path, stat in zip(paths, self._session.stats(paths), strict=True)
            if stat is not None
        }
        if len(taken) >= TAKEOVERS:
            now = self._server_time()
            recent = sorted(path for path, ctime in taken.items() if ctime > now - TAKEOVER_WINDOW_MS)
            if len(recent) >= TAKEOVERS:
                newest = self.newest_run()
                by = f"epoch {newest[0]}, host {newest[1].host}, pid {newest[1].pid}" if newest else "unknown"
                msg = (
                    f"application {self.layout.application!r} on {self.layout.what} was taken "
                    f"over {len(recent)} times in the last 5 minutes while it ran ({self.layout.fenced}); "
                    "this run does not start. Two queries, or two load() of one query, with one "
                    "applicationName fence each other: give each its own applicationName, or stop the other "
                    f"one (newest run: {by}). Then start again in 5 minutes, or delete the nodes there"
                )
                raise TakeoverRefusedError(msg)
        return taken

    def _server_time(self) -> int:
        """Return the epoch milliseconds by ZooKeeper's own clock, which dates the nodes."""
        path = f"{self.layout.fenced}/clock-{uuid.uuid4().hex}"
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
        stat = self._session.stats([self.layout.epoch])[0]
        now = stat.mtime if stat is not None else 0
        old = [path for path, ctime in taken.items() if ctime <= now - TAKEOVER_WINDOW_MS]
        try:
            self._commit([Delete(path) for path in old], epoch)
        except Refused:
            # Another run is also cleaning up; the next start removes the rest.
            return


def too_many_races(path: str) -> CheckpointError:
    """Return the error for an operation that lost the race too often."""
    return CheckpointError(
        f"{path} was changed by other processes {RACES} times while it was written. Try again"
    )
