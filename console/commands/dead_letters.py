"""The command on records that failed for good: dead letters."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kinesis_trident.checkpoint.store.source_store import SourceStore, streams_of
from kinesis_trident.console.commands.records import ask
from kinesis_trident.console.commands.status import DEFAULT_ROOT
from kinesis_trident.console.dead_letter_replay import (
    exhausted_ids,
    folder_ids,
    letters_in,
    listed_ids,
    payload_text,
)
from kinesis_trident.console.render import json_line, show
from kinesis_trident.console.target import (
    Application,
    AsJson,
    ConsoleError,
    Limit,
    Root,
    Shard,
    Stream,
    Target,
    Watch,
    ZooKeeper,
    action_of,
    open_stores,
    target_of,
)
from kinesis_trident.console.text import counted
from kinesis_trident.console.views import VIEWS
from kinesis_trident.tracker.reasons import make_visible

__all__ = ["commands"]

commands = typer.Typer()


class LetterAction(enum.StrEnum):
    """The action on dead letters."""

    LIST = "list"
    SHOW = "show"
    REPLAY = "replay"
    EXPORT = "export"


@commands.command("dead-letters", short_help="List, show, replay or export dead letters.")
def dead_letters(
    *,
    context: typer.Context,
    application: Application,
    zookeeper: ZooKeeper,
    action: Annotated[LetterAction, action_of("dead-letters", LetterAction)] = LetterAction.LIST,
    message_ids: Annotated[
        list[str] | None, typer.Argument(metavar="MESSAGE_ID", help="Message ids to show, replay or export.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Replay all dead letters.")] = False,
    exhausted: Annotated[
        bool, typer.Option("--exhausted", help="Replay what has stopped a query with onExhausted=fail.")
    ] = False,
    folder: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FOLDER",
            help="Take the dead letters in this folder, or only the named ones.",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--to", help="export: the file; the standard output by default.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    stream: Stream = None,
    shard: Shard = None,
    limit: Limit = 0,
    as_json: AsJson = False,
    watch: Watch = 0,
) -> None:
    """List dead letters, show or export them with their data, or have them delivered again with a new count."""
    target = target_of(context.obj, zookeeper, root, application, stream)
    ids = message_ids or []
    match action:
        case LetterAction.LIST:
            if ids or every or folder or exhausted:
                msg = "message ids, --all and --from choose dead letters to replay. Write replay after the application"
                raise ConsoleError(msg)
            show(VIEWS["dead-letters"], target, as_json, watch, shard, limit)
        case LetterAction.SHOW:
            if not ids:
                msg = f"show needs message ids. kinesis-trident dead-letters {application} lists them"
                raise ConsoleError(msg)
            for letter in _letters(target, ids, folder, shard):
                print(json_line(letter) if as_json else _shown(letter))
        case LetterAction.EXPORT:
            lines = [json_line(letter) for letter in _letters(target, ids, folder, shard)]
            _write(lines[: limit or None], file)
        case LetterAction.REPLAY:
            with open_stores(target) as stores:
                chosen = _chosen(stores, ids, every, folder, exhausted)
                ask(stores, chosen, as_json, what="replay", found=folder is not None)


def _chosen(
    stores: Sequence[SourceStore], ids: list[str], every: bool, folder: str | None, exhausted: bool
) -> list[str]:
    """Return the message ids to replay: the named ones, all that ZooKeeper lists, or those in a folder."""
    if exhausted:
        if ids or every or folder:
            msg = "--exhausted cannot be combined with message ids, --all or --from. Give one of them"
            raise ConsoleError(msg)
        found = [text for store in stores for text in exhausted_ids(store)]
        if not found:
            msg = "no record has failed too often and waits for its dead letter. Dead letters are replayed with --all"
            raise ConsoleError(msg)
        return found
    if every and (ids or folder):
        msg = (
            "--all cannot be combined with message ids or --from. Give message ids, or a folder with --from, or "
            "--all"
        )
        raise ConsoleError(msg)
    if every:
        listed = [text for store in stores for text in listed_ids(store.shards.dead_letters().values())]
        if not listed:
            hint = (
                " --exhausted replays what has stopped the query" if any(map(exhausted_ids, stores)) else ""
            )
            msg = f"there are no dead letters to replay.{hint}"
            raise ConsoleError(msg)
        return listed
    if folder is not None:
        layouts = [store.layout for store in stores]
        streams = {stream for store in stores for stream in streams_of(store)}
        held, expired = folder_ids(folder, layouts[0].application, streams)
        missing = sorted(set(ids) - set(held))
        if missing:
            msg = f"{folder} holds no replayable dead letter {', '.join(missing)}. Check the message ids"
            raise ConsoleError(msg)
        if expired and not ids:
            print(
                f"{expired} records are past the stream's retention and cannot be replayed", file=sys.stderr
            )
        if not held:
            msg = f"{folder} holds no dead letter of {layouts[0].application!r} that can be replayed"
            raise ConsoleError(msg)
        return ids or held
    if not ids:
        msg = (
            "there is nothing to replay. Give message ids, or --all, or --exhausted, or a dead-letter folder with "
            "--from FOLDER"
        )
        raise ConsoleError(msg)
    return ids


def _letters(
    target: Target, ids: Sequence[str], folder: str | None, shard: str | None
) -> Iterator[dict[str, Any]]:
    """Yield dead letters as JSON values: from the folder, else from where ZooKeeper says that they are.

    What stands in no folder that can be read is given as ZooKeeper lists it, without its data.

    Raises:
        ConsoleError: named ones are not there.
        DeadLetterError: the given folder cannot be read.
    """
    with open_stores(target) as stores:
        nodes = [node for store in stores for node in store.shards.dead_letters().values()]
        streams = {stream for store in stores for stream in streams_of(store)}
    listed: dict[str, dict[str, Any]] = {
        record.message_id: {"target": node.target} | msgspec.to_builtins(record)
        for node in nodes
        for record in node.last
    }
    folders = [folder] if folder else sorted({node.target for node in nodes if "/" in node.target})
    found: dict[str, dict[str, Any]] = {}
    for one in folders:
        if not one.startswith("kinesis://"):
            found |= _in_folder(one, target.application, streams, given=folder is not None)
    whole = listed | found if folder is None else found
    strange = sorted(set(ids) - set(whole))
    if strange:
        where = folder or ", ".join(["ZooKeeper's list", *folders])
        msg = f"there is no dead letter {', '.join(strange)} in {where}. Check the message ids, or give --from FOLDER"
        raise ConsoleError(msg)
    for message_id, letter in whole.items():
        if (not ids or message_id in ids) and (shard is None or f"/{shard}:" in message_id):
            yield letter


def _in_folder(folder: str, application: str, streams: set[str], *, given: bool) -> dict[str, dict[str, Any]]:
    # Only here, because it loads pyarrow, and the other commands must answer at once.
    from kinesis_trident.spout.errors import DeadLetterError

    try:
        return {
            letter.message_id: msgspec.to_builtins(letter)
            for letter in letters_in(folder, application, streams)
        }
    except DeadLetterError as error:
        if given:
            raise
        print(f"the data is not shown: {make_visible(str(error))}", file=sys.stderr)
        return {}


def _shown(letter: dict[str, Any]) -> str:
    lines = []
    for key, value in letter.items():
        if key == "data":
            data = None if value is None else msgspec.convert(value, bytes)
            lines += [f"data: {payload_text(data)}"]
        elif key == "reasons":
            lines += [f"failed at {one['time']}: {make_visible(one['reason'])}" for one in value]
        elif value not in (None, -1):
            lines.append(f"{key}: {make_visible(str(value))}")
    return "\n".join(lines) + "\n"


def _write(lines: list[str], file: Path | None) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if file is None:
        sys.stdout.write(text)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"cannot write {file}: {error.strerror}. Give another file with --to"
        raise ConsoleError(msg) from None
    print(f"wrote {counted(len(lines), 'dead letter')} to {file}")
