"""Shows a view of every stream of an application: once, or again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live

from console.connection import Target, open_stores
from console.errors import ConsoleError
from console.snapshot import Snapshot, take_snapshot
from console.tables import to_json, to_table
from console.views import View

__all__ = ["show"]

# Into a pipe or a file there is no width to fit, and long values are better kept in one line.
_UNBOUND_WIDTH = 250


def show(view: Callable[[Snapshot, int], View], target: Target, as_json: bool, watch: float) -> None:
    """Print a view of each stream; with `watch`, look again after that many seconds until Ctrl-C.

    Raises:
        console.errors.ConsoleError: there is no such application or stream; or, once all else is shown, nodes cannot be
            read.
        checkpoint.errors.CheckpointError: ZooKeeper does not answer.
    """
    with open_stores(target) as stores:
        problems = 0

        def look() -> list[View]:
            nonlocal problems
            now = int(time.time() * 1000)
            views = [view(take_snapshot(store, target.stream), now) for store in stores]
            problems = sum(len(one.problems) for one in views)
            return views

        try:
            if as_json:
                _print_json(look, watch)
            else:
                _print_tables(look, watch)
        except KeyboardInterrupt:
            return
        if problems:
            msg = f"{problems} nodes cannot be read, and are missing above, where each is named"
            raise ConsoleError(msg)


def _print_json(look: Callable[[], list[View]], watch: float) -> None:
    while True:
        for one in look():
            print(to_json(one), flush=True)
        if not watch:
            return
        time.sleep(watch)


def _print_tables(look: Callable[[], list[View]], watch: float) -> None:
    def draw() -> Group:
        return Group(*map(to_table, look()))

    console = Console(width=None if sys.stdout.isatty() else _UNBOUND_WIDTH)
    if not watch:
        console.print(draw())
        return
    with Live(draw(), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(watch)
            live.update(draw(), refresh=True)
