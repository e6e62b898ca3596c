"""Lets an application begin where another system stopped: what would change, and the change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from kinesis_trident.checkpoint.errors import MigrationError
from kinesis_trident.checkpoint.model.change_nodes import BackupNode
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.common.times import iso_time
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.console.changes import Change, carry_out, set_position
from kinesis_trident.console.moving.foreign import ForeignCheckpoint, Row
from kinesis_trident.console.text import short, some_of
from kinesis_trident.spout.kinesis import Kinesis, Shard, StreamInfo
from kinesis_trident.spout.options.starting_position import LATEST, PositionSpec
from kinesis_trident.spout.planner.shards.lineage import positions_of, start_lineage
from kinesis_trident.spout.positions import (
    After,
    At,
    AtTimestamp,
    Position,
    ShardEnd,
    TrimHorizon,
    parse_position,
)
from kinesis_trident.spout.shard_rules import check_still_there
from kinesis_trident.tracker.records import RecordPosition


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The changes of an import: the rows for people, the change, and what to know before."""

    rows: tuple[Row, ...]
    change: Change
    notes: tuple[str, ...]
    records: Mapping[str, RecordPosition] = field(default_factory=dict)


def plan_arrival(
    foreign: ForeignCheckpoint,
    info: StreamInfo,
    listed: Sequence[Shard],
    copy: BackupNode,
    *,
    deaggregate: bool = True,
    accept_loss: bool = False,
) -> ImportPlan:
    """Return what lets an application go on from a foreign checkpoint. Pure.

    The ancestors of the shards that it names are done, and all others are new: they are read from their oldest record,
    after their parents. LATEST becomes the time of `info`.

    Args:
        foreign: the checkpoint.
        info: the stream.
        listed: its shards.
        copy: the application's nodes now.
        deaggregate: the query splits aggregates; otherwise one that the other system was within comes again.
        accept_loss: skip shards that have expired before the other system had read them.

    Raises:
        MigrationError: the checkpoint is empty, of another stream, or names shards that have expired unread.
    """
    if not foreign.positions:
        msg = (
            f"{foreign.place} has no position of any shard, so there is nothing to go on from. Start the query with "
            "the startingPosition that you want"
        )
        raise MigrationError(msg)
    gone = _check_gone(foreign, info, listed, accept_loss=accept_loss)
    shards = {shard.id: shard for shard in listed}
    texts = {
        shard: text if deaggregate else _whole(text)
        for shard, text in foreign.positions.items()
        if shard in shards
    }
    for shard, text in texts.items():
        _check_range(foreign, info, shards[shard], text)
    spec = PositionSpec({info.name: texts})
    starts = positions_of(spec, info.name, listed, lambda: AtTimestamp(info.server_time))
    moved = [shard for shard in starts if shard in texts or shard in copy.checkpoints]
    lineage = {
        shard: msgspec.structs.replace(node, listed=info.server_time)
        for shard, node in start_lineage(listed, starts).items()
    }
    what = f"import {count_noun(len(texts), 'position')} of {foreign.system} from {foreign.place}"
    changes = [set_position(copy, shard, starts[shard], what=what) for shard in moved]
    change = Change(
        copy,
        what,
        {shard: node for one in changes for shard, node in one.checkpoints.items()},
        {shard: node for one in changes for shard, node in one.inflight.items() if shard in copy.inflight},
        {**copy.lineage, **lineage},
    )
    rows = tuple(
        Row(
            shard,
            _here(copy, shard),
            foreign.positions.get(shard),
            str(starts[shard]),
            _describe(starts[shard], copy, shard, named=shard in texts),
        )
        for shard in sorted(starts)
    )
    ask = {
        shard: position.record
        for shard, position in starts.items()
        if isinstance(position, After | At) and position.record is not None
    }
    notes = (*foreign.notes, *gone, *_describe_changed(foreign, info, texts))
    return ImportPlan(rows, change, notes, ask)


def _describe_changed(
    foreign: ForeignCheckpoint, info: StreamInfo, texts: Mapping[str, str]
) -> Iterator[str]:
    """Yield a note of each kind of position that is not taken over as it was."""
    again = sorted(shard for shard, text in texts.items() if text != foreign.positions[shard])
    if again:
        yield (
            f"the record at the position of {', '.join(again[:5])} comes again: with deaggregate=false nothing tells "
            "whether it is an aggregate of which only a part is done"
        )
    if LATEST in texts.values():
        yield (
            f"LATEST becomes {iso_time(info.server_time)}: what came before is not read, as after a restart of "
            f"{foreign.system}"
        )


def bring_in(store: SourceStore, arrival: ImportPlan, *, overwrite: bool, yes: bool, force: bool) -> str:
    """Carry out an import; return the name of the backup of what stood there.

    Raises:
        MigrationError: the application has already read the stream, and not `overwrite`.
        ConsoleError: a run is connected and not to be stopped, a batch is not settled, or the answer is no.
        CheckpointError: ZooKeeper does not answer, or a run has started meanwhile.
    """
    read = any(node.txid or node.checkpoint for node in store.shards.checkpoints().values())
    read = read or store.batches.settled() is not None
    if read and not overwrite:
        msg = (
            f"{store.layout.checkpoints} holds checkpoints: application {store.layout.application!r} has already "
            f"read stream {store.layout.stream!r}. Import under another applicationName, or go on from the other "
            "system's positions with --overwrite"
        )
        raise MigrationError(msg)
    return carry_out(store, arrival.change, yes=yes or not read, force=force)


