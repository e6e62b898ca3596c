"""`kinesis-trident`: inspects an application in ZooKeeper, replays its dead letters, runs local servers."""

from __future__ import annotations

import enum
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import CheckpointError
from kinesis_trident.checkpoint.store.source_store import SourceStore, streams_of
from kinesis_trident.checkpoint.zookeeper.client import Sasl, Tls
from kinesis_trident.console.dead_letter_replay import MessageId, ask_for_replay, folder_ids, listed_ids
from kinesis_trident.console.render import show
from kinesis_trident.console.storm_migration import Storm, export_checkpoints, import_checkpoints
from kinesis_trident.console.target import (
    Application,
    AsJson,
    ConsoleError,
    Login,
    Prefix,
    Root,
    Stream,
    Style,
    Topology,
    Watch,
    ZooKeeper,
    open_stores,
    target_of,
)
from kinesis_trident.console.views import VIEWS
from kinesis_trident.spout.errors import SpoutError

__all__ = ["app", "main", "serve"]

DEFAULT_ROOT = "/kinesis-trident"

app = typer.Typer(
    help=__doc__.replace("`", ""),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Action(enum.StrEnum):
    """The action on dead letters."""

    LIST = "list"
    REPLAY = "replay"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; an error is printed as one message, with exit code 1."""
    try:
        app(arguments)
    except (CheckpointError, ConsoleError, SpoutError) as error:
        print(f"kinesis-trident: {error}", file=sys.stderr)
        sys.exit(1)


@app.callback()
def login(
    *,
    context: typer.Context,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for ZooKeeper.")] = 10.0,
    digest: Annotated[
        str | None,
        typer.Option(
            envvar="KINESIS_TRIDENT_ZOOKEEPER_DIGEST", metavar="USER:PASSWORD", help="Log in with a digest."
        ),
    ] = None,
    sasl: Annotated[
        str | None,
        typer.Option(
            envvar="KINESIS_TRIDENT_ZOOKEEPER_SASL",
            metavar="USER:PASSWORD",
            help="Log in with SASL.",
        ),
    ] = None,
    sasl_mechanism: Annotated[str, typer.Option(help="The username of the SASL login.")] = "DIGEST-MD5",
    tls_ca: Annotated[
        Path | None, typer.Option(help="PEM file of the only authorities to trust; switches TLS on.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the client's certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its key.")] = None,
    tls_verify: Annotated[
        bool, typer.Option("--tls-verify/--no-tls-verify", help="Verify the server's certificate.")
    ] = True,
    tls_check_hostname: Annotated[
        bool,
        typer.Option(
            "--tls-check-hostname/--no-tls-check-hostname",
            help="The certificate must name the host in HOSTS.",
        ),
    ] = True,
) -> None:
    """Inspects an application in ZooKeeper, replays its dead letters, runs local servers."""
    ca, cert, key = (str(path) if path else None for path in (tls_ca, tls_cert, tls_key))
    with_tls = bool(ca or cert or key) or not (tls_verify and tls_check_hostname)
    user, _, password = (sasl or "").partition(":")
    context.obj = Login(
        timeout,
        Tls(ca, cert, key, tls_verify, tls_check_hostname) if with_tls else None,
        Sasl(user, password, sasl_mechanism) if sasl else None,
        digest,
    )


_SHORT = {
    "checkpoints": "Show how far each shard is done and read.",
    "inflight": "Show records that are read and not done.",
    "retries": "Show failed records that come back, next due first.",
    "shards": "Show the parents and children of shards.",
}
"""The help of each command in the list: one short line."""


def _add_view(name: str) -> None:
    """Add a command that shows a view; its help is the view's docstring."""

    def command(
        *,
        context: typer.Context,
        application: Application,
        zookeeper: ZooKeeper,
        root: Root = DEFAULT_ROOT,
        stream: Stream = None,
        as_json: AsJson = False,
        watch: Watch = 0,
    ) -> None:
        show(VIEWS[name], target_of(context.obj, zookeeper, root, application, stream), as_json, watch)

    app.command(name, help=VIEWS[name].__doc__, short_help=_SHORT[name])(command)


for _name in _SHORT:
    _add_view(_name)


@app.command("dead-letters", short_help="List or replay dead letters.")
def dead_letters(
    *,
    context: typer.Context,
    application: Application,
    zookeeper: ZooKeeper,
    action: Annotated[Action, typer.Argument(help="What to do.")] = Action.LIST,
    message_ids: Annotated[
        list[str] | None, typer.Argument(metavar="MESSAGE_ID", help="Message ids to replay.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Replay all dead letters.")] = False,
    folder: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FOLDER",
            help="Replay the dead letters in this folder, or only the named ones.",
        ),
    ] = None,
    root: Root = DEFAULT_ROOT,
    stream: Stream = None,
    as_json: AsJson = False,
    watch: Watch = 0,
) -> None:
    """List dead letters, or have them delivered again with a new count of attempts."""
    target = target_of(context.obj, zookeeper, root, application, stream)
    if action is Action.LIST:
        if message_ids or every or folder:
            msg = "message ids, --all and --from choose dead letters to replay. Write replay after the application"
            raise ConsoleError(msg)
        show(VIEWS["dead-letters"], target, as_json, watch)
        return
    with open_stores(target) as stores:
        chosen = _chosen(stores, message_ids or [], every, folder)
        count = ask_for_replay(stores, [MessageId.parse(text) for text in chosen])
        running = any(store.epochs.owner() for store in stores)
    when = "with one of the next micro-batches" if running else "once the query is started: it is not running"
    print(f"{count} record{'s' if count != 1 else ''} will be delivered again {when}")


