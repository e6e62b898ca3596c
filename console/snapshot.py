"""One look at what ZooKeeper holds of an application and stream: the raw material of every table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkpoint.layout import Layout
from checkpoint.nodes import (
    Batch,
    CheckpointNode,
    DeadLettersNode,
    EpochNode,
    InflightNode,
    OwnerNode,
    Pin,
    SettledNode,
    ShardLineage,
)
from checkpoint.store import SourceStore

__all__ = ["Snapshot", "take_snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The nodes of one application and stream, read one after the other: a running query may move between.

    Attributes:
        layout: whose they are.
        epoch: of the newest run; 0 before the first.
        run: the newest run; None before the first.
        owner: its process, while that is connected.
        settled: the newest settled batch.
        batch: the newest plan that is not settled.
        pins: of `batch`, by shard.
        finished: whether the outcome of `batch` is published.
        shards: the lineage.
        checkpoints, inflight, dead_letters: by shard; a shard may be missing in each.
    """

    layout: Layout
    epoch: int = 0
    run: EpochNode | None = None
    owner: OwnerNode | None = None
    settled: SettledNode | None = None
    batch: Batch | None = None
    pins: Mapping[str, Pin] = field(default_factory=dict)
    finished: bool = False
    shards: Mapping[str, ShardLineage] = field(default_factory=dict)
    checkpoints: Mapping[str, CheckpointNode] = field(default_factory=dict)
    inflight: Mapping[str, InflightNode] = field(default_factory=dict)
    dead_letters: Mapping[str, DeadLettersNode] = field(default_factory=dict)

    @property
    def shard_ids(self) -> list[str]:
        """Every shard that any node names, sorted."""
        return sorted({*self.shards, *self.checkpoints, *self.inflight, *self.dead_letters})

    @property
    def batch_state(self) -> str:
        """How far the batch that is not settled has come, as far as ZooKeeper knows; empty without one.

        A query without bolts or states publishes no outcome: its last batch stays at "read" until the next
        start settles it.
        """
        if self.batch is None:
            return ""
        plan = self.batch.plan
        if self.finished:
            state = "finished, not settled"
        elif not self.pins:
            state = "planned, nothing read yet"
        elif set(plan.shards) <= set(self.pins):
            state = "read, not settled"
        else:
            state = f"being read, {len(self.pins)} of {len(plan.shards)} shards so far"
        return f"txid {plan.txid}: {state}"


def take_snapshot(store: SourceStore) -> Snapshot:
    """Read everything the tables show.

    Raises:
        checkpoint.errors.CheckpointError: ZooKeeper does not answer, or a node is corrupt.
    """
    newest, settled, batch, lineage = (
        store.newest_run(),
        store.settled(),
        store.newest_batch(),
        store.lineage(),
    )
    if batch is not None and settled is not None and batch.plan.txid <= settled.txid:
        batch = None
    pins: dict[str, Pin] = {}
    acks = None
    if batch is not None:
        plan = batch.plan
        acks = store.get_acks(plan.txid)
        found = store.get_pins(plan.txid, plan.shards)
        # Those of an earlier plan under this txid count for nothing.
        pins = {shard: pin for shard, pin in found.items() if pin.plan == plan.plan}
    return Snapshot(
        layout=store.layout,
        epoch=newest[0] if newest else 0,
        run=newest[1] if newest else None,
        owner=store.owner(),
        settled=settled,
        batch=batch,
        pins=pins,
        finished=batch is not None and acks is not None and acks.plan == batch.plan.plan,
        shards=lineage.shards if lineage else {},
        checkpoints=store.checkpoints(),
        inflight=store.inflight(),
        dead_letters=store.dead_letters(),
    )
