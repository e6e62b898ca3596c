"""Hands an application's checkpoints over to another system: what would change there, and the change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kinesis_trident.checkpoint.errors import MigrationError
from kinesis_trident.checkpoint.model.nodes import InflightNode
from kinesis_trident.checkpoint.store.atomic_writes import position_of
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.common.times import iso_time
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.console.changes import note_request, refuse_running
from kinesis_trident.console.moving.foreign import ForeignTarget, OwnShard, Row, System, progress
from kinesis_trident.spout.positions import After, AtTimestamp, parse_position
from kinesis_trident.tracker.records import Run


@dataclass(frozen=True, slots=True)
class Departure:
    """The changes of an export.

    Attributes:
        rows: one for each shard.
        becoming: the positions to write, by shard id.
        further: sentences on shards of which more is done there than here.
        notes: what to know before.
        known: all shards.
    """

    rows: tuple[Row, ...]
    becoming: Mapping[str, str]
    further: tuple[str, ...]
    notes: tuple[str, ...]
    known: frozenset[str] = field(default=frozenset())


def own_shards(store: SourceStore) -> list[OwnShard]:
    """Return how far an application is, shard by shard."""
    checkpoints, inflight, lineage = (
        store.shards.checkpoints(),
        store.shards.inflight(),
        store.shards.lineage(),
    )
    places = lineage.shards if lineage else {}
    found = []
    for shard in sorted({*checkpoints, *places}):
        node, place = checkpoints.get(shard), places.get(shard)
        done = position_of(node) if node else None
        runs, pending = _unfinished_runs(inflight.get(shard))
        below = sum(run.count for run in runs if done is not None and run.last_position <= done)
        above = sum(run.count for run in runs) - below + pending
        position = parse_position(node.position if node else place.start if place else "TRIM_HORIZON")
        found.append(
            OwnShard(
                shard=shard,
                path=store.layout.checkpoint_of(shard),
                position=position,
                done=done,
                ended=place is not None and place.state == "drained" and not above,
                exact=not above and not below and done is not None and position == After(done),
                again=above,
                lost=below,
            )
        )
    return found


def plan_departure(store: SourceStore, target: ForeignTarget) -> Departure:
    """Return what another system would be told.

    The position of a shard is its safe checkpoint: every record up to it is done. Failed records after it come again
    there, and with them those that are done already.

    Raises:
        MigrationError: a position cannot be expressed there.
    """
    now = target.positions()
    rows: list[Row] = []
    becoming: dict[str, str] = {}
    further: list[str] = []
    shards = own_shards(store)
    if not shards:
        msg = f"{store.layout.base} has no shards, so there is nothing to hand over: no query has read the stream yet"
        raise MigrationError(msg)
    for own in shards:
        text, there = target.express(own), now.get(own.shard)
        if text is not None and text != there:
            becoming[own.shard] = text
        if text is not None and there is not None and progress(there) > progress(text):
            further.append(
                f"{target.place_of(own.shard)} is at {_bare(there)}, further on than {_bare(text)} of {own.path}"
            )
        rows.append(
            Row(own.shard, str(own.position), there, text, _describe(target.system, own, text, text == there))
        )
    batch, settled = store.batches.newest(), store.batches.settled()
    notes = []
    if batch is not None and batch.plan.txid > (settled.txid if settled else 0):
        notes.append(
            f"txid {batch.plan.txid} is not settled: all of its records come again. To avoid that, start the query and "
            "end it with kinesis_trident.stop(query)"
        )
    return Departure(
        tuple(rows), becoming, tuple(further), tuple(notes), frozenset(own.shard for own in shards)
    )


def hand_over(
    store: SourceStore, target: ForeignTarget, departure: Departure, *, overwrite: bool, force: bool = False
) -> dict[str, str]:
    """Carry out an export; return the places written, by shard id.

    Stop the query first: the export does not contain later progress.

    Raises:
        ConsoleError: a run is connected, and not `force`.
        MigrationError: more is done there than here, and not `overwrite`: nothing was written. Or somebody else writes
            there at this moment.
    """
    if not force:
        refuse_running(store, ", or give --force: what it does meanwhile is done twice")
    if departure.further and not overwrite:
        msg = f"{departure.further[0]}; nothing was written. Export with --overwrite to go back"
        raise MigrationError(msg)
    target.write(departure.becoming, departure.known)
    written = {row.shard: target.place_of(row.shard) for row in departure.rows if row.becomes is not None}
    note_request(
        store, f"export {count_noun(len(written), 'checkpoint')} to {target.system} at {target.place}"
    )
    return written


def _bare(text: str) -> str:
    return text.removeprefix("AFTER_SEQUENCE_NUMBER ")


def _unfinished_runs(node: InflightNode | None) -> tuple[tuple[Run, ...], int]:
    if node is None:
        return (), 0
    return (*node.waiting, *node.dead), sum(run.count for run in node.pending)


def _describe(system: System, own: OwnShard, text: str | None, same: bool) -> str:
    said = []
    if text is None:
        said.append("left out: nothing is done")
    elif same:
        said.append("no change")
    elif own.ended:
        said.append("is done")
    elif own.done is not None:
        said.append("goes on after the last record that is done")
    elif isinstance(own.position, AtTimestamp) and system is System.KCL:
        said.append(
            f"nothing is done: give KCL the initial position AT_TIMESTAMP {iso_time(own.position.time)}"
        )
    else:
        said.append("nothing is done: begins where this application would")
    if own.again:
        said.append(
            f"{count_noun(own.again, 'record')} not done: come again, with all that came after the checkpoint"
        )
    if own.lost:
        said.append(f"{count_noun(own.lost, 'record')} asked for again: {system} does not know of them")
    return "; ".join(said)
