"""Topologies on Spark, a real ZooKeeper and moto's Kinesis: what comes to a state, and what does not."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from harness import PATIENCE
from pyspark.sql import functions as F
from stage import AVAILABLE_NOW, Stage, error_of

from kinesis_trident.trident import (
    Count,
    FailedException,
    FirstN,
    Function,
    GuaranteeWarning,
    MapGet,
    Max,
    ReducerAggregator,
    SnapshotGet,
    SqlState,
    Stream,
    Sum,
    TopologyError,
    TridentTopology,
)
from kinesis_trident.trident.aggregators import CombinerAggregator
from kinesis_trident.trident.state import ATTEMPT, State, StateFactory, StateType, StateUpdater
from kinesis_trident.trident.stores import MemoryMapState


class Split(Function):
    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        for word in tup["data"].decode().split():
            collector.emit([word])


class Text(Function):
    """The record's text; what says so fails at its first delivery."""

    def __init__(self, fails: str = "flaky") -> None:
        self.fails = fails

    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        text = tup["data"].decode()
        if text.startswith(self.fails) and tup["attempt"] == 1:
            raise ValueError(text)
        collector.emit([text])


class Together(CombinerAggregator):
    """The greatest text: an aggregator of one's own."""

    def init(self, tup):  # type: ignore[no-untyped-def]
        return tup[0]

    def combine(self, left, right):  # type: ignore[no-untyped-def]
        return max(left, right)


class Lengths(ReducerAggregator):
    def init(self) -> int:
        return 0

    def reduce(self, current, tup):  # type: ignore[no-untyped-def]
        return current + len(tup[0])


class Log(State):
    """In the driver: what each attempt at a batch brought, (txid, attempt, tuples)."""

    def __init__(self, conf: Mapping[str, Any], seen: list[tuple[int | None, int, list[Any]]]) -> None:
        self.attempt = conf[ATTEMPT]
        self.seen = seen
        self.txid: int | None = None

    def begin_commit(self, txid: int | None) -> None:
        self.txid = txid

    def commit(self, txid: int | None) -> None:
        assert txid == self.txid


class LogFactory(StateFactory):
    driver_local: ClassVar[bool] = True
    kind = StateType.OPAQUE

    def __init__(self) -> None:
        self.seen: list[tuple[int | None, int, list[Any]]] = []

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> Log:
        assert (partition_index, num_partitions) == (0, 1)
        return Log(conf, self.seen)

    @property
    def batches(self) -> dict[int | None, list[Any]]:
        """The tuples of the last attempt at each batch, sorted."""
        return {txid: sorted(tuples) for txid, _, tuples in self.seen}


class Write(StateUpdater[Log]):
    """Notes the tuples; the first `failures` times it then fails with `error`."""

    def __init__(self, failures: int = 0, error: type[Exception] = FailedException) -> None:
        self.failures = failures
        self.error = error

    def update_state(self, state: Log, tuples: Sequence[Any], collector: Any) -> None:
        state.seen.append((state.txid, state.attempt, [tuple(tup) for tup in tuples]))
        if self.failures:
            self.failures -= 1
            raise self.error("the store is down")


def lines(stage: Stage, topology: TridentTopology, **options: object) -> Stream:
    return topology.new_stream("lines", stage.load(**options))


def ran(stage: Stage, topology: TridentTopology, **more: Any) -> None:
    """Run a topology until nothing is left."""
    running = topology.start(checkpointLocation=stage.at("spark"), trigger=AVAILABLE_NOW, **more)
    stage.queries += running.queries.values()
    try:
        assert running.await_termination(PATIENCE)
    finally:
        running.stop()


def failed(stage: Stage, topology: TridentTopology, **more: Any) -> str:
    """Run a topology until it fails: what its user sees."""
    running = topology.start(checkpointLocation=stage.at("spark"), trigger=AVAILABLE_NOW, **more)
    return error_of(running.queries["lines"])


def contents(factory: MemoryMapState, *keys: Any) -> list[Any]:
    return list(factory.make_state({}, 0, 1).multi_get([(key,) for key in keys]))


