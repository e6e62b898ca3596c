"""The command on checkpoints: shows, sets, exports and imports them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kinesis_trident.checkpoint.model.change_nodes import BackupNode
from kinesis_trident.checkpoint.model.codec import UnreadableError, encode, read
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.common.visible_text import count_noun, make_visible, shorten
from kinesis_trident.console.abandoning import abandon_batch
from kinesis_trident.console.changes import carry_out, copy_of, leave_out_removed, restore, set_position
from kinesis_trident.console.commands.application_options import add_command
from kinesis_trident.console.commands.records import add_view
from kinesis_trident.console.commands.streams import QueryOptions
from kinesis_trident.console.commands.words import actions_of
from kinesis_trident.console.render import json_line
from kinesis_trident.console.scope import Scope, ShardRef, open_scope
from kinesis_trident.console.target import (
    AsJson,
    ConsoleError,
    Force,
    Shard,
    Target,
    Yes,
    checkpoints_command,
)
from kinesis_trident.console.text import position_text
from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.options.starting_position import LATEST, PositionSpec, position_spec
from kinesis_trident.spout.positions import After, AtTimestamp, Position, parse_position
from kinesis_trident.tracker.records import RecordPosition

commands = actions_of(
    "checkpoints",
    "Show per shard how far all records are done; the other actions are for a stopped application. What stood "
    "where they write is kept as a backup.",
    "Show, set, export or import how far each shard is.",
)
add_view(commands, "show", "checkpoints")


@add_command(commands, "set")
def set_checkpoint(
    *,
    target: Target,
    text: Annotated[
        str,
        typer.Argument(
            metavar="POSITION",
            help="A sequence number to go on after, TRIM_HORIZON, LATEST, 'AT_TIMESTAMP <time>'.",
        ),
    ],
    shard: Shard = None,
    yes: Yes = False,
    force: Force = False,
    query: QueryOptions,
    as_json: AsJson = False,
) -> None:
    """Let a shard go on from another position.

    LATEST asks Kinesis for its time, with --region, --endpoint and -o as the query has them.
    """
    with open_scope(target, shard) as scope:
        ref = scope.one_shard("set")
        position = _position(text, ref.key.shard, lambda: _clock_of(target, ref.key.stream, query))
        _say(_set(ref, position, yes=yes, force=force), as_json)


@add_command(commands, "export")
def export_checkpoints(
    *,
    target: Target,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file; - for the standard output.")] = "-",
    shard: Shard = None,
    as_json: AsJson = False,
) -> None:
    """Write all checkpoints and unfinished records to a file."""
    with open_scope(target, shard) as scope:
        if shard is not None:
            scope.check_records([], change=False)
        copies = [_meant(scope, store, copy_of(store)) for store in scope.stores]
    lines = [encode(copy) for copy in copies if shard is None or copy.checkpoints or copy.lineage]
    if file == "-":
        sys.stdout.write("".join(f"{line.decode()}\n" for line in lines))
        return
    write_copies(Path(file), lines)
    said = f"wrote the checkpoints of {count_noun(len(lines), 'home')} to {file}"
    print(json_line({"homes": len(lines), "file": file}) if as_json else said)


@add_command(commands, "import")
def import_checkpoints(
    *,
    target: Target,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A file that export has written, - for the standard input, or a backup's name.",
        ),
    ],
    shard: Shard = None,
    yes: Yes = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write back the checkpoints and unfinished records of a file, or of a backup."""
    copies = _copies_in(file)
    # What was forgotten can be written back before a query starts.
    with open_scope(target, shard, [copy.home for copy in copies]) as scope:
        _say(_import(scope, scope.one_home(), file, copies, yes=yes, force=force), as_json)


@add_command(commands, "backups")
def list_backups(*, target: Target, shard: Shard = None, as_json: AsJson = False) -> None:
    """List the backups, which import takes."""
    with open_scope(target, shard) as scope:
        store = scope.one_home()
        rows: list[dict[str, Any]] = [
            {
                "backup": name,
                "time_at": one.time,
                "settled": one.settled,
                "shards": len(scope.among(store, one.checkpoints)),
            }
            for name, one in store.changes.backups().items()
        ]
    if as_json:
        print(json_line({"rows": rows}))
    elif not rows:
        print("there are no backups: nothing was settled yet")
    for row in rows if not as_json else ():
        print(f"{row['backup']}  {count_noun(row['shards'], 'shard')}, settled: txid {row['settled']}")


