"""The cases of Storm's own integration tests of topologies, in Python, run without Spark.

Source: `TopologyIntegrationTest` of Apache Storm 2 and the bolts of `org.apache.storm.testing` that it uses. What is
different here: a topology has one spout, a tuple that its bolt neither acks nor keeps fails at once, and one that it
keeps comes again to a new instance of the bolt.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kinesis_trident import BasicBolt, Bolt, KinesisSpout, TopologyBuilder, string_scheme
from kinesis_trident.testing import Batches, FakeTime, TopologyResult, run_topology


class Collecting(Bolt):
    def prepare(self, context: Any, collector: Any) -> None:
        self.collector, self.context = collector, context
        self.held: list[Any] = []


class Identity(BasicBolt):
    fields = "num string"

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([tup[0]])


class Branching(Collecting):
    """Emits so many tuples for each."""

    fields = "num string"

    def __init__(self, branches: int) -> None:
        self.branches = branches

    def execute(self, tup: Any) -> None:
        for _ in range(self.branches):
            self.collector.emit([tup[0]], tup)
        self.collector.ack(tup)


class Agg(Collecting):
    """Holds so many tuples, then emits one that is anchored to all of them."""

    fields = "num string"

    def __init__(self, size: int) -> None:
        self.size = size

    def execute(self, tup: Any) -> None:
        self.held.append(tup)
        if len(self.held) == self.size:
            self.collector.emit([str(self.size)], self.held)
            while self.held:
                self.collector.ack(self.held.pop())


class Ack(Collecting):
    def execute(self, tup: Any) -> None:
        self.collector.ack(tup)


class AckEveryOther(Collecting):
    """Forgets every other tuple."""

    def execute(self, tup: Any) -> None:
        self.held.append(tup["num"])
        if len(self.held) % 2:
            self.collector.ack(tup)


class Hold(Collecting):
    """Keeps the tuple b for ever; it may reset its timeout."""

    def __init__(self, resets: bool) -> None:
        self.resets = resets

    def execute(self, tup: Any) -> None:
        if tup["num"] != "b":
            self.collector.ack(tup)
            return
        self.held.append(tup)
        if self.resets:
            self.collector.reset_timeout(tup)


class Meet(Collecting):
    """Joins the tuples of two batches: each waits for one with the same letter."""

    fields = "pair string"

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector = collector
        self.waiting: dict[str, Any] = {}

    def execute(self, tup: Any) -> None:
        other = self.waiting.pop(tup["num"][0], None)
        if other is None:
            self.waiting[tup["num"][0]] = tup
            return
        self.collector.emit(["".join(sorted([other["num"], tup["num"]]))], [other, tup])
        self.collector.ack(other)
        self.collector.ack(tup)


class DupAnchor(Collecting):
    fields = "num string"

    def execute(self, tup: Any) -> None:
        self.collector.emit([tup[0]], [tup, tup])
        self.collector.ack(tup)


class Refusing(BasicBolt):
    """Fails the tuples with a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def execute(self, tup: Any, collector: Any) -> None:
        if tup[0] == self.text:
            msg = f"no {self.text}"
            raise ValueError(msg)


class WordCounter(BasicBolt):
    fields = "word string, count int"

    def prepare(self, context: Any) -> None:
        self.counts: Counter[str] = Counter()

    def execute(self, tup: Any, collector: Any) -> None:
        self.counts[tup[0]] += 1
        collector.emit([tup[0], self.counts[tup[0]]])


class GlobalCount(BasicBolt):
    fields = "total int"

    def prepare(self, context: Any) -> None:
        self.total = 0

    def execute(self, tup: Any, collector: Any) -> None:
        self.total += 1
        collector.emit([self.total])


class EmitTask(BasicBolt):
    fields = "task int, num string"

    def prepare(self, context: Any) -> None:
        self.task = context.task

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([self.task, tup["num"]])


def builder(**options: object) -> TopologyBuilder:
    made = TopologyBuilder(ackers=options.pop("ackers", None))  # type: ignore[arg-type]
    spout = KinesisSpout(
        streamName="nums",
        applicationName="storm",
        zookeeper__hosts="nowhere:1",
        **{"scheme": string_scheme("num"), **options},  # type: ignore[arg-type]
    )
    made.set_spout("1", spout)
    return made


def reasons(result: TopologyResult) -> list[tuple[str, str]]:
    return [(one.values, one.reason) for one in result.failed]


