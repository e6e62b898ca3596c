"""The commands that take over from another system, and hand over to one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from kinesis_trident.checkpoint.zookeeper.client import connected
from kinesis_trident.common.visible_text import make_visible
from kinesis_trident.console.changes import copy_of
from kinesis_trident.console.commands.application_options import add_command
from kinesis_trident.console.commands.streams import Endpoint, QueryOption, Region, named_options
from kinesis_trident.console.moving.foreign import Row, System
from kinesis_trident.console.moving.places import Places
from kinesis_trident.console.render import json_line, screen, to_table
from kinesis_trident.console.scope import open_scope
from kinesis_trident.console.target import AsJson, Force, Target, Yes
from kinesis_trident.console.views import View

commands = typer.Typer()

From = Annotated[
    System, typer.Option("--from", "--storm", help="The system that has read the stream until now.")
]
To = Annotated[
    System, typer.Option("--to", "--storm", help="The system that goes on: kcl, or one of the Storm spouts.")
]
Prefix = Annotated[
    str | None,
    typer.Option(help="Storm: zookeeperPrefix of kinesis-storm-spout, or zkNode of storm-kinesis."),
]
Topology = Annotated[str | None, typer.Option(help="Storm's topology name; kinesis-storm-spout only.")]
TableName = Annotated[
    str | None,
    typer.Option(
        "--table",
        help="kcl: the lease table, named as the KCL application; awslabs: the option kinesis.dynamodb.tableName.",
    ),
]
DynamoDBRegion = Annotated[
    str | None, typer.Option(help="The region of the table, if it is not the stream's.")
]
DynamoDBEndpoint = Annotated[
    str | None, typer.Option(help="The endpoint of DynamoDB, if it is not that of AWS.")
]
CheckpointLocation = Annotated[
    str | None, typer.Option(metavar="PATH", help="qubole, awslabs: checkpointLocation of the query.")
]
MetadataPath = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="The option executor.metadata.path (qubole) or kinesis.metadataPath (awslabs), if it was set.",
    ),
]
SourceIndex = Annotated[
    int | None,
    typer.Option(min=0, help="qubole, awslabs: the source's index, if several of the query read the stream."),
]
StormZooKeeper = Annotated[
    str | None, typer.Option(metavar="HOSTS", help="Storm's ZooKeeper, if it is another one.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would change, and change nothing.")]


@add_command(commands, "import", short_help="Take over from KCL, another Spark connector, or Storm.")
def import_command(
    *,
    system: From,
    stream: Annotated[str, typer.Option(help="The stream that both read.")],
    table: TableName = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="kcl: the initial position of an application that begins AT_TIMESTAMP."
        ),
    ] = None,
    dynamodb_region: DynamoDBRegion = None,
    dynamodb_endpoint: DynamoDBEndpoint = None,
    checkpoint_location: CheckpointLocation = None,
    metadata_path: MetadataPath = None,
    source: SourceIndex = None,
    prefix: Prefix = None,
    topology: Topology = None,
    storm_zookeeper: StormZooKeeper = None,
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
    region: Region = None,
    endpoint: Endpoint = None,
    option: QueryOption = None,
    target: Target,
    as_json: AsJson = False,
) -> None:
    """Let an application begin where another system stopped. Stop that one first; its checkpoint stays as it is."""
    places = Places(
        system,
        table=table,
        timestamp=timestamp,
        dynamodb_region=dynamodb_region,
        dynamodb_endpoint=dynamodb_endpoint,
        checkpoint_location=checkpoint_location,
        metadata_path=metadata_path,
        source=source,
        prefix=prefix,
        topology=topology,
        storm_zookeeper=storm_zookeeper,
    )
    # Only here, because they load botocore and pyarrow, and the other commands must answer at once.
    from kinesis_trident.console.moving.incoming import bring_in, mark_lost, plan_arrival
    from kinesis_trident.console.moving.opening import kinesis_of, new_home, read_foreign

    options, kinesis = kinesis_of(target, stream, named_options(region, endpoint, option))
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
            title = f"move from {system} to {target.application}, stream {stream}"
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
    system: To,
    table: TableName = None,
    dynamodb_region: DynamoDBRegion = None,
    dynamodb_endpoint: DynamoDBEndpoint = None,
    prefix: Prefix = None,
    topology: Topology = None,
    dry_run: DryRun = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Also go back where the other system is further on.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also while a run is connected: what it does meanwhile is done twice."),
    ] = False,
    region: Region = None,
    endpoint: Endpoint = None,
    option: QueryOption = None,
    target: Target,
    as_json: AsJson = False,
) -> None:
    """Write the checkpoints of a stopped query as another system does, so that it goes on from there."""
    places = Places.of_heir(
        system,
        table=table,
        dynamodb_region=dynamodb_region,
        dynamodb_endpoint=dynamodb_endpoint,
        prefix=prefix,
        topology=topology,
    )
    from kinesis_trident.console.moving.opening import home_of_one, open_target
    from kinesis_trident.console.moving.outgoing import hand_over, plan_departure

    with open_scope(target) as scope:
        store = home_of_one(scope.one_home())
        there = open_target(places, target, store, named_options(region, endpoint, option))
        departure = plan_departure(store, there)
        if dry_run:
            notes = [*departure.notes, *(f"{one}: needs --overwrite" for one in departure.further)]
            title = f"move from {target.application} to {system}, stream {store.layout.stream}"
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
