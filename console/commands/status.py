"""The commands that say how an application is: apps, status, check, owner."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec
import typer
from kazoo.client import KazooClient
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.run_status import run_name
from kinesis_trident.checkpoint.store.source_store import find_applications, find_layouts
from kinesis_trident.checkpoint.zookeeper.client import connected
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.common.times import iso_time
from kinesis_trident.common.visible_text import make_visible
from kinesis_trident.console.commands.application_options import add_command
from kinesis_trident.console.finding import NO_LIMITS, Level, Limits, worst
from kinesis_trident.console.render import json_line, repeat, screen, to_json, to_table
from kinesis_trident.console.scope import open_scope, scope_of
from kinesis_trident.console.snapshot import Snapshot, take_snapshot
from kinesis_trident.console.status import Status, lines_of, status_of, summary_of
from kinesis_trident.console.target import AsJson, ConsoleError, Shard, Target, Watch, stores_of
from kinesis_trident.console.text import now_ms
from kinesis_trident.console.views import View
from kinesis_trident.spout.options.parsers import duration as seconds

commands = typer.Typer()


@add_command(commands, "apps", short_help="List the applications.")
def apps(*, everything: Target, as_json: AsJson = False) -> None:
    """List the applications in ZooKeeper, with the worst that each suffers from."""
    rows: list[dict[str, object]] = []
    problems: list[str] = []
    with connected(everything.zookeeper) as client:
        session = Session(client, everything.zookeeper.session_timeout)
        for name in find_applications(session, everything.root):
            try:
                # Other programs may have nodes there.
                if find_layouts(session, everything.root, name):
                    rows += map(_row, _look(client, replace(everything, application=name)))
            except KinesisTridentError as error:
                # One that cannot be read hides no others.
                problems.append(f"{name}: {error}")
    view = View(
        f"applications below {everything.root}",
        f"{replace(everything, application='APP').command('status')} says what to do"
        if rows
        else "there are none: check --zookeeper and --root",
        ("application", "level", "lag_ms", "retrying", "streams", "wrong"),
        tuple(rows),
        tuple(problems),
    )
    if as_json:
        print(to_json(view))
    else:
        screen().print(to_table(view))
    if problems:
        msg = "some applications cannot be read:\n" + "\n".join(problems)
        raise ConsoleError(msg)


def _row(status: Status) -> dict[str, object]:
    kept = ("application", "level", "streams", "connected", "lag_ms", "retrying")
    found = msgspec.to_builtins(status)
    return {key: found[key] for key in kept} | {"wrong": status.wrong[0].sentence if status.wrong else ""}


@add_command(commands, "status", short_help="Show how an application is, and what to do.")
def status(*, target: Target, shard: Shard = None, as_json: AsJson = False, watch: Watch = 0) -> None:
    """Show on one screen the run, its batch, the lag and the totals, what is wrong, and what to do."""
    with connected(target.zookeeper) as client:
        repeat(
            lambda: _look(client, target, shard=shard),
            lambda found: (f"{json_line(one)}\n" for one in found),
            lambda found: Group(*(draw_status(one, now_ms()) for one in found)),
            as_json,
            watch,
        )


@add_command(commands, "check", short_help="Check an application, for monitoring.")
def check(
    *,
    max_lag: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The oldest unread record may be so old: 5m, 30s.")
    ] = None,
    max_retrying: Annotated[
        int | None, typer.Option(min=0, help="So many records may wait for a retry.")
    ] = None,
    max_dead: Annotated[
        int | None, typer.Option(min=0, help="So many records may be dead-lettered or skipped, in all.")
    ] = None,
    target: Target,
    as_json: AsJson = False,
) -> None:
    """Check an application: exit code 0 if all is well, 1 for a warning, 2 if it is critical, 3 if it is unknown.

    Without limits, it is critical that no run is connected, a shard is blocked, records are about to expire, or a node
    cannot be read. With --max-lag, a lag that nobody knows is unknown.
    """
    limits = Limits(_milliseconds(max_lag) if max_lag is not None else None, max_retrying, max_dead)
    try:
        with connected(target.zookeeper) as client:
            found = _look(client, target, limits=limits)
    except KinesisTridentError as error:
        text = make_visible(str(error))
        print(
            json_line({"level": "unknown", "error": text})
            if as_json
            else f"UNKNOWN - {target.application}: {text}"
        )
        raise typer.Exit(Level.UNKNOWN.exit_code) from None
    for one in found:
        print(json_line(one) if as_json else make_visible(summary_of(one)))
    raise typer.Exit(worst(one.level for one in found).exit_code)


@add_command(commands, "owner", short_help="Show who runs an application, and who did.")
def owner(*, target: Target, as_json: AsJson = False) -> None:
    """Show the connected run, the runs that had to stop for it, and what people have changed."""
    with open_scope(target) as scope:
        problems: list[str] = []
        for store in scope.stores:
            view = _owner_view(take_snapshot(store))
            unreadable: list[CorruptNodeError] = []
            notes = store.open_for_looking(unreadable.append).changes.notes()
            problems += [*view.problems, *map(str, unreadable)]
            rows = [
                {"time_at": one.time, "who": f"{one.user}@{one.host}", "what": one.what, "backup": one.backup}
                for one in notes
            ]
            changes = View(
                "changes by people", "" if rows else "none", ("time_at", "who", "what"), tuple(rows)
            )
            if as_json:
                print(json_line({"title": view.title, **view.facts, "runs": view.rows, "changes": rows}))
            else:
                screen().print(to_table(view))
                if rows:
                    screen().print(to_table(changes))
        if problems:
            msg = "some nodes cannot be read, and are missing above:\n" + "\n".join(problems)
            raise ConsoleError(msg)


def _owner_view(snapshot: Snapshot) -> View:
    rows = [
        {"epoch": note.epoch, "stopped_at": at, "for": run_name(note.by_host, note.by_pid, note.by_epoch)}
        for at, note in reversed(snapshot.takeovers)
    ]
    run = snapshot.run
    facts: dict[str, object] = {
        "connected": snapshot.owner is not None,
        "epoch": snapshot.epoch,
        "host": run.host if run else None,
        "pid": run.pid if run else None,
        "since_at": run.since if run else None,
    }
    if run is None:
        note = "no query has started here yet"
    else:
        state = "connected" if snapshot.owner is not None else "not connected any more"
        note = f"{run_name(run.host, run.pid, snapshot.epoch)}, since {iso_time(run.since)}: {state}"
    title = f"runs of {snapshot.layout.application} that stopped for a newer one"
    return View(title, note, ("epoch", "stopped_at", "for"), tuple(rows), snapshot.problems, facts)


def _look(
    client: KazooClient, target: Target, shard: str | None = None, limits: Limits = NO_LIMITS
) -> list[Status]:
    snapshots = scope_of(stores_of(client, target), target.stream, shard).snapshots()
    now = now_ms()
    found = [status_of(one, now, limits) for one in snapshots]
    # Monitoring plugins show the first line.
    return sorted(found, key=lambda one: one.level.rank)


def draw_status(status: Status, now: int) -> RenderableType:
    """Draw the screen of one home, with what is wrong and what to do. `now` is in epoch milliseconds."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, text in lines_of(status, now):
        grid.add_row(label, Text(make_visible(text), style="bold" if label == "application" else ""))
    if not status.wrong:
        grid.add_row("wrong", Text("nothing", style=Level.OK.style))
    for one in status.findings:
        level = one.level
        grid.add_row("")
        grid.add_row(
            Text(level.value, style=level.style), Text(make_visible(one.sentence), style=level.style)
        )
        grid.add_row("see" if level is Level.NOTE else "do", Text(make_visible(one.remedy)))
    grid.add_row("")
    return grid


def _milliseconds(text: str) -> int:
    try:
        return round(seconds(text) * 1000)
    except ValueError as error:
        msg = f"--max-lag is {text!r}. Expected: {error}"
        raise typer.BadParameter(msg) from None
