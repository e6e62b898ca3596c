"""Requests that the running query delivers dead letters again, with a new count of attempts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kinesis_trident.checkpoint.model.codec import name_in_errors
from kinesis_trident.checkpoint.model.layout import ShardKey
from kinesis_trident.checkpoint.model.nodes import DeadLetterRecord, DeadLettersNode, ExternalNode, Replay
from kinesis_trident.checkpoint.store.source_store import SourceStore, streams_of
from kinesis_trident.console.target import ConsoleError, command_for
from kinesis_trident.console.text import count_noun, epoch_ms, some_of
from kinesis_trident.tracker.reasons import make_visible, shorten
from kinesis_trident.tracker.records import SEQUENCE, RecordPosition, Run

if TYPE_CHECKING:
    from kinesis_trident.spout.failed_records.dead_letters import DeadLetter

_NAMED = 3
# A node of this many positions is about 30 KB.
_RECORDS_A_NODE = 500


@dataclass(frozen=True, slots=True)
class MessageId:
    """The name of one record, `stream/shardId:sequence[:sub]`, as in the column `messageId`."""

    stream: str
    shard: str
    position: RecordPosition

    def __str__(self) -> str:
        return f"{self.stream}/{self.shard}:{self.position}"

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Read a message id.

        Raises:
            ConsoleError: it is not a message id, or stands for several records.
        """
        stream, slash, rest = text.strip().partition("/")
        shard, colon, position = rest.partition(":")
        if ".." in position or position.startswith("after "):
            msg = (
                f"{shorten(repr(text), 200)} stands for several records, which ZooKeeper does not name one "
                "by one. Take them from the dead-letter folder with --from FOLDER"
            )
            raise ConsoleError(msg)
        if not (stream and slash and shard and colon and re.fullmatch(SEQUENCE, position)):
            msg = f"{shorten(repr(text), 200)} is not a message id. Its form is stream/shardId:sequence[:sub]"
            raise ConsoleError(msg)
        return cls(stream, shard, RecordPosition.parse(position))


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


def listed_ids(nodes: Iterable[DeadLettersNode], choice: Choice = _ALL) -> Iterator[str]:
    """Yield the message ids of the chosen dead letters of all that ZooKeeper lists.

    Raises:
        ConsoleError: there are more than it lists; the message names their place.
    """
    for node in nodes:
        marks = [(record, replay_of(node, record)) for record in node.last]
        some = [record for record, mark in marks if (mark is not None) is choice.again]
        # Those that are not listed, without the replayed ones among them.
        others = sum(one.count for one in node.replays) - sum(mark is not None for _, mark in marks)
        if not choice.again:
            others = node.count - sum(record.count for record in node.last) - max(0, others)
        if others > 0 and not any(record.time < choice.since for record in node.last):
            msg = (
                f"there are {node.count} dead letters, of which ZooKeeper lists the last {len(node.last)}. To replay "
                f"all, take them from the dead-letter folder with --from {folder_in_command(node)}"
            )
            raise ConsoleError(msg)
        yield from (record.message_id for record in some if choice.takes(record.time, record.reason))


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
                from kinesis_trident.tracker.position_keys import KeyPositions

                with name_in_errors(store.layout.deadletters_of(shard)):
                    source = store.layout.key_of(shard).source
                    found.update(f"{source}:{position}" for position in KeyPositions(find_replayed(node)))
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
    scheme, found, rest = target.partition("://")
    if not found:
        return target if Path(target).is_absolute() else None
    authority = rest.partition("/")[0]
    strange = scheme == "kinesis" or any(mark in rest for mark in "?#") or "@" in authority
    return None if strange else target


def folder_in_command(node: DeadLettersNode) -> str:
    """Return the folder of a node's letters as a word for the shell; `FOLDER` where it names none."""
    return make_visible(shlex.quote(node.target)) if "/" in node.target else "FOLDER"


