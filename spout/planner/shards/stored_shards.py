"""The nodes of shards in ZooKeeper: loads them at the start, notes tips, and removes those of missing shards."""

from __future__ import annotations

from collections.abc import Sequence

from kinesis_trident.checkpoint.errors import StateMissingError
from kinesis_trident.checkpoint.model.codec import name_in_errors
from kinesis_trident.checkpoint.model.layout import PAST_RETENTION
from kinesis_trident.checkpoint.model.nodes import SettledNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.options.modes import ShardOrdering
from kinesis_trident.spout.planner.clocks import correct_due_times
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.lineage import Lineage
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.positions import TRIM_HORIZON, parse_position
from kinesis_trident.tracker.position_keys import Keys, unpack


def load_shards(
    store: SourceStore,
    ordering: ShardOrdering,
    lineage: Lineage,
    settled: SettledNode | None,
    *,
    now: int,
    longest_delay: int,
    timeout: int,
) -> Shards:
    """Read the nodes of all shards; times are milliseconds, and those of records in flight as `correct_due_times`.

    Those that are not listed and have no records in flight count as missed.

    Raises:
        StateMissingError: nodes on which others rely are missing, such as a pin with positions of records in flight.
    """
    checkpoints, stored = store.shards.checkpoints(), store.shards.inflight()
    store.shards.check_shards(settled, lineage, checkpoints, stored)
    inflight = {shard: correct_due_times(node, now, longest_delay, timeout) for shard, node in stored.items()}
    dead_letters = store.shards.dead_letters()
    held = {shard for shard, node in inflight.items() if node.waiting or node.dead or node.pending}
    states, missed = dict[str, ShardState](), dict[str, ShardState]()
    letters = {shard for shard in dead_letters if store.layout.key_of(shard).shard != PAST_RETENTION}
    for shard in sorted({*lineage, *checkpoints, *inflight, *letters}):
        start = parse_position(lineage[shard].start) if shard in lineage else TRIM_HORIZON
        turns = _positions(store, shard, inflight[shard].turns) if shard in held else {}
        some = states if shard in lineage or shard in held else missed
        some[shard] = ShardState(start, checkpoints.get(shard), inflight.get(shard), turns)
    txid, plan = (settled.txid, settled.plan) if settled is not None else (0, "")
    return Shards(ordering, states, lineage, dead_letters, txid, plan, missed=missed)


def _positions(store: SourceStore, shard: str, txids: Sequence[int]) -> dict[int, Keys]:
    """Read the positions of the rows of settled batches from their pins.

    Raises:
        StateMissingError: a pin is missing.
    """
    layout, known = store.layout, dict[int, Keys]()
    for txid in txids:
        pin = store.batches.get_pin(txid, shard)
        if pin is None:
            msg = (
                f"{layout.pin_of(txid, shard)} does not exist, but {layout.inflight_of(shard)} names records of "
                "that batch that are not acked yet, and only the pin has their positions. Nothing was changed. "
                "Restore the node from a backup"
            )
            raise StateMissingError(msg)
        with name_in_errors(layout.pin_of(txid, shard)):
            known[txid] = unpack(*pin.positions)
    return known
