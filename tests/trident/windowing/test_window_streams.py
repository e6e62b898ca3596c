"""Windows of a batch on Spark: what they emit, also in a replay; and the updates of a state over several batches."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest
from batch_in_hand import EACH, SHARDS, batch_in_hand
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from samples_topology import a_stream, graph_of

from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.trident import (
    Count,
    FirstN,
    Function,
    Max,
    OperationError,
    ReducerAggregator,
    SlidingCountWindow,
    SqlState,
    State,
    StateFactory,
    StateType,
    StateUpdater,
    Stream,
    Sum,
    TridentCollector,
    TridentTuple,
    TumblingCountWindow,
    TumblingDurationWindow,
)
from kinesis_trident.trident.build.nodes import SpoutNode
from kinesis_trident.trident.maps.metering import measure
from kinesis_trident.trident.order import ORDER, window_order
from kinesis_trident.trident.run.batches import TopologyAttempts
from kinesis_trident.trident.stores import MemoryMapState
from kinesis_trident.trident.windowing.updater import (
    AT,
    CountWindowUpdater,
    OfCombiner,
    OfContent,
    TimeWindowUpdater,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def at(minutes: int) -> datetime:
    return EPOCH + minutes * MINUTE


class Log(State):
    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def begin_commit(self, txid: int | None) -> None:
        self.seen.clear()

    def commit(self, txid: int | None) -> None:
        return None


class LogFactory(StateFactory):
    """In the driver: the tuples of the last attempt."""

    driver_local: ClassVar[bool] = True
    kind = StateType.OPAQUE

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> Log:
        return Log(self.seen)


class Note(StateUpdater[Log]):
    def update_state(self, state: Log, tuples: Sequence[Any], collector: Any) -> None:
        state.seen += [tuple(tup) for tup in tuples]


class Numbers(ReducerAggregator):
    def init(self) -> list[int]:
        return []

    def reduce(self, current: list[int], tup: TridentTuple) -> list[int]:
        return [*current, tup["n"]]


def parsed(tup: TridentTuple) -> list[Any]:
    number = int(bytes(tup["data"]).split()[0])
    # The event time goes back where the number goes on; 13 has none.
    return [number, None if number == 13 else at(EACH - number), Decimal(number), f"k{number % 2}"]


class Number(Function):
    def execute(self, tup: TridentTuple, collector: TridentCollector) -> None:
        collector.emit([parsed(tup)[0]])


def noted(stream: Stream) -> list[Any]:
    log = LogFactory()
    stream.partition_persist(log, stream.fields, Note())
    return log.seen


def test_windows_over_a_batch_and_its_replay(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path
) -> None:
    stream = a_stream()
    spout = stream.node
    assert isinstance(spout, SpoutNode)
    assert spout.options is not None
    timed = stream.map(parsed, "n int, at timestamp, d decimal(10,2), key string")
    five = TumblingDurationWindow(5 * MINUTE)
    sums = noted(
        timed.group_by("key").window(five, MemoryMapState.opaque(), Sum(), "sum", ["d"], time="at", buckets=3)
    )
    table = SqlState.transactional(f"sqlite:///{tmp_path}/state.db", serializer="msgpack")
    lists = noted(
        timed.sliding_window(
            10 * MINUTE,
            5 * MINUTE,
            table,
            Numbers(),
            "seen array<int>",
            ["n"],
            time="at",
            lateness=3 * MINUTE,
        )
    )
    numbered = stream.each(["data"], Number(), ["n int"])
    # Without the columns that tell their order, and after a shuffle.
    mapped = stream.shuffle().map(lambda tup: [tup["shardId"], parsed(tup)[0]], "shardId string, n int")
    counted = noted(
        mapped.group_by("shardId").tumbling_window(
            8, MemoryMapState.transactional(), Numbers(), "seen array<int>", ["n"]
        )
    )
    arrived = noted(numbered.tumbling_window(timedelta(1), MemoryMapState.opaque(), Count(), "count"))
    with batch_in_hand(spark, zookeeper.hosts, app) as (rows, batch):
        attempts = TopologyAttempts(spout, graph_of(stream), 2)
        handler = BatchHandler(spout.options, lambda *_: None, 0)
        for _ in range(2):
            attempts(rows, batch, handler)
            good = [n for n in range(1, EACH + 1) if n != 13]
            # The greatest event time is 19: the last window, and in the second case another, stay open.
            expected = [
                (f"k{odd}", at(start), at(start + 5), Decimal(2 * sum(numbers)))
                for start in (0, 5, 10)
                for odd in (0, 1)
                if (numbers := [n for n in good if start <= EACH - n < start + 5 and n % 2 == odd])
            ]
            assert sorted(sums) == sorted(expected)
            assert [(start, end) for start, end, _ in lists] == [
                (at(start), at(start + 10)) for start in (-5, 0, 5)
            ]
            # In the order of event time.
            assert lists[0][2] == [n for n in (20, 19, 18, 17, 16) for _ in SHARDS]
            assert lists[1][2] == [n for n in range(20, 10, -1) if n != 13 for _ in SHARDS]
            assert sorted(counted) == [
                (shard, start, start + 8, [n for n in good if n <= 17][start : start + 8])
                for shard in SHARDS
                for start in (0, 8)
            ]
            # All arrived in the same moment, and nothing later.
            assert arrived == []
    assert batch.verdict is not None
    assert {shard: [one.first for one in pieces] for shard, pieces in batch.verdict.not_done.items()} == {
        shard: ["13"] for shard in SHARDS
    }


FIELDS = ("__bucket", "key", "__pane", "__value")


def times(*found: tuple[str, int, int, int]) -> list[TridentTuple]:
    """Of (key, pane, greatest time, value)."""
    return [
        TridentTuple(FIELDS, [0, key, pane, {"at": top, "n": 1, "value": value}])
        for key, pane, top, value in found
    ]


def run(
    factory: MemoryMapState, updater: Any, txid: int, tuples: list[TridentTuple]
) -> tuple[list[Any], int]:
    """Return what an attempt at a batch emits, and how many tuples were late."""
    # The last value is the order, for windows of these windows.
    collector = TridentCollector("window", "abcde")
    with measure() as metrics:
        state = factory.make_state({}, 0, 1)
        state.begin_commit(txid)
        state.hold_writes()
        updater.update_state(state, tuples, collector)
        state.commit(txid)
    return [(key, value) for key, _, _, value, _ in collector.rows], metrics.late


@pytest.mark.parametrize("kind", [StateType.OPAQUE, StateType.TRANSACTIONAL])
def test_a_replay_gives_the_same_windows_and_closes_idle_groups(kind: StateType) -> None:
    factory = MemoryMapState(kind)
    panes = TumblingDurationWindow(timedelta(microseconds=10)).shape()
    updater = TimeWindowUpdater("window", panes, ("key",), OfCombiner(Max().combine), 0)
    assert run(factory, updater, 1, times(("a", 0, 4, 4), ("b", 0, 9, 9))) == ([], 0)
    second = times(("b", 0, 5, 5), ("b", 20, 21, 21))
    for _ in range(3):
        # `a` had nothing in this batch.
        assert run(factory, updater, 2, second) == ([("a", 4), ("b", 9)], 0)
    assert run(factory, updater, 3, times(("a", 0, 3, 3), ("a", 20, 22, 22)))[1] == 1
    # Another answer to the same txid: the opaque state starts again from the batch before.
    other, late = run(factory, updater, 4, times(("a", 40, 40, 1)))
    assert (other, late) == ([("b", 21), ("a", 22)], 0)
    again = run(factory, updater, 4, times(("b", 20, 29, 29), ("a", 40, 40, 1)))[0]
    assert again == ([("b", 29), ("a", 22)] if kind is StateType.OPAQUE else other)


@pytest.mark.parametrize("kind", [StateType.OPAQUE, StateType.TRANSACTIONAL])
def test_counts_go_on_over_batches_in_an_order_of_their_own(kind: StateType) -> None:
    factory = MemoryMapState(kind)
    fields = ("key", "sequenceNumber", "__value")
    content = OfContent("window", FirstN(9), ("n",), ("n",), ("sequenceNumber",))
    for window, expected in [
        (TumblingCountWindow(3), [[2, 10, 1], [3, 4, 5]]),
        (SlidingCountWindow(3, 2), [[2, 10], [10, 1, 3], [3, 4, 5]]),
    ]:
        updater = CountWindowUpdater("window", window.shape(), ("key",), content, ("sequenceNumber",))
        factory = MemoryMapState(kind)

        def tup(key: str, sequence: int, n: int) -> TridentTuple:
            return TridentTuple(fields, [key, str(sequence), [{AT: 0, "n": n}]])

        first = [tup("a", 9, 2), tup("b", 9, 7), tup("a", 10, 10)]
        found = []
        # The order in which a replay brings them is another one.
        for txid, tuples in [(1, first), (2, [tup("a", n, n) for n in (1, 3, 4)]), (3, [tup("a", 8, 5)])]:
            for _ in range(2):
                closed, _ = run(factory, updater, txid, tuples)
                tuples.reverse()
            found += closed
        assert [n for _, n in found] == [n for window_ in expected for n in window_]


def test_the_windows_that_1_0_0_kept_go_on() -> None:
    factory = MemoryMapState.opaque()
    state = factory.make_state({}, 0, 1)
    state.begin_commit(1)
    state.multi_put([("a",)], [[2, [[0, [[[], [[0, 10], [0, 9]]]]]], []]])
    state.commit(1)
    content = OfContent("window", FirstN(9), ("n",), ("n",), (ORDER,))
    updater = CountWindowUpdater("window", TumblingCountWindow(3).shape(), ("key",), content, (ORDER,))
    tup = TridentTuple(("key", ORDER, "__value"), ["a", window_order(0, "s", 0), [{AT: 0, "n": 8}]])
    assert run(factory, updater, 2, [tup]) == ([("a", n) for n in (10, 9, 8)], 0)


def test_a_state_that_is_no_map() -> None:
    updater = TimeWindowUpdater("window", TumblingCountWindow(1).shape(), (), OfCombiner(max), 0)
    with pytest.raises(OperationError, match="window: windows need a MapState, but the factory made a Log"):
        updater.update_state(Log([]), [], TridentCollector("window", "abc"))  # type: ignore[arg-type]
