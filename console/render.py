"""Draws a view: a table for people, JSON for programs. Pure, so it is tested without a server."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import msgspec
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from kinesis_trident.common.times import iso_time
from kinesis_trident.common.visible_text import make_visible
from kinesis_trident.console.scope import open_scope
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.target import ConsoleError, Target
from kinesis_trident.console.text import duration, now_ms, position_text, short
from kinesis_trident.console.views import View

_CONTROLS = re.compile("[\x7f-\x9f]")
_NUMBERS = {"attempts", "count", "dead_lettered", "inflight", "lag_ms", "retrying", "sub", "txid"}
# Values that are copied into another command are never shortened.
_WHOLE = {"message_id"}
_NAMES = {"inflight": "in flight", "sub": "sub-sequence"}

MOST_ROWS = 1_000
"""The rows that a table shows if nothing else is asked for, and the most that it is drawn for."""


def to_table(view: View) -> Group:
    """Return a view with its title above and the note below; markup in the data has no effect.

    It is a table where its columns fit, and a block for each row in a narrower terminal; of very many rows it is a
    line for each.
    """
    return Group(
        Text(make_visible(view.title), style="italic"),
        _Fitting(view),
        Text(make_visible(view.note)),
        *(Text(make_visible(f"cannot be read: {problem}")) for problem in view.problems),
    )


class _Fitting:
    """The rows of a view, in the form that fits."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view = self._view
        if not view.rows:
            yield Text("none")
            return
        cells = [*map(self._cells, view.rows[:MOST_ROWS])]
        widths = [
            max([cell_len(_name(column)), *(cell_len(row[at]) for row in cells)])
            for at, column in enumerate(view.columns)
        ]
        if len(view.rows) > MOST_ROWS:
            # What rich lays out costs it half a millisecond and 8 KiB a row.
            yield from self._lines(widths)
            return
        foldable = [
            min(width, _FOLDED) if view.columns[at] in _FOLDS else width for at, width in enumerate(widths)
        ]
        if sum(foldable) + 3 * len(foldable) + 1 <= options.max_width:
            yield self._table(cells)
            return
        for row in cells:
            yield self._block(row)

    def _cells(self, row: Mapping[str, Any]) -> list[str]:
        return [make_visible(_cell(column, row[column])) for column in self._view.columns]

    def _lines(self, widths: list[int]) -> Iterator[Segment]:
        """Yield a line for each row: columns as wide as in the first rows, and no wider for a later one."""
        for row in chain([[*map(_name, self._view.columns)]], map(self._cells, self._view.rows)):
            cells = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
            yield Segment("  ".join(cells).rstrip() + "\n")

    def _table(self, cells: list[list[str]]) -> Table:
        table = Table()
        for column in self._view.columns:
            folds = column in _FOLDS
            table.add_column(
                _name(column),
                justify="right" if column in _NUMBERS else "left",
                overflow="fold",
                no_wrap=not folds,
            )
        for row in cells:
            table.add_row(*map(Text, row))
        return table

    def _block(self, row: list[str]) -> Table:
        first, *rest = zip(self._view.columns, row, strict=True)
        block = Table.grid(padding=(0, 1))
        block.add_column(no_wrap=True, style="dim")
        block.add_column(overflow="fold")
        block.add_row(Text(_name(first[0])), Text(first[1], style="bold"))
        for column, value in rest:
            if value not in ("", "-"):
                block.add_row(Text(_name(column)), Text(value))
        block.add_row()
        return block


_POSITIONS = {"becomes", "here", "position", "start", "there"}
_FOLDS = {"blocked", "parents", "reason", "streams", "what", "wrong"}
_FOLDED = 16
"""The width down to which a column of sentences is folded in a table."""


def _name(column: str) -> str:
    name = column.removesuffix("_ms").removesuffix("_at").replace("due_in", "due in")
    return _NAMES.get(name, name.replace("_", " "))