@add_command(commands, "abandon-batch", short_help="Let Spark go on after a batch that cannot finish.")
def abandon(
    *,
    target: Target,
    dead_letter: Annotated[
        bool, typer.Option("--dead-letter", help="What it has read goes to the dead letter.")
    ] = False,
    shard: Shard = None,
    yes: Yes = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Let Spark go on after a batch that cannot finish: its records are read again, or dead-lettered."""
    with open_scope(target, shard) as scope:
        store = scope.whole_home("abandon-batch")
        _say(abandon_batch(store, dead_letter=dead_letter, yes=yes, force=force), as_json)


def _say(changed: dict[str, str], as_json: bool) -> None:
    said = make_visible(f"{changed['what']}: done; backup {changed['backup']}")
    print(json_line(changed) if as_json else said)


def write_copies(path: Path, lines: list[bytes]) -> None:
    """Write encoded copies of homes to a file, a line each.

    Raises:
        ConsoleError: it cannot be written.
    """
    try:
        path.write_bytes(b"".join(line + b"\n" for line in lines))
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}. Give another file"
        raise ConsoleError(msg) from None


def _meant(scope: Scope, store: SourceStore, copy: BackupNode) -> BackupNode:
    """Return the part of a copy that is about the shards that are meant."""
    if scope.shard is None and scope.streams is None:
        return copy
    names = {ref.name for ref in scope.among(store, {*copy.checkpoints, *copy.inflight, *copy.lineage})}
    return msgspec.structs.replace(
        copy,
        checkpoints={name: node for name, node in copy.checkpoints.items() if name in names},
        inflight={name: node for name, node in copy.inflight.items() if name in names},
        lineage={name: node for name, node in copy.lineage.items() if name in names},
    )


def _set(ref: ShardRef, position: Position, *, yes: bool, force: bool) -> dict[str, str]:
    store, name = ref.store, ref.name
    lineage = store.shards.lineage()
    if lineage is None or name not in lineage.shards:
        msg = f"no query reads shard {ref.label}: {store.layout.shards} does not list it. Choose another one"
        raise ConsoleError(msg)
    if lineage.shards[name].state == "drained":
        msg = (
            f"shard {ref.label} is read to its end, and its children go on after it. To read it again, start another "
            "applicationName with startingPosition"
        )
        raise ConsoleError(msg)
    copy = copy_of(store)
    old = copy.checkpoints.get(name)
    before, after = map(position_text, (old.position if old else "its start", str(position)))
    what = f"set shard {ref.label} of {store.layout.application} from {before} to {after}"
    change = set_position(copy, name, position, what=what)
    held = copy.inflight.get(name)
    kept = change.inflight[name]
    dropped = sum(run.count for run in (*held.waiting, *held.dead)) if held else 0
    dropped -= sum(run.count for run in (*kept.waiting, *kept.dead))
    if dropped:
        what += f", and no longer retry {dropped} failed records there"
        change = set_position(copy, name, position, what=what)
    return {"what": what, "backup": carry_out(store, change, yes=yes, force=force)}


def _import(
    scope: Scope, store: SourceStore, source: str, copies: Sequence[BackupNode], *, yes: bool, force: bool
) -> dict[str, str]:
    copy = copy_of(store)
    saved = leave_out_removed(copy, _load_copy(store, source, copies))
    known = set(copy.lineage or saved.lineage)
    try:
        for name in saved.checkpoints:
            store.layout.key_of(name)
    except ValueError as error:
        msg = (
            f"{source} is not of this application: {error}. Give a file that export has written, or a backup"
        )
        raise ConsoleError(msg) from None
    wanted = [ref.name for ref in scope.pick(scope.refs(store, saved.checkpoints))]
    strange = sorted(set(wanted) - known)
    if strange or not wanted:
        what = f"shards that the stream does not: {', '.join(strange)}" if strange else f"nothing{scope.said}"
        msg = f"{source} has {what}. Choose one with --shard"
        raise ConsoleError(msg)
    what = f"write back {count_noun(len(wanted), 'checkpoint')}{scope.said} of {store.layout.application} from {source}"
    change = restore(copy, saved, wanted, what=what)
    return {"what": what, "backup": carry_out(store, change, yes=yes, force=force)}


def _copies_in(source: str) -> list[BackupNode]:
    """Return the copies in a file; none if there is no such file."""
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError:
        return []
    copies = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            copies.append(read(line, BackupNode))
        except UnreadableError as error:
            msg = f"{source}, line {number} {shorten(str(error))}. Give a file that export has written"
            raise ConsoleError(msg) from None
    return copies


def _load_copy(store: SourceStore, source: str, copies: Sequence[BackupNode]) -> BackupNode:
    """Return the copy in a backup node or of a file that is of this home.

    Raises:
        ConsoleError: there is none.
    """
    found = store.changes.backup(source) if "/" not in source and source != "-" else None
    if found is not None:
        return found
    if not copies:
        msg = f"{source} is neither a backup ({checkpoints_command(store, 'backups')}) nor a file that can be read"
        raise ConsoleError(msg)
    for saved in copies:
        if saved.home == store.layout.base:
            return saved
    msg = f"{source} holds nothing of {store.layout.base}. Check --stream, --root and the application's name"
    raise ConsoleError(msg)


def _clock_of(target: Target, stream: str, given: Mapping[str, str]) -> int:
    """Return the time by Kinesis' clock: by another one records would be skipped, or the query would stop at its start.

    Raises:
        OptionsError, KinesisError: Kinesis cannot be asked.
    """
    # Only here, because they load pyarrow, and the other commands must answer at once.
    from kinesis_trident.console.moving.opening import kinesis_of

    return kinesis_of(target, stream, given)[1].describe(stream).server_time


def _position(text: str, shard: str, clock: Callable[[], int]) -> Position:
    """Parse a position of one shard, or a sequence number to go on after; `clock` says when LATEST is.

    Raises:
        ConsoleError: it is neither.
    """
    try:
        if re.fullmatch("[0-9]{1,129}(:[0-9]{1,9})?", text):
            return After(RecordPosition.parse(text))
        spec = PositionSpec.parse(position_spec(msgspec.json.encode({"*": {shard: text}}).decode()))
        said = spec.text_of("*", shard)
        if said != LATEST:
            return parse_position(said)
    except (ValueError, OptionsError) as error:
        msg = (
            f"{shorten(repr(text), 200)} is not a position. Expected: a sequence number to go on after, or "
            f"{shorten(str(error))}"
        )
        raise ConsoleError(msg) from None
    return AtTimestamp(clock())