@pytest.mark.long
def test_a_record_that_fails_in_one_branch_is_in_no_state_of_the_batch(stage: Stage) -> None:
    """The other branches have aggregated it by then: each is computed again without it.

    tests/trident/run/test_one_read.py has a batch of which some fail, in branches too.
    """
    stage.put(["good", "flaky", "good", "other"])
    topology = TridentTopology(stage.spark)
    stream = lines(stage, topology, retryBackoff="1ms..2ms x2")
    before, after, counts = LogFactory(), LogFactory(), MemoryMapState.opaque()
    stream.partition_persist(before, ["data", "attempt"], Write())
    stream.map(lambda tup: [bytes(tup["data"]).decode()], "text").group_by("text").persistent_aggregate(
        counts, Count(), "n"
    )
    stream.each(["data", "attempt"], Text(), ["text"]).partition_persist(after, ["text", "attempt"], Write())
    ran(stage, topology)
    assert before.batches == {1: [(b"good", 1), (b"good", 1), (b"other", 1)], 2: [(b"flaky", 2)]}
    assert after.batches == {1: [("good", 1), ("good", 1), ("other", 1)], 2: [("flaky", 2)]}
    assert contents(counts, "good", "flaky", "other") == [2, 1, 1]
    assert stage.checkpoint_of().read == 4
    assert stage.inflight_of().waiting == ()


class Number(Function):
    """The number in the record; one that is none in the first attempt only."""

    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        number = float(bytes(tup["data"]).decode())
        collector.emit([number if tup["attempt"] == 1 or number == number else 0.5])  # noqa: PLR0124


class Keyed(Function):
    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        collector.emit(["all"])


def test_a_number_that_the_state_cannot_store_fails_its_record(stage: Stage) -> None:
    """Of the greatest and the sum, by key and in all; the others are counted, and the query goes on."""
    stage.put(["1.5", "nan", "2.0"])
    topology = TridentTopology(stage.spark)
    total, greatest = MemoryMapState.opaque(), MemoryMapState.opaque()
    numbers = lines(stage, topology, retryBackoff="1ms..2ms x2").each(
        ["data", "attempt"], Number(), ["x double"]
    )
    numbers.persistent_aggregate(total, Sum(), "sum", ["x"])
    numbers.each(["x"], Keyed(), ["key"]).group_by("key").persistent_aggregate(greatest, Max(), "most", ["x"])
    ran(stage, topology)
    assert total.make_state({}, 0, 1).get() == 4.0
    assert contents(greatest, "all") == [2.0]
    assert stage.inflight_of().waiting == ()


class CountAll(StateUpdater[Any]):
    """Counts all tuples under one key, in each task."""

    def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
        state.multi_combine([("all",)], operator.add, [len(tuples)])


def test_two_tasks_that_update_one_key_are_told(stage: Stage, tmp_path: Path) -> None:
    """Without a grouping each task of partition_persist would take the other one's count for its own."""
    stage.put([f"record {i}" for i in range(20)])
    topology = TridentTopology(stage.spark)
    factory = SqlState.opaque(f"sqlite:///{tmp_path / 'counts.db'}")
    lines(stage, topology).partition_persist(factory, ["data"], CountAll()).parallelism_hint(4)
    message = failed(stage, topology)
    assert "SharedKeyError" in message
    assert (
        "two tasks of 'partition_persist(CountAll) in kinesis_trident_state' update the key ('all',) in batch 1"
        in message
    )


@pytest.mark.long
def test_a_replay_applies_the_verdict_and_does_not_judge_again(stage: Stage) -> None:
    """The first run publishes that `a` failed and dies halfway through its states; then `a` is good and `b` bad.

    test_running_topology.py keeps the verdict of a batch in hand too.
    """
    stage.put(["a", "b", "c"])

    def topology(fails: str, write: Write) -> TridentTopology:
        made = TridentTopology(stage.spark)
        stream = lines(stage, made, retryBackoff="1ms..2ms x2").each(
            ["data", "attempt"], Text(fails), ["text"]
        )
        stream.group_by(["text"]).persistent_aggregate(counts, Count(), ["n"])
        stream.partition_persist(log, ["text"], write)
        return made

    counts, log = MemoryMapState.transactional(), LogFactory()
    with pytest.warns(GuaranteeWarning, match="transactional state keeps the values of the first attempt"):
        assert "RuntimeError" in failed(stage, topology("a", Write(1, RuntimeError)))
    assert contents(counts, "a", "b", "c") == [None, 1, 1]
    with pytest.warns(GuaranteeWarning):
        error = failed(stage, topology("b", Write()), batch_retries=1)
    assert "failed in a replay of its batch (ValueError: b (in each(Text)))" in error
    with pytest.warns(GuaranteeWarning):
        ran(stage, topology("nothing", Write()))
    assert log.batches == {1: [("b",), ("c",)], 2: [("a",)]}
    assert contents(counts, "a", "b", "c") == [1, 1, 1]


