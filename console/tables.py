"""Draws a view: a table for people, JSON for programs. Pure, so it is tested without a server."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from console.text import duration, iso_time, short
from console.views import View

__all__ = ["to_json", "to_table"]

_NUMBERS = {"attempts", "count", "inflight", "lag_ms", "retrying", "sub", "txid"}
# What is copied into another command is never shortened.
_WHOLE = {"message_id"}
_NAMES = {"inflight": "in flight", "message_id": "message id", "sub": "sub-sequence"}


def to_table(view: View) -> Group:
    """A view as a rich table and the note below it; markup in the data has no effect."""
    table = Table(title=Text(view.title), title_justify="left")
    for column in view.columns:
        name = column.removesuffix("_ms").removesuffix("_at").replace("due_in", "due in")
        table.add_column(
            _NAMES.get(name, name),
            justify="right" if column in _NUMBERS else "left",
            overflow="fold",
            no_wrap=column in {"shard", "state"},
        )
    for row in view.rows:
        table.add_row(*(Text(_cell(column, row[column])) for column in view.columns))
    # Beside the table, not its caption: that would be folded to the width of the table.
    return Group(table, Text(view.note), *(Text(f"cannot be read: {problem}") for problem in view.problems))


def to_json(view: View) -> str:
    """A view as one JSON object on one line; its rows hold every value whole. `problems` is left out without any."""
    document: dict[str, Any] = {"title": view.title, "note": view.note, "rows": view.rows}
    if view.problems:
        document["problems"] = view.problems
    return msgspec.json.encode(document).decode()


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
