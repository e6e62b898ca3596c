"""Records that failed, by their message ids: in ZooKeeper's lists, and in the folders of dead letters."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kinesis_trident.checkpoint.model.codec import name_in_errors
from kinesis_trident.checkpoint.model.layout import PAST_RETENTION
from kinesis_trident.checkpoint.model.message_id import MessageId, source_of
from kinesis_trident.checkpoint.model.nodes import DeadLetterRecord, DeadLettersNode, InflightNode, Replay
from kinesis_trident.checkpoint.store.source_store import SourceStore, look_at_shards
from kinesis_trident.common.redaction import redact
from kinesis_trident.common.stream_names import is_stream_name, stream_of
from kinesis_trident.common.visible_text import count_noun, make_visible, shorten
from kinesis_trident.console.scope import Scope
from kinesis_trident.console.target import ConsoleError, command_for
from kinesis_trident.console.text import epoch_ms, some_of
from kinesis_trident.tracker.failure import OF_ANOTHER_STREAM
from kinesis_trident.tracker.records import Run

if TYPE_CHECKING:
    from kinesis_trident.spout.failed_records.dead_letters import DeadLetter
    from kinesis_trident.spout.kinesis import Kinesis

_NAMED = 3


def message_id_of(text: str) -> MessageId:
    """Read a message id that a person has typed.

    Raises:
        ConsoleError: it is none.
    """
    try:
        return MessageId.parse(text)
    except ValueError as error:
        msg = f"{shorten(repr(text), 200)} is not a message id: {error}. The lists show them whole"
        raise ConsoleError(msg) from None


@dataclass(frozen=True, slots=True)
class Choice:
    """The dead letters that are meant: `again` those that were replayed before, else the others.

    `since`: failed for the last time then or later, in epoch milliseconds. `reason`: a part of the last reason.
    """

    since: int = 0
    reason: str = ""
    again: bool = False

    def takes(self, time: int, reason: str) -> bool:
        """Return whether a letter with this last failure is meant."""
        return time >= self.since and self.reason in reason


_ALL = Choice()


def find_listed(nodes: Iterable[DeadLettersNode], choice: Choice = _ALL) -> tuple[list[str], int]:
    """Return the message ids of the chosen dead letters of all that ZooKeeper lists, and how many it does not name.

    Those were skipped: they are in no letter either, so nothing names them.

    Raises:
        ConsoleError: there are more in letters than it lists; the message names their place.
    """
    found, unnamed = list[str](), 0
    for node in nodes:
        marks = [(record, replay_of(node, record)) for record in node.last]
        some = [
            record
            for record, mark in marks
            # One of another stream fails again, however often.
            if (mark is not None) is choice.again and record.reason != str(OF_ANOTHER_STREAM)
        ]
        # Those that are not listed, without the replayed ones among them.
        others = sum(one.count for one in node.replays) - sum(mark is not None for _, mark in marks)
        if not choice.again:
            others = node.count - sum(record.count for record in node.last) - max(0, others)
        if others > 0 and not any(record.time < choice.since for record in node.last):
            if has_letters(node):
                msg = (
                    f"there are {node.count} dead letters, of which ZooKeeper lists the last {len(node.last)}. To "
                    f"replay all, take them from the dead-letter folder with --from {folder_in_command(node)}"
                )
                raise ConsoleError(msg)
            unnamed += others
        for record in some:
            if choice.takes(record.time, record.reason):
                if record.count == 1 and MessageId.find(record.message_id) is None:
                    unnamed += 1
                elif record.count == 1:
                    found.append(record.message_id)
                elif has_letters(node):
                    msg = (
                        f"{record.message_id} stands for {record.count} records, which ZooKeeper does not name one by "
                        f"one. Take them from the dead-letter folder with --from {folder_in_command(node)}"
                    )
                    raise ConsoleError(msg)
                else:
                    unnamed += record.count
    return found, unnamed


def letters_to_replay(scope: Scope) -> list[DeadLettersNode]:
    """Return the nodes of the dead letters that are meant; say how many can only be put into the stream anew."""
    nodes = list[DeadLettersNode]()
    for store in scope.stores:
        for shard, letters in sorted(store.shards.dead_letters().items()):
            if not scope.shards_of(store)(shard):
                continue
            if shard.rpartition("/")[2] == PAST_RETENTION:
                _say_removed(store, letters.left, folder_of(letters) if has_letters(letters) else "")
            else:
                nodes.append(letters)
    return nodes


def leave_out_unknown(stores: Sequence[SourceStore], texts: Collection[str], place: str) -> list[str]:
    """Return the message ids without those of shards that the query does not have, and say how many these are.

    Retention has removed them; or the stream has them, and the application was forgotten and begun anew since.
    """
    there = {store.layout.source_of(name) for store in stores for name in look_at_shards(store)[0]}
    kept = [text for text in texts if source_of(text) in there]
    why = "the query has their shards no more: retention has removed them, or it was begun anew since"
    _say_removed(stores[0], len(texts) - len(kept), place, why)
    return kept


def _say_removed(
    store: SourceStore, count: int, place: str, why: str = "retention has removed their shards"
) -> None:
    """Say how many letters cannot be replayed, and why: their shards are gone; `place`: of their data."""
    if count:
        said = f"left out, because {why}: {count_noun(count, 'record')}"
        if place:
            line = command_for(store, "dead-letters", "export", options=["--from", redact(place)])
            said += f". {line} writes their data, to be put into the stream anew"
        print(make_visible(said), file=sys.stderr)


def has_letters(node: DeadLettersNode) -> bool:
    """Return whether the records of a node are in letters; with onExhausted=skip they are in the stream alone."""
    return "/" in node.target


KEPT_NOWHERE = (
    "onExhausted=skip has written no letter of them. Set the option deadLetter for those to come; checkpoints set "
    "reads a shard again from before these, with all that follows"
)
"""The remedy for records that were skipped and are not named one by one."""


def replay_words(node: DeadLettersNode) -> list[str]:
    """Return the options with which the letters of a shard that are left can be replayed; empty if none can be."""
    try:
        found, _ = find_listed([node])
    except ConsoleError:
        return ["--from", folder_of(node)]
    return ["--all"] if found else []


def folder_of(node: DeadLettersNode) -> str:
    """Return the place of a node's letters; `FOLDER` where it names none that may be read without a look at it."""
    stream = stream_of(node.target)
    if stream is not None:
        return node.target if is_stream_name(stream) else "FOLDER"
    return node.target if "/" in node.target and plain_folder(node.target) else "FOLDER"


