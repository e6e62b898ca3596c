"""The command on records that failed for good: dead letters."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import DeadLettersNode
from kinesis_trident.common.redaction import redact
from kinesis_trident.common.stream_names import stream_of
from kinesis_trident.common.visible_text import count_noun, make_visible
from kinesis_trident.console.changes import confirm
from kinesis_trident.console.commands.application_options import MadeOf, add_command
from kinesis_trident.console.commands.records import add_view, ask
from kinesis_trident.console.commands.streams import QueryOptions, source_options
from kinesis_trident.console.commands.words import actions_of
from kinesis_trident.console.dead_letter_replay import (
    KEPT_NOWHERE,
    Choice,
    LetterPlace,
    exhausted_ids,
    find_listed,
    folder_ids,
    folder_in_command,
    has_letters,
    leave_out_unknown,
    letters_in,
    letters_to_replay,
    message_id_of,
    payload_text,
    plain_folder,
    refuse_replayed,
    replayed_ids,
)
from kinesis_trident.console.redelivery import FoundLetters, cancel_replays, find_requests
from kinesis_trident.console.render import json_line
from kinesis_trident.console.scope import Scope, open_scope
from kinesis_trident.console.target import (
    AsJson,
    ConsoleError,
    Limit,
    MessageIds,
    Shard,
    Target,
    command_for,
    time_of_option,
)
from kinesis_trident.console.text import some_of

if TYPE_CHECKING:
    from kinesis_trident.spout.kinesis import Kinesis

commands = actions_of(
    "dead-letters",
    "List dead letters, show or export them with their data, or have them delivered again with a new count.",
    "List, show, replay, export or compact dead letters.",
)
add_view(commands, "list", "dead-letters")

Folder = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FOLDER",
        help="Take the dead letters in this folder, or stream kinesis://NAME, or only the named ones.",
    ),
]
ReadYes = Annotated[
    bool, typer.Option("--yes", "-y", help="Read the folder that ZooKeeper names, without asking.")
]


def _place(*, folder: Folder = None, query: QueryOptions) -> LetterPlace | None:
    """Return the place of dead letters that --from names."""

    def open_kinesis(stream: str) -> Kinesis:
        # Only here, because it loads pyarrow.
        from kinesis_trident.spout.kinesis.client import kinesis_client

        return kinesis_client(source_options(stream, query))

    return None if folder is None else LetterPlace(folder, open_kinesis)


Place = Annotated[LetterPlace | None, MadeOf(_place)]


@add_command(commands, "show")
def show_letters(
    *,
    target: Target,
    message_ids: MessageIds = None,
    place: Place,
    yes: ReadYes = False,
    shard: Shard = None,
    as_json: AsJson = False,
) -> None:
    """Show dead letters with their data and all their reasons."""
    if not message_ids:
        msg = f"show needs message ids. {target.command('dead-letters')} lists them"
        raise ConsoleError(msg)
    for letter in _letters(target, message_ids, place, shard, yes=yes):
        print(json_line(letter) if as_json else _render_letter(letter))


@add_command(commands, "replay", short_help="Have dead letters delivered again.")
def replay(
    *,
    target: Target,
    message_ids: MessageIds = None,
    every: Annotated[bool, typer.Option("--all", help="All that were not replayed yet.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Those that were replayed before, in place of the others.")
    ] = False,
    since: Annotated[
        int | None,
        typer.Option(
            parser=time_of_option,
            metavar="TIME",
            help="Only those that failed then or later; UTC if it has no zone.",
        ),
    ] = None,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only those whose reason has this text.")
    ] = None,
    exhausted: Annotated[
        bool, typer.Option("--exhausted", help="Replay what has stopped a query with onExhausted=fail.")
    ] = False,
    place: Place,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Replay without asking.")] = False,
    shard: Shard = None,
    limit: Limit = 0,
    as_json: AsJson = False,
) -> None:
    """Have dead letters delivered again with a new count of attempts, but those that were replayed before."""
    ids = message_ids or []
    choice = Choice(since or 0, reason or "", again)
    with open_scope(target, shard) as scope:
        chosen, found = _chosen(scope, ids, every, place, exhausted, choice)
        chosen = chosen[: limit or None]
        requests = find_requests(scope.stores, map(message_id_of, chosen), found=found, again=again)
        if not (ids or yes) and sys.stdin.isatty():
            count = count_noun(sum(one.count for one in requests), "record")
            confirm(
                f"{target.application}: deliver {count}{scope.said} again, with a new count of attempts",
                yes=False,
            )
        ask(requests, as_json, what="replay")


@add_command(commands, "cancel")
def cancel(
    *,
    target: Target,
    message_ids: MessageIds = None,
    every: Annotated[bool, typer.Option("--all", help="All requests.")] = False,
    shard: Shard = None,
    as_json: AsJson = False,
) -> None:
    """Take back what replay has asked for."""
    ids = message_ids or []
    with open_scope(target, shard) as scope:
        scope.check_records(ids, change=True)
        print(_cancel(scope, ids, every, as_json=as_json))


@add_command(commands, "export")
def export_letters(
    *,
    target: Target,
    message_ids: MessageIds = None,
    place: Place,
    file: Annotated[
        Path | None, typer.Option("--to", help="The file; the standard output by default.")
    ] = None,
    yes: ReadYes = False,
    shard: Shard = None,
    limit: Limit = 0,
    as_json: AsJson = False,
) -> None:
    """Write dead letters with their data as JSON lines."""
    letters = _letters(target, message_ids or [], place, shard, yes=yes)
    _write([json_line(letter) for letter in letters][: limit or None], file, as_json)


@add_command(commands, "compact", short_help="Merge the files of a folder into few.")
def compact(*, target: Target, folder: Folder = None, as_json: AsJson = False) -> None:
    """Merge the files of the folder --from into few, without those of batches that are not settled."""
    with open_scope(target) as scope:
        for line in _compact(scope, folder, as_json=as_json):
            print(line)


def _chosen(
    scope: Scope, ids: list[str], every: bool, place: LetterPlace | None, exhausted: bool, choice: Choice
) -> tuple[list[str], FoundLetters | None]:
    """Return the message ids to replay: the named ones, those in ZooKeeper's list, or those of a place of letters."""
    letters = None
    if place is None:
        scope.check_records(ids, change=True)
    filtered = choice != Choice(again=choice.again)
    ways = {"message ids": ids, "--all": every, "--exhausted": exhausted}
    given = [name for name, value in (ways | {"--since and --reason": filtered}).items() if value]
    if exhausted and (len(given) > 1 or place or choice.again):
        msg = "--exhausted cannot be combined with message ids or other options. Give one of them"
        raise ConsoleError(msg)
    if every and (ids or place):
        msg = (
            "--all cannot be combined with message ids or --from. Give message ids, or a folder with --from, or "
            "--all"
        )
        raise ConsoleError(msg)
    if ids and filtered:
        msg = "--since and --reason cannot be combined with message ids. Give one of them"
        raise ConsoleError(msg)
    if not given and place is None and not choice.again:
        msg = (
            "there is nothing to replay. Give message ids, or --all, or --exhausted, or a dead-letter folder with "
            "--from FOLDER"
        )
        raise ConsoleError(msg)
    if exhausted:
        found = exhausted_ids(scope)
        if not found:
            msg = "no record has failed too often and waits for its dead letter. Dead letters are replayed with --all"
            raise ConsoleError(msg)
    else:
        if ids and not choice.again:
            refuse_replayed(scope.stores, ids)
        if place is not None:
            found, letters = _in_folder_chosen(scope, ids, place, choice)
            scope.check_records(ids, found, change=True)
        else:
            found = ids or _list_chosen(scope, choice)
    found = list(filter(scope.takes, found))
    if not found:
        msg = f"none of these records is{scope.said}. Check --stream and --shard"
        raise ConsoleError(msg)
    return found, letters


