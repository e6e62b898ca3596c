"""From the options of a command to the stores of an application's streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from checkpoint.client import ZooKeeperConfig, connect
from checkpoint.session import Session
from checkpoint.store import SourceStore, find_applications, find_layouts, streams_of
from console.errors import ConsoleError

__all__ = ["Target", "open_stores"]


@dataclass(frozen=True, slots=True)
class Target:
    """Whose state a command is about; `stream` None stands for every stream of the application."""

    zookeeper: ZooKeeperConfig
    root: str
    application: str
    stream: str | None = None


@contextmanager
def open_stores(target: Target) -> Iterator[list[SourceStore]]:
    """The stores of the application's streams: what is read together first, then by name, the newest of a name.

    Raises:
        ConsoleError: there is no such application or stream; it names those there are.
        checkpoint.errors.CheckpointError: ZooKeeper cannot be reached, or refuses the login.
    """
    client = connect(target.zookeeper)
    try:
        session = Session(client, target.zookeeper.session_timeout)
        layouts = find_layouts(session, target.root, target.application)
        if not layouts:
            raise ConsoleError(_no_application(target, find_applications(session, target.root)))
        stores = [SourceStore(client, layout, target.zookeeper.session_timeout) for layout in layouts]
        together = {stream for store in stores if store.layout.several for stream in streams_of(store)}
        newest = {store.layout.stream: store for store in stores if store.layout.stream not in together}
        known = {stream for store in newest.values() for stream in streams_of(store)}
        if target.stream is not None and target.stream not in known:
            msg = (
                f"application {target.application!r} reads no stream {target.stream!r}; "
                f"it reads {', '.join(sorted(known))}"
            )
            raise ConsoleError(msg)
        yield [
            store
            for _, store in sorted(newest.items())
            if target.stream is None or target.stream in streams_of(store)
        ]
    finally:
        client.stop()
        client.close()


def _no_application(target: Target, known: list[str]) -> str:
    where = f"below {target.root} in ZooKeeper at {target.zookeeper.hosts}"
    if not known:
        return f"there is no application {where}: check --zookeeper and --root"
    return f"there is no application {target.application!r} {where}; there is {', '.join(known)}"