def replay_of(node: DeadLettersNode, record: DeadLetterRecord) -> Replay | None:
    """Return the replay of a listed letter; None if it was not delivered again.

    Raises:
        CorruptNodeError: the marks cannot be read.
    """
    if not node.replays:
        return None
    # Only here, because it loads numpy, and the other commands must answer at once.
    from kinesis_trident.checkpoint.model.replays import mark_of_letter

    with name_in_errors(f"the node of {record.message_id} below deadletters"):
        return mark_of_letter(node, record)


def replayed_ids(stores: Iterable[SourceStore]) -> set[str]:
    """Return the message ids of the records whose newest dead letter was delivered again, or is about to be."""
    found: set[str] = set()
    for store in stores:
        for shard, node in store.shards.dead_letters().items():
            if node.replays:
                # Only here, because it loads numpy.
                from kinesis_trident.checkpoint.model.replays import find_replayed

                with name_in_errors(store.layout.deadletters_of(shard)):
                    source = store.layout.key_of(shard).source
                    found.update(str(MessageId.of_record(source, at)) for at in find_replayed(node).positions)
    return found


def refuse_replayed(stores: Sequence[SourceStore], texts: Iterable[str]) -> None:
    """Refuse dead letters that were replayed before.

    Raises:
        ConsoleError: there are some; it names them.
    """
    before = replayed_ids(stores).intersection(texts)
    if before:
        msg = (
            f"{some_of(before, _NAMED)} was replayed before: {command_for(stores[0], 'dead-letters')} shows what came "
            "of it. --again delivers it once more"
        )
        raise ConsoleError(msg)


def plain_folder(target: str) -> str | None:
    """Return the folder that a node names, if it may be read after a question; None for anything else.

    Whoever writes to ZooKeeper chooses it: parameters and a user before the host would let them choose the server that
    gets the reader's signed request. A folder that needs them is named on the command line.
    """
    if make_visible(target) != target:
        # A terminal would show another folder than the one that is read.
        return None
    _, found, rest = target.partition("://")
    if not found:
        return target if Path(target).is_absolute() else None
    authority = rest.partition("/")[0]
    strange = stream_of(target) is not None or any(mark in rest for mark in "?#") or "@" in authority
    return None if strange else target