def mark_lost(arrival: ImportPlan, kinesis: Kinesis, layout: Layout) -> ImportPlan:
    """Return the plan, which says where the stream no longer holds the record to go on from."""
    keys = {layout.key_of(shard): record for shard, record in arrival.records.items()}
    lost = {key.shard for key, is_there in check_still_there(kinesis, keys).items() if is_there is False}
    rows = tuple(
        replace(
            row,
            what=f"{row.what}; the stream does not hold that record now: what came after it may have expired, and the "
            "query stops for that unless failOnDataLoss=false",
        )
        if row.shard in lost
        else row
        for row in arrival.rows
    )
    return replace(arrival, rows=rows)


def _check_gone(
    foreign: ForeignCheckpoint, info: StreamInfo, listed: Sequence[Shard], *, accept_loss: bool
) -> list[str]:
    """Return notes on shards that the stream no longer lists.

    Raises:
        MigrationError: none is listed, or some were not read to their end and that is not accepted.
    """
    names = {shard.id for shard in listed}
    gone = {shard: text for shard, text in sorted(foreign.positions.items()) if shard not in names}
    if len(gone) == len(foreign.positions):
        msg = (
            f"{foreign.place} has positions of {_listed(gone)}, and stream {info.name!r} of {info.arn} has none of "
            f"these shards; it has {_listed(names)}. Check --stream and --region: it is the checkpoint of another "
            "stream, or all of it is past retention"
        )
        raise MigrationError(msg)
    unread = {shard: text for shard, text in gone.items() if text != str(ShardEnd())}
    if unread and not accept_loss:
        said = ", ".join(f"{shard} at {short(text)}" for shard, text in list(unread.items())[:5])
        msg = (
            f"{foreign.place} was not read to the end of {said}, and stream {info.name!r} no longer lists these "
            f"shards: they are past its retention of {info.retention_hours} h, or of another stream. Give "
            "--accept-loss to go on without what was not read of them"
        )
        raise MigrationError(msg)
    notes = []
    if unread:
        notes.append(f"what was not read of {_listed(unread)} has expired, and is left out")
    if len(gone) > len(unread):
        notes.append(f"{_listed(set(gone) - set(unread))} had been read to the end, and has expired since")
    return notes


def _check_range(foreign: ForeignCheckpoint, info: StreamInfo, shard: Shard, text: str) -> None:
    """Check that a record can be one of the shard.

    Raises:
        MigrationError: its number is before the shard's first, or after its last.
    """
    position = parse_position(text) if text != LATEST else None
    if not isinstance(position, After | At) or shard.sequences is None:
        return
    first, last = shard.sequences
    record = position.record.whole
    if record < first or (last is not None and record > last):
        until = f"to {last}" if last is not None else "on"
        msg = (
            f"{foreign.place} is at {position.record} in {shard.id}, and that shard of stream {info.name!r}, created "
            f"{iso_time(info.created)}, has the sequence numbers from {first} {until}. It is the checkpoint of another "
            "stream, or of an older one of this name: check --stream and --region. To begin at a time instead, start "
            "the query with startingPosition=AT_TIMESTAMP"
        )
        raise MigrationError(msg)


def _whole(text: str) -> str:
    """Return the position that reads the whole record again, if it is within what may be an aggregate."""
    position = parse_position(text) if text != LATEST else None
    if isinstance(position, After | At) and position.record.sub >= 0:
        return str(At(position.record.whole))
    return text


def _here(copy: BackupNode, shard: str) -> str | None:
    node, place = copy.checkpoints.get(shard), copy.lineage.get(shard)
    return node.position if node else place.start if place else None


def _describe(position: Position, copy: BackupNode, shard: str, *, named: bool) -> str:
    """Describe what a shard begins with, and what no longer happens to its failed records."""
    before = _here(copy, shard)
    held = copy.inflight.get(shard)
    count = sum(run.count for run in (*held.waiting, *held.dead)) if held else 0
    kept = set_position(copy, shard, position, what="").inflight.get(shard) if held else None
    dropped = count - sum(run.count for run in (*kept.waiting, *kept.dead)) if kept else 0
    said = "no change" if before == str(position) else _describe_beginning(position, named=named)
    return said + (f"; {count_noun(dropped, 'failed record')} no longer retried" if dropped else "")


def _describe_beginning(position: Position, *, named: bool) -> str:
    match position:
        case ShardEnd():
            return "is done" if named else "is done: its children are read there"
        case After(record) if record.sub > 0:
            return "goes on within the aggregate, or after it"
        case After():
            return "goes on after the last record that is done"
        case At():
            return "goes on with this record"
        case AtTimestamp(time):
            return f"begins with what arrived from {iso_time(time)} on"
        case TrimHorizon():
            return "begins with its oldest record" if named else "is new: begins with its oldest record"


def _listed(shards: Mapping[str, str] | set[str]) -> str:
    return some_of(shards, most=5)
