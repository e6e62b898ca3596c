"""The command on checkpoints: shows, sets, exports and imports them."""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kinesis_trident.checkpoint.model.change_nodes import BackupNode
from kinesis_trident.checkpoint.model.codec import UnreadableError, encode, read
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.console.abandoning import abandon_batch
from kinesis_trident.console.changes import carry_out, copy_of, restore, set_position
from kinesis_trident.console.commands.application_options import add_command
from kinesis_trident.console.render import json_line, show
from kinesis_trident.console.target import (
    AsJson,
    ConsoleError,
    Force,
    Limit,
    Shard,
    Target,
    Watch,
    Yes,
    action_of,
    checkpoints_command,
    no_shard,
    open_stores,
)
from kinesis_trident.console.text import count_noun, now_ms, some_of
from kinesis_trident.console.views import VIEWS
from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.options.starting_position import LATEST, PositionSpec, position_spec
from kinesis_trident.spout.positions import After, AtTimestamp, Position, parse_position
from kinesis_trident.tracker.reasons import make_visible, shorten
from kinesis_trident.tracker.records import RecordPosition

commands = typer.Typer()


class Action(enum.StrEnum):
    """The action on checkpoints."""

    SHOW = "show"
    SET = "set"
    EXPORT = "export"
    IMPORT = "import"
    BACKUPS = "backups"
    ABANDON = "abandon-batch"


@add_command(commands, "checkpoints", short_help="Show, set, export or import how far each shard is.")
def checkpoints(
    *,
    action: Annotated[Action, action_of("checkpoints", Action)] = Action.SHOW,
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="POSITION|FILE",
            help="set: a sequence number to go on after, TRIM_HORIZON, LATEST, 'AT_TIMESTAMP <time>'; export, import: "
            "a file, - for the standard output or input; import: or the name of a backup.",
        ),
    ] = None,
    target: Target,
    shard: Shard = None,
    limit: Limit = 0,
    yes: Yes = False,
    force: Force = False,
    dead_letter: Annotated[
        bool, typer.Option("--dead-letter", help="abandon-batch: what it has read goes to the dead letter.")
    ] = False,
    as_json: AsJson = False,
    watch: Watch = 0,
) -> None:
    """Show per shard how far all records are done, where reading continues, and the records between.

    The other actions are for a stopped application: `set` lets a shard go on from another position, `export` writes all
    checkpoints and unfinished records to a file, `import` writes them back. What stood there is kept as a backup, which
    `backups` lists and `import` takes too. `abandon-batch` lets Spark go on after a batch that cannot finish: its
    records are read again in the next one, or dead-lettered.
    """
    if value is not None and action not in (Action.SET, Action.EXPORT, Action.IMPORT):
        msg = f"{value!r} belongs to set, export or import. Write one of them before it"
        raise ConsoleError(msg)
    if action is Action.SHOW:
        show(VIEWS["checkpoints"], target, as_json, watch, shard, limit)
        return
    copies = _copies_in(value) if action is Action.IMPORT and value is not None else []
    # What was forgotten can be written back before a query starts.
    with open_stores(target, [copy.home for copy in copies]) as stores:
        if action is Action.EXPORT:
            _export(stores, value)
            return
        if len(stores) > 1:
            streams = ", ".join(store.layout.stream for store in stores)
            msg = f"application {target.application!r} reads several streams. Choose one with --stream ({streams})"
            raise ConsoleError(msg)
        (store,) = stores
        if action is Action.BACKUPS:
            _show_backups(store, as_json)
            return
        if action is Action.ABANDON:
            changed = abandon_batch(store, dead_letter=dead_letter, yes=yes, force=force)
            print(json_line(changed) if as_json else _done(changed))
            return
        if value is None:
            what = "a position" if action is Action.SET else "a file, or the name of a backup"
            words = ["POSITION", "--shard", shard or "SHARD"] if action is Action.SET else ["FILE"]
            msg = f"{action.value} needs {what}: {checkpoints_command(store, action.value, *words)}"
            raise ConsoleError(msg)
        if action is Action.SET:
            changed = _set(store, shard, value, yes=yes, force=force)
        else:
            changed = _import(store, shard, value, copies, yes=yes, force=force)
    print(json_line(changed) if as_json else _done(changed))


def _done(changed: dict[str, str]) -> str:
    return make_visible(f"{changed['what']}: done; backup {changed['backup']}")


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


