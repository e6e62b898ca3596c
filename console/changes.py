"""Changes by people: asked for, refused while a run is connected, backed up and noted."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import typer

from kinesis_trident.checkpoint.errors import CorruptNodeError, StateMissingError
from kinesis_trident.checkpoint.model.change_nodes import AuditNode, BackupNode
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    InflightNode,
    PastNode,
    ShardLineage,
    ShardsNode,
)
from kinesis_trident.checkpoint.model.run_status import run_name
from kinesis_trident.checkpoint.store.atomic_writes import position_of
from kinesis_trident.checkpoint.store.source_home import highest_used_in
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.common.visible_text import count_noun, make_visible
from kinesis_trident.console.target import ConsoleError, checkpoints_command
from kinesis_trident.console.text import now_ms, some_of
from kinesis_trident.spout.positions import TRIM_HORIZON, After, At, AtTimestamp, Position, ShardEnd
from kinesis_trident.tracker.records import RecordPosition, Run


@dataclass(frozen=True, slots=True)
class Change:
    """The new nodes of shards of one home, and what is done in words; `lineage` is that of all, empty for no change.

    `made_from`: the copy of the home that it takes for its present state. `used`: the epoch and the txid that later
    ones must be above. `accepts`: what is missing afterwards counts as lost, and does not stop a start any more.
    """

    made_from: BackupNode
    what: str
    checkpoints: Mapping[str, CheckpointNode]
    inflight: Mapping[str, InflightNode]
    lineage: Mapping[str, ShardLineage] = field(default_factory=dict)
    used: PastNode | None = None
    accepts: bool = False


def copy_of(store: SourceStore) -> BackupNode:
    """Return a copy of the checkpoints and unfinished records of a home; nodes that cannot be read are not in it."""
    store = store.open_for_looking(_say_unreadable)
    settled, lineage = store.batches.settled(), store.shards.lineage()
    batch = store.batches.newest()
    # What is stamped with a batch that was abandoned stays when it is settled: it has nothing to move.
    empty = batch.plan.txid if batch is not None and batch.plan.is_empty else 0
    checkpoints, inflight = store.shards.read_together()
    return BackupNode(
        application=store.layout.application,
        home=store.layout.base,
        time=now_ms(),
        settled=max(settled.txid if settled else 0, empty),
        checkpoints=checkpoints,
        inflight=inflight,
        lineage=lineage.shards if lineage else {},
        used=highest_used_in(store),
    )


def _say_unreadable(error: CorruptNodeError) -> None:
    print(f"this node is replaced if the change is about it: {make_visible(str(error))}", file=sys.stderr)


def set_position(copy: BackupNode, shard: str, position: Position, *, what: str) -> Change:
    """Return the change that lets a shard go on from another position.

    What failed before it still waits for its retry; what failed beyond is read again as new. Which of them come before
    a time is unknown, unless it is after all that was read: then all of them wait on, else none.

    Raises:
        ConsoleError: records are not acked, or a run of failed records lies on both sides of the position.
    """
    old = copy.checkpoints.get(shard)
    held = copy.inflight.get(shard, InflightNode(txid=copy.settled, waiting=()))
    if held.pending:
        records = count_noun(sum(run.count for run in held.pending), "record")
        msg = f"shard {shard} has {records} not acked yet. Ack or fail these first"
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
        checkpoint=done.sequence if done else None,
        sub=done.sub if done else -1,
        txid=_stamp_of(copy, shard),
        position=str(position),
        read=old.read if old else 0,
        held=kept.size,
    )
    return Change(
        copy, what, {shard: node}, {shard: msgspec.structs.replace(kept, blocked="", turns=(), counted=True)}
    )


def _stamp_of(copy: BackupNode, shard: str) -> int:
    """Return the txid that a new checkpoint bears: none, if the shard has a node and was never read."""
    node = copy.checkpoints.get(shard)
    return copy.settled if node is None or node.txid else 0


def leave_out_removed(copy: BackupNode, saved: BackupNode) -> BackupNode:
    """Return a saved copy without the shards that retention has removed since, which are said: all was read of them.

    They are ancestors of shards that the stream has now; any other that the lineage lacks is left to be refused. A home
    that was begun later, and not at TRIM_HORIZON, never had those that were closed before: the stream may have them.
    """

    def had_parents(shard: str, place: ShardLineage) -> bool:
        then = saved.lineage.get(shard)
        is_same = then is not None and (then.start, then.listed) == (place.start, place.listed)
        return is_same or place.start == str(TRIM_HORIZON)

    removed = set[str]()
    left = [
        parent
        for shard, place in copy.lineage.items()
        if had_parents(shard, place)
        for parent in place.parents
    ]
    while left:
        shard = left.pop()
        if shard not in removed and shard not in copy.lineage:
            removed.add(shard)
            left += saved.lineage[shard].parents if shard in saved.lineage else ()
    kept = {shard: node for shard, node in saved.checkpoints.items() if shard not in removed}
    if gone := sorted(saved.checkpoints.keys() - kept):
        print(
            f"left out, because retention has removed them since: {make_visible(some_of(gone))}",
            file=sys.stderr,
        )
    return msgspec.structs.replace(saved, checkpoints=kept)


def restore(copy: BackupNode, saved: BackupNode, shards: Sequence[str], *, what: str) -> Change:
    """Return the change that writes a saved copy of shards back, stamped with what is settled now."""
    some = [shard for shard in shards if shard in saved.checkpoints]
    if any(
        saved.inflight[shard].pending or saved.inflight[shard].turns
        for shard in some
        if shard in saved.inflight
    ):
        msg = (
            "the copy holds records that were not acked yet, whose positions were in batches that are gone. Set the "
            "positions one by one, with set in place of import"
        )
        raise ConsoleError(msg)
    inflight = {
        shard: msgspec.structs.replace(
            saved.inflight.get(shard, InflightNode(txid=0, waiting=())),
            txid=_stamp_of(copy, shard),
            counted=True,
        )
        for shard in some
    }
    checkpoints = {
        shard: msgspec.structs.replace(
            saved.checkpoints[shard], txid=inflight[shard].txid, held=inflight[shard].size
        )
        for shard in some
    }
    lineage = _lineage_of_copy(copy, saved, some)
    is_whole = len(some) == len(saved.checkpoints)
    if is_whole:
        for shard, (checkpoint, held) in _mend_newer(copy, saved, lineage or copy.lineage).items():
            checkpoints[shard], inflight[shard] = checkpoint, held
            now = (lineage or copy.lineage)[shard]
            if now.state == "drained" and not checkpoint.position.startswith(str(ShardEnd())):
                lineage = {**(lineage or copy.lineage), shard: msgspec.structs.replace(now, state="closed")}
    return Change(
        copy,
        what,
        checkpoints,
        inflight,
        lineage,
        # A sink may know batches of a home that was removed since: none of them comes twice.
        used=saved.used or PastNode(epoch=0, txid=saved.settled, lost_upto=0),
        accepts=is_whole,
    )


def _mend_newer(
    copy: BackupNode, saved: BackupNode, lineage: Mapping[str, ShardLineage]
) -> dict[str, tuple[CheckpointNode, InflightNode]]:
    """Return the nodes of shards that are newer than a saved copy, where what is left of them does not fit.

    Such a shard is read again: from its safe checkpoint, or from where it began if that is gone.
    """
    mended = {}
    for shard in lineage.keys() - saved.checkpoints.keys():
        node = copy.checkpoints.get(shard)
        held = copy.inflight.get(shard, InflightNode(txid=0, waiting=()))
        txid = min(node.txid if node is not None else 0, copy.settled)
        if node is not None and node.held <= held.size:
            if txid < node.txid:
                mended[shard] = msgspec.structs.replace(node, txid=txid), held
        elif node is not None or held.size:
            done = position_of(node) if node is not None else None
            mended[shard] = (
                CheckpointNode(
                    checkpoint=done.sequence if done else None,
                    sub=done.sub if done else -1,
                    txid=txid,
                    position=str(After(done)) if done else lineage[shard].start,
                    read=node.read if node is not None else 0,
                ),
                InflightNode(txid=txid, waiting=(), counted=True),
            )
        elif lineage[shard].state == "drained":
            # It may have been read before the copy was made, and done.
            mended[shard] = CheckpointNode(checkpoint=None, sub=-1, txid=0, position=str(ShardEnd())), held
    return mended


def _lineage_of_copy(copy: BackupNode, saved: BackupNode, shards: Sequence[str]) -> dict[str, ShardLineage]:
    """Return the lineage in which shards are drained exactly if they were; empty if that changes nothing."""
    if not copy.lineage:
        # It cannot be read.
        return dict(saved.lineage)
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
        ConsoleError, CheckpointError: as `take_over`; or a batch is not settled, or the query has gone on since the
            change was made.
    """
    ((whole, epoch),) = take_over(
        [store], change.what, yes=yes, force=force, refuse=_refuse_unsettled, before=change.used
    )
    if (whole.settled, whole.inflight) != (change.made_from.settled, change.made_from.inflight):
        msg = (
            f"the query of {store.layout.application} has gone on since this command began, so nothing was changed: "
            "records that it has delivered would come again. Give the command again"
        )
        raise ConsoleError(msg)
    before = msgspec.structs.replace(
        whole,
        checkpoints={shard: node for shard, node in whole.checkpoints.items() if shard in change.checkpoints},
        inflight={shard: node for shard, node in whole.inflight.items() if shard in change.checkpoints},
    )
    lineage = ShardsNode(shards=dict(change.lineage)) if change.lineage else None
    backup = store.changes.overwrite(
        before, change.checkpoints, change.inflight, epoch, lineage, accepts=change.accepts
    )
    note_change(store, change.what, backup, epoch)
    return backup


