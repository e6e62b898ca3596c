"""A shard that stands is not a broken one: blocked, refused, waiting for its parent, or of a stream that is not read.

Nobody takes what it waits for as lost, plans without end for it, or drains without end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from by_hand import SparkCheckpoint
from memory_streams import A, MemoryStreams
from model.session import Session
from model.zookeeper import MemoryZooKeeper
from stepped import SteppedQuery

from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.errors import DataLossError
from kinesis_trident.spout.kinesis import Page, ThrottledError
from kinesis_trident.spout.testing import FakeTime

B = "shardId-000000000001"
HOUR = 3600


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


class Refusing(MemoryStreams):
    """Refuses the reads of one shard of the stream, while `refuses`."""

    refuses = True

    def get_records(self, iterator: str, limit: int) -> Page:
        page = super().get_records(iterator, limit)
        if self.refuses and self._shard_of(iterator) == A:
            msg = "slow down"
            raise ThrottledError(msg)
        return page

    def iterator(self, stream: str, shard: str, position: str) -> str:
        made = super().iterator(stream, shard, position)
        self._shards[made] = shard
        return made

    def _shard_of(self, iterator: str) -> str:
        return self._shards.get(iterator, "")

    @property
    def _shards(self) -> dict[str, str]:
        return self.__dict__.setdefault("shards", {})


@dataclass
class World:
    """The lives of one application over two streams, of which it may read one; another shard goes on."""

    time: FakeTime
    kinesis: MemoryStreams
    zookeeper: MemoryZooKeeper
    checkpoint: SparkCheckpoint = field(default_factory=SparkCheckpoint)
    waits: list[float] = field(default_factory=list)
    fails: bool = True
    query: SteppedQuery | None = None
    read: list[bytes] = field(default_factory=list)

    def start(self, streams: str = "orders,payments", **options: str) -> SteppedQuery:
        if self.query is not None:
            self.query.end()
        given = {
            "maxRetryingRecords": "1",
            "retryBackoff": "20h..20h x1",
            "retryLimit": "9",
            "minFetchPeriod": "0ms",
            "maxShardSkew": "off",
            "describeShardInterval": "10m",
        }
        query = SteppedQuery(
            self.kinesis,
            self.time,
            self.zookeeper,
            self.checkpoint,
            status_period=5.0,
            streamName=streams,
            **given | options,
        )
        wait = query.run._around.wait

        def count(woken: object, seconds: float) -> bool:
            self.waits.append(seconds)
            return wait(woken, seconds)  # type: ignore[arg-type]

        object.__setattr__(query.run._around, "wait", count)
        self.query = query
        return query

    def goes_on(self, hours: float, step: float = 600) -> None:
        """Let time pass; another shard has a record each hour, and what is planned is done."""
        assert self.query is not None
        until, number = self.time.now + hours * HOUR, 100
        while self.time.now < until:
            number += 1
            if int(self.time.now) % HOUR < step:
                self.kinesis.held["orders"].put(B, str(number).encode())
            self.batches()
            self.time.sleep(step)

    def batches(self, most: int = 3) -> None:
        """Run what is planned."""
        assert self.query is not None
        for _ in range(most):
            if self.query.in_hand is None and self.query.plan() is None:
                return
            rows = self.query.batch(failing=[7] if self.fails else [])
            self.read += [str(row[0]).encode() for row in rows]

    @property
    def losses(self) -> object:
        assert self.query is not None
        return self.query.run.report().get("losses")


def world_of(time: FakeTime, kinesis: MemoryStreams | None = None) -> World:
    held = kinesis or MemoryStreams("orders", "payments", clock=time.milliseconds, shards=2)
    return World(time, held, MemoryZooKeeper(time.milliseconds))


def blocked(time: FakeTime) -> World:
    """Its first record fails, and comes again in some hours: until then it reads nothing new."""
    world = world_of(time)
    world.kinesis.put("orders", 7)
    world.start()
    world.batches()
    assert world.query is not None
    assert world.query.store.shards.inflight()[_name(world, A)].waiting
    return world


def refused(time: FakeTime) -> World:
    world = world_of(time, Refusing("orders", "payments", clock=time.milliseconds, shards=2))
    world.start()
    world.batches()
    return world


def parked(time: FakeTime) -> World:
    """A stream that is left out, with a failed record whose time has come."""
    world = world_of(time)
    world.kinesis.put("payments", 7)
    world.start(retryBackoff="1ms..1ms x1")
    assert world.query is not None
    world.query.batch(failing=[7])
    world.start("orders", retryBackoff="1ms..1ms x1")
    return world


def waiting_for_its_parent(time: FakeTime) -> World:
    world = blocked(time)
    world.kinesis.held["orders"].split(A)
    return world


def _name(world: World, shard: str, stream: str = "orders") -> str:
    assert world.query is not None
    (found,) = [
        name
        for name in world.query.store.shards.checkpoints()
        if name.startswith(f"{stream}@") and name.endswith(shard)
    ]
    return found


def has_finished(query: SteppedQuery) -> bool:
    """Return whether a run has noted that all is drained that was to be."""
    return any(end.epoch == query.run.epoch and end.how == "finished" for end in query.store.ends.runs())


STANDING: list[Callable[[FakeTime], World]] = [blocked, refused, parked]


def test_a_blocked_shard_that_is_empty_for_longer_than_retention_has_lost_nothing(time: FakeTime) -> None:
    world = blocked(time)
    world.goes_on(26)
    assert world.losses is None
    world.fails = False
    world.start()
    world.kinesis.put("orders", 8)
    world.goes_on(21)
    assert world.losses is None
    assert world.read.count(b"8") == 1


def test_a_stream_that_is_not_read_has_lost_nothing_until_it_is_read_again(time: FakeTime) -> None:
    """Then nobody knows what has come and gone meanwhile, as after a query that was down."""
    world = parked(time)
    world.goes_on(26)
    assert world.losses is None
    with pytest.raises(DataLossError, match=r"stream .payments.*records may have expired unread"):
        world.start()


def test_a_shard_whose_reads_are_refused_for_longer_than_retention_is_a_loss_and_not_before(
    time: FakeTime,
) -> None:
    """Unlike a blocked one it is looked at in vain: what has come and gone meanwhile is not known."""
    world = refused(time)
    world.goes_on(23)
    assert world.losses is None
    with pytest.raises(DataLossError, match=f"{A}: .* with nothing read since it was last looked at"):
        world.goes_on(2)


def test_an_empty_child_that_waits_a_day_for_its_blocked_parent_has_lost_nothing(time: FakeTime) -> None:
    world = waiting_for_its_parent(time)
    world.goes_on(26)
    assert world.losses is None


def test_a_shard_that_a_drain_has_read_to_its_tip_has_lost_nothing_a_day_later(time: FakeTime) -> None:
    """It is read no further, and the drain waits so long for a failed record of another shard."""
    world = blocked(time)
    assert world.query is not None
    world.query.run.drain_and_end()
    begun = time.now
    for _ in range(200_000):
        if world.query.in_hand is None and world.query.plan() is None:
            if has_finished(world.query):
                break
            time.sleep(600)
            continue
        world.query.batch(failing=[7] if time.now - begun < 26 * HOUR else [])
    assert has_finished(world.query)
    assert time.now - begun > 26 * HOUR
    assert world.losses is None


def test_the_status_says_why_a_shard_is_not_read_and_since_when(time: FakeTime) -> None:
    world = waiting_for_its_parent(time)
    assert world.query is not None
    seen = {}
    for _ in range(3):
        time.sleep(HOUR)
        world.batches()
        status = world.query.store.status.get()
        assert status is not None
        shards = {name.rpartition("/")[2]: one for name, one in status.shards.items() if name[0] == "o"}
        seen |= {(shard, one.standing, one.since): one for shard, one in shards.items() if one.standing}
        report = world.query.run.report()["shards"]
        said = {name: one["standing"] for name, one in report.items() if "standing" in one}
        assert said.pop(f"orders/{A}") == "blocked"
        assert list(said.values()) == ["waits-for-parents"] * 2
    # Each shard is named with one time, which stays.
    assert sorted(word for _, word, _ in seen) == ["blocked", "waits-for-parents", "waits-for-parents"]
    assert all(since is not None and since <= time.milliseconds() - 2 * HOUR for *_, since in seen)


@pytest.mark.parametrize("make", STANDING)
def test_what_may_not_be_planned_wakes_nobody_again_and_again(
    time: FakeTime, make: Callable[[FakeTime], World]
) -> None:
    world = make(time)
    world.batches()
    world.waits.clear()
    begun = time.now
    assert world.query is not None
    txid = world.query.committed.txid
    while time.now < begun + HOUR:
        world.batches(most=1)
        time.sleep(1)
    # Spark asks each second; a shard that waits adds a look, not thousands.
    assert len(world.waits) < 4 * HOUR
    assert min(world.waits, default=1.0) >= 0.001
    assert world.query.committed.txid - txid <= 2


@pytest.mark.parametrize("make", [blocked, parked])
def test_a_drain_ends_though_a_shard_stands(time: FakeTime, make: Callable[[FakeTime], World]) -> None:
    """One that is blocked is drained when its records are dead; one that is not read is none of the drain."""
    world = make(time)
    assert world.query is not None
    world.query.end()
    world.kinesis.put("orders", 9)
    query = world.start("orders" if make is parked else "orders,payments", retryLimit="1")
    query.run.drain_and_end()
    begun = time.now
    for _ in range(200_000):
        if query.in_hand is None and query.plan() is None:
            if has_finished(query):
                break
            time.sleep(60)
            continue
        world.read += [str(row[0]).encode() for row in query.batch(failing=[7])]
    assert b"9" in world.read
    assert has_finished(query)
    assert time.now - begun < (1 if make is parked else 50) * HOUR
    waiting = query.store.shards.inflight()
    assert bool(waiting[_name(world, A, "payments")].waiting) if make is parked else True


def test_the_first_word_of_an_end_stays_and_of_two_answers_the_last_is_read(time: FakeTime) -> None:
    """A batch that stops after a run has noted why it ends tells the cause, not what follows from it."""
    world = blocked(time)
    query = world.query
    assert query is not None
    epoch = query.run.epoch
    query.store.ends.note(epoch, "failed", time.milliseconds(), "ExhaustedError: record 7")
    query.run.end()
    store = SourceStore(Session(world.zookeeper), query.run.layout)  # type: ignore[arg-type]
    (end,) = [one for one in store.ends.runs() if one.epoch == epoch]
    assert (end.how, end.why) == ("failed", "ExhaustedError: record 7")
    store.stop.ask(epoch)
    store.stop.answer(3, epoch)
    store.stop.answer(4, epoch)
    found = store.stop.get(fresh=True)
    assert found is not None
    assert (found.epoch, found.settled) == (epoch, 4)


def test_the_log_says_of_a_shard_whose_reads_are_refused_and_when_that_ends(
    time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    world = refused(time)
    with caplog.at_level("INFO"):
        world.goes_on(0.5)
        assert [message for message in caplog.messages if A in message and "throttles the reads" in message]
        assert isinstance(world.kinesis, Refusing)
        world.kinesis.refuses = False
        world.goes_on(1)
    assert [message for message in caplog.messages if A in message and "answers again" in message]