def to_json(view: View) -> str:
    """Return a view as one JSON object on one line, with all values in full; `problems` only if there are any."""
    return "".join(json_parts(view))


def json_parts(view: View) -> Iterator[str]:
    """Yield the parts of `to_json`, each of some rows."""
    yield json_line({"title": view.title, "note": view.note, **view.facts})[:-1] + ',"rows":['
    for at in range(0, len(view.rows), MOST_ROWS):
        yield "," * bool(at) + json_line([*view.rows[at : at + MOST_ROWS]])[1:-1]
    yield "]" + (f',"problems":{json_line(view.problems)}' if view.problems else "") + "}"


def json_line(document: Any) -> str:
    """Return JSON values on one line, without characters that a terminal obeys."""
    # JSON leaves these as they are.
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", msgspec.json.encode(document).decode())


def _cell(column: str, value: Any) -> str:
    match value:
        case None:
            return "-"
        case int() if column.endswith("_ms"):
            return duration(value)
        case int() if column.endswith("_at"):
            return iso_time(value)
        case list() | tuple():
            return ", ".join(map(str, value)) or "-"
        case _:
            text = str(value)
            if column in _POSITIONS:
                text = (
                    position_text(text)
                    .replace("AFTER_SEQUENCE_NUMBER", "after")
                    .replace("AT_SEQUENCE_NUMBER", "at")
                )
            return text if column in _WHOLE else short(text)


# A pipe or a file has no width, and long values should stay on one line.
_UNBOUND_WIDTH = 250


def screen() -> Console:
    """Return the console of the standard output, as wide as the terminal."""
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _UNBOUND_WIDTH)


def show(
    view: Callable[[Snapshot, int], View],
    target: Target,
    as_json: bool,
    watch: float,
    shard: str | None = None,
    limit: int | None = None,
) -> None:
    """Print a view of each stream; with `watch`, repeat it after that many seconds until Ctrl-C.

    Without a limit a table shows its first rows and JSON all of them; 0 is for all.

    Raises:
        ConsoleError: there is no such application, stream or shard; or, once all else is shown, nodes cannot be read.
        CheckpointError: ZooKeeper does not answer.
    """
    with open_scope(target, shard) as scope:
        problems: list[str] = []
        most = (0 if as_json else MOST_ROWS) if limit is None else limit

        def look() -> list[View]:
            now = now_ms()
            views = [_cut(view(snapshot, now), most) for snapshot in scope.snapshots()]
            problems[:] = [problem for one in views for problem in one.problems]
            return views

        repeat(
            look,
            lambda views: chain.from_iterable(chain(json_parts(one), ["\n"]) for one in views),
            lambda views: Group(*map(to_table, views)),
            as_json,
            watch,
        )
        if problems:
            msg = "some nodes cannot be read, and are missing above:\n" + "\n".join(problems)
            raise ConsoleError(msg)


def _cut(view: View, limit: int) -> View:
    if not limit or len(view.rows) <= limit:
        return view
    more = len(view.rows) - limit
    note = f"and {more:,} more (--limit 0 shows all)" + (f"; {view.note}" if view.note else "")
    return replace(view, rows=view.rows[:limit], note=note)


T = TypeVar("T")


def repeat(
    look: Callable[[], T],
    parts: Callable[[T], Iterable[str]],
    draw: Callable[[T], RenderableType],
    as_json: bool,
    watch: float,
) -> None:
    """Look once, or every `watch` seconds until Ctrl-C, and print lines of JSON in parts, or what `draw` makes."""
    with suppress(KeyboardInterrupt):
        if as_json:
            while True:
                sys.stdout.writelines(parts(look()))
                sys.stdout.flush()
                if not watch:
                    return
                time.sleep(watch)
        console = screen()
        if not watch:
            # A line of many rows may be wider than a terminal, which breaks it; rich would cut it off.
            console.print(draw(look()), crop=False)
            return
        with Live(draw(look()), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(watch)
                live.update(draw(look()), refresh=True)
