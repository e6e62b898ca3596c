"""Looks at the applications again and again, keeps what it has seen in memory, and tells those who wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from kazoo.client import KazooClient

from kinesis_trident.checkpoint.model.change_nodes import AuditNode
from kinesis_trident.checkpoint.model.message_id import source_of
from kinesis_trident.checkpoint.store.source_store import SourceStore, find_applications
from kinesis_trident.checkpoint.zookeeper.kept_client import KeptClient
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.console.dead_letter_replay import payload_text
from kinesis_trident.console.scope import scope_of
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.status import Status, status_of
from kinesis_trident.console.target import Target, stores_of
from kinesis_trident.console.web.history import History

log = logging.getLogger(__name__)

_UNWATCHED_SECONDS = 15.0
_WATCHED_SECONDS = 30.0
_FOLDER_SECONDS = 15.0
_PREVIEW = 400


@dataclass(frozen=True, slots=True)
class HomeView:
    """One home of an application and its status, as they were at a look; `history` grows."""

    snapshot: Snapshot
    history: History
    status: Status
    changes: tuple[AuditNode, ...] = ()


@dataclass(frozen=True, slots=True)
class ApplicationView:
    """An application at one time, in epoch milliseconds; `problem` is the error if it could not be read since."""

    application: str
    at: int
    parts: tuple[HomeView, ...] = ()
    problem: str = ""


@dataclass(slots=True)
class Watcher:
    """The newest look at each application below a root. `refresh` is called by one thread at a time.

    Attributes:
        target: ZooKeeper and the root; its application and stream are of no account.
        period: seconds between two looks at an application that somebody watches; others are looked at less often.
        looks: by application.
        problem: the error, if ZooKeeper cannot be read now.
        previews: the beginnings of the payloads of dead letters, by message id, as far as `folders` have them.
        folders: the dead-letter folders that are read.
    """

    target: Target
    period: float = 2.0
    clock: Callable[[], float] = time.time
    looks: dict[str, ApplicationView] = field(default_factory=dict)
    problem: str = ""
    previews: dict[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    _client: KeptClient = field(init=False)
    _histories: dict[tuple[str, str], History] = field(default_factory=dict)
    _watched: dict[str, float] = field(default_factory=dict)
    _folders_read: float = float("-inf")
    _sought: set[tuple[str, str]] = field(default_factory=set)
    _waiting: set[asyncio.Event] = field(default_factory=set)
    _ended: bool = False

    def __post_init__(self) -> None:
        """Make what follows from the target."""
        self._client = KeptClient(self.target.zookeeper)

    def watch(self, application: str) -> None:
        """Note that somebody looks at an application now."""
        self._watched[application] = time.monotonic()

    def refresh(self) -> None:
        """Look at every application that is due; an error is noted in `problem`, and the looks before stay."""
        try:
            client = self._client.get()
            session = Session(client, self.target.zookeeper.session_timeout)
            names = find_applications(session, self.target.root)
        except KinesisTridentError as error:
            self.problem = str(error)
            return
        for name in names:
            if self._is_due(name):
                self.looks[name] = self._look(client, name)
        for gone in set(self.looks) - set(names):
            # One that is made again later has another history.
            del self.looks[gone]
            for key in [one for one in self._histories if one[0] == gone]:
                del self._histories[key]
        self.problem = ""

    def read_payloads(self) -> None:
        """Read the payloads of listed dead letters from the given folders; what cannot be read has no preview.

        No folder is taken from ZooKeeper: whoever writes there would choose what this server reads, and from whom.
        """
        listed: dict[tuple[str, str], tuple[str, int]] = {
            (part.snapshot.layout.identity, record.message_id): (
                source_of(record.message_id).partition("/")[0],
                record.txid,
            )
            for look in list(self.looks.values())
            for part in look.parts
            for node in part.snapshot.dead_letters.values()
            for record in node.last
        }
        now = time.monotonic()
        wanted = listed.keys() - self._sought
        if wanted and now - self._folders_read >= _FOLDER_SECONDS:
            self._folders_read = now if self.folders else self._folders_read
            some = {key: listed[key] for key in wanted}
            were_read = [self._read_folder(folder, some) for folder in self.folders]
            # A folder that cannot be read now may be there the next time.
            if all(were_read):
                self._sought = set(listed)
        known = {message_id for _, message_id in listed}
        for gone in set(self.previews) - known:
            del self.previews[gone]

    @contextlib.contextmanager
    def stores(self, application: str) -> Iterator[list[SourceStore]]:
        """Give the stores of an application, for a change.

        Raises:
            ConsoleError, CheckpointError: as `open_stores`.
        """
        yield stores_of(self._client.get(), replace(self.target, application=application))
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
        self._client.close()

    def _is_due(self, name: str) -> bool:
        look = self.looks.get(name)
        if look is None or time.monotonic() - self._watched.get(name, float("-inf")) < _WATCHED_SECONDS:
            return True
        return self._now() - look.at >= _UNWATCHED_SECONDS * 1000

    def _look(self, client: KazooClient, name: str) -> ApplicationView:
        before = self.looks.get(name)
        now = self._now()
        parts = []
        try:
            scope = scope_of(stores_of(client, replace(self.target, application=name)))
            for store, snapshot in zip(scope.stores, scope.snapshots(), strict=True):
                now = self._now()
                history = self._histories.setdefault((name, store.layout.base), History())
                history.add(snapshot, now)
                parts.append(
                    HomeView(snapshot, history, status_of(snapshot, now), tuple(store.changes.notes()))
                )
        except KinesisTridentError as error:
            # One that cannot be read hides no others, and shows what was there before.
            return ApplicationView(name, now, before.parts if before else (), str(error))
        return ApplicationView(name, now, tuple(parts))

    def _read_folder(self, folder: str, wanted: Mapping[tuple[str, str], tuple[str, int]]) -> bool:
        """Read the files that have these letters, given by application and message id with stream and txid.

        Returns:
            True if the folder could be read.
        """
        from kinesis_trident.common.folder import absolute_target
        from kinesis_trident.spout.errors import DeadLetterError
        from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters

        among: dict[tuple[str, str], set[int]] = {}
        for (application, _), (stream, txid) in wanted.items():
            among.setdefault((application, stream), set()).add(txid)
        try:
            for letter in read_dead_letters(absolute_target(folder), among):
                if (letter.application_name, letter.message_id) in wanted:
                    self.previews[letter.message_id] = payload_text(letter.data)[:_PREVIEW]
        except DeadLetterError as error:
            log.warning("the page shows no payloads: %s", error)
            return False
        return True

    def _now(self) -> int:
        return int(self.clock() * 1000)