def folder_in_command(node: DeadLettersNode) -> str:
    """Return the folder of a node's letters as a word for the shell."""
    return make_visible(shlex.quote(node.target))


@dataclass(frozen=True, slots=True)
class LetterPlace:
    """A folder of dead letters, or a stream of them.

    Attributes:
        name: the folder, or `kinesis://name`.
        open_kinesis: returns the calls for a stream.
    """

    name: str
    open_kinesis: Callable[[str], Kinesis] | None = None


@dataclass(frozen=True, slots=True)
class ChosenLetters:
    """The chosen dead letters in a place, in its order.

    Attributes:
        ids: the message ids of those that can be replayed, with the times at which their records arrived, in epoch
            milliseconds.
        expired: how many records cannot, because they were past the stream's retention before they were written.
        foreign: the message ids of those of another stream of the name: one that was deleted, or of another account.
    """

    ids: dict[str, int]
    expired: int
    foreign: list[str]


def folder_ids(
    place: LetterPlace, application: str, streams: Mapping[str, tuple[int, str]], choice: Choice = _ALL
) -> ChosenLetters:
    """Find the chosen dead letters of one application and its streams in a place, which applications may share.

    Args:
        place: the place.
        application: the name that the application had at first.
        streams: by name, when the stream was created, in epoch milliseconds, and its account, empty if unknown.
        choice: which of them.

    Raises:
        DeadLetterError: the place cannot be read; it names it.
    """
    ids, foreign = dict[str, int](), dict[str, None]()
    expired = 0
    for letter in letters_in(place, application, streams):
        last = letter.reasons[-1] if letter.reasons else None
        if not choice.takes(epoch_ms(last.time) if last else 0, last.reason if last else ""):
            continue
        if letter.is_of_another_stream(*streams[letter.stream]):
            foreign[letter.message_id] = None
        elif letter.data is None:
            expired += letter.count
        else:
            ids.setdefault(letter.message_id, epoch_ms(letter.approximate_arrival_timestamp or ""))
    return ChosenLetters(ids, expired, [text for text in foreign if text not in ids])


def letters_in(place: LetterPlace, application: str, streams: Container[str]) -> Iterator[DeadLetter]:
    """Yield the dead letters of one application and its streams in a place, which applications may share.

    Raises:
        DeadLetterError: the place cannot be read; it names it.
    """
    # Only here, because it loads pyarrow, and the other commands must answer at once.
    from kinesis_trident.common.folder import absolute_target
    from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters
    from kinesis_trident.spout.failed_records.letter_stream import read_stream_letters

    stream = stream_of(place.name)
    if stream is not None and place.open_kinesis is not None:
        letters = read_stream_letters(place.open_kinesis(stream), stream)
    else:
        letters = read_dead_letters(absolute_target(place.name))
    for letter in letters:
        if letter.application_name == application and letter.stream in streams:
            yield letter


def payload_text(data: bytes | None) -> str:
    """Return a payload as text if it is text, else in base64."""
    if data is None:
        return "gone: the record was past the stream's retention"
    try:
        return make_visible(data.decode())
    except UnicodeDecodeError:
        return f"(base64) {msgspec.to_builtins(data)}"


def exhausted_ids(scope: Scope) -> list[str]:
    """Return a message id for each run of records that has failed too often and is not dead-lettered yet."""
    nodes = (pair for store in scope.stores for pair in _inflight_of(store, scope.shards_of(store)))
    return [str(MessageId.of_run(source, run)) for source, node in nodes for run in node.dead]


def waiting_ids(
    store: SourceStore,
    shards: Callable[[str], bool] = lambda _: True,
    reason: str | None = None,
    *,
    exact: bool = False,
) -> list[str]:
    """Return a message id for each run of records that waits for a retry.

    `shards`: tells by its name whether a shard is meant. With `reason`, only those whose last reason contains it, or is
    it, if `exact`.
    """

    def is_meant(run: Run) -> bool:
        said = run.failures[-1].reason if run.failures else ""
        return reason is None or (said == reason if exact else bool(run.failures) and reason in said)

    return [
        str(MessageId.of_run(source, run))
        for source, node in _inflight_of(store, shards)
        for run in node.waiting
        if is_meant(run)
    ]


def _inflight_of(store: SourceStore, shards: Callable[[str], bool]) -> Iterator[tuple[str, InflightNode]]:
    for shard, node in sorted(store.shards.inflight().items()):
        if shards(shard):
            yield store.layout.key_of(shard).source, node