def _export(stores: list[SourceStore], file: str | None) -> None:
    lines = [encode(copy_of(store)) for store in stores]
    if file in (None, "-"):
        sys.stdout.write("".join(f"{line.decode()}\n" for line in lines))
        return
    path = Path(str(file))
    write_copies(path, lines)
    print(f"wrote the checkpoints of {len(lines)} home{'s' if len(lines) > 1 else ''} to {path}")


def _set(store: SourceStore, shard: str | None, text: str, *, yes: bool, force: bool) -> dict[str, str]:
    lineage = store.shards.lineage()
    known = dict(lineage.shards) if lineage else {}
    ids = {store.layout.key_of(name).shard: name for name in known}
    ids |= {store.layout.key_of(name).source: name for name in known}
    labels = [store.layout.key_of(name).shard for name in known]
    if shard is None:
        msg = f"set moves one shard. Name it with --shard: {some_of(labels)}"
        raise ConsoleError(msg)
    if shard not in ids:
        raise no_shard(store.layout.application, shard, labels)
    name = ids[shard]
    if known[name].state == "drained":
        msg = (
            f"shard {shard} is read to its end, and its children go on after it. To read it again, start another "
            "applicationName with startingPosition"
        )
        raise ConsoleError(msg)
    position = _position(text, shard)
    copy = copy_of(store)
    old = copy.checkpoints.get(name)
    what = f"set shard {shard} of {store.layout.application} from {old.position if old else 'its start'} to {position}"
    change = set_position(copy, name, position, what=what)
    held = copy.inflight.get(name)
    before = sum(run.count for run in (*held.waiting, *held.dead)) if held else 0
    kept = change.inflight[name]
    dropped = before - sum(run.count for run in (*kept.waiting, *kept.dead))
    if dropped:
        what += f", and no longer retry {dropped} failed records there"
        change = set_position(copy, name, position, what=what)
    return {"what": what, "backup": carry_out(store, change, yes=yes, force=force)}


def _import(
    store: SourceStore,
    shard: str | None,
    source: str,
    copies: Sequence[BackupNode],
    *,
    yes: bool,
    force: bool,
) -> dict[str, str]:
    saved = _load_copy(store, source, copies)
    copy = copy_of(store)
    known = set(copy.lineage or saved.lineage)
    try:
        keys = {name: store.layout.key_of(name) for name in saved.checkpoints}
    except ValueError as error:
        msg = (
            f"{source} is not of this application: {error}. Give a file that export has written, or a backup"
        )
        raise ConsoleError(msg) from None
    wanted = [name for name, key in keys.items() if shard is None or shard in (name, key.shard, key.source)]
    strange = sorted(set(wanted) - known)
    if strange or not wanted:
        what = (
            f"has shards that the stream does not: {', '.join(strange)}"
            if strange
            else f"has no shard {shard}"
        )
        msg = f"{source} {what}. Choose one with --shard"
        raise ConsoleError(msg)
    what = f"write back {count_noun(len(wanted), 'checkpoint')} of {store.layout.application} from {source}"
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


def _show_backups(store: SourceStore, as_json: bool) -> None:
    rows = [
        {"backup": name, "time_at": one.time, "settled": one.settled, "shards": len(one.checkpoints)}
        for name, one in store.changes.backups().items()
    ]
    if as_json:
        print(json_line({"rows": rows}))
    elif not rows:
        print("there are no backups: nothing was settled yet")
    for row in rows if not as_json else ():
        print(f"{row['backup']}  {row['shards']} shards, settled: txid {row['settled']}")


def _position(text: str, shard: str) -> Position:
    """Parse a position of one shard, or a sequence number to go on after.

    Raises:
        ConsoleError: it is neither.
    """
    try:
        if re.fullmatch("[0-9]{1,129}(:[0-9]{1,9})?", text):
            return After(RecordPosition.parse(text))
        spec = PositionSpec.parse(position_spec(msgspec.json.encode({"*": {shard: text}}).decode()))
        said = spec.text_of("*", shard)
        return AtTimestamp(now_ms()) if said == LATEST else parse_position(said)
    except (ValueError, OptionsError) as error:
        msg = (
            f"{shorten(repr(text), 200)} is not a position. Expected: a sequence number to go on after, or "
            f"{shorten(str(error))}"
        )
        raise ConsoleError(msg) from None