@pytest.mark.long
def test_a_failed_update_is_replayed_in_place_under_its_txid(stage: Stage) -> None:
    """test_replays.py replays a batch in place too, and tests/trident/testing/test_local_trident.py without Spark."""
    stage.put(["a", "a"])
    topology = TridentTopology(stage.spark)
    stream = lines(stage, topology).each(["data", "attempt"], Text(), ["text"])
    counts, log = MemoryMapState.opaque(), LogFactory()
    new = stream.group_by(["text"]).persistent_aggregate(counts, Count(), ["n"]).new_values_stream()
    new.partition_persist(log, ["text", "n"], Write(2))
    ran(stage, topology, batch_retries=2)
    assert [(txid, tuples) for txid, _, tuples in log.seen] == [(1, [("a", 2)])] * 3
    attempts = [attempt for _, attempt, _ in log.seen]
    assert attempts == sorted(set(attempts))
    assert contents(counts, "a") == [2]
    stage.put(["b"])
    topology = TridentTopology(stage.spark)
    lines(stage, topology).partition_persist(log, ["data"], Write(2))
    error = failed(stage, topology, batch_retries=1)
    assert "partition_persist(Write): FailedException: the store is down" in error
    assert [txid for txid, _, _ in log.seen] == [1, 1, 1, 2, 2]


@pytest.mark.long
def test_a_transactional_spout_fails_the_batch_with_the_record(stage: Stage) -> None:
    """Without Spark this is in tests/trident/testing/test_local_replays.py."""
    stage.put(["a", "bad"])
    topology = TridentTopology(stage.spark)
    log = LogFactory()
    stream = lines(stage, topology, spout="transactional")
    stream.each(["data", "attempt"], Text("bad"), ["text"]).partition_persist(log, ["text"], Write())
    error = failed(stage, topology, batch_retries=1)
    assert "1 record failed" in error
    assert "ValueError: bad" in error
    assert log.seen == []


