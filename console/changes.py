"""Changes by people: asked for, refused while a run is connected, backed up and noted."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import typer

from kinesis_trident.checkpoint.model.change_nodes import AuditNode, BackupNode
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, ShardLineage, ShardsNode
from kinesis_trident.checkpoint.store.atomic_writes import position_of
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.console.target import ConsoleError
from kinesis_trident.spout.positions import After, At, AtTimestamp, Position
from kinesis_trident.tracker.records import RecordPosition, Run

__all__ = ["Change", "carry_out", "copy_of", "note_request", "refuse_running", "restored", "set_position"]


@dataclass(frozen=True, slots=True)
class Change:
    """The new nodes of shards of one home, and what is done in words; `lineage` is that of all, empty for no change."""

    what: str
    checkpoints: Mapping[str, CheckpointNode]
    inflight: Mapping[str, InflightNode]
    lineage: Mapping[str, ShardLineage] = field(default_factory=dict)


def copy_of(store: SourceStore) -> BackupNode:
    """Return a copy of the checkpoints and unfinished records of a home."""
    settled, lineage = store.batches.settled(), store.shards.lineage()
    return BackupNode(
        application=store.layout.application,
        home=store.layout.base,
        time=_now(),
        settled=settled.txid if settled else 0,
        checkpoints=store.shards.checkpoints(),
        inflight=store.shards.inflight(),
        lineage=lineage.shards if lineage else {},
    )


def set_position(copy: BackupNode, shard: str, position: Position, *, what: str) -> Change:
    """Return the change that lets a shard go on from another position.

    What failed before it still waits for its retry; what failed beyond is read again as new. Which of them come before
    a time is unknown, unless it is after all that was read: then all of them wait on, else none.

    Raises:
        ConsoleError: records are not acked, or a run of failed records lies on both sides of the position.
    """
    old = copy.checkpoints.get(shard)
    held = copy.inflight.get(shard, InflightNode(txid=copy.settled))
    if held.pending:
        count = sum(run.count for run in held.pending)
        msg = f"{count} records of shard {shard} are not acked yet. Ack or fail them first"
        raise ConsoleError(msg)
    done = position_of(old) if old else None
    match position:
        case After(record):
            done = record
            kept = _before(held, record, shard, inclusive=True)
        case At(record):
            done = done if done is not None and done < record else None
            kept = _before(held, record, shard, inclusive=False)
        case AtTimestamp(time) if old is not None and old.arrival is not None and time > old.arrival:
            kept = held
        case _:
            done = None
            kept = msgspec.structs.replace(held, waiting=(), dead=())
    node = CheckpointNode(
        checkpoint=str(done.sequence) if done else None,
        sub=done.sub if done else -1,
        txid=old.txid if old else copy.settled,
        position=str(position),
        read=old.read if old else 0,
    )
    return Change(what, {shard: node}, {shard: msgspec.structs.replace(kept, blocked="", turns=())})


def restored(copy: BackupNode, saved: BackupNode, shards: Sequence[str], *, what: str) -> Change:
    """Return the change that writes a saved copy of shards back, stamped as what stands there now."""

    def txid(shard: str) -> int:
        node = copy.checkpoints.get(shard)
        return node.txid if node else copy.settled

    some = [shard for shard in shards if shard in saved.checkpoints]
    if any(
        saved.inflight[shard].pending or saved.inflight[shard].turns
        for shard in some
        if shard in saved.inflight
    ):
        msg = (
            "the copy holds records that were not acked yet, whose positions were in batches that are gone. Set the "
            "positions one by one instead: kinesis-trident checkpoints APP set"
        )
        raise ConsoleError(msg)
    return Change(
        what,
        {shard: msgspec.structs.replace(saved.checkpoints[shard], txid=txid(shard)) for shard in some},
        {
            shard: msgspec.structs.replace(saved.inflight.get(shard, InflightNode(txid=0)), txid=txid(shard))
            for shard in some
        },
        _undrained(copy, saved, some),
    )


def _undrained(copy: BackupNode, saved: BackupNode, shards: Sequence[str]) -> dict[str, ShardLineage]:
    """Return the lineage in which shards are drained exactly if they were; empty if that changes nothing."""
    lineage = dict(copy.lineage)
    for shard in shards:
        now, then = lineage.get(shard), saved.lineage.get(shard)
        if (
            now is not None
            and then is not None
            and "drained" in {now.state, then.state}
            and now.state != then.state
        ):
            lineage[shard] = msgspec.structs.replace(now, state=then.state)
    return lineage if lineage != copy.lineage else {}


def carry_out(store: SourceStore, change: Change, *, yes: bool, force: bool) -> str:
    """Ask, then make a change under an epoch of its own; return the name of the backup.

    Raises:
        ConsoleError: a run is connected and not to be stopped, a batch is not settled, or the answer is no.
        CheckpointError: ZooKeeper does not answer, or a run has started meanwhile.
    """
    if not force:
        refuse_running(store, "Stop its query and its Spark application first, or give --force to take over")
    _refuse_unsettled(store)
    confirm(change.what, yes=yes)
    epoch = store.epochs.raise_epoch(socket.gethostname(), os.getpid(), _now())
    # A run that was connected may have begun a batch until now.
    _refuse_unsettled(store)
    whole = copy_of(store)
    before = msgspec.structs.replace(
        whole,
        checkpoints={shard: node for shard, node in whole.checkpoints.items() if shard in change.checkpoints},
        inflight={shard: node for shard, node in whole.inflight.items() if shard in change.checkpoints},
    )
    lineage = ShardsNode(shards=dict(change.lineage)) if change.lineage else None
    backup = store.changes.overwrite(before, change.checkpoints, change.inflight, epoch, lineage)
    store.changes.note(_audit(change.what, backup, epoch))
    return backup


def note_request(store: SourceStore, what: str) -> None:
    """Note that a person has asked the running query for something."""
    store.changes.note(_audit(what))


def refuse_running(
    store: SourceStore, remedy: str = "Stop its query and its Spark application first"
) -> None:
    """Refuse to change anything under a connected run.

    Raises:
        ConsoleError: there is one.
    """
    owner = store.epochs.owner()
    if owner is not None:
        msg = (
            f"application {store.layout.application!r} is running ({owner.host} pid {owner.pid}, "
            f"{store.layout.owner}). {remedy}"
        )
        raise ConsoleError(msg)


def confirm(what: str, *, yes: bool) -> None:
    """Ask whether to do it.

    Raises:
        ConsoleError: the answer is no, or there is nobody to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        msg = f"this would change the state of the application: {what}. Nobody can be asked here: give --yes"
        raise ConsoleError(msg)
    if not typer.confirm(f"{what}. Go on?"):
        msg = "nothing was changed"
        raise ConsoleError(msg)


