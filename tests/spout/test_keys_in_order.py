"""`retryOrder=key`, batch by batch, against what the stream says: the records of a key become done in its order.

The planning process, its tasks and the operator of `map` run by hand, over memory; lives end at drawn steps.
"""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from model.zookeeper import MemoryZooKeeper
from msgspec.structs import replace
from stepped import SteppedQuery
from thorough import examples

from kinesis_trident.bolt.steps.functions import RowStep
from kinesis_trident.bolt.steps.key_order import KeyOrder
from kinesis_trident.bolt.tracking.failed import NONE, Failed
from kinesis_trident.bolt.tracking.judged_facts import JudgedFacts
from kinesis_trident.bolt.tracking.operators import StepOperator, Tag
from kinesis_trident.bolt.tracking.reports import Reports
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.checkpoint.model.standing import RETRIES_FIRST
from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.partition import ShardTurn, TurnsPartition
from kinesis_trident.spout.planner.shards.retry_order import Chains
from kinesis_trident.spout.query_by_hand import SparkCheckpoint
from kinesis_trident.spout.reader import replay, task
from kinesis_trident.spout.reader.key_marks import mark_waiting
from kinesis_trident.spout.reader.rows import TurnRows
from kinesis_trident.spout.reader.task import TurnReader
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis
from kinesis_trident.tracker.errors import RetryLater
from kinesis_trident.tracker.ids import tag
from kinesis_trident.tracker.records import Run

SCHEMA = pa.schema([("key", pa.string()), ("number", pa.int64())])
FIRST = "shardId-000000000000"
LIMIT = 2


class Heard:
    """The reports of a batch."""

    def __init__(self) -> None:
        self.reports: Reports = {}

    def add(self, reports: Reports) -> None:
        for key, failed in reports.items():
            self.reports[key] = self.reports.get(key, NONE).union(failed)


class Ended(Exception):
    """The process was killed."""


