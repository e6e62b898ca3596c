"""From the options of a command to the stores of an application's streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from checkpoint.client import ZooKeeperConfig, connect
from checkpoint.session import Session
from checkpoint.store import SourceStore, find_applications, find_layouts
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
    """The stores of the application's streams, by name; of a stream that was made again, the newest.

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
        newest = {layout.stream: layout for layout in layouts}
        if target.stream is not None and target.stream not in newest:
            msg = (
                f"application {target.application!r} reads no stream {target.stream!r}; "
                f"it reads {', '.join(sorted(newest))}"
            )
            raise ConsoleError(msg)
        chosen = [target.stream] if target.stream is not None else sorted(newest)
        yield [SourceStore(client, newest[stream], target.zookeeper.session_timeout) for stream in chosen]
    finally:
        client.stop()
        client.close()


def _no_application(target: Target, known: list[str]) -> str:
    where = f"below {target.root} in ZooKeeper at {target.zookeeper.hosts}"
    if not known:
        return f"there is no application {where}: check --zookeeper and --root"
    return f"there is no application {target.application!r} {where}; there is {', '.join(known)}"