def _list_chosen(scope: Scope, choice: Choice) -> list[str]:
    nodes = letters_to_replay(scope)
    listed, unnamed = find_listed(nodes, choice)
    if unnamed:
        print(
            f"left out, because nothing names them: {count_noun(unnamed, 'record')}. {KEPT_NOWHERE}",
            file=sys.stderr,
        )
    if not listed:
        hint = " --exhausted replays what has stopped the query" if exhausted_ids(scope) else ""
        if not choice.again and any(node.left < node.count for node in nodes):
            hint += " --again delivers those once more that were replayed before"
        msg = f"there are no dead letters{scope.said} to replay.{hint}"
        raise ConsoleError(msg)
    return listed


def _in_folder_chosen(
    scope: Scope, ids: list[str], place: LetterPlace, choice: Choice
) -> tuple[list[str], FoundLetters]:
    layout = scope.stores[0].layout
    letters = folder_ids(place, layout.identity, scope.identities(), choice)
    names = {text: message_id_of(text) for text in ids}
    found = [message_id_of(text) for text in letters.ids]
    missing = sorted(text for text, one in names.items() if not any(map(one.takes, found)))
    foreign = [
        text
        for text in letters.foreign
        if not ids or any(names[one].takes(message_id_of(text)) for one in missing)
    ]
    if foreign and (ids or not found):
        export = command_for(scope.stores[0], "dead-letters", "export", "--from", redact(place.name))
        msg = (
            f"{some_of(foreign)} in {redact(place.name)}: of a stream of this name that was created at another time, "
            f"or in another account, so the query cannot deliver it again. Put its data into the stream anew: {export}"
        )
        raise ConsoleError(msg)
    if missing:
        msg = f"{redact(place.name)} holds no replayable dead letter {', '.join(missing)}. Check the message ids"
        raise ConsoleError(msg)
    if letters.expired and not ids:
        gone = count_noun(letters.expired, "record is", "records are")
        print(f"{gone} past the stream's retention and cannot be replayed", file=sys.stderr)
    if foreign:
        print(f"left out, as of another stream of the name: {some_of(foreign)}", file=sys.stderr)
    before = replayed_ids(scope.stores)
    some = [str(one) for one in found if not ids or any(name.takes(one) for name in names.values())]
    some = some if ids else leave_out_unknown(scope.stores, some, place.name)
    meant = [text for text in some if ids or (text in before) is choice.again]
    if not meant:
        hint = " --again delivers those once more that were replayed before" if found else ""
        msg = (
            f"{redact(place.name)} holds no dead letter of {layout.application!r} that can be replayed.{hint}"
        )
        raise ConsoleError(msg)
    return meant, FoundLetters(place.name, letters.ids)


