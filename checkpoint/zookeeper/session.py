"""Requests to ZooKeeper that survive a lost connection: reads are repeated, writes are read back first.

On ConnectionLoss a write may or may not have happened. So before it is tried again the nodes are read back
(behind a `sync`, because another server may lag) and compared: a write is neither lost nor made twice.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    KazooException,
    NoAuthError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import ZnodeStat
from kazoo.retry import KazooRetry, RetryFailedError

from kinesis_trident.checkpoint.errors import (
    CheckpointError,
    NodeTooLargeError,
    ZooKeeperAccessError,
    ZooKeeperRefusedError,
    ZooKeeperUnavailableError,
)
from kinesis_trident.checkpoint.zookeeper.multi import (
    NODES_A_READ,
    make_above_chroot,
    read_async,
    write_async,
)
from kinesis_trident.checkpoint.zookeeper.operations import (
    REQUEST_LIMIT,
    Check,
    Delete,
    Found,
    Op,
    Refused,
    explain_refusal,
    is_race,
    levels_of,
    size_of,
)
from kinesis_trident.checkpoint.zookeeper.tls import explain_tls
from kinesis_trident.common.private_names import MissingNameError

T = TypeVar("T")

BYTES_UNDER_WAY = 4 * 2**20
"""The size of the answers that are awaited together: the server holds all of them in memory."""

_LARGE = 4 * 2**10
"""The size of a request from which on a server may be taken to refuse it for its size."""

_LOST_LARGE = 3
"""How often such a request loses its connection, while small ones are answered, until it is taken for too large."""

_LOST = (*KazooRetry.RETRY_EXCEPTIONS, *KazooRetry.EXPIRED_EXCEPTIONS)
"""The errors after which a request is made again."""

_one_by_one: WeakSet[KazooClient] = WeakSet()
"""The clients whose server does not know the request for several nodes."""


class Session:
    """A client with a deadline for each operation; safe for several threads.

    Args:
        client: started; its default ACL is what new nodes get.
        timeout: seconds an operation is tried before `ZooKeeperUnavailableError`.

    Attributes:
        requests: the number of operations sent to ZooKeeper: each read, `sync` or multi counts one.
        written: the bytes of all multis sent.
    """

    def __init__(self, client: KazooClient, timeout: float) -> None:
        self.client = client
        self.timeout = timeout
        self.requests = self.written = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def read(
        self, paths: Sequence[str], largest: int = BYTES_UNDER_WAY // NODES_A_READ, *, fresh: bool = False
    ) -> list[Found | None]:
        """Return the nodes at `paths`, None if there is none; few nodes take one round trip of latency.

        Requests are in flight for answers of at most 4 MiB at a time. `largest`: the expected maximum of a node's
        bytes; if a node has more, as those of older releases, fewer are requested from there on. `fresh`: behind a
        `sync`, sent with the first of them. Otherwise ZooKeeper guarantees only what this session has written or
        seen: a node that another session has made may still be missing.
        """
        found: list[Found | None] = []
        while len(found) < len(paths):
            count = max(1, BYTES_UNDER_WAY // largest)
            some = paths[len(found) : len(found) + count]
            answers = self._read_together(some, fresh=fresh and not found)
            largest = max(largest, *(len(answer.data) for answer in answers if answer is not None), 0)
            found += answers
        return found

    def _read_together(self, paths: Sequence[str], *, fresh: bool) -> list[Found | None]:
        if len(paths) > 1 and self.client not in _one_by_one:
            try:
                return self._retry(partial(self._read_many, paths, fresh), paths)
            except (UnimplementedError, MissingNameError):
                # A server before 3.6, which also closes the connection: it is asked once. Or a kazoo that sends only
                # requests of its own.
                _one_by_one.add(self.client)
        calls = [partial(self.client.get_async, path) for path in paths]
        return self._ask(calls, _if_there(lambda found: Found(*found)), paths, fresh=fresh)

    def _read_many(self, paths: Sequence[str], fresh: bool, left: Callable[[], float]) -> list[Found | None]:
        synced = self._sync(paths) if fresh else None
        pending = read_async(self.client, paths)
        self._count(len(pending))
        if synced is not None:
            synced.get(timeout=left())
        read: list[Found | None] = []
        for result in pending:
            for found in result.get(timeout=left()):
                if not isinstance(found, Found | NoNodeError):
                    raise found
                read.append(found if isinstance(found, Found) else None)
        return read

    def read_watched(self, path: str, watch: Callable[[Any], object]) -> Found | None:
        """Return the node at a path, None if there is none; `watch` gets kazoo's event of its next change."""

        def attempt(left: Callable[[], float]) -> Found | None:
            while True:
                self._count(1)
                try:
                    return Found(*self.client.get_async(path, watch).get(timeout=left()))
                except NoNodeError:
                    self._count(1)
                    if self.client.exists_async(path, watch).get(timeout=left()) is None:
                        return None

        return self._retry(attempt, [path])

    def stats(self, paths: Sequence[str]) -> list[ZnodeStat | None]:
        """Return the stats of the nodes at `paths`, None if there is none; one round trip of latency."""
        return self._ask([partial(self.client.exists_async, path) for path in paths], lambda r: r(), paths)

    def children(self, paths: Sequence[str], *, fresh: bool = False) -> list[list[str] | None]:
        """Return the names of the children, None if the node does not exist; one round trip of latency.

        `fresh`: as in `read`.
        """
        calls = [partial(self.client.get_children_async, path) for path in paths]
        return self._ask(calls, _if_there(list[str]), paths, fresh=fresh)

    def acls(self, paths: Sequence[str]) -> list[list[Any] | None]:
        """Return the ACLs of the nodes at `paths`, None if there is none; one round trip of latency."""
        calls = [partial(self.client.get_acls_async, path) for path in paths]
        return self._ask(calls, _if_there(lambda found: list(found[0])), paths)

    def set_acl(self, paths: Sequence[str], acl: Sequence[Any]) -> list[bool]:
        """Set an ACL on the nodes at `paths`; False where this login may not. Missing nodes are skipped."""

        def one(result: Any) -> bool:
            try:
                result()
            except NoAuthError:
                return False
            except NoNodeError:
                return True
            return True

        return self._ask([partial(self.client.set_acls_async, path, list(acl)) for path in paths], one, paths)

    def ensure(self, path: str, acl: Sequence[Any] | None = None) -> None:
        """Make a node and its missing parents, also the chroot's, with this ACL instead of the client's."""
        for level in levels_of(self.client.chroot):
            self._retry(partial(self._make_above_chroot, level), [level])

        def attempt(left: Callable[[], float]) -> None:
            self._count(1)
            self.client.ensure_path_async(path, acl=acl).get(timeout=left())

        self._retry(attempt, [path])

    def _make_above_chroot(self, level: str, left: Callable[[], float]) -> None:
        self._count(1)
        with suppress(MissingNameError):
            # A refusal is an answer, too: that it exists, or that this login may not make it, which the next one shows.
            make_above_chroot(self.client, level).get(timeout=left())

    def commit(self, ops: Sequence[Op], *, once: bool = False) -> bool:
        """Do all operations or none of them.

        `once`: they are repeated after a lost answer only in the same session, in which an ephemeral node among them
        shows that they were done, whatever became of the others.

        Returns:
            False if the answer was lost, and the nodes are as `ops` leave them: equal ones of somebody else, too.

        Raises:
            Refused: nothing was done, because of the operation it names.
            NodeTooLargeError: not sent.
            ZooKeeperAccessError: the credentials do not allow it.
            ZooKeeperUnavailableError: it may or may not have happened.
        """
        return self.begin(ops, once=once)()

    def begin(self, ops: Sequence[Op], *, once: bool = False) -> Callable[[], bool]:
        """Send what `commit` does, and return what waits for the answer, and returns and raises as `commit`.

        Several may be under way. They are done in the order in which they were sent, except after a lost connection.
        """
        self._require_own_process()
        size = sum(map(size_of, ops))
        if size > REQUEST_LIMIT:
            what = f"exceeds ZooKeeper's limit (1 MiB); {_largest(ops)}"
            msg = f"a request of {size} bytes {what}. Nothing was written. This is a defect: please report it"
            raise NodeTooLargeError(msg)
        session = self.client.client_id if once else None
        answers = [self._submit(ops, size)]
        lost = 0

        def attempt(left: Callable[[], float]) -> list[Any]:
            nonlocal lost
            if not answers:
                if self._has_happened(ops, left):
                    return []
                if once and (session is None or self.client.client_id != session):
                    # Not connected then: it may have been of either session.
                    raise KazooTimeoutError
                lost += 1
                if lost >= _LOST_LARGE and size >= _LARGE:
                    raise _too_large(ops, size)
                answers.append(self._submit(ops, size))
            results: list[Any] = answers.pop().get(timeout=left())
            return results

        def finish() -> bool:
            results = self._retry(attempt, [op.path for op in ops])
            for index, result in enumerate(results):
                if isinstance(result, KazooException) and not isinstance(
                    result, RolledBackError | RuntimeInconsistency
                ):
                    if isinstance(result, NoAuthError):
                        raise _no_access([ops[index].path], result)
                    if is_race(type(result)):
                        raise Refused(index, ops[index], type(result))
                    raise _refused(ops[index].path, result)
            return bool(results)

        return finish

    def _submit(self, ops: Sequence[Op], size: int) -> Any:
        self._count(1, size)
        return write_async(self.client, ops)

    def _has_happened(self, ops: Sequence[Op], left: Callable[[], float]) -> bool:
        """Return whether ZooKeeper's nodes are as `ops` leaves them; its answer was lost."""
        touched = [op for op in ops if not isinstance(op, Check)]
        if not touched:
            return False
        self._count(1 + len(touched))
        # Another server may answer now: sync brings it up to date with the one that took the write.
        pending = [self.client.sync_async(touched[0].path)]
        pending += [self.client.get_async(op.path) for op in touched]
        pending[0].get(timeout=left())
        for op, result in zip(touched, pending[1:], strict=True):
            try:
                data, _ = result.get(timeout=left())
            except NoNodeError:
                if not isinstance(op, Delete):
                    return False
            else:
                if isinstance(op, Delete) or data != op.data:
                    return False
        return True

    def _sync(self, paths: Sequence[str]) -> Any:
        """Have the server catch up with the leader before it does what this session sends from here on."""
        self._count(1)
        return self.client.sync_async(paths[0])

    def _ask(
        self,
        calls: Sequence[Callable[[], Any]],
        one: Callable[[Callable[[], Any]], T],
        paths: Sequence[str],
        *,
        fresh: bool = False,
    ) -> list[T]:
        def attempt(left: Callable[[], float]) -> list[T]:
            synced = self._sync(paths) if fresh else None
            self._count(len(calls))
            pending = [call() for call in calls]
            if synced is not None:
                # If its answer is lost, the reads may have gone to another server that lags: everything is asked
                # again.
                synced.get(timeout=left())
            return [one(lambda r=result: r.get(timeout=left())) for result in pending]  # type: ignore[misc]

        return self._retry(attempt, paths) if calls else []

    def _retry(self, attempt: Callable[[Callable[[], float]], T], paths: Sequence[str]) -> T:
        """Call `attempt` until it loses neither its connection nor its session, within the timeout."""
        self._require_own_process()
        deadline = time.monotonic() + self.timeout

        def left() -> float:
            return max(0.001, deadline - time.monotonic())

        try:
            try:
                return attempt(left)
            except ConnectionClosedError:
                raise
            except _LOST as error:
                return self._again(partial(attempt, left), error, left())
        except (ConnectionClosedError, KazooTimeoutError, RetryFailedError) as error:
            raise self._unavailable(paths, error) from None
        except (AuthFailedError, NoAuthError) as error:
            raise _no_access(paths, error) from None
        except (UnimplementedError, MissingNameError):
            raise
        except KazooException as error:
            raise _refused(paths[0] if paths else "/", error) from None

    def _require_own_process(self) -> None:
        if os.getpid() != self._pid:
            msg = (
                f"this store was made in process {self._pid}, and its connection does not work in the child "
                f"process {os.getpid()}. Make another one there, with checkpoint.zookeeper.client.shared_client"
            )
            raise CheckpointError(msg)

    def _again(self, attempt: Callable[[], T], first: Exception, seconds: float) -> T:
        """Call `attempt` for so many seconds; the first time it failed."""
        failed: list[Exception] = [first]

        def next_attempt() -> T:
            if failed:
                raise failed.pop()
            return attempt()

        # Made only here: most requests need none.
        retry = KazooRetry(
            max_tries=-1,
            delay=0.02,
            backoff=2,
            max_delay=0.5,
            deadline=seconds,
            ignore_expire=True,
            sleep_func=self.client.handler.sleep_func,
        )
        return retry(next_attempt)  # type: ignore[no-any-return]

    def _unavailable(self, paths: Sequence[str], error: Exception) -> ZooKeeperUnavailableError:
        hosts = ",".join(f"{host}:{port}" for host, port in self.client.hosts)
        where = paths[0] if paths else "/"
        if isinstance(error, ConnectionClosedError):
            return ZooKeeperUnavailableError(
                f"the connection to ZooKeeper at {hosts} was closed before {where} was answered"
            )
        refusal, hint = explain_tls(self.client)
        return ZooKeeperUnavailableError(
            f"ZooKeeper at {hosts} did not answer within {self.timeout:g} s for {where}{refusal}{hint}. "
            "Check that the servers run and have a quorum (a write in flight may have happened); the option "
            "zookeeper.sessionTimeout sets the waiting time. Servers whose data was wiped or restored from an older "
            "copy refuse clients that have seen newer data: in that case restart the query"
        )

    def _count(self, requests: int, written: int = 0) -> None:
        with self._lock:
            self.requests += requests
            self.written += written


