"""Named streams, every grouping and tick tuples, run without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from kinesis_trident import BasicBolt, Bolt, KinesisSpout, TopologyBuilder, string_scheme
from kinesis_trident.testing import Batches, FakeTime, run_topology


class Parse(BasicBolt):
    """Numbers go on, by their last digit to a task too; other lines go to the errors."""

    def declare_output_fields(self, declarer: Any) -> None:
        declarer.declare("number bigint")
        declarer.declare_stream("errors", "line string, number string")
        declarer.declare_stream("digits", "number int", direct=True)
        declarer.declare_stream("nobody", "line string")

    def execute(self, tup: Any, collector: Any) -> None:
        line = tup["line"]
        collector.emit([line], "nobody")
        if not line.isdigit():
            collector.emit([line, "none"], "errors")
            return
        collector.emit([int(line)])
        collector.emit_direct(int(line) % 10, [int(line)], "digits")


class Tasks(BasicBolt):
    """Says in which task it got what, and from where."""

    fields = "task int, what string, source string"

    def prepare(self, context: Any) -> None:
        self.task = context.task

    def execute(self, tup: Any, collector: Any) -> None:
        if str(tup[0]) == "bad":
            msg = f"of {tup.stream}"
            raise ValueError(msg)
        collector.emit([self.task, str(tup[0]), f"{tup.component}/{tup.stream}"])


class ByLength:
    """A custom grouping: short words to the first task, long ones to the first two; one has no task."""

    def prepare(self, context: Any, component: str, stream: str, tasks: Sequence[int]) -> None:
        self.tasks = tasks

    def choose_tasks(self, task: int, values: Sequence[Any]) -> list[int]:
        if values[0] == "nowhere":
            return [len(self.tasks)]
        return list(self.tasks)[: 1 if len(values[0]) < 3 else 2]


class SumAtTick(Bolt):
    """Emits the number of its tuples at a tick, anchored to them."""

    fields = "task int, sum int"

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector, self.task = collector, context.task
        self.held: list[Any] = []

    def execute(self, tup: Any) -> None:
        if not tup.is_tick:
            self.held.append(tup)
            self.collector.ack(tup)
            return
        self.collector.emit([self.task, len(self.held)], self.held)


def builder(**options: Any) -> TopologyBuilder:
    made = TopologyBuilder(ackers=options.pop("ackers", None))
    spout = KinesisSpout(
        streamName="s", applicationName="a", zookeeper__hosts="z", scheme=string_scheme("line"), **options
    )
    made.set_spout("lines", spout)
    return made


@pytest.mark.parametrize("ackers", [None, 0])
def test_streams_have_their_own_takers_and_results(ackers: int | None) -> None:
    topology = builder(ackers=ackers)
    topology.set_bolt("parse", Parse()).shuffle_grouping("lines")
    topology.set_bolt("numbers", Tasks()).shuffle_grouping("parse")
    topology.set_bolt("errors", Tasks()).shuffle_grouping("parse", stream="errors")
    topology.set_bolt("digits", Tasks(), 4).direct_grouping("parse", "digits")
    topology.set_bolt("two", Tasks(), 2).fields_grouping("parse", "number").shuffle_grouping(
        "parse", "errors"
    )
    given = ["1", "x", "23", "bad", "5"]
    result = run_topology(topology, {"lines": given})
    # 5 has no task.
    assert result.emitted["parse"] == [(1,), (23,)]
    assert result.emitted["parse", "errors"] == [("x", "none"), ("bad", "none")]
    assert result.emitted["parse", "digits"] == [(1,), (23,)]
    assert result.emitted["parse", "nobody"] == [("1",), ("x",), ("23",), ("bad",)]
    assert sorted(result.emitted["digits"]) == [(1, "1", "parse/digits"), (3, "23", "parse/digits")]
    assert [tuple(row)[1:] for row in result.emitted["errors"]] == [("x", "parse/errors")]
    assert {tuple(row)[1:] for row in result.emitted["two"]} == {
        ("1", "parse/default"), ("23", "parse/default"), ("x", "parse/errors")
    }  # fmt: skip
    if ackers is None:
        assert result.acked["lines"] == ["1", "x", "23"]
        told = [(one.values, one.reason.partition(": ")[2].rpartition(" (")[0]) for one in result.failed]
        assert told == [
            ("bad", "of errors"),
            (
                "5",
                "bolt 'parse' emitted to task 5 of the stream 'digits'. Give the number of a task of the bolt that "
                "takes it: 0 to 3",
            ),
        ]
    else:
        assert result.acked["lines"] == given


def test_partial_key_custom_and_none_groupings() -> None:
    topology = builder()
    topology.set_bolt("partial", Tasks(), 8).partial_key_grouping("lines", "line")
    topology.set_bolt("custom", Tasks(), 3).custom_grouping("lines", ByLength())
    topology.set_bolt("none", Tasks(), 2).none_grouping("lines")
    words = ["a", "long", "nowhere", *["many"] * 20, *["more"] * 20]
    result = run_topology(topology, {"lines": words})
    loads = Counter((what, task) for task, what, _ in result.emitted["partial"])
    # A key has two tasks, which share its tuples.
    tasks = {
        what: sorted(n for (one, _), n in loads.items() if one == what) for what in ("many", "more", "a")
    }
    assert tasks["a"] == [1]
    assert all(sum(tasks[what]) == 20 and len(tasks[what]) <= 2 for what in ("many", "more"))
    assert len(tasks["many"]) + len(tasks["more"]) > 2
    custom = Counter((task, what) for task, what, _ in result.emitted["custom"])
    assert custom == {
        (0, "a"): 1,
        **{(n, w): c for n in (0, 1) for w, c in [("long", 1), ("many", 20), ("more", 20)]},
    }
    assert len(result.emitted["none"]) == len(words)
    assert [one.values for one in result.failed] == ["nowhere"]
    assert len(result.acked["lines"]) == len(words) - 1


@pytest.mark.parametrize("ackers", [None, 0])
def test_ticks_come_to_each_task_by_the_clock_of_the_test(ackers: int | None) -> None:
    topology = builder(ackers=ackers)
    topology.set_bolt("sum", SumAtTick(), 3).fields_grouping("lines", "line").add_configuration(
        "tickInterval", "10s"
    )
    clock = FakeTime()
    result = run_topology(topology, {"lines": Batches(["a", "a", "b"], ["c"])}, clock=clock)
    # The second batch comes before the interval is over.
    assert sorted(row.task for row in result.emitted["sum"]) == [0, 1, 2]
    assert sum(row["sum"] for row in result.emitted["sum"]) == 3
    assert result.acked["lines"] == ["a", "a", "b", "c"]
