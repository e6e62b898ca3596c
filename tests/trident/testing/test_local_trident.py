"""Trident topologies run without Spark: Storm's cases with a spout of fed batches, and each operation once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kinesis_trident import (
    BasicBolt,
    FailedException,
    KinesisSpout,
    TopologyBuilder,
    TopologyError,
    string_scheme,
)
from kinesis_trident.bolt.errors import BatchFailedError
from kinesis_trident.testing import Batches, run_topology
from kinesis_trident.trident import (
    Aggregator,
    ArrowFunction,
    CombinerAggregator,
    Count,
    FileState,
    Function,
    MapGet,
    Max,
    MemoryMapState,
    Min,
    QueryFunction,
    ReadOnlyState,
    ReducerAggregator,
    StateFactory,
    StateUpdater,
    Stream,
    Sum,
    TridentTopology,
)


class Split(Function):
    def execute(self, tup: Any, collector: Any) -> None:
        for word in tup[0].split():
            if word == "bad":
                msg = "a bad word"
                raise ValueError(msg)
            collector.emit([word])


class Longest(CombinerAggregator):
    def init(self, tup: Any) -> str:
        return str(tup[0])

    def combine(self, left: str, right: str) -> str:
        return max(left, right, key=lambda word: (len(word), word))

    def zero(self) -> str:
        return ""


class Joined(ReducerAggregator):
    def init(self) -> str:
        return ""

    def reduce(self, current: str, tup: Any) -> str:
        return f"{current} {tup[0]}".strip()


class Ends(Aggregator):
    def init(self, batch_id: int | None, collector: Any) -> list[str]:
        return []

    def aggregate(self, value: list[str], tup: Any, collector: Any) -> list[str]:
        return [*value, tup[0]]

    def complete(self, value: list[str], collector: Any) -> None:
        collector.emit([value[0], value[-1]])


class Length(ArrowFunction):
    def execute(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        lengths = pc.utf8_length(batch.column(0))
        return pa.RecordBatch.from_arrays([lengths], ["length"]), np.arange(batch.num_rows)


class Put(StateUpdater[Any]):
    def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
        state.multi_put([(tup["word"],) for tup in tuples], [len(tup["word"]) for tup in tuples])
        collector.emit([len(tuples)])


class Silent(BasicBolt):
    def execute(self, tup: Any, collector: Any) -> None:
        pass


class Once(Function):
    """Requests one replay of its batch."""

    asked = 0

    def execute(self, tup: Any, collector: Any) -> None:
        Once.asked += 1
        if Once.asked == 1:
            msg = "again"
            raise FailedException(msg)
        collector.emit([tup[0]])


def spout(**options: Any) -> KinesisSpout:
    return KinesisSpout(
        streamName="lines",
        applicationName="words",
        zookeeper__hosts="nowhere:1",
        scheme=string_scheme("line"),
        **options,
    )


def words(topology: TridentTopology, **options: Any) -> Stream:
    return topology.new_stream("lines", spout(**options)).each(["line"], Split(), ["word"])


FED = Batches(["hello the man said", "the"], ["the foo foo"])


@pytest.mark.parametrize("options", [{}, {"spout": "transactional"}, {"tracking": False}])
def test_word_count_of_fed_batches(options: dict[str, Any]) -> None:
    topology = TridentTopology()
    words(topology, **options).group_by(["word"]).persistent_aggregate(
        MemoryMapState.opaque(), Count(), ["count"]
    )
    result = run_topology(topology, {"lines": FED})
    (state,) = result.states.values()
    assert state == {("hello",): 1, ("the",): 3, ("man",): 1, ("said",): 1, ("foo",): 2}
    assert result.acked["lines"] == ["hello the man said", "the", "the foo foo"]
    assert result.emitted["each(Split)"][:2] == [
        ("hello the man said", "hello"),
        ("hello the man said", "the"),
    ]
    # The new values, batch by batch.
    values = [tuple(row) for row in result.emitted["persistent_aggregate(Count)"]]
    assert sorted(values[:4]) == [("hello", 1), ("man", 1), ("said", 1), ("the", 2)]
    assert sorted(values[4:]) == [("foo", 2), ("the", 3)]


def test_failed_records_are_in_no_state_until_they_succeed() -> None:
    topology = TridentTopology()
    stream = words(topology, retryLimit=1)
    stream.group_by(["word"]).persistent_aggregate(MemoryMapState.opaque(), Count(), ["count"])
    stream.persistent_aggregate(MemoryMapState.opaque(), Longest(), ["longest"], ["word"])
    result = run_topology(topology, {"lines": ["the cow", "a bad moon", "cow"]}, attempts=None)
    assert result.states == {
        "persistent_aggregate(Count)": {("the",): 1, ("cow",): 2},
        "persistent_aggregate(Longest)": {(): "the"},
    }
    assert [(one.values, one.attempt, one.reason) for one in result.failed] == [
        ("a bad moon", 1, "ValueError: a bad word (in each(Split))"),
        ("a bad moon", 2, "ValueError: a bad word (in each(Split))"),
    ]
    assert [one.attempt for one in result.exhausted] == [2]
    assert result.emitted["each(Split)"] == [("the cow", "the"), ("the cow", "cow"), ("cow", "cow")]


def test_branches_merge_and_join_and_their_states_are_updated_in_order() -> None:
    topology = TridentTopology()
    stream = words(topology)
    lengths = stream.each(["word"], Length(), ["length int"]).project(["word", "length"])
    counts = stream.group_by(["word"]).aggregate(Count(), ["count"])
    joined = lengths.join(["word"], counts, ["word"], ["word", "length", "count"])
    totals = joined.persistent_aggregate(MemoryMapState.opaque(), Sum(), ["total"], ["count"])
    totals.new_values_stream().filter(lambda tup: tup["total"] > 2)
    shouted = stream.map(lambda tup: [tup["word"].upper()], ["word"])
    stream.project(["word"]).merge(shouted).group_by(["word"]).persistent_aggregate(
        MemoryMapState.transactional(), Count(), ["n"]
    )
    with pytest.warns(UserWarning, match="not exactly once"):
        result = run_topology(topology, {"lines": ["a bb a"]})
    assert sorted(result.emitted["join"]) == [("a", 1, 2), ("a", 1, 2), ("bb", 2, 1)]
    assert result.emitted["each(<lambda>)"] == [(5,)]
    assert result.states == {
        "persistent_aggregate(Sum)": {(): 5},
        "persistent_aggregate(Count)": {("a",): 2, ("bb",): 1, ("A",): 2, ("BB",): 1},
    }


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [("b", "b", 1)]),
        ("left", [("a", "a", None), ("b", "b", 1)]),
        ("right", [("b", "b", 1), ("c", None, 1)]),
        ("full", [("a", "a", None), ("b", "b", 1), ("c", None, 1)]),
    ],
)
def test_every_join(how: str, expected: list[tuple[Any, ...]]) -> None:
    topology = TridentTopology()
    stream = words(topology).project(["word"])
    left = stream.filter(lambda tup: tup["word"] in "ab").map(lambda tup: [tup[0], tup[0]], ["word", "again"])
    right = stream.filter(lambda tup: tup["word"] in "bc").group_by(["word"]).aggregate(Count(), ["n"])
    left.join(["word"], right, ["word"], ["word", "again", "n"], how=how)
    result = run_topology(topology, {"lines": ["a b c"]})
    assert sorted(map(tuple, result.emitted["join"])) == expected


def test_every_aggregation_of_a_batch() -> None:
    topology = TridentTopology()
    stream = words(topology).each(["word"], Length(), ["length int"])
    groups = stream.group_by(["length"])
    groups.aggregate(Count(), ["n"])
    groups.aggregate(Max(), ["last"], ["word"])
    groups.aggregate(Joined(), ["all string"], ["word"])
    stream.aggregate(Min(), ["least"], ["length"])
    stream.aggregate(Ends(), ["first string", "last string"], ["word"])
    stream.partition_by(["word"]).parallelism_hint(2).partition_aggregate(Count(), ["n"])
    stream.shuffle().partition_aggregate(Sum(), ["sum"], ["length"])
    stream.global_().partition_aggregate(Longest(), ["longest"], ["word"])
    stream.broadcast().parallelism_hint(3).aggregate(Count(), ["n"])
    groups.max_by("word")
    emitted = run_topology(topology, {"lines": ["the cow a moon", "b"]}, parallelism=3).emitted
    found = {
        name: sorted(map(tuple, rows))
        for name, rows in emitted.items()
        if name not in ("lines", "each(Split)")
    }
    assert found["aggregate(Count)"] == [(1, 2), (3, 2), (4, 1)]
    assert found["aggregate(Max)"] == [(1, "b"), (3, "the"), (4, "moon")]
    assert found["aggregate(Joined)"] == [(1, "a b"), (3, "the cow"), (4, "moon")]
    assert found["aggregate(Min)"] == [(1,)]
    assert found["aggregate(Ends)"] == [("the", "b")]
    assert sum(n for (n,) in found["partition_aggregate(Count)"]) == 5
    assert sum(n for (n,) in found["partition_aggregate(Sum)"]) == 12
    assert found["partition_aggregate(Longest)"] == [("moon",)]
    assert found["aggregate(Count)#2"] == [(15,)]
    line = "the cow a moon"
    assert found["max_by(FirstN)"] == [(1, "b", "b"), (3, line, "the"), (4, line, "moon")]


class Seen(StateUpdater[Any]):
    """Emits nothing."""

    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        state.multi_put([(tup[0],) for tup in tuples], [True] * len(tuples))


def test_an_updater_that_emits_nothing_and_a_state_in_memory() -> None:
    topology = TridentTopology()
    words(topology).partition_persist(MemoryMapState.opaque(), ["word"], Seen())
    result = run_topology(topology, {"lines": Batches(["the moon"], ["a moon"])})
    assert result.states == {"partition_persist(Seen)": dict.fromkeys([("the",), ("moon",), ("a",)], True)}
    assert result.emitted["partition_persist(Seen)"] == []


def test_states_are_queried_and_updated_by_the_users_own_updater(tmp_path: Any) -> None:
    topology = TridentTopology()
    known = FileState.opaque(f"file://{tmp_path}/lengths")
    stored = words(topology).partition_persist(known, ["word"], Put(), ["n int"])
    asked = topology.new_stream("asked", spout()).group_by(["line"]).aggregate(Count(), ["n"])
    asked.project(["line"]).state_query(stored, ["line"], MapGet(), ["length int"])
    result = run_topology(topology, {"lines": ["the moon"], "asked": ["moon", "sun"]})
    assert result.states == {"partition_persist(Put)": {("the",): 3, ("moon",): 4}}
    assert result.emitted["partition_persist(Put)"] == [(2,)]
    assert sorted(result.emitted["state_query(MapGet)"]) == [("moon", 4), ("sun", None)]
    assert (result.acked["lines"], result.acked["asked"]) == (["the moon"], ["moon", "sun"])
    # The next run finds what this one has stored.
    again = TridentTopology()
    static = again.new_static_state(known)
    least = again.new_stream("asked", spout()).aggregate(Min(), ["least string"], ["line"])
    least.state_query(static, ["least"], MapGet(), ["length int"])
    assert run_topology(again, {"asked": ["the"]}).emitted["state_query(MapGet)"] == [("the", 3)]


class Lengths(ReadOnlyState):
    def query(self, words: list[str]) -> list[int]:
        return [len(word) for word in words]


class LengthsFactory(StateFactory):
    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Lengths:
        return Lengths()


class AskLengths(QueryFunction[Lengths, int]):
    def batch_retrieve(self, state: Lengths, tuples: Sequence[Any]) -> list[int]:
        return state.query([tup["line"] for tup in tuples])

    def execute(self, tuple_: Any, result: int, collector: Any) -> None:
        collector.emit([result])


def test_a_state_that_is_only_queried() -> None:
    topology = TridentTopology()
    static = topology.new_static_state(LengthsFactory())
    topology.new_stream("lines", spout()).state_query(static, ["line"], AskLengths(), ["length int"])
    result = run_topology(topology, {"lines": ["the", "moon"]})
    assert sorted(row["length"] for row in result.emitted["state_query(AskLengths)"]) == [3, 4]
    for commit in (Lengths().begin_commit, Lengths().commit):
        with pytest.raises(NotImplementedError, match="Lengths is read-only"):
            commit(1)


def test_a_requested_replay_is_done_in_place() -> None:
    topology = TridentTopology()
    counts = words(topology).each(["word"], Once(), ["again"]).group_by(["again"])
    counts.persistent_aggregate(MemoryMapState.opaque(), Count(), ["count"])
    Once.asked = 0
    result = run_topology(topology, {"lines": ["a b"]})
    assert result.states == {"persistent_aggregate(Count)": {("a",): 1, ("b",): 1}}
    assert (result.failed, result.emitted["each(Once)"]) == ([], [("a b", "a", "a"), ("a b", "b", "b")])
    Once.asked = 0
    with pytest.raises(BatchFailedError, match=r"each\(Once\): FailedException: again"):
        run_topology(topology, {"lines": ["a b"]}, batch_retries=0)
    # The topology is as it was: it runs again, and its batches go on.
    again = run_topology(topology, {"lines": ["a c"]})
    assert again.emitted["each(Once)"] == [("a c", "a", "a"), ("a c", "c", "c")]
    assert again.states == {"persistent_aggregate(Count)": {("a",): 2, ("c",): 1}}


def bolts(given: object, **spouts: object) -> Callable[[], object]:
    builder = TopologyBuilder()
    builder.set_spout("lines", spouts.get("spout", spout()))
    if "spout" in spouts:
        builder.set_bolt("silent", Silent()).shuffle_grouping("lines")
    return lambda: run_topology(builder, given)  # type: ignore[arg-type]


def trident(given: object) -> Callable[[], object]:
    topology = TridentTopology()
    words(topology)
    return lambda: run_topology(topology, given)  # type: ignore[arg-type]


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "another spout": (trident({"line": ["a"]}), r"there is no spout 'line'\. Give tuples for 'lines'"),
    "a number": (trident({"lines": [5]}), r"spout 'lines': 5 is not a tuple of it\. Give .* \(line\)"),
    "too many values": (trident({"lines": [["a", "b"]]}), r"\['a', 'b'\] is not a tuple of it"),
    "an unknown field": (
        trident({"lines": [{"text": "a"}]}),
        "has a value for 'text', but there is no such field",
    ),
    "a field of the run": (
        trident({"lines": [{"line": "a", "txid": 5}]}),
        "'txid', but the run sets it. Give .* line",
    ),
    "no value": (trident({"lines": [{"partitionKey": "a"}]}), "does not tell the field 'line', which .*CAST"),
    "a wrong type": (trident({"lines": [[5]]}), "field 'line', which is string, does not fit: "),
    "another stream": (
        trident({"lines": [{"line": "a", "stream": "b"}]}),
        "of the stream 'b', which .* reads lines",
    ),
    "a number as data": (trident({"lines": [{"data": 5}]}), "has 5 for 'data'. Give a text or bytes as data"),
    "no bolt": (bolts({"lines": ["a"]}), "the topology has no bolt"),
    "a scheme without a type": (
        bolts({}, spout=KinesisSpout(streamName="l", scheme={"n": "length(data)"})),
        r"without Spark the type of 'length\(data\)', the field 'n' of its scheme, is not known. Write it as CAST",
    ),
    "two casts": (
        bolts({}, spout=KinesisSpout(streamName="l", scheme={"n": "CAST(a AS INT) || CAST(b AS STRING)"})),
        "without Spark the type",
    ),
    "something else": (lambda: run_topology("words", {}), "run_topology got a str. Pass the TopologyBuilder"),  # type: ignore[arg-type]
    "no attempt": (lambda: run_topology(TridentTopology(), {}, attempts=0), "attempts=0 delivers nothing"),
    "a transform of bolts": (
        lambda: _with_transform().check(1),
        r"transform 'long' is DataFrame code, which needs Spark\. Build .* TopologyBuilder\(spark\): then",
    ),
    "a transform of trident": (
        lambda: words(TridentTopology()).transform(lambda rows: rows),
        r"transform\(<lambda>\) is DataFrame code, which needs Spark\. .*TridentTopology\(spark\): then",
    ),
    "a start of bolts": (
        lambda: TopologyBuilder().start(checkpointLocation="/nowhere"),
        r"without a Spark session, so it cannot be started\. Build it with TopologyBuilder\(spark\)",
    ),
    "a start of trident": (
        lambda: TridentTopology().start(checkpointLocation="/nowhere"),
        r"start: the topology was built without a Spark session\. Build it with TridentTopology\(spark\)",
    ),
}


def _with_transform() -> TopologyBuilder:
    builder = TopologyBuilder()
    builder.set_spout("lines", spout())
    builder.transform("long", "lines", lambda rows: rows)
    builder.set_bolt("end", Silent()).shuffle_grouping("long")
    return builder


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_run_is_refused_by_name(what: str) -> None:
    call, said = WRONG[what]
    with pytest.raises(TopologyError, match=said):
        call()


def test_given_tuples_have_every_form() -> None:
    topology = TridentTopology()
    several = KinesisSpout(
        streamName="lines,others",
        applicationName="words",
        zookeeper__hosts="nowhere:1",
        scheme={
            "key": "partitionKey",
            "line": "CAST(data AS STRING)",
            "n": "CAST(length(data) AS decimal(5,0))",
            "of": "stream",
        },
    )
    topology.new_stream("lines", several).project(
        ["key", "line", "n", "of", "data", "partitionKey", "attempt"]
    )
    given = [
        {"key": "k", "line": "a", "n": 1, "of": "x"},
        {"data": "bytes", "partitionKey": "p", "stream": "others", "n": None},
        ("k2", "b", 2, "y"),
        ["k3", "c", 3, "z"],
    ]
    result = run_topology(topology, {"lines": given})
    assert [tuple(row) for row in result.emitted["project"]] == [
        ("k", "a", 1, "x", b"", "", 1),
        ("p", "bytes", None, "others", b"bytes", "p", 1),
        ("k2", "b", 2, "y", b"", "", 1),
        ("k3", "c", 3, "z", b"", "", 1),
    ]
    assert result.acked["lines"] == given