def _if_there(make: Callable[[Any], T]) -> Callable[[Callable[[], Any]], T | None]:
    """Return what makes a value of the answer about a node; None if there is no such node."""

    def one(answer: Callable[[], Any]) -> T | None:
        try:
            return make(answer())
        except NoNodeError:
            return None

    return one


def _largest(ops: Sequence[Op]) -> str:
    largest = max(ops, key=size_of)
    return f"its largest part is {largest.path} with {size_of(largest)} bytes"


def _too_large(ops: Sequence[Op], size: int) -> NodeTooLargeError:
    return NodeTooLargeError(
        f"ZooKeeper closes the connection at a request of {size} bytes, while it answers small ones; {_largest(ops)}. "
        "Let each server take 1 MiB, as it does by default: -Djute.maxbuffer=1048575"
    )


def _refused(path: str, error: KazooException) -> ZooKeeperRefusedError:
    return ZooKeeperRefusedError(". ".join(explain_refusal(path, error)))


def _no_access(paths: Sequence[str], error: Exception) -> ZooKeeperAccessError:
    return ZooKeeperAccessError(
        f"ZooKeeper gives no access to {paths[0] if paths else '/'} ({type(error).__name__}). Set "
        "zookeeper.digest.password or zookeeper.sasl.* to the credentials that made the node"
    )
