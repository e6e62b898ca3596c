"""The application of a command: opens the stores of its streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated

import typer
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.store.application_names import layout_of
from kinesis_trident.checkpoint.store.failed_starts import failed_starts
from kinesis_trident.checkpoint.store.source_store import (
    SourceStore,
    find_applications,
    find_layouts,
    streams_of,
)
from kinesis_trident.checkpoint.zookeeper.client import Sasl, ZooKeeperConfig, config_of, connected
from kinesis_trident.checkpoint.zookeeper.command_line import command_line
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.checkpoint.zookeeper.tls import Tls
from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.common.times import timestamp
from kinesis_trident.common.visible_text import make_visible
from kinesis_trident.console.text import some_of


@dataclass(frozen=True, slots=True)
class Target:
    """The application of a command, and `stream` as it was typed, which `scope_of` understands; None for all."""

    zookeeper: ZooKeeperConfig
    root: str
    application: str
    stream: str | None = None

    def command(self, command: str) -> str:
        """Return the line that runs a command on the application."""
        return command_line(self.zookeeper, self.root, command, self.application)


@contextmanager
def open_stores(target: Target, homes: Iterable[str] = ()) -> Iterator[list[SourceStore]]:
    """Open the stores of all of the application's streams: the shared one first, then by name, the newest of a name.

    `homes`: paths of homes that may be made.

    Raises:
        ConsoleError: there is no such application; it names those there are.
        CheckpointError: ZooKeeper cannot be reached, or refuses the login.
    """
    with connected(target.zookeeper) as client:
        yield stores_of(client, target, homes)


def stores_of(client: KazooClient, target: Target, homes: Iterable[str] = ()) -> list[SourceStore]:
    """Return the same stores over a connection that the caller keeps.

    Raises:
        ConsoleError, CheckpointError: as `open_stores`.
    """
    session = Session(client, target.zookeeper.session_timeout)
    layouts = find_layouts(session, target.root, target.application)
    several = layout_of(session, target.root, target.application)
    for parent, _, name in (home.rpartition("/") for home in homes):
        if parent == several.parent:
            with suppress(ValueError):
                layouts.append(several.of_element(name))
    layouts.sort(key=lambda layout: (layout.stream, layout.created))
    if not layouts:
        starts = failed_starts(session, several)
        if starts is not None:
            msg = (
                f"application {target.application!r} has never started: {starts.count} of its starts failed, the last "
                f"with {starts.why}. Do what that says, and start it"
            )
            raise ConsoleError(make_visible(msg))
        raise ConsoleError(_no_application(target, find_applications(session, target.root)))
    stores = [SourceStore(client, layout, target.zookeeper.session_timeout) for layout in layouts]
    together = {stream for store in stores if store.layout.several for stream in streams_of(store)}
    newest = {store.layout.stream: store for store in stores if store.layout.stream not in together}
    return [store for _, store in sorted(newest.items())]


def _no_application(target: Target, known: list[str]) -> str:
    where = f"below {target.root} in ZooKeeper at {target.zookeeper.hosts}"
    if not known:
        return f"there is no application {where}. Check --zookeeper and --root"
    return (
        f"there is no application {target.application!r} {where}; the applications are {some_of(known)}. Choose one, "
        "or check --zookeeper and --root"
    )


def command_for(store: SourceStore, command: str, *words: str, options: Iterable[str] = ()) -> str:
    """Return the line that runs a command on the application of a store; `words` and `options` as of `command_line`."""
    where = store.layout
    config = config_of(store.client)
    return command_line(config, where.root, command, where.application, *words, options=options)


def checkpoints_command(store: SourceStore, *action: str, options: Iterable[str] = ()) -> str:
    """Return the line that runs an action on the checkpoints of a store: of all in that home, and of no other."""
    streams = ",".join(sorted(streams_of(store)))
    scope = ["--stream", streams] if streams else []
    return command_for(store, "checkpoints", *action, options=[*options, *scope])


Application = Annotated[str, typer.Argument(metavar="APP", help="The option applicationName of the query.")]


def time_of_option(text: str) -> int:
    """Parse the time of an option; return it in epoch milliseconds."""
    try:
        return timestamp(text)
    except ValueError as error:
        msg = f"{text!r} is not a time. Expected: {error}"
        raise typer.BadParameter(msg) from None


HOSTS = typer.Option(
    "--zookeeper",
    envvar="KINESIS_TRIDENT_ZOOKEEPER",
    metavar="HOSTS",
    help="The option zookeeper.hosts of the query.",
)
ZooKeeper = Annotated[str, HOSTS]
Root = Annotated[str, typer.Option("--root", help="The option zookeeper.root of the query.")]
Stream = Annotated[
    str | None,
    typer.Option("--stream", help="One of the streams, or several with commas between; all by default."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Watch = Annotated[
    float,
    typer.Option("--watch", min=0, metavar="SECONDS", help="Repeat after this many seconds, until Ctrl-C."),
]
Shard = Annotated[
    str | None,
    typer.Option("--shard", help="One of the shards, as shardId or stream/shardId; all by default."),
]
MessageIds = Annotated[
    list[str] | None, typer.Argument(metavar="MESSAGE_ID", help="Single records, or runs of neighbours.")
]
Limit = Annotated[int, typer.Option("--limit", min=0, help="At most so many rows; 0 for all.")]
ViewLimit = Annotated[
    int | None,
    typer.Option("--limit", min=0, help="At most so many rows; 0 for all. Without it, a table has 1,000."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Change it without asking.")]
Force = Annotated[bool, typer.Option("--force", help="Stop a run that is connected, by taking over from it.")]


@dataclass(frozen=True, slots=True)
class Login:
    """The login to ZooKeeper; given before the command, because few need it."""

    timeout: float
    tls: Tls | None
    sasl: Sasl | None
    digest: str | None


def target_of(login: Login, zookeeper: str, root: str, application: str, stream: str | None) -> Target:
    """Make the target from the options of a command."""
    config = ZooKeeperConfig(
        zookeeper, session_timeout=login.timeout, tls=login.tls, sasl=login.sasl, digest=login.digest
    )
    return Target(config, root, application, stream)


class ConsoleError(KinesisTridentError):
    """The command cannot be carried out as given."""
