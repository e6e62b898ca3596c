"""Test what people and programs get to see of a view."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console
from samples_console import CHILD, NOW, SEQUENCE, SNAPSHOT

from kinesis_trident.console.render import MOST_ROWS, json_parts, to_json, to_table
from kinesis_trident.console.views import LazyRows, Row, View, checkpoints, dead_letters, retries, shards


def drawn(view: View) -> str:
    console = Console(file=io.StringIO(), width=250)
    console.print(to_table(view))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def line_of(shard: str, text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if shard in line]
    return [cell.strip() for cell in line.strip("│┃ ").split("│")]


def test_checkpoints_fit_on_a_line_a_shard() -> None:
    cells = line_of(f"{CHILD} ", drawn(checkpoints(replace(SNAPSHOT, active=("orders",)), NOW)))
    assert cells == [
        CHILD,
        "open",
        "4965…123456789012",
        "2",
        "after 4965…123456789012",
        "7",
        "4.2 s",
        "15",
        "4",
        "worker-7:4711",
    ]


def test_title_and_progress_stand_around_the_table() -> None:
    view = checkpoints(SNAPSHOT, NOW)
    text = drawn(view)
    assert "checkpoints of billing, stream orders" in text
    assert text.splitlines()[-1] == view.note


def test_times_and_waits_are_readable() -> None:
    assert "5.0 s" in drawn(retries(SNAPSHOT, NOW))
    assert "2023-11-14T22:14:20Z" in drawn(dead_letters(SNAPSHOT, NOW))


def test_nothing_in_a_view_drives_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x9b2J\x7f\r"
    rows = ({"shard": "s", "reason": evil, "failures": [evil]},)
    view = View(evil, evil, ("shard", "reason", "failures"), rows, (evil,))
    shown = drawn(view)
    assert not set(shown) & set("\x1b\x07\x9b\x7f\r")
    assert shown.count(r"\x1b]0;owned\x07\x9b2J\x7f\r") == 5
    document = to_json(view)
    assert not set(document) & set("\x1b\x07\x9b\x7f\r")
    assert json.loads(document)["rows"] == list(rows)


def test_none_and_empty_lists_are_dashes() -> None:
    parent = next(line for line in drawn(shards(SNAPSHOT, NOW)).splitlines() if "drained" in line)
    assert [cell.strip() for cell in parent.strip("│ ").split("│")][2] == "-"


def test_a_message_id_is_never_shortened() -> None:
    message_id = f"orders/{CHILD}:{SEQUENCE}:3"
    view = View("t", "n", ("message_id", "checkpoint"), ({"message_id": message_id, "checkpoint": SEQUENCE},))
    assert message_id in drawn(view)
    assert SEQUENCE not in drawn(view).replace(message_id, "")


def test_markup_in_a_reason_is_only_text() -> None:
    view = View("t", "n", ("reason",), ({"reason": "[bold]KeyError[/bold] [/nothing]"},))
    assert "[bold]KeyError[/bold] [/nothing]" in drawn(view)


def test_json_is_one_line_and_holds_everything_whole() -> None:
    text = to_json(checkpoints(SNAPSHOT, NOW))
    assert "\n" not in text
    document = json.loads(text)
    assert document["title"] == "checkpoints of billing, stream orders"
    (child,) = [row for row in document["rows"] if row["shard"] == CHILD]
    assert (child["checkpoint"], child["lag_ms"]) == (SEQUENCE, 4200)


def test_of_very_many_rows_each_is_a_line_and_none_is_cut_off() -> None:
    count = MOST_ROWS + 500
    rows = LazyRows(
        range(count), lambda number: {"shard": f"shard-{number}", "reason": f"{'é' * 60} {number}"}
    )
    console = Console(file=io.StringIO(), width=40)
    console.print(to_table(View("title", "note", ("shard", "reason"), rows)), crop=False)
    assert isinstance(console.file, io.StringIO)
    title, names, *lines, note = console.file.getvalue().splitlines()
    assert (title, names.split(), note) == ("title", ["shard", "reason"], "note")
    assert [line.split()[::2] for line in lines] == [
        [f"shard-{number}", str(number)] for number in range(count)
    ]


def test_json_of_very_many_rows_makes_some_at_a_time() -> None:
    made = []

    def make(number: int) -> Row:
        made.append(number)
        return {"count": number}

    count = 3 * MOST_ROWS + 5
    view = View("title", "note", ("count",), LazyRows(range(count), make), ("a node",))
    text, most = "", 0
    for part in json_parts(view):
        text, most = text + part, max(most, len(made))
        made.clear()
    assert most <= MOST_ROWS
    assert text == to_json(view)
    document = json.loads(text)
    assert [row["count"] for row in document["rows"]] == [*range(count)]
    assert document["problems"] == ["a node"]
