"""A way out of a batch that cannot finish: its records are read again under another txid, or go to the dead letter."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from kinesis_trident.checkpoint.model.change_nodes import BackupNode
from kinesis_trident.checkpoint.model.nodes import (
    BatchNode,
    CheckpointNode,
    DeadLettersNode,
    InflightNode,
    NotDone,
    Pin,
    Plan,
    ShardsNode,
)
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.console.changes import note_change, take_over
from kinesis_trident.console.target import ConsoleError, checkpoints_command
from kinesis_trident.console.text import now_ms

_REASON = "ABANDONED by a person: its batch could not finish"
_AFTER = "AFTER_SEQUENCE_NUMBER "


def abandon_batch(store: SourceStore, *, dead_letter: bool, yes: bool, force: bool) -> dict[str, str]:
    """Make the batch that is not settled empty: Spark runs it once more, without a row, and goes on after it.

    Its records are read again under the next txid; with `dead_letter` those that it has read go to the dead letter.

    Returns:
        What was done, and the name of the backup.

    Raises:
        ConsoleError: there is no such batch, its outcome is decided, a run is connected, or the answer is no.
        CheckpointError: ZooKeeper does not answer, or a run has started meanwhile.
    """
    _, _, what = _decide(store, dead_letter)
    question = (
        f"{what}. If Spark has committed the batch, or its sink holds a part of it, they are there twice"
    )
    ((before, epoch),) = take_over([store], question, yes=yes, force=force, refuse=_find_unfinished)
    # A run that was connected may have gone on until now.
    batch, pins, what = _decide(store, dead_letter)
    if dead_letter:
        backup = _dead_letter(store, before, batch.plan, pins, epoch)
    else:
        backup = store.changes.overwrite(before, {}, {}, epoch)
    store.batches.make_empty(batch, list(pins), epoch)
    note_change(store, what, backup, epoch)
    return {"what": what, "backup": backup}


def _find_unfinished(store: SourceStore) -> BatchNode:
    batch, settled, outcome = store.batches.newest_unsettled()
    if batch is None or (settled is not None and settled.txid >= batch.plan.txid):
        msg = "every batch is settled: there is nothing to abandon"
        raise ConsoleError(msg)
    if batch.plan.is_empty:
        msg = (
            f"txid {batch.plan.txid} is empty already: start the query, which goes on after it. If that cannot read "
            f"where a shard goes on, set another position first: {checkpoints_command(store)}"
        )
        raise ConsoleError(msg)
    if outcome is not None and outcome.plan == batch.plan.plan:
        msg = (
            f"the outcome of txid {batch.plan.txid} is published, and states or sinks may hold a part of it: to give "
            "its records another txid would count them twice. Mend what stops the query after that, and start it"
        )
        raise ConsoleError(msg)
    return batch


def _decide(store: SourceStore, dead_letter: bool) -> tuple[BatchNode, dict[str, Pin], str]:
    """Return the batch that is not settled, its pins, and what becomes of the records that it has read.

    Raises:
        ConsoleError: as `abandon_batch`; or none of them can be dead-lettered.
    """
    batch = _find_unfinished(store)
    found = store.batches.get_pins(batch.plan.txid, batch.plan.shards, fresh=True)
    pins = {shard: pin for shard, pin in found.items() if pin.plan == batch.plan.plan}
    unnamed = sorted(shard for shard, pin in pins.items() if not _is_named(pin)) if dead_letter else []
    total, left = sum(pin.count for pin in pins.values()), sum(pins[shard].count for shard in unnamed)
    shards = f"shard {', '.join(store.layout.key_of(shard).shard for shard in unnamed)}"
    if left and left == total:
        msg = (
            f"none of the {count_noun(total, 'record')} of txid {batch.plan.txid} can be dead-lettered: an earlier "
            f"release has read {shards}, and did not note the first record. Leave out --dead-letter"
        )
        raise ConsoleError(msg)
    together = (
        f", which reads {', '.join(sorted(batch.plan.streams))} together" if store.layout.several else ""
    )
    again = f"come again under txid {batch.plan.txid + 1}"
    fate = "go to the dead letter (or what onExhausted says)" if dead_letter else again
    what = (
        f"abandon txid {batch.plan.txid} of {store.layout.application}{together}: the "
        f"{count_noun(total - left, 'record')} that it has read {fate}"
    )
    return (
        batch,
        pins,
        what + (f", and {left} of {shards}, which have no known beginning, {again}" if left else ""),
    )


def _is_named(pin: Pin) -> bool:
    """Return whether a pin names where its new records begin: an earlier release does not in a shard's first turn."""
    return pin.last is None or pin.first is not None or pin.start.startswith(_AFTER)