def test_tuples_of_records_without_a_partition_key_meet_in_one_task() -> None:
    topology = builder(scheme={"num": "partitionKey"})
    topology.set_bolt("2", EmitTask(), 3).fields_grouping("1", "num")
    topology.set_bolt("3", WordCounter(), 3).fields_grouping("1", "num")
    result = run_topology(topology, {"1": [{"partitionKey": key} for key in (None, "a", None, None)]})
    assert len({task for task, num in result.emitted["2"] if num is None}) == 1
    assert sorted(count for word, count in result.emitted["3"] if word is None) == [1, 2, 3]
    assert not result.failed


def test_basic_topology() -> None:
    topology = builder()
    topology.set_bolt("2", WordCounter(), 4).fields_grouping("1", "num")
    topology.set_bolt("3", GlobalCount()).global_grouping("1")
    topology.set_bolt("4", GlobalCount()).global_grouping("2")
    words = ["nathan", "bob", "joey", "nathan"]
    result = run_topology(topology, {"1": words})
    assert result.emitted["1"] == result.acked["1"] == words
    assert sorted(result.emitted["2"]) == [("bob", 1), ("joey", 1), ("nathan", 1), ("nathan", 2)]
    assert result.emitted["3"] == result.emitted["4"] == [(1,), (2,), (3,), (4,)]
    assert [row.word for row in result.emitted["2"] if row["count"] == 2] == ["nathan"]


def test_all_grouping_brings_each_tuple_to_each_task() -> None:
    for ackers in (None, 0):
        topology = builder(ackers=ackers)
        topology.set_bolt("2", EmitTask(), 3).all_grouping("1")
        result = run_topology(topology, {"1": ["a", "b"]})
        assert sorted(result.emitted["2"]) == [(task, num) for task in range(3) for num in "ab"]
        assert result.acked["1"] == ["a", "b"]


def test_equal_fields_meet_in_one_task_and_shuffled_tuples_spread() -> None:
    topology = builder()
    topology.set_bolt("2", EmitTask(), 3).fields_grouping("1", "num")
    topology.set_bolt("3", EmitTask(), 3).shuffle_grouping("1")
    topology.set_bolt("4", EmitTask()).local_or_shuffle_grouping("3")
    topology.set_bolt("5", EmitTask()).fields_grouping("1", "num")
    result = run_topology(topology, {"1": [str(n % 10) for n in range(60)]}, parallelism=4)
    tasks: dict[str, set[int]] = {}
    for task, num in result.emitted["2"]:
        tasks.setdefault(num, set()).add(task)
    assert len(tasks) == 10
    assert all(len(own) == 1 for own in tasks.values())
    assert set().union(*tasks.values()) == {0, 1, 2} == {task for task, _ in result.emitted["3"]}
    assert [row.task for row in result.emitted["4"]] == [row.task for row in result.emitted["3"]]
    assert max(row.task for row in result.emitted["5"]) == 3


def test_a_tuple_that_its_bolt_forgets_fails_at_once() -> None:
    topology = builder()
    topology.set_bolt("2", AckEveryOther()).shuffle_grouping("1")
    result = run_topology(topology, {"1": ["a", "b", "c"]})
    assert result.acked["1"] == ["a", "c"]
    assert reasons(result) == [("b", "NOT_ACKED (bolt 2)")]


def test_a_tuple_that_is_held_fails_when_its_time_is_over() -> None:
    topology = builder(messageTimeout="5s", retryLimit=0)
    topology.set_bolt("2", Hold(resets=False)).shuffle_grouping("1")
    clock = FakeTime(1_700_000_000)
    result = run_topology(topology, {"1": ["a", "b", "c"]}, clock=clock)
    assert result.acked["1"] == ["a", "c"]
    assert result.failed == result.exhausted == [("1", "b", 1, "TIMEOUT (bolt 2)", None)]
    # It came again each second, to a new instance of the bolt.
    assert (clock.now, result.emitted["1"]) == (1_700_000_005, ["a", "b", "c", *["b"] * 5])


def test_a_reset_timeout_begins_anew() -> None:
    topology = builder(messageTimeout="5s")
    topology.set_bolt("2", Hold(resets=True)).shuffle_grouping("1")
    result = run_topology(topology, {"1": ["a", "b"]})
    assert (result.acked["1"], result.held["1"], result.failed) == (["a"], ["b"], [])
    assert result.emitted["1"].count("b") > 6


