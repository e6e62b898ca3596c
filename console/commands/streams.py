"""The commands on a stream itself: tail and put."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinesis_trident.common.times import iso_time
from kinesis_trident.common.visible_text import count_noun, make_visible
from kinesis_trident.console.commands.application_options import MadeOf, add_command
from kinesis_trident.console.dead_letter_replay import payload_text
from kinesis_trident.console.render import json_line
from kinesis_trident.console.scope import shard_id
from kinesis_trident.console.target import AsJson, ConsoleError, Shard
from kinesis_trident.console.text import short, some_of

if TYPE_CHECKING:
    from kinesis_trident.spout.kinesis import Kinesis
    from kinesis_trident.spout.options.source import SourceOptions

commands = typer.Typer()

StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name or ARN.")]
Region = Annotated[str | None, typer.Option("--region", help="The option region of the query.")]
Endpoint = Annotated[str | None, typer.Option("--endpoint", help="The option endpointUrl of the query.")]
QueryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="Any other option of the query: -o roleArn=arn:... -o profile=prod. May be repeated.",
    ),
]

_PAUSE = 0.5
"""Seconds between two looks at a shard: two of the five calls a second that all its readers share."""


def source_options(stream: str, query: Mapping[str, str]) -> SourceOptions:
    """Return the options of a query that reads a stream once.

    Raises:
        OptionsError: as the query's.
    """
    # Only here, because they load pyarrow, and other commands must answer at once.
    from kinesis_trident.spout.options.source import SourceOptions

    name = "streamARN" if stream.startswith("arn:") else "streamName"
    return SourceOptions.parse_batch({name: stream, **query})


def named_options(
    *, region: Region = None, endpoint: Endpoint = None, option: QueryOption = None
) -> dict[str, str]:
    """Return options of a query by name.

    Raises:
        ConsoleError: one is not of the form name=value.
    """
    options = {}
    for text in option or []:
        name, equals, value = text.partition("=")
        if not (name and equals):
            msg = f"--option {text!r} is not of the form name=value"
            raise ConsoleError(msg)
        options[name] = value
    options |= {"region": region} if region else {}
    options |= {"endpointUrl": endpoint} if endpoint else {}
    return options


QueryOptions = Annotated[Mapping[str, str], MadeOf(named_options)]
"""The options of the query with which Kinesis is asked, by name."""


@add_command(commands, "tail", short_help="Print the records of a stream as they come.")
def tail(
    *,
    stream: StreamName,
    start: Annotated[
        str,
        typer.Option("--from", metavar="POSITION", help="LATEST, TRIM_HORIZON, or 'AT_TIMESTAMP <time>'."),
    ] = "LATEST",
    shard: Shard = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="End after so many records; 0 for no end.")
    ] = 0,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for more, or end where the stream does.")
    ] = True,
    query: QueryOptions,
    as_json: AsJson = False,
) -> None:
    """Print the records of a stream until Ctrl-C, KPL aggregates split. It needs no application and changes nothing.

    It uses two of the five calls a second that a shard allows to all its readers.
    """
    options = source_options(stream, query)
    from kinesis_trident.spout.options.starting_position import position_spec

    try:
        spec = position_spec(start)
    except ValueError as error:
        msg = f"--from is {start!r}. Expected: {error}"
        raise ConsoleError(msg) from None
    with suppress(KeyboardInterrupt):
        for count, record in enumerate(_records(options, spec, shard, follow), 1):
            print(json_line(record) if as_json else _line(record), flush=True)
            if count == limit:
                return


@add_command(commands, "put", short_help="Write records to a stream.")
def put(
    *,
    stream: StreamName,
    data: Annotated[
        list[str] | None, typer.Argument(help="One record each; without any, a record a line of the input.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The partition key of all; by default a new one for each.")
    ] = None,
    query: QueryOptions,
    as_json: AsJson = False,
) -> None:
    """Write records to a stream, in order; what Kinesis refuses is tried again until all are written."""
    options = source_options(stream, query)
    from kinesis_trident.spout.kinesis.client import kinesis_client

    kinesis = kinesis_client(options)
    lines = [text.encode() for text in data] if data else sys.stdin.buffer.read().splitlines()
    for start in range(0, len(lines), 500):
        page = lines[start : start + 500]
        kinesis.put_records(options.streams[0], [(line, key or uuid.uuid4().hex) for line in page])
    print(
        json_line({"records": len(lines)})
        if as_json
        else f"wrote {count_noun(len(lines), 'record')} to {stream}"
    )


def _records(options: SourceOptions, spec: str, only: str | None, follow: bool) -> Iterator[dict[str, Any]]:
    from kinesis_trident.spout.kinesis import (
        IteratorExpiredError,
        KeyUnusableError,
        ThrottledError,
        Unavailable,
        lasting_error,
    )
    from kinesis_trident.spout.kinesis.client import kinesis_client

    kinesis = kinesis_client(options)
    stream = options.streams[0]
    only = shard_id(only, stream) if only else None
    positions = _beginnings(kinesis, stream, spec, only)
    iterators: dict[str, str | None] = {}
    known = set(positions)
    while positions:
        moved = False
        for shard in sorted(positions):
            try:
                iterator = iterators.get(shard) or kinesis.iterator(stream, shard, positions[shard])
                page = kinesis.get_records(iterator, 1000)
            except KeyUnusableError as error:
                # A person can enable a key that is away, and does not wait for it unawares.
                raise lasting_error(error) from error
            except (IteratorExpiredError, ThrottledError, Unavailable):
                iterators.pop(shard, None)
                continue
            iterators[shard] = page.next_iterator
            for record in _split(page.records, options.deaggregate):
                moved = True
                yield {"shard": shard} | record
                positions[shard] = f"AFTER_SEQUENCE_NUMBER {record['sequence']}"
            if page.next_iterator is None:
                del positions[shard]
                for child in kinesis.list_shards(stream) if only is None else ():
                    if child.id not in known and shard in child.parents:
                        known.add(child.id)
                        positions[child.id] = "TRIM_HORIZON"
                        moved = True
            elif not follow and page.records.num_rows == 0 and not page.behind_ms:
                del positions[shard]
            else:
                moved = moved or bool(page.behind_ms)
        if not moved and positions:
            time.sleep(_PAUSE)


def _beginnings(kinesis: Kinesis, stream: str, start: str, only: str | None) -> dict[str, str]:
    """Return where to begin in each shard.

    Raises:
        ConsoleError: there is no such shard.
    """
    from kinesis_trident.spout.options.starting_position import LATEST, PositionSpec
    from kinesis_trident.spout.positions import AtTimestamp

    spec = PositionSpec.parse(start)
    # The server says its time in whole seconds: what came in this one is shown too.
    now = str(AtTimestamp(kinesis.describe(stream).server_time))
    texts = spec.texts_of(stream)
    listed = {shard.id: shard for shard in kinesis.list_shards(stream)}
    if only is not None and only not in listed:
        msg = f"stream {stream!r} has no shard {only}; it has {some_of(listed)}. Choose one with --shard"
        raise ConsoleError(msg)
    found = {}
    for shard in [only] if only else listed:
        if only is None and any(parent in listed for parent in listed[shard].parents):
            # It comes after its parents.
            continue
        text = texts.get(shard, texts.get("*", LATEST))
        found[shard] = now if text == LATEST else text
    return found


def _split(records: Any, deaggregate: bool) -> Iterator[dict[str, Any]]:
    from kinesis_trident.spout.kinesis.aggregation import deaggregate_page, why_unreadable
    from kinesis_trident.spout.kinesis.record_batches import PLAIN_SUB, without_row

    for row in (deaggregate_page(records) if deaggregate else records).to_pylist():
        stored = row["subSequenceNumber"]
        sub = stored if stored >= PLAIN_SUB else without_row(stored)
        yield {
            "sequence": row["sequenceNumber"],
            "sub": sub if sub >= 0 else None,
            "time_at": int(row["approximateArrivalTimestamp"].timestamp() * 1000),
            "key": row["partitionKey"],
            "data": row["data"],
            **({"unreadable": why_unreadable(row["data"], stored)} if sub != stored else {}),
        }


def _line(record: dict[str, Any]) -> str:
    sub = f":{record['sub']}" if record["sub"] is not None else ""
    place = f"{record['shard']}:{short(record['sequence'])}{sub}"
    key = record.get("unreadable") or record["key"] or "-"
    return make_visible(f"{iso_time(record['time_at'])} {place} {key} {payload_text(record['data'])}")
