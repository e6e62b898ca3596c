"""A run's hold on its epoch: it is lost to a newer run, and given up when a stop was asked for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kinesis_trident.checkpoint.errors import CheckpointError, FencedError, ZooKeeperUnavailableError
from kinesis_trident.checkpoint.model.nodes import StopNode
from kinesis_trident.checkpoint.store.source_store import SourceStore

__all__ = ["TakeoverWatch", "fenced_first"]

log = logging.getLogger(__name__)


@contextmanager
def fenced_first(store: SourceStore, epoch: int) -> Iterator[None]:
    """What a run does with the state in ZooKeeper: whatever fails once a newer run has taken over, that is the reason.

    Half of what the run has read may be the newer run's by then, and would be taken for lost or damaged data.

    Raises:
        FencedError: a newer run has taken over.
    """
    try:
        yield
    except (FencedError, ZooKeeperUnavailableError):
        raise
    except Exception as error:
        try:
            store.check_epoch(epoch)
        except FencedError as fenced:
            raise fenced from error
        except CheckpointError as trouble:
            log.warning("cannot see whether a newer run has taken over: %s", trouble)
        raise


class TakeoverWatch:
    """Watches for a newer run and for a request to stop, from kazoo's threads, beside the calls of Spark's.

    Args:
        store: of the run; its client is the run's.
        client: a started KazooClient.
        epoch: of the run.
        wake: set when the run must look up from waiting.
        close: ends the run's session with ZooKeeper.
        reconnect: gives another started KazooClient, for the note that a run leaves whose session is over.
        on_replaced: called, in another thread, when a newer run took over after a stop was asked for.

    Attributes:
        replaced: a newer run has shown itself.
        stop_asked: the run is asked to plan nothing more.
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
        self._epoch = epoch
        self._wake = wake
        self._close = close
        self._reconnect = reconnect
        self._on_replaced = on_replaced
        self._busy = threading.Lock()
        self._closed_for: FencedError | None = None
        self._ends_when_replaced = False
        self.replaced = False
        self.stop_asked = False

    def watch(self) -> None:
        """Begin to watch, once the run can be closed."""
        self._store.watch_epoch(self._epoch, self._on_epoch_moved)
        self._store.watch_stop(self._on_stop_asked)

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call of Spark's: the run is busy, and a newer run that shows itself ends it with an error.

        Raises:
            FencedError: a newer run has taken over.
        """
        with self._busy:
            if self._closed_for is not None:
                self._report(self._note_takeover)
                raise self._closed_for
            try:
                with fenced_first(self._store, self._epoch):
                    yield
            except FencedError as error:
                self._closed_for = error
                self._report(lambda: self._store.report_fenced(self._epoch))
                self._close()
                raise
        # A newer run that showed itself during a call, perhaps the last one: nothing else would end the session.
        if self.replaced:
            self._leave()

    def raise_if_replaced(self) -> None:
        """Raises `FencedError` where a newer run has shown itself and has taken over."""
        if self.replaced:
            self._store.check_epoch(self._epoch)

    def _on_epoch_moved(self) -> None:
        self.replaced = True
        self._wake.set()
        self._leave()
        if self._ends_when_replaced:
            self._on_replaced()

    def _on_stop_asked(self, request: StopNode | None) -> None:
        self.stop_asked = request is not None and request.epoch == self._epoch
        if self.stop_asked:
            self._ends_when_replaced = True
            self._wake.set()
        elif self._ends_when_replaced:
            # In a thread of its own, because this one is kazoo's.
            self._client.handler.spawn(self._on_stop_withdrawn)

    def _on_stop_withdrawn(self) -> None:
        """Forget a request that was withdrawn before the epoch moved: a later takeover is none of its doing."""
        with suppress(CheckpointError):
            self._store.check_epoch(self._epoch)
            self._ends_when_replaced = self.stop_asked

    def _leave(self) -> None:
        """Give the session up at once if Spark is not in a call; a later call gets the error."""
        if self._busy.acquire(blocking=False):
            try:
                if self._closed_for is None:
                    self._store.check_epoch(self._epoch)
            except FencedError as error:
                self._closed_for = error
                self._close()
            finally:
                self._busy.release()

    def _report(self, note: Callable[[], None]) -> None:
        try:
            note()
        except CheckpointError as trouble:
            log.warning("cannot leave a note of the takeover: %s", trouble)

    def _note_takeover(self) -> None:
        """Leave the note that a run still in use had to stop, through a connection of its own."""
        client = self._reconnect()
        try:
            SourceStore(client, self._store.layout).report_fenced(self._epoch)
        finally:
            client.stop()
            client.close()
