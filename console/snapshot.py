"""A snapshot of an application's nodes in ZooKeeper: the data of every table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kinesis_trident.checkpoint.model.layout import Layout, ShardKey
from kinesis_trident.checkpoint.model.nodes import (
    BatchNode,
    CheckpointNode,
    DeadLettersNode,
    EpochNode,
    FencedNode,
    InflightNode,
    OwnerNode,
    Pin,
    SettledNode,
    ShardLineage,
    SlowCall,
)
from kinesis_trident.checkpoint.model.pauses import Pause
from kinesis_trident.checkpoint.model.run_status import FailedStartsNode, FailingNode, RunEnd, StatusNode
from kinesis_trident.checkpoint.store.failed_starts import failed_starts
from kinesis_trident.checkpoint.store.source_store import SourceStore, streams_of
from kinesis_trident.checkpoint.zookeeper.client import (
    NOWHERE,
    ZooKeeperConfig,
    config_of,
    session_timeout,
)
from kinesis_trident.checkpoint.zookeeper.command_line import command_line
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.common.visible_text import count_noun

ASKED_MS = 60_000
"""Milliseconds for which a status says that Spark asks its run."""

NodeT = TypeVar("NodeT")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The nodes of one application and its streams, read one after the other: a running query may move between.

    Attributes:
        layout: of the application.
        zookeeper: the settings with which it was read.
        streams: those shown, of the streams that have their home here.
        epoch: of the newest run; 0 before the first.
        run: the newest run; None before the first.
        owner: its process, while it is connected.
        settled: the newest settled batch.
        batch: the newest plan that is not settled.
        pins: of `batch`, by shard, of all streams.
        finished: True if the outcome of `batch` is published.
        shards: the lineage.
        checkpoints, inflight, dead_letters: by shard; a shard may be missing in each.
        active: the streams that the newest run reads, of `streams`.
        status: what the newest run that said anything sees; None if none has.
        failing: the last batch of which most records failed, as its driver saw it; None if there was none.
        planned_at, read_at, finished_at: when `batch` was planned, last pinned and published, in epoch milliseconds by
            ZooKeeper's clock; None if it was not.
        delivered_at: of the shards with records that are not acked yet, when the oldest of these were pinned, in epoch
            milliseconds by ZooKeeper's clock.
        settled_at: when the newest settled batch was settled, by the same clock; None before the first.
        takeovers: when runs had to stop for a newer one, and which, the newest last.
        ends: how the last runs ended, the newest last.
        pauses: what people have paused; it may be over.
        rejected: the requests of other processes that no run could read.
        problems: the errors of the nodes that cannot be read; these are missing in the other attributes.
        part: the names of the shards that are shown; None for all.
        beside: True if the application has other homes, which a recommended command must not be about.
        slow: the calls of functions of the newest run for which `batch` waits, and which do not end.
    """

    layout: Layout
    zookeeper: ZooKeeperConfig = NOWHERE
    streams: tuple[str, ...] = ()
    epoch: int = 0
    run: EpochNode | None = None
    failed_starts: FailedStartsNode | None = None
    owner: OwnerNode | None = None
    settled: SettledNode | None = None
    batch: BatchNode | None = None
    pins: Mapping[str, Pin] = field(default_factory=dict)
    finished: bool = False
    shards: Mapping[str, ShardLineage] = field(default_factory=dict)
    checkpoints: Mapping[str, CheckpointNode] = field(default_factory=dict)
    inflight: Mapping[str, InflightNode] = field(default_factory=dict)
    dead_letters: Mapping[str, DeadLettersNode] = field(default_factory=dict)
    active: tuple[str, ...] = ()
    status: StatusNode | None = None
    failing: FailingNode | None = None
    planned_at: int | None = None
    read_at: int | None = None
    finished_at: int | None = None
    delivered_at: Mapping[str, int] = field(default_factory=dict)
    settled_at: int | None = None
    takeovers: tuple[tuple[int, FencedNode], ...] = ()
    ends: tuple[RunEnd, ...] = ()
    pauses: tuple[Pause, ...] = ()
    rejected: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    part: frozenset[str] | None = None
    beside: bool = False
    slow: tuple[SlowCall, ...] = ()

    def command(self, command: str, *words: str, options: Iterable[str] = ()) -> str:
        """Return the line that runs a command on the application, about the streams that are shown.

        `words` and `options`: as of `command_line`.
        """
        # The stream of doctor is one of Kinesis.
        if (self.beside or self.part is not None) and self.streams and command != "doctor":
            options = (*options, "--stream", ",".join(self.streams))
        where = self.layout
        return command_line(self.zookeeper, where.root, command, where.application, *words, options=options)

    def slow_shards(self, call: SlowCall) -> tuple[str, ...]:
        """Return the shards of the records in hand of a call, as people name them."""
        planned = self.batch.plan.shards if self.batch is not None else ()
        return tuple(self.label_of(shard) for at, shard in enumerate(planned) if at in call.shards)

    def key_of(self, shard: str) -> ShardKey | None:
        """Return the shard of a name; None for a parent that was removed before its stream was read with others."""
        try:
            return self.layout.key_of(shard)
        except ValueError:
            return None

    def label_of(self, shard: str) -> str:
        """Return a shard's name for people: its id, preceded by the stream if there are several."""
        key = self.key_of(shard)
        return shard if key is None else key.source if self.layout.several else key.shard

    def only(self, names: frozenset[str], streams: Collection[str]) -> Snapshot:
        """Return the same for some shards, by name, of some streams; the batch and its pins stay those of all."""

        def of(nodes: Mapping[str, NodeT]) -> dict[str, NodeT]:
            return {name: node for name, node in nodes.items() if name in names}

        return replace(
            self,
            part=names,
            streams=tuple(sorted(streams)),
            active=tuple(name for name in self.active if name in streams),
            shards=of(self.shards),
            checkpoints=of(self.checkpoints),
            inflight=of(self.inflight),
            dead_letters=of(self.dead_letters),
        )

    def end(self, now: int) -> RunEnd | None:
        """Return how the newest run has ended; None if it runs, or ended without a word.

        One that has read everything runs on while Spark asks it: another source of its query is still read. `now` is in
        epoch milliseconds.
        """
        return None if self.is_drained(now) else self._last_word

    def is_drained(self, now: int) -> bool:
        """Return whether the newest run has read everything that it was to read, and Spark still asks it."""
        end, status = self._last_word, self.status
        return (
            (end is not None and end.how == "finished")
            and (self.owner is not None and status is not None and status.epoch == self.epoch)
            and (status.time > end.at and now - status.time <= ASKED_MS)
        )

    @property
    def _last_word(self) -> RunEnd | None:
        return next((end for end in self.ends if end.epoch == self.last_epoch), None)

    @property
    def last_epoch(self) -> int:
        """Return the epoch of the newest query: people's tools raise it too; 0 before the first."""
        return self.run.last if self.run is not None and self.run.tool else self.epoch

    @property
    def last_run(self) -> EpochNode | None:
        """Return the newest run, which may be a tool's; None if no query has ever started."""
        return self.run if self.last_epoch else None

    @property
    def newest_status(self) -> StatusNode | None:
        """Return the status of the run that is connected; None if there is none, or it has said nothing yet."""
        status = self.status
        return (
            status if self.owner is not None and status is not None and status.epoch >= self.epoch else None
        )

    def phase(self, now: int) -> tuple[str, int | None]:
        """Return what is done with the batch in hand, and since when (by ZooKeeper's clock)."""
        if self.batch is not None:
            since = self.finished_at if self.finished else self.read_at if self.pins else self.planned_at
            return self.batch_state, since
        status = self.newest_status
        if status is None:
            return "no batch in hand", None
        if now - status.time > ASKED_MS:
            return "no batch in hand; Spark asks for none", status.time
        if self.is_drained(now):
            return "no batch in hand; has read everything that it was to read", None
        return "no batch in hand; waits for records", None

    @property
    def is_pinned(self) -> bool:
        """Return whether all shards of the batch in hand are read."""
        return self.finished or (self.batch is not None and set(self.batch.plan.shards) <= set(self.pins))

    @property
    def shard_ids(self) -> list[str]:
        """Return every shard that any node names, sorted, without the entry for removed ones."""
        return sorted({*self.shards, *self.checkpoints, *self.inflight})

    @property
    def batch_state(self) -> str:
        """Return the progress of the unsettled batch, according to ZooKeeper; empty without one.

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
        elif self.is_pinned:
            state = "read, not settled"
        else:
            state = f"being read, {len(self.pins)} of {count_noun(len(plan.shards), 'shard')} so far"
        return f"txid {plan.txid}: {state}"


def take_snapshot(store: SourceStore) -> Snapshot:
    """Read the data of all tables, for all streams that have their home there.

    A node that cannot be read does not hide others: it is listed in `problems`.

    Raises:
        CheckpointError: ZooKeeper does not answer.
    """
    problems: list[str] = []
    store = store.open_for_looking(lambda error: problems.append(str(error)))
    newest, settled, batch, lineage = (
        store.epochs.newest_run(),
        store.batches.settled(),
        store.batches.newest(),
        store.shards.lineage(),
    )
    if batch is not None and settled is not None and batch.plan.txid <= settled.txid:
        batch = None
    pins: dict[str, Pin] = {}
    slow: list[SlowCall] = []
    acks = None
    planned_at = read_at = finished_at = None
    if batch is not None:
        plan = batch.plan
        acks = store.batches.get_outcome(plan.txid)
        slow = store.reports.slow_calls(plan.txid)
        found = store.batches.get_pins(plan.txid, plan.shards)
        # Those of an earlier plan under this txid do not count.
        pins = {shard: pin for shard, pin in found.items() if pin.plan == plan.plan}
        layout = store.layout
        paths = (layout.pin_of(plan.txid, shard) for shard in pins)
        planned_at, finished_at, *pinned = store.written_at(
            layout.batch_of(plan.txid), layout.acks_of(plan.txid), *paths
        )
        read_at = max((at for at in pinned if at is not None), default=None)
    known = tuple(sorted(streams_of(store)))
    together = store.streams.get() if store.layout.several else None
    inflight, paused = store.shards.inflight(), store.pauses.get()
    return Snapshot(
        layout=store.layout,
        zookeeper=config_of(store.client),
        streams=known,
        epoch=newest[0] if newest else 0,
        run=newest[1] if newest else None,
        owner=store.epochs.owner(),
        settled=settled,
        batch=batch,
        pins=pins,
        finished=batch is not None and acks is not None and acks.plan == batch.plan.plan,
        shards=lineage.shards if lineage else {},
        checkpoints=store.shards.checkpoints(),
        inflight=inflight,
        dead_letters=store.shards.dead_letters(),
        active=known if together is None else tuple(together.active),
        status=store.status.get(),
        failing=store.failing.get(),
        failed_starts=failed_starts(Session(store.client, session_timeout(store.client)), store.layout),
        planned_at=planned_at,
        read_at=read_at,
        finished_at=finished_at if acks is not None else None,
        delivered_at=_delivered_at(store, inflight),
        settled_at=store.written_at(store.layout.settled)[0],
        takeovers=tuple(store.epochs.takeovers()),
        ends=store.ends.runs(),
        pauses=paused.pauses if paused is not None else (),
        rejected=tuple(store.external.list_rejected()),
        problems=tuple(dict.fromkeys(problems)),
        slow=tuple(call for call in slow if newest is not None and call.epoch == newest[0]),
    )


def _delivered_at(store: SourceStore, inflight: Mapping[str, InflightNode]) -> dict[str, int]:
    oldest = {
        shard: min(run.txid for run in node.pending) for shard, node in inflight.items() if node.pending
    }
    times = store.written_at(*(store.layout.pin_of(txid, shard) for shard, txid in oldest.items()))
    return {shard: at for shard, at in zip(oldest, times, strict=True) if at is not None}
