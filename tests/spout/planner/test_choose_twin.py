"""Drawn lives of a query, played once with `choose` and once with the planner before it: the same plans and waits.

Both worlds have one seed, so they are the same for as long as both make the same calls at the same times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from functools import partial
from threading import Event
from typing import Any

import pytest
from by_hand import Row, SparkCheckpoint
from model.session import Session
from model.zookeeper import MemoryZooKeeper
from stepped import SlowKinesis, SteppedQuery
from thorough import examples
from twins.old_choose.run import OldRun

from kinesis_trident.checkpoint.errors import CheckpointError
from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.errors import SpoutError
from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    KinesisError,
    Page,
    ShardMissingError,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.kinesis.rate_limit import shard_limiter
from kinesis_trident.spout.partition import TurnsPartition
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis
from kinesis_trident.tracker.position_keys import keys_of_texts, pack

ERRORS: tuple[KinesisError, ...] = (
    ThrottledError("too fast"),
    Unavailable("500"),
    ShardMissingError("no such shard"),
    AccessDeniedError("not allowed"),
)


def draw_options(r: random.Random) -> dict[str, str]:
    """Draw the options that have a part in the choice."""
    given = {
        "minFetchPeriod": r.choice(["0ms", "200ms"]),
        "describeShardInterval": r.choice(["1ms", "5s", "10m"]),
        "maxFetchRecordsPerShard": r.choice(["1", "3", "1000"]),
        "maxShardSkew": r.choice(["auto", "1m", "off"]),
        "prefetch": r.choice(["true", "false"]),
        "onExhausted": r.choice(["skip", "skip", "fail"]),
        "retryLimit": r.choice(["1", "5"]),
        "retryBackoff": r.choice(["1ms..1ms x1", "5s..1m x2"]),
        "failOnDataLoss": r.choice(["true", "false"]),
        "maxRetryingRecords": r.choice(["1", "100"]),
    }
    if r.random() < 0.3:
        given |= {
            "ackMode": "explicit",
            "maxInflightRecords": r.choice(["2", "100"]),
            "messageTimeout": "20s",
        }
    if r.random() < 0.2:
        given["maxBytesPerTrigger"] = r.choice(["1KiB", "1MiB"])
    return given


class ExactTime(FakeTime):
    """Passes in parts of a second that floats add up without an error, however often a clock is asked."""

    def sleep(self, seconds: float) -> None:
        """See `FakeTime.sleep`."""
        super().sleep(math.ceil(seconds * 1024) / 1024)


class Recording(SlowKinesis):
    """Notes each call and when it is made; of those about the whole stream the next `away` are refused."""

    def __init__(self, world: World, kinesis: MemoryKinesis, seconds: float) -> None:
        super().__init__(kinesis, world.time, seconds)
        self._note = world.note
        self.describe = partial(self._ask, kinesis.describe)
        self.list_shards = partial(self._ask, kinesis.list_shards)
        self.away = 0

    def _ask(self, call: Callable[..., Any], *args: object) -> Any:
        self._note(call.__name__, *args)
        if self.away:
            self.away -= 1
            raise ThrottledError("too many")
        return call(*args)

    def get_records(self, iterator: str, limit: int) -> Page:
        """See `Kinesis.get_records`."""
        self._note("get_records", iterator, limit)
        return super().get_records(iterator, limit)


class TracedQuery(SteppedQuery):
    """A life that notes its waits, and whose readers throw the dice of its world."""

    waits: Callable[[float], None]

    def task(self, part: TurnsPartition) -> list[Any]:
        """See `SteppedQuery.task`."""
        for turn in part.turns:
            key = part.layout.key_of(turn.shard)
            shard_limiter(part.options, key.stream, key.shard)._rng = random.Random(1)
        return super().task(part)

    def _wait(self, woken: Event, seconds: float) -> bool:
        self.waits(seconds)
        return super()._wait(woken, seconds)


class World:
    """One application, and all that its lives do; `trace` has it in order."""

    def __init__(self, seed: int, run_of: type[SourceRun]) -> None:
        self.r = r = random.Random(seed)
        self.time, self.trace, self.number, self.slept = ExactTime(), list[tuple[object, ...]](), 0, 0.0
        self.kinesis = MemoryKinesis(shards=r.randrange(1, 4), clock=self.time.milliseconds)
        self.calls = Recording(self, self.kinesis, r.choice([0.0, 0.0, 0.3]))
        self.zookeeper = MemoryZooKeeper(self.time.milliseconds)
        self.checkpoint, self.options = SparkCheckpoint(), draw_options(r)
        self.asking: Session | None = None
        self.rows: list[Row] = []
        self.kind = type(
            "Traced", (TracedQuery,), {"run_of": run_of, "waits": lambda _, s: self.note("wait", s)}
        )
        self.most = r.choice([None, None, 1, 10])
        self.query: SteppedQuery | None = None
        self.put()

    def note(self, *what: object) -> None:
        """Note what happens now."""
        self.trace.append((*what, self.time.now))

    def start(self) -> None:
        """Begin another life."""
        if self.query is not None:
            self.query.end()
        query = self.kind(
            self.calls,
            self.time,
            self.zookeeper,
            self.checkpoint,
            status_period=5.0,
            steady=lambda: self.time.now - self.slept,
            **self.options,
        )
        query._most_records = self.most
        self.query = query

    def put(self) -> None:
        """Put records; some arrive long after those before."""
        for shard in self.kinesis.open_shards:
            for _ in range(self.r.choice([0, 1, 5])):
                self.number += 1
                self.kinesis.put(shard, str(self.number).encode())
            if self.r.random() < 0.2:
                self.time.sleep(self.r.choice([1, 100, 1_000]))

    def reshard(self) -> None:
        """Split a shard, merge two, or remove one that is past retention."""
        shards = self.kinesis.open_shards
        match self.r.choice(["split", "merge", "forget"]):
            case "split" if len(shards) < 5:
                self.kinesis.split(self.r.choice(shards))
            case "merge" if len(shards) > 1:
                self.kinesis.merge(*shards[:2])
            case "forget":
                closed = [one.id for one in self.kinesis.list_shards("orders") if one.closed]
                if closed:
                    self.kinesis.forget(self.r.choice(closed))

    def trouble(self) -> None:
        """Have calls fail, or answers end that are not the end."""
        shard = self.r.choice(self.kinesis.open_shards)
        match self.r.choice(["reads", "listings", "broken", "clear"]):
            case "reads":
                self.kinesis.fail(shard, *self.r.choices(ERRORS, [6, 2, 1, 1], k=self.r.choice([1, 1, 2, 9])))
            case "listings":
                self.calls.away = self.r.choice([1, 5])
            case "broken":
                self.kinesis.break_off(shard, 1)
            case _:
                self.kinesis.clear()

    def ask(self, query: SteppedQuery) -> None:
        """Ask for records again, or say that they are done, or fail them."""
        if not self.rows:
            return
        wanted = self.r.sample(self.rows, min(len(self.rows), 3))
        shards = {query.run.layout.key_of(name).source: name for name in query.run._state.shards.states}
        for row in wanted:
            source, _, position = row[1].partition(":")
            shard = shards.get(source)
            if shard is None:
                continue
            op = self.r.choice(["ack", "ack", "fail", "replay"])
            given: Mapping[str, Any] = (
                {"records": (position,)} if op == "replay" else {"positions": pack(keys_of_texts([position]))}
            )
            query.store.external.add(shard, ExternalNode(op=op, **given))
        query._client.deliver()

    def ask_to_stop(self, query: SteppedQuery) -> None:
        """Ask to stop, or to drain, or withdraw that."""
        if self.asking is not None:
            self.asking.stop()
            self.asking.close()
            self.asking = None
        else:
            self.asking = Session(self.zookeeper)
            store = SourceStore(self.asking, query.run.layout)  # type: ignore[arg-type]
            store.stop.ask(query.run.epoch, drain=self.r.random() < 0.7)
        query._client.deliver()

    def stand_still(self) -> None:
        """Have a machine sleep: its steady clock does not count that."""
        slept = self.r.choice([60.0, 9_000.0, 90_000.0])
        self.time.sleep(slept)
        self.slept += slept

    def batch(self, query: SteppedQuery) -> None:
        """Ask for a batch, and run it, unless the process is killed in it."""
        if query.in_hand is None:
            plan = query.plan()
            self.note("plan", plan)
            if plan is None:
                return
        if self.r.random() < 0.1:
            query.beside(self.r.choice([0.1, 5.0]))
        rows = query.rows()
        self.note("rows", rows)
        if self.r.random() < 0.05:
            self.start()
            return
        self.rows = (self.rows + rows)[-20:]
        if self.options.get("ackMode") != "explicit":
            query.publish(row for row in rows if row[0] % 7 == 0 or self.r.random() < 0.05)
        query.commit()

    def step(self) -> None:
        """Do one thing of a life; an error ends it."""
        try:
            if self.query is None:
                self.start()
            assert self.query is not None
            query, r = self.query, self.r
            acts: list[Callable[[], object]] = [
                lambda: self.batch(query),
                self.put,
                lambda: self.time.sleep(r.choice([0.01, 1, 7, 70, 400])),
                self.reshard,
                self.trouble,
                lambda: self.ask(query),
                lambda: self.ask_to_stop(query),
                query.run.drain_and_end,
                self.stand_still,
                self.start,
            ]
            r.choices(acts, [60, 10, 8, 4, 6, 4, 3, 0.5, 0.3, 1])[0]()
        except (SpoutError, KinesisError, CheckpointError) as error:
            self.note(type(error).__name__, str(error))
            self.kinesis.clear()
            if self.query is not None:
                self.query.end()
            self.query = None
            if self.r.random() < 0.5:
                self.options |= {"onExhausted": "skip", "failOnDataLoss": "false"}


def play(seed: int, run_of: type[SourceRun]) -> list[tuple[object, ...]]:
    """Return what happens in one world."""
    world = World(seed, run_of)
    for _ in range(80):
        world.step()
    if world.query is not None:
        report = world.query.run.report()
        world.note("report", {name: one for name, one in report.items() if name != "counts"})
        world.query.end()
    return world.trace


@pytest.mark.parametrize("seed", range(examples(160)))
def test_what_is_chosen_is_what_was_planned(seed: int) -> None:
    found, before = play(seed, SourceRun), play(seed, OldRun)
    for one, other in zip(found, before, strict=False):
        assert one == other
    assert len(found) == len(before)
