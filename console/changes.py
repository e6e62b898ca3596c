"""Changes by people: asked for, refused while a run is connected, backed up and noted."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import typer

from kinesis_trident.checkpoint.model.change_nodes import AuditNode, BackupNode
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.console.target import ConsoleError
from kinesis_trident.spout.positions import After, Position
from kinesis_trident.tracker.records import RecordPosition, Run

__all__ = ["Change", "carry_out", "copy_of", "note_request", "refuse_running", "restored", "set_position"]


@dataclass(frozen=True, slots=True)
class Change:
    """The new nodes of shards of one home, and what is done in words."""

    what: str
    checkpoints: Mapping[str, CheckpointNode]
    inflight: Mapping[str, InflightNode]


def copy_of(store: SourceStore) -> BackupNode:
    """Return a copy of the checkpoints and unfinished records of a home."""
    settled = store.batches.settled()
    return BackupNode(
        application=store.layout.application,
        home=store.layout.base,
        time=_now(),
        settled=settled.txid if settled else 0,
        checkpoints=store.shards.checkpoints(),
        inflight=store.shards.inflight(),
    )


def set_position(copy: BackupNode, shard: str, position: Position, *, what: str) -> Change:
    """Return the change that lets a shard go on from another position.

    What failed up to there still waits for its retry; what failed beyond is read again as new.

    Raises:
        ConsoleError: records are not acked, or a run of failed records lies on both sides of the position.
    """
    old = copy.checkpoints.get(shard)
    held = copy.inflight.get(shard, InflightNode(txid=copy.settled))
    if held.pending:
        count = sum(run.count for run in held.pending)
        msg = f"{count} records of shard {shard} are not acked yet. Ack or fail them first"
        raise ConsoleError(msg)
    safe = position.record if isinstance(position, After) else None
    node = CheckpointNode(
        checkpoint=str(safe.sequence) if safe else None,
        sub=safe.sub if safe else -1,
        txid=old.txid if old else copy.settled,
        position=str(position),
        read=old.read if old else 0,
    )
    kept = msgspec.structs.replace(
        held,
        waiting=_up_to(held.waiting, safe, shard),
        dead=_up_to(held.dead, safe, shard),
        blocked="",
        turns=(),
    )
    return Change(what, {shard: node}, {shard: kept})


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
    )


def carry_out(store: SourceStore, change: Change, *, yes: bool, force: bool) -> str:
    """Ask, then make a change under an epoch of its own; return the name of the backup.

    Raises:
        ConsoleError: a run is connected and not to be stopped, a batch is not settled, or the answer is no.
        CheckpointError: ZooKeeper does not answer, or a run has started meanwhile.
    """
    if not force:
        refuse_running(store)
    _refuse_unsettled(store)
    confirm(change.what, yes=yes)
    epoch = store.epochs.raise_epoch(socket.gethostname(), os.getpid(), _now())
    # A run that was connected may have begun a batch until now.
    _refuse_unsettled(store)
    backup = store.changes.overwrite(copy_of(store), change.checkpoints, change.inflight, epoch)
    store.changes.note(_audit(change.what, backup, epoch))
    return backup


def note_request(store: SourceStore, what: str) -> None:
    """Note that a person has asked the running query for something."""
    store.changes.note(_audit(what))


def refuse_running(store: SourceStore) -> None:
    """Refuse to change anything under a connected run.

    Raises:
        ConsoleError: there is one.
    """
    owner = store.epochs.owner()
    if owner is not None:
        msg = (
            f"application {store.layout.application!r} is running ({owner.host} pid {owner.pid}, "
            f"{store.layout.owner}). Stop its query and its Spark application first, or give --force to take over"
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


def _up_to(runs: tuple[Run, ...], safe: RecordPosition | None, shard: str) -> tuple[Run, ...]:
    if safe is None:
        return ()
    for run in runs:
        first = run.first or run.prev
        if run.last_position > safe and (first is None or RecordPosition.parse(first) <= safe):
            msg = (
                f"the failed records {first or 'before'}..{run.last} of shard {shard} lie on both sides of {safe}. "
                f"Choose {run.last}, or a record before them"
            )
            raise ConsoleError(msg)
    return tuple(run for run in runs if run.last_position <= safe)


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