def test_tuples_of_different_batches_meet_while_they_are_held() -> None:
    topology = builder()
    topology.set_bolt("2", Meet(), 1).shuffle_grouping("1")
    result = run_topology(topology, {"1": Batches(["a1", "b1"], ["a2"], ["b2"])})
    assert sorted(row.pair for row in result.emitted["2"]) == ["a1a2", "b1b2"]
    assert (sorted(result.acked["1"]), result.held["1"], result.failed) == (["a1", "a2", "b1", "b2"], [], [])


def ack_tracking() -> TopologyBuilder:
    topology = builder()
    topology.set_bolt("4", Branching(2)).shuffle_grouping("1")
    topology.set_bolt("5", Branching(4)).shuffle_grouping("1")
    topology.set_bolt("6", Branching(1)).shuffle_grouping("1")
    topology.set_bolt("7", Agg(7), 1).shuffle_grouping("4").shuffle_grouping("5").shuffle_grouping("6")
    topology.set_bolt("8", Branching(2)).shuffle_grouping("7")
    topology.set_bolt("9", Ack()).shuffle_grouping("8")
    return topology


def test_acking_of_branches_that_meet_again() -> None:
    result = run_topology(ack_tracking(), {"1": ["a", "b"]})
    assert result.acked["1"] == ["a", "b"]
    assert {name: len(tuples) for name, tuples in result.emitted.items()} == {
        "1": 2, "4": 4, "5": 8, "6": 2, "7": 2, "8": 4, "9": 0
    }  # fmt: skip


def test_a_failure_below_several_anchors_fails_all_of_them_and_no_other() -> None:
    topology = builder()
    topology.set_bolt("2", Agg(2), 1).shuffle_grouping("1")
    topology.set_bolt("3", Refusing("2")).shuffle_grouping("2")
    # The third is held for a fourth, which does not come.
    result = run_topology(topology, {"1": ["a", "b", "c"]})
    assert result.acked["1"] == []
    kinds = {values: reason.split(" (")[0] for values, reason in reasons(result)}
    assert sorted(kinds.values()) == ["TIMEOUT", "ValueError: no 2", "ValueError: no 2"]
    assert len(result.emitted["2"]) == 1


@pytest.mark.parametrize(("given", "acked"), [(["a"], []), (["a", "b"], ["a", "b"])])
def test_ack_branching(given: list[str], acked: list[str]) -> None:
    topology = builder()
    topology.set_bolt("2", Identity()).shuffle_grouping("1")
    topology.set_bolt("3", Identity()).shuffle_grouping("1")
    topology.set_bolt("4", Agg(4), 1).shuffle_grouping("2").shuffle_grouping("3")
    result = run_topology(topology, {"1": given})
    assert result.acked["1"] == acked
    assert [one.values for one in result.failed] == [one for one in given if one not in acked]


@pytest.mark.parametrize("given", [["a"], ["a", "b", "c"]])
def test_a_tuple_anchored_twice_to_the_same_one_is_acked_once(given: list[str]) -> None:
    topology = builder()
    topology.set_bolt("2", DupAnchor()).shuffle_grouping("1")
    topology.set_bolt("3", Ack()).shuffle_grouping("2")
    assert run_topology(topology, {"1": given}).acked["1"] == given


def test_one_failing_branch_fails_the_tuple_once() -> None:
    topology = builder()
    topology.set_bolt("2", Branching(3)).shuffle_grouping("1")
    topology.set_bolt("3", Refusing("b")).shuffle_grouping("2")
    topology.set_bolt("4", Ack()).shuffle_grouping("2")
    result = run_topology(topology, {"1": ["a", "b"]})
    assert result.acked["1"] == ["a"]
    assert reasons(result) == [("b", "ValueError: no b (bolt 3)")]


@pytest.mark.parametrize("untracked", [{"ackers": 0}, {"tracking": False}])
def test_without_tracking_all_are_done_when_their_batch_is(untracked: dict[str, object]) -> None:
    topology = builder(**untracked)
    topology.set_bolt("2", Identity()).shuffle_grouping("1")
    topology.set_bolt("3", Refusing("b"), 2).fields_grouping("2", "num")
    result = run_topology(topology, {"1": ["a", "b"]})
    assert (result.acked["1"], result.failed) == (["a", "b"], [])
    assert result.emitted["2"] == [("a",), ("b",)]