def _refuse_unsettled(store: SourceStore) -> None:
    batch, settled = store.batches.newest(), store.batches.settled()
    txid = settled.txid if settled else 0
    if batch is not None and batch.plan.txid > txid:
        msg = (
            f"txid {batch.plan.txid} is not settled, and would move the shards once more. Start the query, and end it "
            "with kinesis_trident.stop(query), which settles its last batch; then change it"
        )
        raise ConsoleError(msg)


def _before(held: InflightNode, record: RecordPosition, shard: str, *, inclusive: bool) -> InflightNode:
    """Return the unfinished records up to a record, or before it."""

    def is_kept(run: Run) -> bool:
        first = run.first or run.prev
        if run.last_position < record or (inclusive and run.last_position == record):
            return True
        if first is None or RecordPosition.parse(first) < record:
            msg = (
                f"the failed records {first or 'before'}..{run.last} of shard {shard} lie on both sides of {record}. "
                f"Choose {run.last}, or a record before them"
            )
            raise ConsoleError(msg)
        return False

    return msgspec.structs.replace(
        held, waiting=tuple(filter(is_kept, held.waiting)), dead=tuple(filter(is_kept, held.dead))
    )


def _audit(what: str, backup: str = "", epoch: int = 0) -> AuditNode:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return AuditNode(
        time=_now(), user=user, host=socket.gethostname(), what=what[:1000], backup=backup, epoch=epoch
    )


def _now() -> int:
    return int(time.time() * 1000)
