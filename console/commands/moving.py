"""The commands that take over from another system, and hand over to one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from kinesis_trident.checkpoint.zookeeper.client import connected
from kinesis_trident.common.visible_text import make_visible
from kinesis_trident.console.changes import copy_of
from kinesis_trident.console.commands.application_options import MadeOf, add_command
from kinesis_trident.console.commands.streams import QueryOptions
from kinesis_trident.console.moving.foreign import Row
from kinesis_trident.console.moving.places import Places
from kinesis_trident.console.render import json_line, screen, to_table
from kinesis_trident.console.scope import open_scope
from kinesis_trident.console.target import AsJson, Force, Target, Yes
from kinesis_trident.console.views import View

commands = typer.Typer()

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would change, and change nothing.")]


@add_command(commands, "import", short_help="Take over from KCL, another Spark connector, or Storm.")
def import_command(
    *,
    places: Annotated[Places, MadeOf(Places)],
    stream: Annotated[str, typer.Option(help="The stream that both read.")],
    dry_run: DryRun = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Also if the application has read the stream: it goes on from there."
        ),
    ] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Leave out shards that have expired before they were read.")
    ] = False,
    yes: Yes = False,
    force: Force = False,
    query: QueryOptions,
    target: Target,
    as_json: AsJson = False,
) -> None:
    """Let an application begin where another system stopped. Stop that one first; its checkpoint stays as it is."""
    # Only here, because they load botocore and pyarrow, and the other commands must answer at once.
    from kinesis_trident.console.moving.incoming import bring_in, mark_lost, plan_arrival
    from kinesis_trident.console.moving.opening import kinesis_of, new_home, read_foreign

    options, kinesis = kinesis_of(target, stream, query)
    info = kinesis.describe(stream)
    with connected(target.zookeeper) as client:
        found = read_foreign(places, target.zookeeper, client, options, info)
        store = new_home(client, target, info)
        arrival = plan_arrival(
            found,
            info,
            kinesis.list_shards(stream),
            copy_of(store),
            deaggregate=options.deaggregate,
            accept_loss=accept_loss,
        )
        if dry_run:
            arrival = mark_lost(arrival, kinesis, store.layout)
            title = f"move from {places.system} to {target.application}, stream {stream}"
            _print_plan(title, found.place, arrival.rows, arrival.notes, as_json)
            return
        read = bool(store.shards.checkpoints())
        backup = bring_in(store, arrival, overwrite=overwrite, yes=yes, force=force)
    lines = [f"{row.shard} {_begins(str(row.becomes))}" for row in arrival.rows]
    lines += [f"{arrival.change.what}: done; backup {backup}"] * read
    _print_done(arrival.rows, arrival.notes, lines, {"backup": backup}, as_json)


@add_command(commands, "export", short_help="Hand over to KCL, or to a Storm spout.")
def export_command(
    *,
    places: Annotated[Places, MadeOf(Places.of_heir)],
    dry_run: DryRun = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Also go back where the other system is further on.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also while a run is connected: what it does meanwhile is done twice."),
    ] = False,
    query: QueryOptions,
    target: Target,
    as_json: AsJson = False,
) -> None:
    """Write the checkpoints of a stopped query as another system does, so that it goes on from there."""
    from kinesis_trident.console.moving.opening import home_of_one, open_target
    from kinesis_trident.console.moving.outgoing import hand_over, plan_departure

    with open_scope(target) as scope:
        store = home_of_one(scope.one_home())
        there = open_target(places, target, store, query)
        departure = plan_departure(store, there)
        if dry_run:
            notes = [*departure.notes, *(f"{one}: needs --overwrite" for one in departure.further)]
            title = f"move from {target.application} to {places.system}, stream {store.layout.stream}"
            _print_plan(title, there.place, departure.rows, notes, as_json)
            return
        written = hand_over(store, there, departure, overwrite=overwrite, force=force)
    _print_done(departure.rows, departure.notes, written.values(), {"places": written}, as_json)


def _print_done(
    rows: Sequence[Row], notes: Sequence[str], lines: Iterable[str], more: dict[str, object], as_json: bool
) -> None:
    if as_json:
        print(json_line(_document(rows, notes) | more))
        return
    _print_notes(notes)
    for line in lines:
        print(make_visible(line))


def _print_plan(title: str, place: str, rows: Sequence[Row], notes: Sequence[str], as_json: bool) -> None:
    if as_json:
        print(json_line({"dry_run": True, "place": place} | _document(rows, notes)))
        return
    print(make_visible(f"there: {place}"))
    _print_notes(notes)
    columns = ("shard", "here", "there", "becomes", "what")
    view = View(title, "nothing was changed", columns, tuple(map(asdict, rows)))
    screen().print(to_table(view))


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(make_visible(f"note: {note}"))


def _document(rows: Sequence[Row], notes: Sequence[str]) -> dict[str, object]:
    return {"rows": [asdict(row) for row in rows], "notes": list(notes)}


def _begins(text: str) -> str:
    kind, _, record = text.partition(" ")
    return {"AFTER_SEQUENCE_NUMBER": f"begins after {record}", "SHARD_END": "is done"}.get(
        kind, f"begins at {text}"
    )
