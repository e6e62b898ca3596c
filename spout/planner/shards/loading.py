"""Loads the settled state of each shard from ZooKeeper, as a run finds it at its start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kinesis_trident.checkpoint.errors import StateMissingError
from kinesis_trident.checkpoint.model.codec import name_in_errors
from kinesis_trident.checkpoint.model.nodes import DeadLettersNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.planner.clocks import correct_due_times
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.lineage import Lineage
from kinesis_trident.spout.positions import TRIM_HORIZON, parse_position
from kinesis_trident.tracker.position_keys import Keys, unpack


class LoadedShards(NamedTuple):
    """The nodes of all shards.

    `shards`: those that are listed or have records in flight. `unlisted`: the names of all others that have nodes.
    """

    shards: dict[str, ShardState]
    dead_letters: dict[str, DeadLettersNode]
    unlisted: set[str]


def load_shards(
    store: SourceStore, lineage: Lineage, *, now: int, longest_delay: int, timeout: int
) -> LoadedShards:
    """Read the nodes of all shards; times are milliseconds, and those of records in flight as `correct_due_times`.

    Raises:
        StateMissingError: a pin with the positions of records in flight is missing.
    """
    checkpoints, stored = store.shards.checkpoints(), store.shards.inflight()
    inflight = {shard: correct_due_times(node, now, longest_delay, timeout) for shard, node in stored.items()}
    dead_letters = store.shards.dead_letters()
    held = {shard for shard, node in inflight.items() if node.waiting or node.dead or node.pending}
    known = {*lineage, *held}
    shards = {}
    for shard in sorted(known):
        start = parse_position(lineage[shard].start) if shard in lineage else TRIM_HORIZON
        turns = _positions(store, shard, inflight[shard].turns) if shard in inflight else {}
        shards[shard] = ShardState(start, checkpoints.get(shard), inflight.get(shard), turns)
    return LoadedShards(shards, dead_letters, {*checkpoints, *inflight, *dead_letters} - known)


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
