"""The command that exports metrics: metrics."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Annotated

import typer

from kinesis_trident.console.commands.application_options import add_command
from kinesis_trident.console.target import Target

commands = typer.Typer()


@add_command(commands, "metrics", short_help="Print or serve the metrics of applications, for Prometheus.")
def metrics(
    *,
    applications: Annotated[
        list[str] | None,
        typer.Argument(metavar="[APP]...", help="The applications; all below the root by default."),
    ] = None,
    everything: Target,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve them over HTTP at this address, until Ctrl-C."),
    ] = None,
) -> None:
    """Print the metrics of applications in Prometheus' text format, or serve them over HTTP with --listen.

    It needs the extra: pip install 'kinesis-trident[metrics]'.
    """
    # Only here: it may be missing, and loads more than the other commands need.
    from kinesis_trident.console.metrics.exporter import metrics_text, serve_metrics

    where, root, names = everything.zookeeper, everything.root, applications or []
    if listen is None:
        print(metrics_text(where, root, names), end="")
        return
    ended = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    server, thread = serve_metrics(where, root, names, listen)
    host = listen.rpartition(":")[0]
    print(f"metrics at http://{host}:{server.server_port}/metrics; Ctrl-C stops it", flush=True)
    ended.wait()
    server.shutdown()
    thread.join()
    server.server_close()
