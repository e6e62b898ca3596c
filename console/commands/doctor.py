"""The command that tries everything that a query needs, and says what is missing."""

from __future__ import annotations

from typing import Annotated

import typer

from kinesis_trident.checkpoint.zookeeper.command_line import DEFAULT_ROOT
from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.common.visible_text import make_visible
from kinesis_trident.console.commands.application_options import add_command
from kinesis_trident.console.commands.streams import QueryOptions, source_options
from kinesis_trident.console.examination import Examination
from kinesis_trident.console.machine import Result, examine_machine
from kinesis_trident.console.render import json_line, screen
from kinesis_trident.console.target import HOSTS, AsJson, Login, Root, target_of

commands = typer.Typer()

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}


@add_command(commands, "doctor", short_help="Try everything that a query needs.")
def doctor(
    *,
    context: typer.Context,
    application: Annotated[
        str | None, typer.Argument(metavar="APP", help="An application: its ACLs, its lag and its retention.")
    ] = None,
    stream: Annotated[str | None, typer.Option("--stream", help="The stream's name or ARN.")] = None,
    zookeeper: Annotated[str | None, HOSTS] = None,
    root: Root = DEFAULT_ROOT,
    query: QueryOptions,
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", help="The consumer of a query with consumerMode=efo, by name or ARN."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try ZooKeeper, the ACLs, each call to Kinesis, clocks, Java, the workers' Python and the versions.

    It changes nothing but a node of its own below the root, which it removes. Exit code 1 if something failed.
    """
    login: Login = context.obj
    examination = Examination()
    results: list[Result] = []
    results += examine_machine()
    if zookeeper:
        target = target_of(login, zookeeper, root, application or "", None)
        results += examination.of_zookeeper(target, application)
    else:
        results.append(Result("zookeeper", "skipped", "not asked for", "give --zookeeper HOSTS"))
    name = stream or examination.stream
    if name:
        try:
            results += examination.of_kinesis(source_options(name, query), consumer)
        except KinesisTridentError as error:
            results.append(Result("kinesis", "failed", str(error), "correct the options"))
    else:
        results.append(Result("kinesis", "skipped", "not asked for", "give --stream STREAM"))
    if as_json:
        for one in results:
            print(json_line(one))
    else:
        _print(results)
    raise typer.Exit(1 if any(one.state == "failed" for one in results) else 0)


def _print(results: list[Result]) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for one in results:
        text = Text(f"{one.name}: ", style="bold")
        text.append(make_visible(one.says), style="not bold")
        if one.remedy and one.state != "ok":
            text.append(f"\n-> {make_visible(one.remedy)}", style="not bold")
        grid.add_row(Text(one.state, style=_STYLES[one.state]), text)
    screen().print(grid)
