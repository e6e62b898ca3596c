"""The commands that serve until Ctrl-C: metrics, and local servers to try things out."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from kinesis_trident.checkpoint.embedded import (
    EmbeddedKinesis,
    EmbeddedKinesisLocal,
    EmbeddedMiniStack,
    EmbeddedZooKeeper,
)
from kinesis_trident.common.release import installed_version
from kinesis_trident.console.commands.application_options import add_command
from kinesis_trident.console.render import json_line
from kinesis_trident.console.target import AsJson, ConsoleError, Target

commands = typer.Typer()


@add_command(commands, "metrics", short_help="Print or serve the metrics of applications, for Prometheus.")
def metrics(
    *,
    applications: Annotated[
        list[str] | None,
        typer.Argument(metavar="APP", help="The applications; all below the root by default."),
    ] = None,
    everything: Target,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve them over HTTP at this address, until Ctrl-C."),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name under which Prometheus may ask for them; repeat it."),
    ] = None,
) -> None:
    """Print the metrics of applications in Prometheus' text format, or serve them over HTTP with --listen.

    It needs the extra: pip install 'kinesis-trident[metrics]'.
    """
    # Only here: it may be missing, and loads more than the other commands need.
    from kinesis_trident.console.metrics.exporter import ApplicationMetrics, metrics_text
    from kinesis_trident.trident.stores.options import require

    where, root, names = everything.zookeeper, everything.root, applications or []
    if listen is None:
        print(metrics_text(where, root, names), end="")
        return
    for package in ("starlette", "uvicorn"):
        require(package, "metrics", "metrics --listen", executors=False)
    from kinesis_trident.console.web.metrics import make_metrics_app
    from kinesis_trident.console.web.server import address_of, bind, serve, url_of

    host, port = address_of(listen)
    listening = bind(host, port, "Give --listen another address")
    # The server hands a signal on once it has ended.
    _await_signals()
    print(f"metrics at {url_of(listening)}metrics; Ctrl-C stops it", flush=True)
    hosts = [host, *(allowed_host or ())]
    serve(make_metrics_app(ApplicationMetrics(where, root, names), hosts), listening)


@commands.command("zookeeper", short_help="Run a local ZooKeeper, to try things out.")
def zookeeper_server(
    port: Annotated[int, typer.Option(help="Loopback port; 0 chooses a free one.")] = 2181,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data; by default the data is lost.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a ZooKeeper server on this machine, for trying things out."""
    serve(EmbeddedZooKeeper(data, port), as_json=as_json)


LocalKinesis = EmbeddedKinesis | EmbeddedKinesisLocal | EmbeddedMiniStack

_LACKS: dict[type[LocalKinesis], str] = {
    EmbeddedKinesis: "moto: it never ends a closed shard",
    EmbeddedMiniStack: "MiniStack: it drops a closed shard at once, with what was not read of it",
}


@commands.command("kinesis", short_help="Run a local Kinesis, to try things out.")
def kinesis_server(
    port: Annotated[int, typer.Option(help="Loopback port; 0 chooses a free one.")] = 4566,
    as_json: AsJson = False,
) -> None:
    """Run a local Kinesis on this machine; with the default port, endpointUrl=localstack finds it.

    It is the best that is installed: kinesis-local with Node.js (npm install -g kinesis-local), MiniStack (pip install
    ministack), or moto.
    """
    server = EmbeddedKinesisLocal.find(port) or EmbeddedMiniStack.find(port) or EmbeddedKinesis(port)
    lack = _LACKS.get(type(server))
    if lack is not None:
        print(
            f"this Kinesis is {lack}, so a reshard cannot be tried on it; after npm install -g kinesis-local this "
            "command starts that one, which can",
            file=sys.stderr,
        )
    serve(server, as_json=as_json)


_LOOK_SECONDS = 0.2
_DEMO_NEEDS = ("localstack_client", "moto", "psutil", "pyspark")


def _await_signals() -> list[int]:
    """Return a list that gets the signals that ask this process to end; the lock of an event would hold them up."""
    ended: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _frame: ended.append(got))
    return ended


def serve(server: EmbeddedZooKeeper | LocalKinesis, *, as_json: bool = False) -> None:
    """Start the server, print its address, and stop it when this process is asked to end.

    Raises:
        ConsoleError: the server ended by itself.
        CheckpointError: it could not be started.
    """
    ended = _await_signals()
    with server:
        where = server.hosts if isinstance(server, EmbeddedZooKeeper) else server.endpoint_url
        line = f"{server.name} at {where}; Ctrl-C stops it"
        print(json_line({"server": server.name, "address": where}) if as_json else line, flush=True)
        while not ended:
            time.sleep(_LOOK_SECONDS)
            if not (ended or server.running):
                msg = f"the embedded {server.name} at {where} has ended unexpectedly. Start it again"
                raise ConsoleError(msg)


@commands.command(
    "demo",
    short_help="Run the demo of the source tree.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def demo(context: typer.Context) -> None:
    """Run examples/demo.py: a job on real servers that is killed half-way, and its result checked.

    Its arguments, such as --orders 2000 or --ui, follow the command. It needs the source tree.
    """
    program = Path(__file__).resolve().parents[2] / "examples" / "demo.py"
    if not program.exists():
        msg = (
            f"the demo is not part of the installed package: there is no {program}. Get the source tree of "
            f"kinesis-trident {installed_version()} (git clone, or unpack its archive), and run make demo in it. "
            "Without make: python3 -m venv .venv && .venv/bin/pip install -e '.[demo,java]' && "
            ".venv/bin/kinesis-trident demo"
        )
        raise ConsoleError(msg)
    missing = [name for name in _DEMO_NEEDS if find_spec(name) is None]
    if missing:
        msg = (
            f"the demo needs {', '.join(missing)}. In {program.parents[1]}, run {sys.executable} -m pip install -e "
            "'.[demo,java]'; or make demo, which installs what is missing into .venv"
        )
        raise ConsoleError(msg)
    with subprocess.Popen([sys.executable, str(program), *context.args]) as process:
        # Ctrl-C in the terminal reaches the demo too, which ends by itself.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = process.wait()
    raise typer.Exit(code)
