"""The command that exports metrics: metrics."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Annotated

import typer

from kinesis_trident.console.commands.status import DEFAULT_ROOT
from kinesis_trident.console.target import Root, ZooKeeper, target_of

__all__ = ["commands"]

commands = typer.Typer()


@commands.command("metrics", short_help="Print or serve the metrics of applications, for Prometheus.")
def metrics(
    *,
    context: typer.Context,
    applications: Annotated[
        list[str] | None,
        typer.Argument(metavar="[APP]...", help="The applications; all below the root by default."),
    ] = None,
    zookeeper: ZooKeeper,
    root: Root = DEFAULT_ROOT,
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

    where = target_of(context.obj, zookeeper, root, "", None).zookeeper
    names = applications or []
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