def folder_ids(
    folder: str, application: str, streams: Container[str], choice: Choice = _ALL
) -> tuple[list[str], int]:
    """Return the chosen dead letters of one application and its streams in a folder, which applications may share.

    Returns:
        The message ids that can be replayed, in the folder's order, and how many records cannot, because they
        were past the stream's retention before they were written.

    Raises:
        DeadLetterError: the folder cannot be read; it names it.
    """
    ids: list[str] = []
    expired = 0
    for letter in letters_in(folder, application, streams):
        last = letter.reasons[-1] if letter.reasons else None
        if not choice.takes(epoch_ms(last.time) if last else 0, last.reason if last else ""):
            continue
        if letter.data is None:
            expired += letter.count
        else:
            ids.append(letter.message_id)
    return list(dict.fromkeys(ids)), expired


def letters_in(folder: str, application: str, streams: Container[str]) -> Iterator[DeadLetter]:
    """Yield the dead letters of one application and its streams in a folder, which applications may share.

    Raises:
        DeadLetterError: the folder cannot be read; it names it.
    """
    # Only here, because it loads pyarrow, and the other commands must answer at once.
    from kinesis_trident.common.folder import absolute_target
    from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters

    for letter in read_dead_letters(absolute_target(folder)):
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


def exhausted_ids(store: SourceStore) -> list[str]:
    """Return a message id for each run of records that has failed too often and is not dead-lettered yet."""
    return [
        f"{store.layout.key_of(shard).source}:{run.last}"
        for shard, node in sorted(store.shards.inflight().items())
        for run in node.dead
    ]


def waiting_ids(store: SourceStore, reason: str | None = None, *, exact: bool = False) -> list[str]:
    """Return a message id for each run of records that waits for a retry.

    With `reason`, only those whose last reason contains it, or is it, if `exact`.
    """

    def is_meant(run: Run) -> bool:
        said = run.failures[-1].reason if run.failures else ""
        return reason is None or (said == reason if exact else bool(run.failures) and reason in said)

    return [
        f"{store.layout.key_of(shard).source}:{run.last}"
        for shard, node in sorted(store.shards.inflight().items())
        for run in node.waiting
        if is_meant(run)
    ]


def requests(ids: Iterable[MessageId], *, again: bool = False) -> dict[str, list[ExternalNode]]:
    """Return the requests for each shard: every record once, in order, a bounded number in a node."""
    shards: dict[str, set[RecordPosition]] = {}
    for message_id in ids:
        shards.setdefault(message_id.shard, set()).add(message_id.position)
    asked: dict[str, list[ExternalNode]] = {}
    for shard, positions in sorted(shards.items()):
        records = tuple(map(str, sorted(positions)))
        asked[shard] = [
            ExternalNode(op="replay", records=records[start : start + _RECORDS_A_NODE], again=again)
            for start in range(0, len(records), _RECORDS_A_NODE)
        ]
    return asked


def ask_for_replay(
    stores: Sequence[SourceStore], ids: Sequence[MessageId], *, found: bool = False, again: bool = False
) -> int:
    """Write the requests; the next settled batch of the query includes them. What is asked for already is left out.

    If one of them cannot be written, none is. `found`: the records are known to be dead letters. `again`: also those
    that were replayed before and are done since.

    Returns:
        The number of requested records.

    Raises:
        ConsoleError: a message id is of a stream or shard that the application does not know, or of a record that
            is neither a dead letter nor waits; or all of them are asked for already.
        CheckpointError: ZooKeeper does not answer.
    """
    homes = {stream: (store, created) for store in stores for stream, created in streams_of(store).items()}
    before = {text for store in stores for *_, records in _waiting_requests(store) for text in records}
    wanted = [one for one in ids if str(one) not in before]
    if ids and not wanted:
        which = list(map(str, ids)) if len(ids) <= _NAMED else ["--all"]
        cancel = command_for(stores[0], "dead-letters", "cancel", *which)
        msg = (
            f"{count_noun(len(ids), 'record')} asked for already: the query takes it in with its next micro-batch, or "
            f"once it is started. Until then {cancel} withdraws it"
        )
        raise ConsoleError(msg)
    ids = wanted
    asked: list[tuple[SourceStore, str, ExternalNode]] = []
    for stream in sorted({message_id.stream for message_id in ids}):
        if stream not in homes:
            msg = (
                f"application {stores[0].layout.application!r} does not read stream {stream!r} of these records; it "
                f"reads {some_of(homes)}. Check the message ids"
            )
            raise ConsoleError(msg)
        store, created = homes[stream]
        lineage = store.shards.lineage()
        known = {*store.shards.checkpoints(), *(lineage.shards if lineage else ())}
        nodes = {
            store.layout.name_of(ShardKey(stream, created, shard)): some
            for shard, some in requests((one for one in ids if one.stream == stream), again=again).items()
        }
        unknown = [store.layout.key_of(shard).shard for shard in sorted(set(nodes) - known)]
        if unknown:
            there = [key.shard for key in map(store.layout.key_of, known) if key.stream == stream]
            msg = f"stream {stream!r} has no shard {some_of(unknown)}; it has {some_of(there)}. Check the message ids"
            raise ConsoleError(msg)
        if not found:
            _refuse_strangers(store, [one for one in ids if one.stream == stream], created)
        asked += [(store, shard, node) for shard, some in nodes.items() for node in some]
    for store, shard, node in asked:
        store.external.add(shard, node)
    return sum(len(node.records) for _, _, node in asked)


