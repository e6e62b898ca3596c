"""Shows a view of every stream of an application: once, or again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.live import Live

from checkpoint.store import SourceStore
from console.connection import Target, open_stores
from console.snapshot import Snapshot, take_snapshot
from console.tables import to_json, to_table
from console.views import View

__all__ = ["show"]

# Into a pipe or a file there is no width to fit, and long values are better kept in one line.
_UNBOUND_WIDTH = 250


def show(view: Callable[[Snapshot, int], View], target: Target, as_json: bool, watch: float) -> None:
    """Print a view of each stream; with `watch`, look again after that many seconds until Ctrl-C.

    Raises:
        console.errors.ConsoleError: there is no such application or stream.
        checkpoint.errors.CheckpointError: ZooKeeper does not answer, or a node is corrupt.
    """
    with open_stores(target) as stores:
        try:
            if as_json:
                _print_json(view, stores, watch)
            else:
                _print_tables(view, stores, watch)
        except KeyboardInterrupt:
            return


def _look(view: Callable[[Snapshot, int], View], stores: Sequence[SourceStore]) -> list[View]:
    return [view(take_snapshot(store), int(time.time() * 1000)) for store in stores]


def _print_json(view: Callable[[Snapshot, int], View], stores: Sequence[SourceStore], watch: float) -> None:
    while True:
        for one in _look(view, stores):
            print(to_json(one), flush=True)
        if not watch:
            return
        time.sleep(watch)


def _print_tables(view: Callable[[Snapshot, int], View], stores: Sequence[SourceStore], watch: float) -> None:
    def draw() -> Group:
        return Group(*map(to_table, _look(view, stores)))

    console = Console(width=None if sys.stdout.isatty() else _UNBOUND_WIDTH)
    if not watch:
        console.print(draw())
        return
    with Live(draw(), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(watch)
            live.update(draw(), refresh=True)