def _streams(scope: Scope) -> set[str]:
    return {stream for store in scope.stores for stream in scope.streams_of(store)}


def _cancel(scope: Scope, ids: Sequence[str], every: bool, *, as_json: bool) -> str:
    if bool(ids) is every:
        msg = "cancel needs message ids, or --all"
        raise ConsoleError(msg)
    named = [message_id_of(text) for text in ids]

    withdrawn = late = taken_back = 0
    note = f"cancel the replay of {', '.join(ids[:3]) or f'all{scope.said}'}"
    for store in scope.stores:
        count, taken, back = cancel_replays(store, scope.shards_of(store), None if every else named, note)
        withdrawn, late, taken_back = withdrawn + count, late + taken, taken_back + back
    if not withdrawn and not taken_back:
        msg = f"nothing{scope.said} that was asked for is still to be delivered again: there is nothing to cancel"
        raise ConsoleError(msg)
    if as_json:
        return json_line({"records": withdrawn, "late": late, "taken_back": taken_back})
    said = [f"{count_noun(withdrawn, 'record')} will not be delivered again"] if withdrawn else []
    if taken_back:
        said.append(
            f"{count_noun(taken_back, 'record')} that the query has taken in will not be delivered again after its "
            "next batch, or once it is started"
        )
    said += [f"the query has just taken in {late} more"] if late else []
    return "; ".join(said)


def _compact(scope: Scope, folder: str | None, *, as_json: bool) -> Iterator[str]:
    if folder is None or stream_of(folder) is not None:
        msg = "compact merges all files of a dead-letter folder. Name it with --from FOLDER"
        raise ConsoleError(msg)
    # Only here, because it loads pyarrow, and the other commands must answer at once.
    from kinesis_trident.common.folder import absolute_target
    from kinesis_trident.spout.failed_records.compacting import compact_letters

    homes: dict[str, set[int]] = {}
    for store in scope.stores:
        settled = store.batches.settled()
        for stream in scope.streams_of(store):
            homes.setdefault(stream, set()).add(settled.txid if settled is not None else 0)
    for stream, settled_txids in sorted(homes.items()):
        # After each of them a batch may be under way.
        done = compact_letters(
            absolute_target(folder),
            scope.stores[0].layout.identity,
            stream,
            lambda txid, known=settled_txids: txid <= max(known) and txid - 1 not in known,  # type: ignore[misc]
        )
        if as_json:
            yield json_line({"stream": stream} | asdict(done))
            continue
        yield make_visible(
            f"{stream}: {count_noun(done.before, 'file')} of settled batches, {done.after} after it"
        )
        for path in done.strange:
            yield make_visible(f"{path} stays: it was cut off or damaged. Restore it, or move it elsewhere")