def test_everything_that_a_topology_can_hold(stage: Stage) -> None:
    words = ["b", "a", "a", "ccc", "b", "a"]
    stage.put(words)
    topology = TridentTopology(stage.spark)
    names = stage.spark.createDataFrame([("a", "Anna"), ("b", "Ben")], "w string, name string")
    stream = lines(stage, topology)
    logs: dict[str, LogFactory] = {}

    def log(name: str, of: Stream, *fields: str) -> None:
        logs[name] = LogFactory()
        of.partition_persist(logs[name], fields, Write())

    text = stream.each(["data", "attempt"], Text(), ["text"]).project(["text"])
    counts, total, longest, lengths = (MemoryMapState.opaque() for _ in range(4))
    count = text.group_by("text").persistent_aggregate(counts, Count(), "n")
    totals = text.persistent_aggregate(total, Count(), "n")
    text.persistent_aggregate(longest, Together(), "longest string")
    text.group_by("text").persistent_aggregate(lengths, Lengths(), "length bigint")
    log("shuffled", text.shuffle().parallelism_hint(3), "text")
    log("by field", text.partition_by("text").filter(lambda tup: tup["text"] != "b"), "text")
    log("in one", text.global_().partition_aggregate(Count(), "n"), "n")
    log("copies", text.filter(lambda tup: tup[0] == "ccc").broadcast().parallelism_hint(3), "text")
    log("flat", text.flat_map(lambda tup: [[letter] for letter in tup[0]], "letter"), "letter")
    log("merged", text.merge(text.map(lambda tup: [tup[0].upper()], "text")), "text")
    log("joined", text.join("text", topology.new_stream("names", names), "w"), "text", "name")
    log("grouped", text.group_by("text").aggregate(Count(), "n"), "text", "n")
    sized = text.map(lambda tup: [tup[0], len(tup[0])], "text, size bigint")
    log("sized", sized.group_by("text").aggregate(Sum(), "letters", inputs="size"), "text", "letters")
    log("first", text.aggregate(FirstN(2, "text", reverse=True), "text"), "text")
    log("own", text.group_by("text").aggregate(Together(), "longest"), "text", "longest")
    frame = text.transform(lambda df: df.groupBy("text").agg(F.count("*").alias("n")).where("n > 1"))
    log("frame", frame, "text", "n")
    new = count.new_values_stream()
    log("new", new, "text", "n")
    log("queried", new.state_query(count, "text", MapGet(), "now bigint"), "text", "n", "now")
    log(
        "snapshot",
        new.aggregate(Max(), "most", inputs="n").state_query(totals, "most", SnapshotGet(), "all bigint"),
        "most",
        "all",
    )
    ran(stage, topology)

    truth = sorted(Counter(words).items())
    assert contents(counts, "a", "b", "ccc") == [3, 2, 1]
    assert contents(lengths, "a", "b", "ccc") == [3, 2, 3]
    assert total.make_state({}, 0, 1).get() == 6
    assert longest.make_state({}, 0, 1).get() == "ccc"
    assert {name: log.batches[1] for name, log in logs.items()} == {
        "shuffled": sorted((word,) for word in words),
        "by field": [("a",), ("a",), ("a",), ("ccc",)],
        "in one": [(6,)],
        "copies": [("ccc",)] * 3,
        "flat": sorted((letter,) for word in words for letter in word),
        "merged": sorted((text,) for word in words for text in (word, word.upper())),
        "joined": sorted((word, {"a": "Anna", "b": "Ben"}[word]) for word in words if word != "ccc"),
        "grouped": truth,
        "sized": [("a", 3), ("b", 2), ("ccc", 3)],
        "first": [("b",), ("ccc",)],
        "own": [("a", "a"), ("b", "b"), ("ccc", "ccc")],
        "frame": [("a", 3), ("b", 2)],
        "new": truth,
        "queried": [(word, n, n) for word, n in truth],
        "snapshot": [(3, 6)],
    }

    asked = topology.new_stream("asked", stage.spark.createDataFrame([("a",), ("none",)], "word string"))
    answer = asked.state_query(count, "word", MapGet(), "n bigint").filter(lambda tup: tup["word"] != "x")
    assert sorted(map(tuple, answer.df.collect()), key=str) == [("a", 3), ("none", None)]
    assert answer.aggregate(Sum(), "n", inputs="n").df.collect()[0].n == 3


def test_a_pair_that_is_not_exactly_once_is_refused_where_that_is_asked_for(stage: Stage) -> None:
    topology = TridentTopology(stage.spark)
    lines(stage, topology).persistent_aggregate(MemoryMapState.non_transactional(), Count(), "n")
    with pytest.raises(TopologyError, match="is not exactly once: a non-transactional state"):
        topology.start(checkpointLocation=stage.at("spark"), strict=True)
    with pytest.raises(TopologyError, match="there already is a stream 'lines'"):
        lines(stage, topology)
    with pytest.raises(TopologyError, match="ackMode=explicit is for sinks that confirm later"):
        topology.new_stream("explicit", stage.load(ackMode="explicit"))
    with pytest.raises(TopologyError, match="as load\\(\\) returned it"):
        topology.new_stream("filtered", stage.load().where("attempt = 1"))
    unknown = LogFactory()
    unknown.kind = None  # type: ignore[assignment]
    topology = TridentTopology(stage.spark)
    lines(stage, topology).partition_persist(unknown, ["data"], Write())
    with pytest.raises(TopologyError, match="the guarantee of the state is unknown"):
        topology.start(checkpointLocation=stage.at("spark"), strict=True)
    topology = TridentTopology(stage.spark)
    lines(stage, topology)
    with pytest.raises(TopologyError, match="the stream 'lines' is not used"):
        topology.start(checkpointLocation=stage.at("spark"))
