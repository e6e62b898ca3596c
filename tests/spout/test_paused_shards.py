"""What people have paused is not read until they resume it, and nothing of it is lost: without Spark and servers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from operator import methodcaller
from random import Random

import pytest
from by_hand import Row, SparkCheckpoint
from memory_streams import A, MemoryStreams
from model.session import Session
from model.zookeeper import MemoryZooKeeper
from stepped import SteppedQuery

from kinesis_trident.checkpoint.model.pauses import NOTHING_PAUSED, Pause, PausesNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.errors import DataLossError
from kinesis_trident.spout.testing import FakeTime

B = "shardId-000000000001"
MINUTE, HOUR = 60, 3600


class Paused:
    """The lives of one application over a stream of two shards, and an operator with a connection of their own."""

    def __init__(self, shards: int = 2) -> None:
        self.time = FakeTime()
        self.kinesis = MemoryStreams("orders", "payments", clock=self.time.milliseconds, shards=shards)
        self.stream = self.kinesis.held["orders"]
        self.zookeeper = MemoryZooKeeper(self.time.milliseconds)
        self.checkpoint = SparkCheckpoint()
        self.read: list[int] = []
        self.number = 0
        self.waits: list[float] = []
        self.query: SteppedQuery

    def start(self, **options: str) -> SteppedQuery:
        given = {"minFetchPeriod": "0ms", "describeShardInterval": "10m", "retryLimit": "99"}
        self.query = SteppedQuery(
            self.kinesis, self.time, self.zookeeper, self.checkpoint, status_period=5.0, **given | options
        )
        wait = self.query.run._around.wait

        def count(woken: object, seconds: float) -> bool:
            self.waits.append(seconds)
            return wait(woken, seconds)  # type: ignore[arg-type]

        object.__setattr__(self.query.run._around, "wait", count)
        return self.query

    @property
    def store(self) -> SourceStore:
        """The store of an operator."""
        return SourceStore(Session(self.zookeeper), self.query.run.layout)  # type: ignore[arg-type]

    def pause(self, shards: str, seconds: float | None = None, *, everything: bool = False) -> None:
        now = self.time.milliseconds()
        until = None if seconds is None else now + int(1000 * seconds)
        pause = Pause(shards, now, "a bad deploy", "ops@desk", until, everything)
        self.store.pauses.change(methodcaller("add", pause))

    def resume(self, shards: str) -> None:
        self.store.pauses.change(methodcaller("leave_out", [shards]))

    def put(self, *shards: str) -> list[int]:
        """Write a record to each of these shards; return their numbers."""
        numbers = []
        for shard in shards:
            self.number += 1
            self.stream.put(shard, str(self.number).encode())
            numbers.append(self.number)
        return numbers

    def batches(self, failing: Iterable[int] = (), most: int = 20) -> list[int]:
        """Run what is planned; return the numbers that were read."""
        found: list[int] = []
        for _ in range(most):
            self.query._client.deliver()
            if self.query.in_hand is None and self.query.plan() is None:
                break
            rows: list[Row] = self.query.batch(failing)
            found += [row[0] for row in rows]
        self.read += found
        return found

    def goes_on(self, seconds: float, step: float = 10 * MINUTE) -> list[int]:
        """Let time pass; return what is read meanwhile."""
        found, until = [], self.time.now + seconds
        while self.time.now < until:
            found += self.batches()
            self.time.sleep(step)
        return found + self.batches()

    def standing(self, shard: str) -> str:
        return str(self.query.run.report()["shards"][shard].get("standing", ""))


@pytest.fixture
def world() -> Paused:
    found = Paused()
    found.start()
    found.put(A, B)
    found.batches()
    return found


def test_a_paused_shard_is_not_read_and_the_others_are(world: Paused) -> None:
    world.pause(A)
    left, read = world.put(A, B)
    assert world.goes_on(HOUR) == [read]
    assert (world.standing(A), world.standing(B)) == ("paused", "")
    world.resume(A)
    assert world.batches() == [left]
    assert world.standing(A) == ""


@pytest.mark.parametrize("everything", [False, True])
def test_what_has_failed_comes_again_unless_all_is_paused(world: Paused, everything: bool) -> None:
    (failed,) = world.put(A)
    assert world.batches(failing=[failed], most=1) == [failed]
    world.pause(A, everything=everything)
    (left,) = world.put(A)
    world.time.sleep(MINUTE)
    assert world.batches() == ([] if everything else [failed])
    world.resume(A)
    world.time.sleep(1)
    assert sorted(world.batches()) == ([failed, left] if everything else [left])


def test_what_is_due_and_may_not_come_wakes_nobody_again_and_again(world: Paused) -> None:
    (failed,) = world.put(A)
    world.batches(failing=[failed], most=1)
    world.pause("", everything=True)
    world.batches()
    txid, begun = world.query.committed.txid, world.time.now
    world.waits.clear()
    while world.time.now < begun + HOUR:
        world.batches(most=1)
        world.time.sleep(1)
    assert world.query.committed.txid == txid
    assert len(world.waits) < 4 * HOUR
    assert min(world.waits, default=1.0) >= 0.001


def test_a_pause_ends_by_itself_and_the_run_wakes_for_it(world: Paused) -> None:
    world.pause("", 90)
    (left,) = world.put(A)
    world.batches()
    world.waits.clear()
    ends, read = world.time.now + 90, list[int]()
    while world.time.now < ends + 30 and not read:
        read = world.batches(most=1)
    assert read == [left]
    # It waits for the end, and plans without another look of an hour.
    assert world.time.now - ends < 5


def test_a_pause_whose_time_ended_while_nobody_ran_is_over(world: Paused) -> None:
    world.pause("", 60)
    (left,) = world.put(A)
    world.query.end()
    world.time.sleep(61)
    world.start()
    assert world.batches() == [left]
    assert world.store.pauses.get() is not None


def test_a_pause_lasts_no_longer_than_was_asked_for_where_a_clock_steps_back(world: Paused) -> None:
    world.pause("", 30 * MINUTE)
    world.query.end()
    # The next machine's clock is five hours behind.
    world.time.now -= 5 * HOUR
    (left,) = world.put(A)
    world.start()
    assert world.goes_on(29 * MINUTE, step=MINUTE) == []
    assert world.goes_on(2 * MINUTE, step=MINUTE) == [left]
    # It is over for this run, whatever else is paused and resumed.
    world.pause(B)
    world.resume(B)
    (more,) = world.put(A)
    assert world.batches() == [more]


def test_a_pause_survives_restarts_and_takeovers(world: Paused) -> None:
    world.pause(A)
    (left,) = world.put(A)
    for _ in range(3):
        before = world.query
        world.start()
        assert world.batches() == []
        before.end()
    world.resume(A)
    assert world.batches() == [left]


def test_a_batch_that_is_planned_is_done(world: Paused) -> None:
    (left,) = world.put(A)
    assert world.query.plan() is not None
    world.pause(A)
    assert world.batches(most=1) == [left]
    world.put(A)
    assert world.batches() == []


def test_a_batch_that_is_pinned_is_done_after_a_restart(world: Paused) -> None:
    (left,) = world.put(A)
    world.query.plan()
    assert [row[0] for row in world.query.rows()] == [left]
    world.pause("", everything=True)
    world.query.end()
    world.start()
    assert world.batches(most=1) == [left]


def test_streams_that_are_put_together_stay_paused_as_they_were() -> None:
    world = Paused()
    world.start()
    world.put(A, B)
    world.batches()
    world.pause(A)
    world.pause("", 4 * HOUR)
    old = world.store
    world.query.end()
    world.start(streamName="orders,payments")
    left = world.put(A, B)
    (other,) = [99]
    world.kinesis.put("payments", other)
    assert world.goes_on(HOUR) == [other]
    node = world.store.pauses.get()
    assert node is not None
    stream = f"orders@{world.stream.describe('orders').created}/"
    assert [one.shards for one in node.pauses] == [stream, f"{stream}{A}"]
    # Who still asks the old home is told so, and nothing is lost without a word.
    with pytest.raises(Exception, match="is read together with others by now"):
        old.pauses.change(methodcaller("add", Pause("", 1, "r")))
    world.resume(stream)
    assert world.batches() == left[1:]
    world.resume(f"{stream}{A}")
    assert world.batches() == left[:1]


def test_a_paused_shard_that_is_empty_for_longer_than_retention_has_lost_nothing(world: Paused) -> None:
    world.pause("")
    world.goes_on(30 * HOUR)
    assert "losses" not in world.query.run.report()
    # Each hour it is looked at, and that is noted, so that another run knows it too.
    seen = world.store.shards.checkpoints()[A].seen
    assert seen is not None
    assert world.time.milliseconds() - seen <= 2 * HOUR * 1000
    world.query.end()
    world.start()
    world.resume("")
    (new,) = world.put(A)
    assert world.batches() == [new]


def test_what_expires_unread_while_it_is_paused_is_a_loss(world: Paused) -> None:
    world.pause(A)
    world.put(A)
    with pytest.raises(DataLossError, match=A):
        world.goes_on(26 * HOUR)


def test_a_drain_ends_and_says_what_it_has_not_read(world: Paused) -> None:
    world.pause(A)
    left, read = world.put(A, B)
    store, epoch = world.store, world.query.run.epoch
    store.stop.ask(epoch, drain=True)
    assert world.goes_on(MINUTE, step=1) == [read]
    (end,) = [one for one in store.ends.runs() if one.epoch == epoch]
    assert (end.how, end.why) == ("finished", f"not read, because it is paused: orders/{A}")
    answer = store.stop.get(fresh=True)
    assert answer is not None
    assert (answer.settled, answer.left) == (world.query.run.settled, f"orders/{A}")
    # The next answer, to a request that only stops by now, says the same.
    world.batches()
    assert store.stop.get(fresh=True) == answer
    world.query.end()
    world.start()
    world.resume(A)
    assert world.batches() == [left]


def test_a_drain_does_not_wait_for_retries_that_are_paused(world: Paused) -> None:
    (failed,) = world.put(A)
    world.batches(failing=[failed], most=1)
    world.pause("", everything=True)
    world.batches()
    world.query.run.drain_and_end()
    world.goes_on(MINUTE, step=1)
    assert [one.how for one in world.store.ends.runs()] == ["finished"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("order", ["none", "shard", "key"])
@pytest.mark.parametrize("fails", [False, True], ids=["unread", "failed"])
def test_a_drain_does_not_wait_for_what_waits_for_retries_that_are_paused(order: str, fails: bool) -> None:
    world = Paused()
    given = {"describeShardInterval": "1ms", "retryBackoff": "10m..10m x1"}
    world.start(**given)
    (failed,) = world.put(A)
    first, second = world.stream.split(A)
    world.batches(failing=[failed], most=2)
    left = world.put(first)
    if fails:
        world.batches(failing=left, most=1)
    world.query.end()
    world.start(**given, retryOrder=order)
    world.pause(A, everything=True)
    world.query._client.deliver()
    world.query.run.drain_and_end()
    waits = order != "none"
    assert world.goes_on(HOUR) == ([] if waits else left)
    [*_, end] = world.store.ends.runs()
    named = ", ".join(f"orders/{shard}" for shard in ([A, first, second] if waits else [A]))
    assert (end.how, end.why) == ("finished", f"not read, because it is paused: {named}")
    world.query.end()
    world.start(**given, retryOrder=order)
    world.resume(A)
    assert world.goes_on(HOUR) == [failed, *(left if waits else ())]


def test_the_others_do_not_wait_for_a_paused_shard_with_a_bound_of_skew() -> None:
    world = Paused()
    world.start(maxShardSkew="1m")
    world.put(A, B)
    world.batches()
    world.pause(A)
    left, read = [], []
    for _ in range(30):
        world.time.sleep(MINUTE)
        one, other = world.put(A, B)
        left.append(one)
        read.append(other)
        world.batches()
    assert world.batches() == []
    assert world.read[2:] == read
    world.resume(A)
    assert world.goes_on(HOUR, step=MINUTE) == left


def split_and_merge(world: Paused, rng: Random) -> None:
    open_shards = world.stream.open_shards
    if len(open_shards) > 1 and rng.random() < 0.4:
        world.stream.merge(*open_shards[:2])
    else:
        world.stream.split(rng.choice(open_shards))


@pytest.mark.parametrize("ordering", ["parentFirst", "none"])
@pytest.mark.parametrize("seed", range(12))
def test_splits_and_merges_of_what_is_paused_lose_nothing(ordering: str, seed: int) -> None:
    world, rng = Paused(), Random(seed)
    world.start(shardOrdering=ordering, describeShardInterval="1ms")
    for _ in range(25):
        shards = world.stream.open_shards
        world.put(*rng.choices(shards, k=rng.randint(0, 3)))
        what = rng.choice(["pause", "pause", "resume", "reshard", "batches", "batches", "restart", "time"])
        if what == "pause":
            world.pause(rng.choice(["", *shards]), rng.choice([None, 600]), everything=rng.random() < 0.5)
        elif what == "resume":
            node = world.store.pauses.get() or NOTHING_PAUSED
            world.resume(rng.choice([one.shards for one in node.pauses] or [""]))
        elif what == "reshard":
            split_and_merge(world, rng)
        elif what == "restart":
            world.query.end()
            world.start(shardOrdering=ordering, describeShardInterval="1ms")
        elif what == "time":
            world.time.sleep(rng.choice([1, 400]))
        world.batches(failing=[world.number] if rng.random() < 0.3 else [], most=rng.randint(1, 3))
    world.store.pauses.change(lambda _: NOTHING_PAUSED)
    world.goes_on(10 * MINUTE, step=MINUTE)
    assert set(world.read) == set(range(1, world.number + 1))


def test_a_child_of_a_paused_shard_stands_as_its_parent_does(world: Paused) -> None:
    world.pause(A)
    world.put(A)
    first, second = world.stream.split(A)
    left = world.put(first, second)
    world.goes_on(HOUR)
    assert [world.standing(shard) for shard in (A, B, first, second)] == ["paused", "", "paused", "paused"]
    report = world.query.run.report()
    assert (report["paused"], report["behindMs"]) == (3, 0)
    # The children are looked at once an hour, too.
    assert report["pausedBehindMs"] >= HOUR * 1000
    world.resume(A)
    assert [*world.goes_on(20 * MINUTE)][-2:] == left


def test_the_status_and_the_progress_tell_the_lag_of_what_is_paused_apart(world: Paused) -> None:
    world.pause(A)
    world.batches()
    world.put(A)
    world.goes_on(2 * HOUR)
    report = world.query.run.report()
    assert (report["behindMs"], report["paused"]) == (0, 1)
    assert report["pausedBehindMs"] >= HOUR * 1000
    status = world.store.status.get()
    assert status is not None
    assert status.shards[A].standing == "paused"
    assert status.shards[A].since is not None
    # While all is paused nobody says that nothing is behind.
    world.pause("")
    world.batches()
    assert world.query.run.report()["behindMs"] is None


def test_the_lag_that_grew_while_it_was_paused_is_no_growth_later(world: Paused) -> None:
    world.pause(A)
    world.put(A)
    world.goes_on(3 * HOUR)
    world.resume(A)
    world.query._client.deliver()
    world.query.plan()
    world.time.sleep(2 * MINUTE)
    world.batches()
    status = world.store.status.get()
    assert status is not None
    lags = [lag for _, lag in status.lags]
    assert not [one for one, other in pairwise(lags) if other > one + HOUR * 1000]


def test_an_unread_change_of_the_pauses_does_not_get_lost_with_the_connection(world: Paused) -> None:
    """A watch ends with its session's server: the next one looks anew."""
    world.query._client._lose()
    world.pause(A)
    world.put(A)
    assert world.batches() == []


def test_two_operators_at_once_are_both_heard(world: Paused) -> None:
    world.pause(A)
    mine, others = Pause("x/", 1, "r"), [lambda: world.resume(A), lambda: world.pause(B)]

    def change(found: PausesNode) -> PausesNode:
        # Both come between this look and this write.
        while others:
            others.pop(0)()
        return found.add(mine)

    world.store.pauses.change(change)
    now = world.store.pauses.get()
    assert now is not None
    assert [one.shards for one in now.pauses] == [B, "x/"]
