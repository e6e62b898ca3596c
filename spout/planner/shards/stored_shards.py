"""The nodes of shards in ZooKeeper: loads them at the start, notes tips, and removes those of missing shards."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from kinesis_trident.checkpoint.errors import StateMissingError
from kinesis_trident.checkpoint.model.codec import name_in_errors
from kinesis_trident.checkpoint.model.layout import PAST_RETENTION, ShardKey
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, DeadLettersNode, SettledNode, ShardLineage
from kinesis_trident.checkpoint.model.replays import merge_dead_letters
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.planner.clocks import correct_due_times
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.lineage import Lineage
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.positions import TRIM_HORIZON, ShardEnd, parse_position
from kinesis_trident.spout.shard_rules import find_known
from kinesis_trident.tracker.position_keys import Keys, unpack

log = logging.getLogger(__name__)


class LoadedShards(NamedTuple):
    """The nodes of all shards.

    `shards`: those that are listed or have records in flight. `unlisted`: all others that have nodes.
    """

    shards: dict[str, ShardState]
    dead_letters: dict[str, DeadLettersNode]
    unlisted: dict[str, ShardState]


def load_shards(
    store: SourceStore,
    lineage: Lineage,
    settled: SettledNode | None,
    *,
    now: int,
    longest_delay: int,
    timeout: int,
) -> LoadedShards:
    """Read the nodes of all shards; times are milliseconds, and those of records in flight as `correct_due_times`.

    Raises:
        StateMissingError: nodes on which others rely are missing, such as a pin with positions of records in flight.
    """
    checkpoints, stored = store.shards.checkpoints(), store.shards.inflight()
    store.shards.check_shards(settled, lineage, checkpoints, stored)
    inflight = {shard: correct_due_times(node, now, longest_delay, timeout) for shard, node in stored.items()}
    dead_letters = store.shards.dead_letters()
    held = {shard for shard, node in inflight.items() if node.waiting or node.dead or node.pending}
    shards, unlisted = dict[str, ShardState](), dict[str, ShardState]()
    letters = {shard for shard in dead_letters if store.layout.key_of(shard).shard != PAST_RETENTION}
    for shard in sorted({*lineage, *checkpoints, *inflight, *letters}):
        start = parse_position(lineage[shard].start) if shard in lineage else TRIM_HORIZON
        turns = _positions(store, shard, inflight[shard].turns) if shard in held else {}
        some = shards if shard in lineage or shard in held else unlisted
        some[shard] = ShardState(start, checkpoints.get(shard), inflight.get(shard), turns)
    return LoadedShards(shards, dead_letters, unlisted)


def _positions(store: SourceStore, shard: str, txids: Sequence[int]) -> dict[int, Keys]:
    """Read the positions of the rows of settled batches from their pins.

    Raises:
        StateMissingError: a pin is missing.
    """
    layout = store.layout
    found = {txid: store.batches.get_pin(txid, shard) for txid in txids}
    for txid, pin in found.items():
        if pin is None:
            msg = (
                f"{layout.pin_of(txid, shard)} does not exist, but {layout.inflight_of(shard)} names records of "
                "that batch that are not acked yet, and only the pin has their positions. Nothing was changed. "
                "Restore the node from a backup"
            )
            raise StateMissingError(msg)
    known = {}
    for txid, pin in found.items():
        with name_in_errors(layout.pin_of(txid, shard)):
            known[txid] = unpack(*pin.positions if pin is not None else ())
    return known


_AT_A_TIME = 100
"""The number of shards removed in one multi, which also updates their dead letters."""


class Forgetting:
    """Forgets shards that retention has removed, once they have no records in flight.

    A shard that was read to its end is forgotten when it is no longer listed; any other when the next full listing does
    not have it either: one that an answer of Kinesis has lacked by mistake goes on where it stood.

    `missed`: the shards in ZooKeeper that the previous run no longer saw in the listing.
    """

    def __init__(self, store: SourceStore, epoch: int, missed: dict[str, ShardState]) -> None:
        self._store = store
        self._epoch = epoch
        self._missed: dict[str, ShardState] = missed

    @property
    def unread(self) -> set[str]:
        """Return the shards that a listing has lacked before they were read to their end."""
        return {name for name, one in self._missed.items() if not isinstance(one.position, ShardEnd)}

    def begin(self, shard: str, node: ShardLineage) -> ShardState:
        """Return the state of a shard that is listed, and was not before: as it stood if a listing has lacked it."""
        was = ShardState(parse_position(node.start))
        return replace(self._missed[shard], start=was.start) if shard in self.unread else was

    def forget(self, shards: Shards) -> Shards:
        """Remove the shards that a full listing lacks, and their nodes; dead letters stay counted, for each stream.

        Raises:
            FencedError: a newer run has taken over.
        """
        states, left = dict(shards.states), dict(shards.dead_letters)
        unlisted = (shard for shard in states.keys() - shards.lineage.keys() if not states[shard].held)
        missed = {shard: states.pop(shard) for shard in unlisted}
        ended = {shard for shard, state in missed.items() if isinstance(state.position, ShardEnd)}
        gone = sorted(ended | self._missed.keys() - states.keys())
        for start in range(0, len(gone), _AT_A_TIME):
            some = gone[start : start + _AT_A_TIME]
            letters = self._letters(some, left)
            self._store.shards.forget(some, letters, self._epoch)
            left = {shard: node for shard, node in left.items() if shard not in set(some)} | letters
        if gone:
            log.info("forgot %d shards past retention: %s", len(gone), ", ".join(gone))
        self._missed = {shard: state for shard, state in missed.items() if shard not in gone}
        return replace(shards, states=states, dead_letters=left)

    def _letters(
        self, gone: Sequence[str], letters: Mapping[str, DeadLettersNode]
    ) -> dict[str, DeadLettersNode]:
        """Return the merged dead letters of the shards to remove."""
        layout = self._store.layout
        by_place: dict[str, list[DeadLettersNode]] = {}
        for shard in gone:
            if shard in letters:
                key = layout.key_of(shard)
                place = layout.name_of(ShardKey(key.stream, key.created, PAST_RETENTION))
                by_place.setdefault(place, []).append(letters[shard])
        return {
            place: merge_dead_letters([*([letters[place]] if place in letters else []), *nodes])
            for place, nodes in by_place.items()
        }


_PERIOD_MS = 10 * 60 * 1000
"""Milliseconds between two notes in ZooKeeper for one shard."""


def note_tips(
    store: SourceStore, epoch: int, shards: Shards, sights: Sights
) -> tuple[dict[str, ShardState], dict[str, int]]:
    """Return each shard that looks have seen at a later tip, and the tips that ZooKeeper is told: idleness is no loss.

    One that was never read gets its first node, with txid 0.
    """
    found, noted = {}, {}
    for shard, sight in sights.by_shard.items():
        state, look = shards.states.get(shard), sight.look
        if state is None or look is None or not (look.more is False or look.is_end):
            continue
        node = state.checkpoint or CheckpointNode(checkpoint=None, txid=0, position=str(state.position))
        if state.position != look.position or look.at <= (node.seen or 0):
            continue
        listed = shards.lineage[shard].listed if shard in shards.lineage else 0
        told = find_known(state.position, state.checkpoint, listed) if sight.noted is None else sight.noted
        seen = msgspec.structs.replace(node, seen=look.at, behind_ms=0)
        if look.at - told >= _PERIOD_MS:
            store.shards.amend(shard, epoch, checkpoint=seen)
            noted[shard] = look.at
        found[shard] = replace(state, checkpoint=seen)
    return found, noted
