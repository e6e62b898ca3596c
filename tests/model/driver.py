"""The user's driver and the tasks: reads a batch, judges its records, publishes the outcome, writes to the sink."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from kinesis_trident.bolt.errors import BatchFailedError, StaleBatchError
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.errors import CheckpointError, FencedError
from kinesis_trident.checkpoint.model.nodes import ExternalNode, NotDone
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.errors import SpoutError
from kinesis_trident.spout.partition import TurnsPartition
from kinesis_trident.spout.reader.task import TurnReader
from kinesis_trident.tracker.ids import tag
from kinesis_trident.tracker.position_keys import keys_of, merge_keys, pack_in_parts
from model.schedule import Actor
from model.session import Dice, Session
from model.sinks import Written
from model.world import Row, World

__all__ = ["Driver", "Judging", "Plain", "Reading", "Tasks", "tell"]

_ZOMBIE = 0.15
_SECOND_ACTION = 0.1

Reading = Callable[[TurnsPartition], bool]
"""Tells whether the query runs the task of a partition."""


class Tasks:
    """Runs the tasks of one life, and leaves some behind that go on by themselves.

    Args:
        world: of the model.
        actor: the process of the life.
        dice: what goes wrong with the sessions of tasks.
        rng: decides what goes wrong else.
        start: begins another process.
        beside: lets the planning process do some of its work beside a task.
    """

    def __init__(
        self,
        world: World,
        actor: Actor,
        dice: Dice,
        rng: random.Random,
        start: Callable[[str, Callable[[Actor], object]], object],
        beside: Callable[[], None],
    ) -> None:
        self._world = world
        self._actor = actor
        self._dice = dice
        self._rng = rng
        self._start = start
        self._beside = beside
        self._left_behind = 0

    def rows(self, parts: Sequence[TurnsPartition]) -> list[Row]:
        """The rows of a job; now and then a task is run twice, or another one is late."""
        found: list[Row] = []
        for part in parts:
            if not self._world.calm and self._rng.random() < _ZOMBIE:
                self._leave_behind(part)
            self._beside()
            found += self._run(part, self._actor)
            self._beside()
            if not self._world.calm and self._rng.random() < _SECOND_ACTION:
                self._run(part, self._actor, attempt=1)
        return found

    def _run(self, part: TurnsPartition, actor: Actor, attempt: int = 0) -> list[Row]:
        session = Session(self._world.zookeeper, actor, self._dice)
        store = SourceStore(session, part.layout)  # type: ignore[arg-type]
        reader = TurnReader(
            part,
            self._world.kinesis,
            store,
            look_first=part.replay or attempt > 0,
            wall=lambda: self._world.now,
        )
        rows: list[Row] = []
        for batch in reader.rows():
            names = ("data", "shardId", "sequenceNumber", "attempt", "txid")
            columns = (batch.column(name).to_pylist() for name in names)
            rows += [Row(int(n), s, int(q), a, t) for n, s, q, a, t in zip(*columns, strict=True)]
        session.stop()
        self._world.given(part, rows)
        return rows

    def _leave_behind(self, part: TurnsPartition) -> None:
        """A speculative task, or one of a job that was cancelled: nobody waits for its rows."""
        world = self._world

        def body(actor: Actor) -> None:
            settled = world.settled
            try:
                rows = self._run(part, actor, attempt=self._rng.choice([0, 1]))
            except (CheckpointError, SpoutError) as error:
                world.stats[f"late task: {type(error).__name__}"] += 1
                return
            world.stats["late task: rows"] += 1
            if rows and settled >= part.txid:
                world.violation(f"a task that began after txid {part.txid} was settled was given {rows}")

        self._left_behind += 1
        self._start(f"{self._actor.name}-task{self._left_behind}", body)


class Driver:
    """The query's work on its batches.

    Args:
        world: of the model.
        actor: the process.
        store: through a session of the driver's own.
        tasks: runs the jobs.
        reading: which tasks a job has.
    """

    def __init__(
        self,
        world: World,
        actor: Actor,
        store: SourceStore,
        tasks: Tasks,
        reading: Reading = lambda _: True,
    ) -> None:
        self.world = world
        self.actor = actor
        self.store = store
        self.tasks = tasks
        self.reading = reading

    def process(self, batch_id: object, parts: Sequence[TurnsPartition]) -> None:
        """Do what Spark does with a batch, up to its end."""
        raise NotImplementedError


class Plain(Driver):
    """A query that judges nothing: what it has run is done."""

    def process(self, batch_id: object, parts: Sequence[TurnsPartition]) -> None:
        """See `Driver.process`."""
        rows = self.tasks.rows([part for part in parts if self.reading(part)])
        txid, epoch = max(((part.txid, part.epoch) for part in parts), default=(0, 0))
        if rows:
            self.world.kinds[txid].add("plain")
        self.world.delivered |= {row.number: row for row in rows}
        written = Written(batch_id, self.store.layout.element, txid, epoch)
        self.world.sink.write(written, [row.number for row in rows], self.actor.point)


class Judging(Driver):
    """A query of `reliable`, bolts or Trident: which of the records failed is published before they count."""

    _epoch: int | None = None

    def process(self, batch_id: object, parts: Sequence[TurnsPartition]) -> None:
        """See `Driver.process`.

        Raises:
            StaleBatchError: the rows are not of the batch that ZooKeeper holds.
        """
        batch = self._batch_of(parts)
        if batch is None:
            return
        batch.say_judging()
        self.store.epochs.check_epoch(batch.epoch)
        rows = self.tasks.rows(parts)
        txids = {row.txid for row in rows}
        if batch.verdict is None:
            self._require_all(batch, parts, rows)
            failed = self._failed(rows)
            if failed and any(part.options.spout == "transactional" for part in parts):
                self._fail_whole(rows)
                failed = {}
            self.world.kinds[batch.txid].add("judging")
            self.world.refused[batch.txid] |= {row.number for row in rows if self._fails(row)}
            batch.publish(Verdict(failed))
        elif txids - {batch.txid}:
            self.world.violation(f"the verdict of txid {batch.txid} is adopted for rows of {sorted(txids)}")
        self.world.delivered |= {row.number: row for row in rows}
        good = self._good(batch, rows)
        written = Written(batch_id, batch.home, batch.txid, batch.epoch)
        self.world.sink.write(written, good, self.actor.point)

    def _batch_of(self, parts: Sequence[TurnsPartition]) -> CurrentBatch | None:
        """The batch of these tasks, seen from their first row once an epoch, as `bolt.foreach_batch` does."""
        try:
            batch = CurrentBatch.newest(self.store)
        except StaleBatchError:
            if self.tasks.rows(parts):
                raise
            return None
        if batch.epoch == self._epoch:
            return batch
        with suppress(FencedError):
            batch.say_judging()
        is_ours = False
        try:
            is_ours = self._is_of(parts, batch)
        finally:
            if not is_ours:
                batch.take_back_judging()
        return batch if is_ours else None

    def _is_of(self, parts: Sequence[TurnsPartition], batch: CurrentBatch) -> bool:
        first = next((part for part in parts if self.tasks.rows([part])), None)
        if first is None:
            newest = self.store.epochs.newest_run()
            return batch.is_empty() and newest is not None and newest[0] == batch.epoch
        if _tag_of(first) != batch.tag:
            msg = f"the rows in hand are not of txid {batch.txid} of epoch {batch.epoch}"
            raise StaleBatchError(msg)
        self._epoch = batch.epoch
        return True

    def _require_all(self, batch: CurrentBatch, parts: Sequence[TurnsPartition], rows: Sequence[Row]) -> None:
        """See that every record was seen, as the reports of bolts show it."""
        pins = batch.pins()
        seen = sum(pin.rows for pin in pins.values()) == len(rows)
        whole = len(pins) == sum(len(part.turns) for part in parts)
        if (
            not seen
            or not whole
            or any((part.txid, _tag_of(part)) != (batch.txid, batch.tag) for part in parts)
        ):
            msg = f"not all of txid {batch.txid} was seen"
            raise StaleBatchError(msg)

    def _failed(self, rows: Sequence[Row]) -> dict[str, tuple[NotDone, ...]]:
        failed: dict[str, list[NotDone]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row.sequence):
            if self._fails(row):
                position = self.world.text_of(row.sequence)
                failed[row.shard].append(NotDone(position, position, 1, self.world.reason(row.number)))
        return {shard: tuple(pieces) for shard, pieces in failed.items()}

    def _fails(self, row: Row) -> bool:
        return row.attempt <= self.world.records[row.number].failures

    def _fail_whole(self, rows: Sequence[Row]) -> None:
        """Fail a batch as a whole; somebody mends the cause, and once all is calm nothing fails."""
        if self.world.calm:
            return
        for row in rows:
            record = self.world.records[row.number]
            self.world.records[row.number] = replace(record, failures=1 if record.failures > 1 else 0)
        msg = "records failed, and with them the batch"
        raise BatchFailedError(msg)

    def _good(self, batch: CurrentBatch, rows: Sequence[Row]) -> list[int]:
        assert batch.verdict is not None
        out = [
            (shard, int(piece.first), int(piece.last))
            for shard, pieces in batch.verdict.not_done.items()
            for piece in pieces
        ]
        return [
            row.number
            for row in rows
            if not any(row.shard == shard and first <= row.sequence <= last for shard, first, last in out)
        ]


def _tag_of(part: TurnsPartition) -> int:
    """The tag that the rows of a task carry."""
    return tag(part.epoch, part.plan)


def tell(world: World, store: SourceStore, numbers: Sequence[int], op: str) -> None:
    """Ack, fail or reset records by name, as somebody beside the query does."""
    shards: dict[str, list[str]] = defaultdict(list)
    for number in numbers:
        shards[world.records[number].shard].append(world.text_of(world.records[number].sequence))
    for shard, texts in shards.items():
        keys = merge_keys([keys_of(np.array(texts), np.full(len(texts), -1))])
        for positions in pack_in_parts(keys):
            if op == "ack":
                world.acked |= set(numbers)
                world.done |= set(numbers)
            store.external.add(shard, ExternalNode(op=op, positions=positions, reason="as told"))  # type: ignore[arg-type]