@app.command("export", short_help="Hand over to a Storm spout.")
def export_command(
    *,
    context: typer.Context,
    application: Application,
    zookeeper: ZooKeeper,
    style: Style,
    prefix: Prefix,
    topology: Topology = "",
    overwrite: Annotated[
        bool, typer.Option(help="Also overwrite Storm checkpoints that are further on.")
    ] = False,
    root: Root = DEFAULT_ROOT,
    stream: Stream = None,
) -> None:
    """Write the checkpoints of a stopped query as a Storm spout does."""
    target = target_of(context.obj, zookeeper, root, application, stream)
    for path in export_checkpoints(target, Storm(style, prefix, topology), overwrite=overwrite).values():
        print(path)


@app.command("import", short_help="Take over from a Storm spout.")
def import_command(
    *,
    context: typer.Context,
    application: Application,
    zookeeper: ZooKeeper,
    style: Style,
    prefix: Prefix,
    stream: Annotated[str, typer.Option(help="The stream that both read.")],
    topology: Topology = "",
    storm_zookeeper: Annotated[
        str | None, typer.Option(metavar="HOSTS", help="Storm's ZooKeeper, if it is another one.")
    ] = None,
    region: Annotated[str | None, typer.Option(help="Of the stream.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="The endpoint of Kinesis, if it is not AWS's.")] = None,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Let a new application begin where a Storm spout stopped."""
    target = target_of(context.obj, zookeeper, root, application, stream)
    begins = import_checkpoints(
        target, Storm(style, prefix, topology), zookeeper=storm_zookeeper, region=region, endpoint=endpoint
    )
    for shard, position in begins.items():
        print(f"{shard} begins after {position}")


@app.command("zookeeper", short_help="Run a local ZooKeeper, to try things out.")
def zookeeper_server(
    port: Annotated[int, typer.Option(help="Loopback port; 0 chooses a free one.")] = 2181,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data; by default the data is lost.")
    ] = None,
) -> None:
    """Run a ZooKeeper server on this machine, for trying things out."""
    serve(EmbeddedZooKeeper(data, port))


@app.command("kinesis", short_help="Run a local Kinesis, to try things out.")
def kinesis_server(
    port: Annotated[int, typer.Option(help="Loopback port; 0 chooses a free one.")] = 4566,
) -> None:
    """Run a local Kinesis on this machine; with the default port, endpointUrl=localstack finds it."""
    serve(EmbeddedKinesis(port))


def _chosen(stores: Sequence[SourceStore], ids: list[str], every: bool, folder: str | None) -> list[str]:
    """Return the message ids to replay: the named ones, all that ZooKeeper lists, or those in a folder."""
    if every and (ids or folder):
        msg = (
            "--all cannot be combined with message ids or --from. Give message ids, or a folder with --from, or "
            "--all"
        )
        raise ConsoleError(msg)
    if every:
        return [text for store in stores for text in listed_ids(store.shards.dead_letters().values())]
    if folder is not None:
        layouts = [store.layout for store in stores]
        streams = {stream for store in stores for stream in streams_of(store)}
        held, expired = folder_ids(folder, layouts[0].application, streams)
        missing = sorted(set(ids) - set(held))
        if missing:
            msg = f"{folder} holds no replayable dead letter {', '.join(missing)}. Check the message ids"
            raise ConsoleError(msg)
        if expired and not ids:
            print(
                f"{expired} records are past the stream's retention and cannot be replayed", file=sys.stderr
            )
        if not held:
            msg = f"{folder} holds no dead letter of {layouts[0].application!r} that can be replayed"
            raise ConsoleError(msg)
        return ids or held
    if not ids:
        msg = "there is nothing to replay. Give message ids, or --all, or a dead-letter folder with --from FOLDER"
        raise ConsoleError(msg)
    return ids


_LOOK_SECONDS = 1.0


def serve(server: EmbeddedZooKeeper | EmbeddedKinesis) -> None:
    """Start the server, print its address, and stop it when this process is asked to end.

    Raises:
        ConsoleError: the server ended by itself.
        CheckpointError: it could not be started.
    """
    ended = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    with server:
        where = server.hosts if isinstance(server, EmbeddedZooKeeper) else server.endpoint_url
        print(f"{server.name} at {where}; Ctrl-C stops it", flush=True)
        while not ended.wait(_LOOK_SECONDS):
            if not server.running:
                msg = f"the embedded {server.name} at {where} has ended unexpectedly. Start it again"
                raise ConsoleError(msg)