def take_over(
    stores: Sequence[SourceStore],
    question: str,
    *,
    yes: bool,
    force: bool | None = None,
    refuse: Callable[[SourceStore], object] = lambda _: None,
    before: PastNode | None = None,
) -> list[tuple[BackupNode, int]]:
    """Ask, then take homes over from their runs: each has a copy, and an epoch under which alone it can be changed.

    Args:
        stores: of the homes; of one whose epoch is gone, which no run can start from, the new one is 0.
        question: what is done.
        yes: nobody is asked.
        force: a run that is connected is stopped; None if the command cannot do that.
        refuse: raises an error where the change cannot be; asked before the question, and when no run can go on.
        before: as in `raise_epoch`.

    Raises:
        ConsoleError: a run is connected and not to be stopped, the answer is no, or an error of `refuse`.
        CheckpointError: ZooKeeper does not answer, or a run has started meanwhile.
    """

    def check() -> None:
        for store in stores:
            if not force:
                refuse_running(store, "" if force is None else ", or give --force to take over")
            refuse(store)

    check()
    confirm(question, yes=yes)
    # A query may have started during the question.
    check()
    taken = []
    for store in stores:
        try:
            epoch = store.epochs.raise_epoch(
                socket.gethostname(),
                os.getpid(),
                now_ms(),
                before=before,
                tool=f"{_user()}: {question}"[:500],
            )
        except StateMissingError:
            if force is not None:
                raise
            epoch = 0
        # A run that was connected may have begun a batch until now.
        refuse(store)
        taken.append((copy_of(store), epoch))
    return taken