class World:
    """A stream whose records fail so and so often, a sink that replaces the rows of a txid, and lives one by one."""

    def __init__(self, seed: int, order: str = "key", **options: str) -> None:
        self.rng = rng = random.Random(seed)
        self.time = FakeTime()
        self.kinesis = MemoryKinesis("orders", clock=self.time.milliseconds)
        self.zookeeper = MemoryZooKeeper(self.time.milliseconds)
        self.checkpoint = SparkCheckpoint()
        self.options = {
            "retryOrder": order,
            "retryLimit": str(LIMIT),
            "retryBackoff": "1s..20s x2",
            "minFetchPeriod": "0ms",
            "maxFetchTime": "60s",
            "maxFetchRecordsPerShard": str(rng.choice([2, 5, 100])),
            "retryBytesPerShard": rng.choice(["1", "4MiB"]),
            "retryRangesPerShard": rng.choice(["1", "2"]),
            "maxRecordsPerFetch": rng.choice(["1", "10000"]),
            "maxRetryingRecords": rng.choice(["3", "1000"]),
        } | options
        self.kills = rng.choice([0.0, 0.1])
        self.error: Exception = ValueError("not yet")
        self.left: dict[int, int] = {}
        self.fails: dict[int, int] = {}
        self.keys: dict[int, str] = {}
        self.sink: dict[int, list[int]] = {}
        self.delivered: list[tuple[int, int, int]] = []
        self.query = self.start()

    def start(self) -> SteppedQuery:
        return SteppedQuery(self.kinesis, self.time, self.zookeeper, self.checkpoint, **self.options)

    def put(self, count: int, keys: int = 4) -> None:
        for _ in range(count):
            number, key = len(self.keys), str(self.rng.randrange(keys))
            self.keys[number] = key
            self.left[number] = self.fails[number] = self.rng.choice([0, 0, 0, 1, 2, 99])
            self.kinesis.put_records("orders", [(str(number).encode(), key)])

    def judge(self, record: Any) -> tuple[str, int]:
        number = int(record.data)
        self.delivered.append((record.txid, number, record.attempt))
        if self.left[number]:
            self.left[number] -= 1
            raise self.error
        return record.partitionKey, number

    def step(self) -> bool:
        """Run a batch, or begin anew after a kill; tell whether there was anything to do."""
        query = self.query
        try:
            if query.in_hand is None and query.plan() is None:
                return False
            self.run_batch(query)
        except Ended:
            query.end()
            self.query = self.start()
        return True

    def _may_end(self) -> None:
        if self.rng.random() < self.kills:
            raise Ended

    def run_batch(self, query: SteppedQuery) -> None:
        plan = query._require(in_hand=True)
        parts = query.parts()
        self._may_end()
        epoch = query._say_judging(plan)
        outcome = query.store.batches.get_outcome(plan.txid)
        is_ours = outcome is not None and outcome.plan == plan.plan
        published = Verdict(outcome.not_done) if outcome is not None and is_ours else None
        heard, rows = Heard(), list[int]()
        for part in self.rng.sample(parts, len(parts)):
            rows += self.task(query, part, heard, plan.txid, published)
            self._may_end()
        if published is None:
            failed: dict[int, Failed] = {}
            for key, some in heard.reports.items():
                failed[key.shard] = failed.get(key.shard, NONE).union(some)
            pins = query.store.batches.get_pins(plan.txid, plan.shards)
            facts = JudgedFacts(plan, epoch, tag(epoch, plan.plan), lambda: pins, query.run.layout.source_of)
            verdict = facts.judge(failed, pins, {})
            query.store.batches.put_outcome(verdict.node(plan, epoch), epoch)
            self._may_end()
        self.sink[plan.txid] = rows
        query.commit()
        self._may_end()

    def task(
        self, query: SteppedQuery, part: TurnsPartition, heard: Heard, txid: int, published: Verdict | None
    ) -> Iterator[int]:
        reader = TurnReader(
            part, self.kinesis, query.store, look_first=part.replay, wall=self.time.milliseconds
        )
        operator = StepOperator(
            Tag("map", txid, heard),
            (RowStep(self.judge if published is None else self.give, SCHEMA),),
            anchored=False,
            verdict=published,
            final=published is not None,
            in_order=published is None,
        )
        return [number for rows in operator(reader.rows()) for number in rows.column("number").to_pylist()]

    def give(self, record: Any) -> tuple[str, int]:
        return record.partitionKey, int(record.data)

    def finish(self) -> None:
        self.kills = 0.0
        for _ in range(2_000):
            if not self.step():
                self.time.sleep(10)
                shards = self.query.run._state.shards
                if (
                    shards.next_retry is None
                    and not shards.dead
                    and len(self.done) + len(self.dead) == len(self.keys)
                ):
                    return
        raise AssertionError("it does not end")

    @property
    def done(self) -> list[int]:
        return [number for _, rows in sorted(self.sink.items()) for number in rows]

    @property
    def dead(self) -> set[int]:
        return {number for number, left in self.left.items() if left}

    def broken(self) -> list[str]:
        found, last = [], dict[str, int]()
        for txid, rows in sorted(self.sink.items()):
            for number in rows:
                key = self.keys[number]
                if last.get(key, -1) >= number:
                    found.append(f"txid {txid}: {number} of key {key} is done after {last[key]}")
                last[key] = number
        return found


def play(seed: int, order: str = "key", **options: str) -> World:
    world = World(seed, order, **options)
    rng = world.rng
    for _ in range(12):
        world.put(rng.randrange(8))
        if rng.random() < 0.2:
            shards = world.kinesis.open_shards
            if rng.random() < 0.5 or len(shards) < 2:
                if len(shards) < 4:
                    world.kinesis.split(rng.choice(shards))
            else:
                at = rng.randrange(len(shards) - 1)
                world.kinesis.merge(shards[at], shards[at + 1])
        for _ in range(rng.randrange(4)):
            if not world.step():
                world.time.sleep(rng.choice([0, 1, 5]))
    world.finish()
    return world


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(examples(40)))
def test_the_records_of_a_key_become_done_in_the_order_of_the_stream(seed: int) -> None:
    world = play(seed)
    assert world.broken() == []
    assert sorted(world.done) == sorted(set(world.keys) - world.dead)
    # What waits for another record uses up no delivery.
    for _, number, attempt in world.delivered:
        assert 1 <= attempt <= 1 + min(world.fails[number], LIMIT)


def test_without_an_order_they_do_not() -> None:
    assert sum(bool(play(seed, "none").broken()) for seed in range(5)) > 2


