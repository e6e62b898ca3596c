"""Looks at the applications again and again, keeps what it has seen in memory, and tells those who wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from kazoo.client import KazooClient

from kinesis_trident.checkpoint.model.change_nodes import AuditNode
from kinesis_trident.checkpoint.store.source_store import SourceStore, find_applications
from kinesis_trident.checkpoint.zookeeper.client import connect
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.console.dead_letter_replay import letters_in, payload_text
from kinesis_trident.console.snapshot import Snapshot, take_snapshot
from kinesis_trident.console.target import Target, stores_of
from kinesis_trident.console.web.history import History
from kinesis_trident.tracker.errors import KinesisTridentError

__all__ = ["Look", "Part", "Watcher"]

log = logging.getLogger(__name__)

_UNWATCHED_SECONDS = 15.0
_WATCHED_SECONDS = 30.0
_FOLDER_SECONDS = 15.0
_PREVIEW = 400


@dataclass(frozen=True, slots=True)
class Part:
    """One home of an application, as it was at a look; `history` grows."""

    snapshot: Snapshot
    history: History
    changes: tuple[AuditNode, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """An application at one time, in epoch milliseconds; `problem` is the error if it could not be read since."""

    application: str
    at: int
    parts: tuple[Part, ...] = ()
    problem: str = ""


@dataclass(slots=True)
class Watcher:
    """The newest look at each application below a root. `refresh` is called by one thread at a time.

    Attributes:
        target: ZooKeeper and the root; its application and stream are of no account.
        period: seconds between two looks at an application that somebody watches; others are looked at less often.
        looks: by application.
        problem: the error, if ZooKeeper cannot be read now.
        previews: the beginnings of the payloads of dead letters, by message id, as far as their folder can be read.
    """

    target: Target
    period: float = 2.0
    clock: Callable[[], float] = time.time
    looks: dict[str, Look] = field(default_factory=dict)
    problem: str = ""
    previews: dict[str, str] = field(default_factory=dict)
    _client: KazooClient | None = None
    _histories: dict[tuple[str, str], History] = field(default_factory=dict)
    _watched: dict[str, float] = field(default_factory=dict)
    _folders_read: dict[str, float] = field(default_factory=dict)
    _sought: set[str] = field(default_factory=set)
    _waiting: set[asyncio.Event] = field(default_factory=set)
    _ended: bool = False

    def watch(self, application: str) -> None:
        """Note that somebody looks at an application now."""
        self._watched[application] = time.monotonic()

    def refresh(self) -> None:
        """Look at every application that is due; an error is noted in `problem`, and the looks before stay."""
        try:
            client = self._connected()
            session = Session(client, self.target.zookeeper.session_timeout)
            names = find_applications(session, self.target.root)
        except KinesisTridentError as error:
            self.problem = str(error)
            return
        for name in names:
            if self._is_due(name):
                self.looks[name] = self._look(client, name)
        for gone in set(self.looks) - set(names):
            del self.looks[gone]
        self.problem = ""

    def read_payloads(self) -> None:
        """Read the payloads of listed dead letters from their folders; what cannot be read has no preview."""
        from kinesis_trident.spout.errors import DeadLetterError

        listed: set[str] = set()
        for look in list(self.looks.values()):
            for part in look.parts:
                for node in part.snapshot.dead_letters.values():
                    wanted = {record.message_id for record in node.last}
                    listed |= wanted
                    if wanted - self._sought and self._may_read(node.target):
                        self._sought |= wanted
                        with contextlib.suppress(DeadLetterError):
                            self._read_folder(node.target, look.application, part.snapshot, wanted)
        for gone in set(self.previews) - listed:
            del self.previews[gone]
        self._sought &= listed

    @contextlib.contextmanager
    def stores(self, application: str) -> Iterator[list[SourceStore]]:
        """Give the stores of an application, for a change.

        Raises:
            ConsoleError, CheckpointError: as `open_stores`.
        """
        yield stores_of(self._connected(), replace(self.target, application=application))
        # The next look shows what has changed.
        self._watched[application] = time.monotonic()

    async def run(self) -> None:
        """Refresh until this is cancelled, and wake those who wait after each time."""
        reading: asyncio.Task[None] | None = None
        while True:
            try:
                await asyncio.to_thread(self.refresh)
            except Exception as error:
                # A defect must not leave a page that stands still and looks alive.
                log.exception("the applications cannot be looked at")
                self.problem = f"{type(error).__name__}: {error}"
            if reading is None or reading.done():
                # A folder may be far away and large: the page does not wait for it.
                reading = asyncio.create_task(asyncio.to_thread(self.read_payloads))
            for event in self._waiting:
                event.set()
            await asyncio.sleep(self.period)

    async def changes(self) -> AsyncIterator[None]:
        """Yield now and after each refresh, until the end."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            while not self._ended:
                yield
                await event.wait()
                event.clear()
        finally:
            self._waiting.discard(event)

    def end(self) -> None:
        """End what waits for changes."""
        self._ended = True
        for event in self._waiting:
            event.set()

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.stop()
            self._client.close()
            self._client = None

    def _connected(self) -> Any:
        if self._client is None:
            self._client = connect(self.target.zookeeper)
        return self._client

    def _is_due(self, name: str) -> bool:
        look = self.looks.get(name)
        if look is None or time.monotonic() - self._watched.get(name, float("-inf")) < _WATCHED_SECONDS:
            return True
        return self._now() - look.at >= _UNWATCHED_SECONDS * 1000

    def _look(self, client: KazooClient, name: str) -> Look:
        before = self.looks.get(name)
        parts = []
        try:
            for store in stores_of(client, replace(self.target, application=name)):
                snapshot = take_snapshot(store)
                history = self._histories.setdefault((name, store.layout.base), History())
                history.add(snapshot, self._now())
                parts.append(Part(snapshot, history, tuple(store.changes.notes())))
        except KinesisTridentError as error:
            # One that cannot be read hides no others, and shows what was there before.
            return Look(name, self._now(), before.parts if before else (), str(error))
        return Look(name, self._now(), tuple(parts))

    def _may_read(self, target: str) -> bool:
        if "/" not in target or target.startswith("kinesis://"):
            return False
        now = time.monotonic()
        if now - self._folders_read.get(target, float("-inf")) < _FOLDER_SECONDS:
            return False
        self._folders_read[target] = now
        return True

    def _read_folder(self, folder: str, application: str, snapshot: Snapshot, wanted: set[str]) -> None:
        streams = set(snapshot.streams)
        for letter in letters_in(folder, application, streams):
            if letter.message_id in wanted:
                self.previews[letter.message_id] = payload_text(letter.data)[:_PREVIEW]

    def _now(self) -> int:
        return int(self.clock() * 1000)
