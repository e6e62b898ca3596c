"""Draws a view: a table for people, JSON for programs. Pure, so it is tested without a server."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kinesis_trident.console.snapshot import Snapshot, take_snapshot
from kinesis_trident.console.target import ConsoleError, Target, open_stores
from kinesis_trident.console.text import duration, iso_time, short
from kinesis_trident.console.views import View
from kinesis_trident.tracker.reasons import make_visible

__all__ = ["show", "to_json", "to_table"]

_CONTROLS = re.compile("[\x7f-\x9f]")
_NUMBERS = {"attempts", "count", "inflight", "lag_ms", "retrying", "sub", "txid"}
# Values that are copied into another command are never shortened.
_WHOLE = {"message_id"}
_NAMES = {"inflight": "in flight", "message_id": "message id", "sub": "sub-sequence"}


def to_table(view: View) -> Group:
    """Return a view as a rich table with the note below it; markup in the data has no effect."""
    table = Table(title=Text(make_visible(view.title)), title_justify="left")
    for column in view.columns:
        name = column.removesuffix("_ms").removesuffix("_at").replace("due_in", "due in")
        table.add_column(
            _NAMES.get(name, name),
            justify="right" if column in _NUMBERS else "left",
            overflow="fold",
            no_wrap=column in {"shard", "state"},
        )
    for row in view.rows:
        table.add_row(*(Text(make_visible(_cell(column, row[column]))) for column in view.columns))
    # Separate from the table: a caption would be wrapped to the width of the table.
    return Group(
        table,
        Text(make_visible(view.note)),
        *(Text(make_visible(f"cannot be read: {problem}")) for problem in view.problems),
    )


def to_json(view: View) -> str:
    """Return a view as one JSON object on one line, with all values in full; `problems` only if there are any."""
    document: dict[str, Any] = {"title": view.title, "note": view.note, "rows": view.rows}
    if view.problems:
        document["problems"] = view.problems
    # JSON leaves these as they are, and a terminal obeys them.
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", msgspec.json.encode(document).decode())


def _cell(column: str, value: Any) -> str:
    match value:
        case None:
            return "-"
        case int() if column.endswith("_ms"):
            return duration(value)
        case int() if column.endswith("_at"):
            return iso_time(value)
        case list():
            return ", ".join(map(str, value)) or "-"
        case _:
            text = str(value)
            if column in {"position", "start"}:
                text = text.replace("AFTER_SEQUENCE_NUMBER", "after").replace("AT_SEQUENCE_NUMBER", "at")
            return text if column in _WHOLE else short(text)


# A pipe or a file has no width, and long values should stay on one line.
_UNBOUND_WIDTH = 250


def show(view: Callable[[Snapshot, int], View], target: Target, as_json: bool, watch: float) -> None:
    """Print a view of each stream; with `watch`, repeat it after that many seconds until Ctrl-C.

    Raises:
        ConsoleError: there is no such application or stream; or, once all else is shown, nodes cannot be
            read.
        CheckpointError: ZooKeeper does not answer.
    """
    with open_stores(target) as stores:
        problems: list[str] = []

        def look() -> list[View]:
            now = int(time.time() * 1000)
            views = [view(take_snapshot(store, target.stream), now) for store in stores]
            problems[:] = [problem for one in views for problem in one.problems]
            return views

        try:
            if as_json:
                _print_json(look, watch)
            else:
                _print_tables(look, watch)
        except KeyboardInterrupt:
            return
        if problems:
            msg = "some nodes cannot be read, and are missing above:\n" + "\n".join(problems)
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