def withdraw(store: SourceStore, is_meant: Callable[[str], bool]) -> tuple[int, int]:
    """Withdraw requests to deliver records again, chosen by their message ids.

    Returns:
        The number of records that no run had taken in yet, and of those for which a run was quicker.
    """
    withdrawn = late = 0
    for shard, name, node, records in _waiting_requests(store):
        left = tuple(record for text, record in records.items() if not is_meant(text))
        count = len(records) - len(left)
        if not count:
            continue
        if store.external.withdraw(
            shard, name, msgspec.structs.replace(node, records=left) if left else None
        ):
            withdrawn += count
        else:
            late += count
    return withdrawn, late


def _waiting_requests(store: SourceStore) -> Iterator[tuple[str, str, ExternalNode, dict[str, str]]]:
    """Yield the requests for replays that no run has taken in: shard, name, node, the records by message id."""
    for shard, found in store.external.read().asked.items():
        for name, node in found.items():
            if node.op == "replay":
                source = store.layout.key_of(shard).source
                yield shard, name, node, {f"{source}:{record}": record for record in node.records}


def _refuse_strangers(store: SourceStore, ids: Sequence[MessageId], created: int) -> None:
    """Refuse records that did not fail: a typing error would deliver a record again that is done.

    Raises:
        ConsoleError: there are some; it names them.
    """
    layout = store.layout
    letters, inflight = store.shards.dead_letters(), store.shards.inflight()
    strangers = []
    for one in ids:
        shard = layout.name_of(ShardKey(one.stream, created, one.shard))
        node, held = letters.get(shard), inflight.get(shard)
        listed = [record.message_id.partition(f"{one.shard}:")[2] for record in node.last] if node else []
        if any(_covers(text, one.position) for text in listed):
            continue
        runs = (*held.waiting, *held.dead) if held else ()
        if any(_covers(f"{run.first or f'after {run.prev}'}..{run.last}", one.position) for run in runs):
            continue
        if node is not None and sum(record.count for record in node.last) < node.count:
            msg = (
                f"{one} is not among the last dead letters, which are all that "
                f"ZooKeeper lists. Take it from the dead-letter folder with --from {folder_in_command(node)}"
            )
            raise ConsoleError(msg)
        strangers.append(str(one))
    if strangers:
        msg = (
            f"{', '.join(strangers)}: no such dead letter, and no such record waits. "
            f"{command_for(store, 'dead-letters')} lists them"
        )
        raise ConsoleError(msg)


def _covers(text: str, position: RecordPosition) -> bool:
    """Return whether a record is in a run, as the end of a message id names it: `5`, `5..9` or `after 4..9`."""
    first, dots, last = text.partition("..")
    after = first.startswith("after ")
    try:
        end = RecordPosition.parse(last if dots else first.removeprefix("after "))
    except ValueError:
        # Not an id of ours: anybody may have written the node.
        return False
    try:
        begin = RecordPosition.parse(first.removeprefix("after "))
    except ValueError:
        # A run whose beginning nobody knows.
        return position <= end
    return (begin < position if after else begin <= position) and position <= end