def _dead_letter(
    store: SourceStore, before: BackupNode, plan: Plan, pins: Mapping[str, Pin], epoch: int
) -> str:
    """Settle the shards that were read, with all of their records exhausted: the next batch dead-letters them."""
    # Only here, because it loads numpy, and the other commands must answer at once.
    from kinesis_trident.spout.planner.plan import ShardState
    from kinesis_trident.spout.planner.settling.settlement import CommittedTurn, InflightRules, settle_shard
    from kinesis_trident.spout.planner.shards.lineage import mark_drained
    from kinesis_trident.spout.positions import parse_position
    from kinesis_trident.tracker.retry import RetryPolicy

    checkpoints: dict[str, CheckpointNode] = {}
    inflight: dict[str, InflightNode] = {}
    letters: dict[str, DeadLettersNode] = {}
    known = store.shards.dead_letters()
    for shard, pin in pins.items():
        checkpoint, held = before.checkpoints.get(shard), before.inflight.get(shard)
        if (checkpoint is not None and checkpoint.txid >= plan.txid) or not _is_named(pin):
            # This command did so before, and was interrupted; or it is read again.
            continue
        if held is not None and (held.pending or held.turns):
            msg = f"records of shard {shard} are not acked yet. Ack or fail them first, or leave out --dead-letter"
            raise ConsoleError(msg)
        after, buried = settle_shard(
            ShardState(parse_position(plan.positions[shard]), checkpoint, held),
            CommittedTurn(
                plan, shard, store.layout.source_of(shard), pin, _all_of(plan, shard, pin), now_ms()
            ),
            InflightRules(RetryPolicy(limit=0), random.Random(), max_retrying=1),
        )
        dead = tuple(
            msgspec.structs.replace(
                run, first=pin.first or "", prev=None if pin.first else pin.start.removeprefix(_AFTER)
            )
            if run.last == pin.last
            else run
            for run in after.dead
        )
        assert after.checkpoint is not None
        assert after.inflight is not None
        checkpoints[shard] = after.checkpoint
        inflight[shard] = msgspec.structs.replace(after.inflight, blocked="", dead=dead)
        if buried:
            node = known.get(shard, DeadLettersNode(count=0, target=""))
            count = node.count + sum(letter.count for letter in buried)
            letters[shard] = msgspec.structs.replace(node, count=count, last=(*node.last, *buried))
    ended = [shard for shard in checkpoints if pins[shard].closed]
    lineage = ShardsNode(shards=mark_drained(before.lineage, ended)) if ended else None
    return store.changes.overwrite(before, checkpoints, inflight, epoch, lineage, letters)


def _all_of(plan: Plan, shard: str, pin: Pin) -> list[NotDone]:
    """Return the records of a turn, all of them not done, in shard order: those delivered again come first."""
    from kinesis_trident.tracker.runs import cut

    pieces = []
    for at, (run, dead) in enumerate(plan.due(shard)):
        served = pin.served[at] if at < len(pin.served) else 0
        if served and not dead:
            part, _ = cut(run, served, pin.through)
            pieces.append(NotDone(run.first, part.last, served, _REASON, run.prev))
    if pin.last is not None:
        # The pin does not say which of the new records is the first: the caller corrects it.
        pieces.append(NotDone(pin.last, pin.last, max(1, pin.fresh + pin.lost), _REASON))
    return pieces
