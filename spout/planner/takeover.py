"""Detects that a newer run has taken over, or that a stop was requested."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kinesis_trident.checkpoint.errors import CheckpointError, FencedError, ZooKeeperUnavailableError
from kinesis_trident.checkpoint.model.nodes import OwnerNode, StopNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import disconnect

log = logging.getLogger(__name__)


@contextmanager
def prefer_fenced_error(store: SourceStore, epoch: Callable[[], int]) -> Iterator[None]:
    """Replace any error of a run's work on the state by `FencedError` if a newer run has taken over.

    The run may have read a mixture of both runs' state, which would look like lost or damaged data.

    Raises:
        FencedError: a newer run has taken over.
    """
    try:
        yield
    except (FencedError, ZooKeeperUnavailableError):
        raise
    except Exception as error:
        try:
            store.epochs.check_epoch(epoch())
        except FencedError as fenced:
            raise fenced from error
        except CheckpointError as trouble:
            log.warning("cannot check whether a newer run has taken over: %s", trouble)
        raise


def has_ended(owner: OwnerNode) -> bool:
    """Return whether a run's process is known to have ended, although ZooKeeper has not noticed yet."""
    # On Windows this call would end a process.
    if owner.host != socket.gethostname() or os.name != "posix":
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


class TakeoverWatch:
    """Watches for a newer run and for a request to stop, in kazoo's threads, during Spark's calls.

    Args:
        store: of the run; its client is the run's.
        client: a started KazooClient.
        epoch: of the run.
        wake: set to wake the waiting run.
        close: ends the run's session with ZooKeeper.
        reconnect: returns another started KazooClient, for the note of a run whose session has ended.
        on_replaced: called, in another thread, when a newer run took over after a stop was asked for.

    Attributes:
        epoch: of the run.
        replaced: a newer run was seen.
        stop_asked: the run was asked to plan nothing more.
        drain_asked: it was asked to drain before.
        drains: how many times it was.
    """

    def __init__(
        self,
        store: SourceStore,
        client: Any,
        epoch: int,
        *,
        wake: threading.Event,
        close: Callable[[], None],
        reconnect: Callable[[], Any],
        on_replaced: Callable[[], None],
    ) -> None:
        self._store = store
        self._client = client
        self._place = store.layout.base
        self.epoch = epoch
        self._wake = wake
        self._close = close
        self._reconnect = reconnect
        self._on_replaced = on_replaced
        self._busy = threading.Lock()
        self._closed_for: FencedError | None = None
        self._ends_when_replaced = False
        self.replaced = False
        self.stop_asked = False
        self.drain_asked = False
        self.drains = 0

    def watch(self) -> None:
        """Begin to watch, once the run can be closed."""
        self._store.epochs.watch_epoch(lambda: self.epoch, self._on_epoch_moved)
        self._store.stop.watch(self._on_stop_asked)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Mark a call by Spark: the run is busy, and the appearance of a newer run ends it with an error.

        Raises:
            FencedError: a newer run has taken over.
        """
        with self._busy:
            if self._closed_for is not None:
                self._report(self._note_takeover)
                raise self._closed_for
            try:
                with prefer_fenced_error(self._store, lambda: self.epoch):
                    yield
            except FencedError as error:
                self._closed_for = error
                self._report(lambda: self._store.epochs.report_fenced(self.epoch))
                self._close()
                raise
        # A newer run appeared during a call, possibly the last one: nothing else would end the session.
        if self.replaced:
            self._leave()

    def raise_if_replaced(self) -> None:
        """Raise `FencedError` if a newer run has appeared and taken over."""
        if self.replaced:
            self._store.epochs.check_epoch(self.epoch)

    def _on_epoch_moved(self) -> None:
        if not self.replaced:
            log.log(
                logging.INFO if self._ends_when_replaced else logging.WARNING,
                "a newer run has taken over %s: this one, of epoch %d, ends%s",
                self._place,
                self.epoch,
                ", as it was asked to" if self._ends_when_replaced else "",
            )
        self.replaced = True
        self._wake.set()
        self._leave()
        if self._ends_when_replaced:
            self._on_replaced()

    def _on_stop_asked(self, request: StopNode | None) -> None:
        drain_asked = request is not None and request.epoch == self.epoch and request.drain
        self.drains += drain_asked and not self.drain_asked
        self.drain_asked = drain_asked
        self.stop_asked = request is not None and request.epoch == self.epoch
        if self.stop_asked:
            self._ends_when_replaced = True
            self._wake.set()
        elif self._ends_when_replaced:
            self._wake.set()
            # In a separate thread, because this one is kazoo's.
            self._client.handler.spawn(self._on_stop_withdrawn)

    def _on_stop_withdrawn(self) -> None:
        """Forget a request that was withdrawn before the epoch moved: it does not cause a later takeover."""
        with suppress(CheckpointError):
            self._store.epochs.check_epoch(self.epoch)
            self._ends_when_replaced = self.stop_asked

    def _leave(self) -> None:
        """Close the session at once if Spark is not in a call; a later call raises the error."""
        if self._busy.acquire(blocking=False):
            try:
                if self._closed_for is None:
                    self._store.epochs.check_epoch(self.epoch)
            except FencedError as error:
                self._closed_for = error
                self._close()
            except CheckpointError as error:
                # This may be kazoo's thread, which reports to nobody. Spark's next call meets the same error.
                log.warning("cannot tell whether a newer run has taken over: %s", error)
            finally:
                self._busy.release()

    def _report(self, note: Callable[[], None]) -> None:
        try:
            note()
        except CheckpointError as trouble:
            log.warning("cannot leave a note of the takeover: %s", trouble)

    def _note_takeover(self) -> None:
        """Write the note that a run in use had to stop, through a separate connection."""
        client = self._reconnect()
        try:
            SourceStore(client, self._store.layout).epochs.report_fenced(self.epoch)
        finally:
            disconnect(client)