def note_change(store: SourceStore, what: str, backup: str, epoch: int) -> None:
    """Note a change that was made under an epoch of its own."""
    store.changes.note(_audit(what, backup, epoch))


def note_request(store: SourceStore, what: str) -> None:
    """Note that a person has asked the running query for something."""
    store.changes.note(_audit(what))


def refuse_running(store: SourceStore, besides: str = "") -> None:
    """Refuse to change anything under a connected run; `besides`: what else can be done.

    Raises:
        ConsoleError: there is one.
    """
    owner = store.epochs.owner()
    if owner is not None:
        msg = (
            f"application {store.layout.application!r} is running ({run_name(owner.host, owner.pid)}, "
            f"{store.layout.owner}). Stop its query and its Spark application first{besides}"
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
    if not typer.confirm(make_visible(f"{what}. Go on?")):
        msg = "nothing was changed"
        raise ConsoleError(msg)


def _refuse_unsettled(store: SourceStore) -> None:
    batch, settled = store.batches.newest(), store.batches.settled()
    if batch is not None and settled is None and batch.plan.txid > 1:
        # Somebody has deleted the node: a batch that comes after others has begun only once they were settled.
        return
    txid = settled.txid if settled else 0
    if batch is not None and batch.plan.txid > txid and not batch.plan.is_empty:
        msg = (
            f"txid {batch.plan.txid} is not settled, and would move the shards once more. Start the query, and end it "
            "with kinesis_trident.stop(query), which settles its last batch; then change it. If it cannot finish: "
            + checkpoints_command(store, "abandon-batch")
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


def name_of_user() -> str:
    """Return who gives the command, for those who wonder."""
    return f"{_user()}@{socket.gethostname()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _audit(what: str, backup: str = "", epoch: int = 0) -> AuditNode:
    return AuditNode(
        time=now_ms(), user=_user(), host=socket.gethostname(), what=what[:1000], backup=backup, epoch=epoch
    )