def _letters(
    target: Target, ids: Sequence[str], place: LetterPlace | None, shard: str | None, *, yes: bool
) -> Iterator[dict[str, Any]]:
    """Yield dead letters as JSON values: from the folder, else from where ZooKeeper says that they are, if agreed.

    What stands in no folder that may and can be read is given as ZooKeeper lists it, without its data.

    Raises:
        ConsoleError: named ones are not there.
        DeadLetterError: the given folder cannot be read.
    """
    with open_scope(target, shard) as scope:
        nodes = [node for store in scope.stores for node in store.shards.dead_letters().values()]
        listed: dict[str, dict[str, Any]] = {
            record.message_id: {"target": node.target} | msgspec.to_builtins(record)
            for node in nodes
            for record in node.last
        }
        if place is None:
            # A shard that retention has removed may have letters.
            scope.check_records(ids, listed, change=False)
    places = [place] if place else [LetterPlace(one) for one in _agree_on_folders(nodes, yes=yes)]
    found: dict[str, dict[str, Any]] = {}
    for one in places:
        found |= _in_folder(one, scope.stores[0].layout.identity, _streams(scope), given=place is not None)
    whole = listed | found if place is None else found
    names = {text: MessageId.find(text) for text in {*ids, *whole}} if ids else {}

    def is_named(letter: str, text: str) -> bool:
        """Return whether a letter is the named one, or a record of the named run."""
        name, one = names[text], names[letter]
        return letter == text or (name is not None and one is not None and name.takes(one))

    strange = sorted(text for text in set(ids) if not any(is_named(letter, text) for letter in whole))
    if strange:
        names_of = [redact(one.name) for one in places]
        where = names_of[0] if place else ", ".join(["ZooKeeper's list", *names_of])
        other = ", or give --from FOLDER" if any(map(has_letters, nodes)) else ""
        msg = f"there is no dead letter {', '.join(strange)} in {where}. Check the message ids{other}"
        raise ConsoleError(msg)
    for message_id, letter in whole.items():
        if (not ids or any(is_named(message_id, text) for text in ids)) and scope.takes(message_id):
            yield letter


def _agree_on_folders(nodes: Sequence[DeadLettersNode], *, yes: bool) -> list[str]:
    """Return the folders that ZooKeeper names and the person agrees to read, with the person's credentials."""
    named = {node.target: folder_in_command(node) for node in nodes if has_letters(node)}
    plain = sorted(target for target in named if plain_folder(target))
    if plain and not yes and sys.stdin.isatty():
        question = (
            f"ZooKeeper says that the data is in {', '.join(plain)}. Read it there, with your permissions?"
        )
        yes = typer.confirm(make_visible(question), err=True)
    agreed = plain if yes else []
    for target in sorted(named.keys() - set(agreed)):
        if stream_of(target) is None:
            warning = "" if target in plain else ", which chooses who gets your credentials. If it is yours"
            said = f"the data is not shown. ZooKeeper names {named[target]}{warning}: read it with --from"
            print(make_visible(said), file=sys.stderr)
    return agreed


def _in_folder(
    place: LetterPlace, application: str, streams: set[str], *, given: bool
) -> dict[str, dict[str, Any]]:
    # Only here, because it loads pyarrow, and the other commands must answer at once.
    from kinesis_trident.spout.errors import DeadLetterError

    try:
        return {
            letter.message_id: msgspec.to_builtins(letter)
            for letter in letters_in(place, application, streams)
        }
    except DeadLetterError as error:
        if given:
            raise
        print(f"the data is not shown: {make_visible(str(error))}", file=sys.stderr)
        return {}


def _render_letter(letter: dict[str, Any]) -> str:
    lines = []
    for key, value in letter.items():
        if key == "data":
            data = None if value is None else msgspec.convert(value, bytes)
            lines += [f"data: {payload_text(data)}"]
        elif key == "reasons":
            lines += [make_visible(f"failed at {one['time']}: {one['reason']}") for one in value]
        elif value not in (None, -1):
            lines.append(f"{key}: {make_visible(str(value))}")
    return "\n".join(lines) + "\n"


def _write(lines: list[str], file: Path | None, as_json: bool) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if file is None:
        sys.stdout.write(text)
        return
    try:
        # It holds payloads: a new one is for this user alone.
        with os.fdopen(
            os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as out:
            out.write(text)
    except OSError as error:
        msg = f"cannot write {file}: {error.strerror}. Give another file with --to"
        raise ConsoleError(msg) from None
    said = f"wrote {count_noun(len(lines), 'dead letter')} to {file}"
    print(json_line({"letters": len(lines), "file": str(file)}) if as_json else said)