def without_what_parents_hold(chains: Chains, shard: str, taken: Collection[str]) -> frozenset[str]:
    return chains.keys_in(run for run in chains.waits.get(shard, ()) if run.last not in taken)


def without_what_waits_here(chains: Chains, shard: str, taken: Collection[str]) -> frozenset[str]:
    return chains.ahead.get(shard, frozenset())


def without_the_order_of_a_plan(
    chains: Chains, shard: str, waiting: Iterable[Run], may: Callable[[Run], bool]
) -> tuple[Run, ...]:
    return tuple(filter(may, waiting))


def without_what_is_not_reached(
    rows: TurnRows, turn: ShardTurn, served: Sequence[int], gone: Collection[int]
) -> None:
    due = tuple((replace(run, keys=()), is_dead) for run, is_dead in turn.due)
    mark_waiting(rows, dataclasses.replace(turn, due=due), served, gone)


MUTANTS: dict[str, tuple[int, tuple[tuple[object, str, object], ...]]] = {
    "what follows within a batch is judged": (0, ((KeyOrder, "_find_followers", lambda *_: []),)),
    "no row is marked": (
        0,
        ((task, "mark_waiting", lambda *_: None), (replay, "mark_waiting", lambda *_: None)),
    ),
    "what parents hold": (1, ((Chains, "hold", without_what_parents_hold),)),
    "what waits and is not taken up": (0, ((Chains, "hold", without_what_waits_here),)),
    "the order of a plan": (0, ((Chains, "select", without_the_order_of_a_plan),)),
    "what a task does not reach": (15, ((task, "mark_waiting", without_what_is_not_reached),)),
}
"""What each part of the protocol is for: a seed whose order is broken without it."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_part_of_the_protocol_keeps_the_order(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, changes = MUTANTS[mutant]
    for place, name, instead in changes:
        monkeypatch.setattr(place, name, instead)
    assert play(seed).broken()


def test_a_stream_that_distributes_its_records_by_itself_is_refused() -> None:
    world = World(0, "shard")
    world.kinesis.distribute()
    assert world.start().plan() is None
    world.options["retryOrder"] = "key"
    with pytest.raises(OptionsError, match=r"a key lie in all its shards, .* Set retryOrder=none"):
        world.start()


def test_a_shard_stands_while_a_key_is_not_known_and_not_for_one_that_is() -> None:
    world = World(1, maxRetryingRecords="1000", maxFetchRecordsPerShard="1")
    world.kills = 0.0
    world.put(4)
    world.left.update(dict.fromkeys(range(4), 0))
    query = world.query
    query.batch(failing={0})
    assert query.plan() is None
    (shard,) = query.run._state.shards.active
    assert RETRIES_FIRST in query.run._state.shards.standing(shard).causes
    world.time.sleep(30)
    world.left[0] = 0
    world.finish()
    assert world.done == [0, 1, 2, 3]


def test_what_waits_for_another_record_is_too_old_like_any_but_for_what_somebody_asks_for() -> None:
    calm = {"retryBytesPerShard": "4MiB", "maxRetryingRecords": "1000", "maxFetchRecordsPerShard": "100"}
    world = World(0, maxRecordAge="60s", retryLimit="99", **calm)
    world.kills = 0.0
    world.error = RetryLater(after="80s", reason="busy")
    asked = tuple(str(world.kinesis.put(FIRST, b"%d" % number)) for number in range(3))
    world.left |= {0: 2, 1: 0, 2: 0}

    def go_on() -> list[int]:
        before = len(world.delivered)
        while world.step() or world.query.plan() is not None:
            pass
        return [number for _, number, _ in world.delivered[before:]]

    assert go_on() == [0, 1, 2]
    world.time.sleep(90)
    assert go_on() == []
    (node,) = world.query.store.shards.dead_letters().values()
    assert [(letter.reason, letter.count, letter.attempts) for letter in node.last] == [
        ("AGED", 1, 2),
        ("AGED", 2, 1),
    ]
    world.query.store.external.add(FIRST, ExternalNode(op="replay", records=asked))
    world.query.run._state.take_in_requests(world.time.milliseconds())
    assert go_on() == [0, 1, 2]
    world.time.sleep(90)
    assert go_on() == [1, 2]
    assert world.done == [1, 2]
