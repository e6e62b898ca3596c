"""A topology is started, awaited and stopped as one thing, whatever its number of streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from harness import PATIENCE
from pyspark.errors import StreamingQueryException
from stage import AVAILABLE_NOW, Stage

from kinesis_trident import KinesisSpout, KinesisTridentError, stop, string_scheme
from kinesis_trident.trident import (
    Count,
    Function,
    MemoryMapState,
    RunningTopology,
    State,
    StateFactory,
    StateType,
    StateUpdater,
    TopologyError,
    TridentTopology,
)


class Split(Function):
    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        for word in tup[0].split():
            if word == "bad" and tup["attempt"] == 1:
                raise ValueError(word)
            collector.emit([word])


class Nothing(State):
    def begin_commit(self, txid: int | None) -> None: ...

    def commit(self, txid: int | None) -> None: ...


class InDriver(StateFactory):
    driver_local = True
    kind = StateType.OPAQUE

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> Nothing:
        return Nothing()


class Gate(StateUpdater[Nothing]):
    """Holds each batch up until it may go on; then it takes it, or fails."""

    def __init__(self, error: Exception | None = None, *, is_open: bool = False) -> None:
        self.error = error
        self.in_hand, self.go_on = threading.Event(), threading.Event()
        self.taken: list[list[str]] = []
        if is_open:
            self.go_on.set()

    def update_state(self, state: Nothing, tuples: Sequence[Any], collector: Any) -> None:
        self.in_hand.set()
        assert self.go_on.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        self.taken.append(sorted(tup[0] for tup in tuples))


def spout(stage: Stage, app: str = "", **more: Any) -> KinesisSpout:
    options = {name.replace(".", "__"): value for name, value in stage.options().items()}
    return KinesisSpout(**options | {"applicationName": stage.app + app} | more)


def text(stage: Stage, topology: TridentTopology, name: str, gate: Gate) -> None:
    """A stream whose texts go through a gate, in an application of its own."""
    source = spout(stage, f"-{name}", scheme=string_scheme("text"))
    topology.new_stream(name, source).partition_persist(InDriver(), ["text"], gate)


@pytest.fixture
def started(stage: Stage) -> Callable[..., RunningTopology]:
    """Starts a topology whose queries end with the test."""

    def start(topology: TridentTopology, **more: Any) -> RunningTopology:
        running = topology.start(checkpointLocation=stage.at("spark"), **more)
        stage.queries += running.queries.values()
        return running

    return start


def test_the_first_error_of_any_query_is_raised_at_once(
    stage: Stage, started: Callable[..., RunningTopology]
) -> None:
    stage.put(["one"])
    topology, held = TridentTopology(stage.spark), Gate()
    text(stage, topology, "first", held)
    text(stage, topology, "second", Gate(RuntimeError("no such table"), is_open=True))
    running = started(topology, queryName="two")
    assert {name: query.name for name, query in running.queries.items()} == {
        "first": "two-first",
        "second": "two-second",
    }
    assert held.in_hand.wait(PATIENCE)
    with pytest.raises(StreamingQueryException, match="no such table"):
        running.await_termination(PATIENCE)
    # The first query still holds its batch: nobody waited for it.
    assert running.queries["first"].isActive
    held.go_on.set()
    with pytest.raises(StreamingQueryException, match="no such table"):
        running.stop(PATIENCE)
    assert not any(query.isActive for query in running.queries.values())
    assert held.taken == [["one"]]


def test_a_topology_stops_after_the_batches_in_hand_and_settles_them(
    stage: Stage, started: Callable[..., RunningTopology]
) -> None:
    stage.put(["one"])
    topology, gates = TridentTopology(stage.spark), [Gate(), Gate()]
    for name, gate in zip(("first", "second"), gates, strict=True):
        text(stage, topology, name, gate)
    running = started(topology)
    for gate in gates:
        assert gate.in_hand.wait(PATIENCE)
    assert not running.await_termination(0.1)
    with pytest.raises(KinesisTridentError, match=r"did not end within 0\.1 s; the query keeps running"):
        running.stop(0.1)
    with pytest.raises(KinesisTridentError, match="stream= is for one query"):
        stop(running, stream=stage.load())
    assert running.is_active
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(stop, running, PATIENCE)
        for gate in gates:
            gate.go_on.set()
        stopping.result(PATIENCE)
    assert running.await_termination(PATIENCE)
    app = stage.app
    for name, gate in zip(("first", "second"), gates, strict=True):
        assert gate.taken == [["one"]]
        stage.app = f"{app}-{name}"
        assert stage.settled == 1
        assert stage.store.epochs.owner() is None


def test_a_query_that_cannot_start_leaves_no_other_behind(
    stage: Stage, started: Callable[..., RunningTopology]
) -> None:
    topology = TridentTopology(stage.spark)
    for name in ("first", "second"):
        text(stage, topology, name, Gate(is_open=True))
    rates = stage.spark.readStream.format("rate").load()
    other = rates.writeStream.queryName("mine-second").foreachBatch(lambda *_: None).start()
    stage.queries.append(other)
    with pytest.raises(Exception, match="mine-second"):
        started(topology, queryName="mine")
    assert "mine-first" not in [query.name for query in stage.spark.streams.active]


@pytest.mark.long
def test_the_words_of_a_spout_are_counted(stage: Stage, started: Callable[..., RunningTopology]) -> None:
    """test_examples.py counts words too, and tests/trident/testing/test_local_trident.py without Spark."""
    stage.put(["the man", "the bad dog"])
    counts = MemoryMapState.opaque()
    topology = TridentTopology(stage.spark)
    (
        topology.new_stream("spout1", spout(stage, scheme=string_scheme("sentence")))
        .each(["sentence", "attempt"], Split(), ["word"])
        .group_by(["word"])
        .persistent_aggregate(counts, Count(), ["count"])
        .parallelism_hint(2)
    )
    running = started(topology, trigger=AVAILABLE_NOW, queryName="words", strict=True)
    assert running.queries["spout1"].name == "words"
    assert running.await_termination(PATIENCE)
    found = counts.make_state({}, 0, 1).multi_get([("the",), ("man",), ("bad",), ("dog",)])
    assert found == [2, 1, 1, 1]


def test_without_tracking_a_failure_fails_the_batch_and_not_the_record(
    stage: Stage, started: Callable[..., RunningTopology]
) -> None:
    stage.put(["the man", "the dog"])
    counts, lengths = MemoryMapState.opaque(), MemoryMapState.opaque(keyPrefix="lengths/")
    source = spout(stage, scheme={"sentence": "CAST(data AS STRING)", "size": "length(data)"}, tracking=False)

    def whole(failing: bool) -> TridentTopology:
        topology = TridentTopology(stage.spark)
        stream = topology.new_stream("lines", source)
        assert stream.fields[:2] == ("sentence", "size")
        assert stream.schema["size"].dataType.simpleString() == "int"
        if failing:
            stream = stream.filter(lambda tup: 1 // 0)
        words = stream.each(["sentence", "attempt"], Split(), ["word"])
        words.group_by(["word"]).persistent_aggregate(counts, Count(), ["count"])
        stream.group_by(["size"]).persistent_aggregate(lengths, Count(), ["count"])
        return topology

    running = started(whole(failing=True), trigger=AVAILABLE_NOW, batch_retries=1)
    with pytest.raises(StreamingQueryException, match=r"ZeroDivisionError.* belongs to no single record"):
        running.await_termination(PATIENCE)
    running = started(whole(failing=False), trigger=AVAILABLE_NOW)
    assert running.await_termination(PATIENCE)
    assert counts.make_state({}, 0, 1).multi_get([("the",), ("man",), ("dog",)]) == [2, 1, 1]
    assert lengths.make_state({}, 0, 1).multi_get([(7,)]) == [2]
    assert stage.settled == 1


def test_tracking_that_is_turned_off_keeps_the_verdict_of_the_batch_in_hand(
    stage: Stage, started: Callable[..., RunningTopology]
) -> None:
    stage.put(["the bad", "man"])

    def words(gate: Gate, **more: Any) -> TridentTopology:
        topology = TridentTopology(stage.spark)
        (
            topology.new_stream("lines", spout(stage, scheme=string_scheme("text"), **more))
            .each(["text", "attempt"], Split(), ["word"])
            .partition_persist(InDriver(), ["word"], gate)
        )
        return topology

    running = started(words(Gate(RuntimeError("no such table"), is_open=True)), trigger=AVAILABLE_NOW)
    with pytest.raises(StreamingQueryException, match="no such table"):
        running.await_termination(PATIENCE)
    gate = Gate(is_open=True)
    running = started(words(gate, tracking=False), trigger=AVAILABLE_NOW)
    assert running.await_termination(PATIENCE)
    # The record that failed is not in the replay. It comes back by itself.
    assert gate.taken == [["man"], ["bad", "the"]]


def test_what_is_no_stream_or_no_scheme_is_refused(stage: Stage) -> None:
    topology = TridentTopology(stage.spark)
    with pytest.raises(TopologyError, match=r"dict is not a stream\. Give KinesisSpout"):
        topology.new_stream("lines", stage.options())  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="its scheme: the field 'Data' is there already"):
        topology.new_stream("lines", spout(stage, scheme={"Data": "partitionKey"}))
    with pytest.raises(TopologyError, match=r"Spark cannot use its scheme"):
        topology.new_stream("lines", spout(stage, scheme={"text": "no_such_column"}))
    with pytest.raises(TopologyError, match="ackMode=explicit"):
        topology.new_stream("lines", spout(stage, ackMode="explicit"))
