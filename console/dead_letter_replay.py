"""Requests that the running query delivers dead letters again, with a new count of attempts."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kinesis_trident.checkpoint.model.layout import ShardKey
from kinesis_trident.checkpoint.model.nodes import DeadLettersNode, ExternalNode
from kinesis_trident.checkpoint.store.source_store import SourceStore, streams_of
from kinesis_trident.console.target import ConsoleError
from kinesis_trident.tracker.reasons import make_visible, shorten
from kinesis_trident.tracker.records import SEQUENCE, RecordPosition, Run

if TYPE_CHECKING:
    from kinesis_trident.spout.failed_records.dead_letters import DeadLetter

__all__ = [
    "MessageId",
    "ask_for_replay",
    "exhausted_ids",
    "folder_ids",
    "letters_in",
    "listed_ids",
    "payload_text",
    "requests",
    "waiting_ids",
]

# A node of this many positions is about 30 KB.
_RECORDS_A_NODE = 500


@dataclass(frozen=True, slots=True)
class MessageId:
    """The name of one record, `stream/shardId:sequence[:sub]`, as in the column `messageId`."""

    stream: str
    shard: str
    position: RecordPosition

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


def listed_ids(nodes: Iterable[DeadLettersNode]) -> Iterator[str]:
    """Yield the message ids of all dead letters that ZooKeeper lists.

    Raises:
        ConsoleError: there are more than it lists; the message names their place.
    """
    for node in nodes:
        listed = sum(record.count for record in node.last)
        if listed < node.count:
            where = node.target if "/" in node.target else "FOLDER"
            msg = (
                f"there are {node.count} dead letters, of which ZooKeeper lists the last {listed}. To replay all, "
                f"take them from the dead-letter folder with --from {where}"
            )
            raise ConsoleError(msg)
        yield from (record.message_id for record in node.last)


def folder_ids(folder: str, application: str, streams: Container[str]) -> tuple[list[str], int]:
    """Return the dead letters of one application and its streams in a folder, which applications may share.

    Returns:
        The message ids that can be replayed, in the folder's order, and how many records cannot, because they
        were past the stream's retention before they were written.

    Raises:
        DeadLetterError: the folder cannot be read; it names it.
    """
    ids: list[str] = []
    expired = 0
    for letter in letters_in(folder, application, streams):
        if letter.data is None:
            expired += letter.count
        else:
            ids.append(letter.message_id)
    return ids, expired


def letters_in(folder: str, application: str, streams: Container[str]) -> Iterator[DeadLetter]:
    """Yield the dead letters of one application and its streams in a folder, which applications may share.

    Raises:
        DeadLetterError: the folder cannot be read; it names it.
    """
    # Only here, because it loads pyarrow, and the other commands must answer at once.
    from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters

    place = folder if "://" in folder else str(Path(folder).absolute())
    for letter in read_dead_letters(place):
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


def requests(ids: Iterable[MessageId]) -> dict[str, list[ExternalNode]]:
    """Return the requests for each shard: every record once, in order, a bounded number in a node."""
    shards: dict[str, set[RecordPosition]] = {}
    for message_id in ids:
        shards.setdefault(message_id.shard, set()).add(message_id.position)
    asked: dict[str, list[ExternalNode]] = {}
    for shard, positions in sorted(shards.items()):
        records = tuple(map(str, sorted(positions)))
        asked[shard] = [
            ExternalNode(op="replay", records=records[start : start + _RECORDS_A_NODE])
            for start in range(0, len(records), _RECORDS_A_NODE)
        ]
    return asked


def ask_for_replay(stores: Sequence[SourceStore], ids: Sequence[MessageId], *, found: bool = False) -> int:
    """Write the requests; the next settled batch of the query includes them.

    If one of them cannot be written, none is. `found`: the records are known to be dead letters.

    Returns:
        The number of requested records.

    Raises:
        ConsoleError: a message id is of a stream or shard that the application does not know, or of a record that
            is neither a dead letter nor waits.
        CheckpointError: ZooKeeper does not answer.
    """
    homes = {stream: (store, created) for store in stores for stream, created in streams_of(store).items()}
    asked: list[tuple[SourceStore, str, ExternalNode]] = []
    for stream in sorted({message_id.stream for message_id in ids}):
        if stream not in homes:
            msg = f"these records are of stream {stream!r}; the application reads {', '.join(homes)}"
            raise ConsoleError(msg)
        store, created = homes[stream]
        lineage = store.shards.lineage()
        known = {*store.shards.checkpoints(), *(lineage.shards if lineage else ())}
        nodes = {
            store.layout.name_of(ShardKey(stream, created, shard)): some
            for shard, some in requests(one for one in ids if one.stream == stream).items()
        }
        unknown = [store.layout.key_of(shard).shard for shard in sorted(set(nodes) - known)]
        if unknown:
            keys = sorted(map(store.layout.key_of, known))
            there = ", ".join(key.shard for key in keys if key.stream == stream)
            msg = f"stream {stream!r} has no shard {', '.join(unknown)}; it has {there}"
            raise ConsoleError(msg)
        if not found:
            _refuse_strangers(store, [one for one in ids if one.stream == stream], created)
        asked += [(store, shard, node) for shard, some in nodes.items() for node in some]
    for store, shard, node in asked:
        store.external.add(shard, node)
    return sum(len(node.records) for _, _, node in asked)


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
            where = node.target if "/" in node.target else "FOLDER"
            msg = (
                f"{one.stream}/{one.shard}:{one.position} is not among the last dead letters, which are all that "
                f"ZooKeeper lists. Take it from the dead-letter folder with --from {where}"
            )
            raise ConsoleError(msg)
        strangers.append(f"{one.stream}/{one.shard}:{one.position}")
    if strangers:
        msg = (
            f"{', '.join(strangers)}: no such dead letter, and no such record waits. kinesis-trident dead-letters "
            f"{layout.application} lists them"
        )
        raise ConsoleError(msg)


def _covers(text: str, position: RecordPosition) -> bool:
    """Tell whether a record is in a run, as the end of a message id names it: `5`, `5..9` or `after 4..9`."""
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
