"""What a held tuple lets run again: the way to the bolt that holds it, and not the branches that are done."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from kinesis_trident import ArrowBolt, BasicBolt, Bolt, KinesisSpout, TopologyBuilder
from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.names import check_name
from kinesis_trident.bolt.storm.redelivery import Holds
from kinesis_trident.bolt.storm.streams import operator_of
from kinesis_trident.bolt.tracking.batch_run import BatchRuns
from kinesis_trident.checkpoint.model.nodes import NotDone
from kinesis_trident.testing import Batches, run_topology
from kinesis_trident.tracker.records import Run

RAN: Counter[Any] = Counter()
"""Bolts are pickled by reference, so their copies count here."""


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


class Pass(BasicBolt):
    fields = "id string"

    def __init__(self, name: str) -> None:
        self.name = name

    def execute(self, tup: Any, collector: Any) -> None:
        RAN[self.name] += 1
        value = tup["data"].decode() if tup.contains("data") else tup["id"]
        RAN[self.name, value, tup.attempt, tup.redelivered] += 1
        collector.emit([value])


class Count(ArrowBolt):
    fields = "id string"

    def execute(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        RAN["arrow"] += batch.num_rows
        return batch.select(["id"])


class Hold(Bolt):
    """Holds a tuple until its partner comes: the same text in capitals."""

    fields = "id string"

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector, self.waiting = collector, dict[str, Any]()
        self.component = context.component

    def execute(self, tup: Any) -> None:
        RAN[self.component] += 1
        other = self.waiting.pop(tup["id"].lower(), None)
        if other is None:
            self.waiting[tup["id"].lower()] = tup
            return
        self.collector.emit([tup["id"].lower()], [tup, other])
        self.collector.ack(tup)
        self.collector.ack(other)


def builder(**options: Any) -> TopologyBuilder:
    made = TopologyBuilder(None)
    made.set_spout(
        "s",
        KinesisSpout(streamName="s", applicationName="a", zookeeper__hosts="zk:1", **options),
    )
    made.set_bolt("parse", Pass("parse"), 2).shuffle_grouping("s")
    return made


def audited(made: TopologyBuilder) -> None:
    made.set_bolt("audit", Pass("audit"), 2).shuffle_grouping("parse")
    made.set_bolt("below", Pass("below"), 2).shuffle_grouping("audit")
    made.set_bolt("join", Hold(), 1).global_grouping("parse")
    made.set_bolt("sink", Pass("sink")).shuffle_grouping("join")


def test_a_branch_that_is_done_runs_once_an_attempt() -> None:
    made = builder(messageTimeout="8s")
    audited(made)
    result = run_topology(made, {"s": ["x"]}, attempts=None)
    assert [one.attempt for one in result.failed] == [1, 2, 3, 4]
    assert (RAN["audit"], RAN["below"], RAN["sink"]) == (4, 4, 0)
    # It is asked again each second: what it waits for may come from anywhere.
    assert RAN["join"] > 4 * 6
    assert [RAN["audit", "x", attempt, attempt > 1] for attempt in (1, 2, 3, 4)] == [1, 1, 1, 1]
    assert RAN["parse", "x", 1, True] == 8
    # What ran again was emitted again.
    assert len(result.emitted["parse"]) == RAN["parse"]


def test_what_waited_goes_on_when_its_partner_comes() -> None:
    made = builder(messageTimeout="8s")
    audited(made)
    result = run_topology(made, {"s": Batches(["x", "y"], ["z"], ["X"])}, attempts=None)
    assert result.emitted["sink"] == [("x",)]
    assert {one.values for one in result.failed} == {"y", "z"}
    assert (RAN["audit", "x", 1, False], RAN["audit", "x", 1, True]) == (1, 0)
    assert RAN["audit", "X", 1, False] == 1
    assert sorted(result.acked["s"]) == ["X", "x"]


def test_what_a_batch_had_no_room_for_is_not_forgotten() -> None:
    def run(position: str, attempt: int) -> Run:
        return Run(first=position, last=position, count=1, attempt=attempt)

    def deliveries(txid: int, *again: str) -> dict[str, set[str]]:
        """The bolts that hold each record, by what is known of it first."""
        found: dict[str, set[str]] = {}
        for delivery, records in holds.known_in(
            runs.next(txid, 1), {"s": [run(one, 1) for one in again]}, ["join", "other"]
        ):
            for piece in records.get("s", ()):
                found.setdefault(piece.last, set(delivery.bolts))
        return {one: found[one] for one in again}

    holds, runs = Holds(), BatchRuns()
    held = {at: NotDone(at, at, 1, f"HELD (bolt {name})") for at, name in (("5", "join"), ("9", "join"))}
    holds.note(runs.next(5, 1), {}, {"s": [*held.values()]})
    assert deliveries(6, "5") == {"5": {"join"}}
    holds.note(runs.next(6, 1), {"s": [run("5", 1)]}, {"s": [NotDone("5", "5", 1, "HELD (bolt other)")]})
    assert deliveries(7, "5", "9") == {"5": {"other"}, "9": {"join"}}
    # Delivered, and not held any more.
    holds.note(runs.next(7, 1), {"s": [run("5", 2), run("9", 2)]}, {})
    assert deliveries(8, "5", "9") == {"5": set(), "9": set()}


def test_of_several_holders_each_gets_it_again() -> None:
    made = builder(messageTimeout="8s")
    audited(made)
    made.set_bolt("other", Hold()).global_grouping("parse")
    made.set_bolt("third", Hold()).global_grouping("audit")
    run_topology(made, {"s": Batches(["x"], ["X"])}, attempts=1)
    assert RAN["join"] == RAN["other"] == RAN["third"] == 3
    # It is above `third`; `below` is beside it.
    assert (RAN["audit"], RAN["below"]) == (3, 2)
    assert RAN["sink"] == 1


def test_a_failure_elsewhere_lets_the_whole_tree_run_again() -> None:
    class FailOnce(Pass):
        def execute(self, tup: Any, collector: Any) -> None:
            super().execute(tup, collector)
            if tup.attempt == 1:
                raise ValueError

    made = builder(messageTimeout="8s")
    audited(made)
    made.set_bolt("fails", FailOnce("fails")).shuffle_grouping("parse")
    result = run_topology(made, {"s": ["x"]}, attempts=2)
    assert result.failed[0].reason.startswith("ValueError")
    assert (RAN["audit", "x", 1, False], RAN["audit", "x", 2, True], RAN["audit"]) == (1, 1, 2)


@pytest.mark.parametrize("several", [False, True])
def test_an_arrow_bolt_passes_on_what_is_done(several: bool) -> None:
    made = builder(messageTimeout="8s")
    counted = made.set_bolt("arrow", Count()).shuffle_grouping("parse")
    if several:
        counted.shuffle_grouping("audit")
        made.set_bolt("audit", Pass("audit")).shuffle_grouping("parse")
    made.set_bolt("join", Hold()).global_grouping("parse")
    made.set_bolt("join below", Hold()).global_grouping("arrow")
    made.set_bolt("below", Pass("below")).shuffle_grouping("arrow")
    made.set_bolt("arrow beside", Count()).shuffle_grouping("parse")
    run_topology(made, {"s": Batches(["x"], ["X"])}, attempts=1)
    # With two inputs `join below` gets both tuples of a record, and holds none.
    assert (RAN["below"], RAN["arrow"]) == ((4, 6) if several else (2, 5))


def test_after_a_new_start_everything_runs_again() -> None:
    made = builder(messageTimeout="8s")
    audited(made)
    for _ in range(2):
        run_topology(made, {"s": Batches(["x"], ["y"])}, attempts=1)
    assert RAN["audit"] == 4


def is_valid(name: str) -> bool:
    try:
        check_name("a bolt", name)
    except TopologyError:
        return False
    return True


PLAIN = {"s", "parse", "audit", "sink"}
NAMES = (
    st.sampled_from(
        ["split", "split stream odd", "in x", "HELD", "bolt", "x, y", "a#2", "x" * 100, "é: b", "x@1"]
    )
    | st.text("ab (stream)#:", min_size=1, max_size=8)
    | st.text(min_size=1, max_size=100)
).filter(is_valid)


@given(st.lists(st.tuples(NAMES, st.just("default") | NAMES), min_size=2, max_size=4, unique=True))
def test_streams_report_under_one_name_if_and_only_if_they_are_one(streams: list[tuple[str, str]]) -> None:
    first = {"first"}
    names = {operator_of(bolt, stream, [*first, stream]) for bolt, stream in streams}
    # A bolt's first stream has its own name.
    names |= {operator_of(bolt, "first", ["first", stream]) for bolt, stream in streams}
    assert len(names) == len(streams) + len({bolt for bolt, _ in streams})


def counts(audit: str, join: str, sink: str) -> list[int]:
    """Return how often each bolt of a topology runs in which records are held, under these names."""
    RAN.clear()
    made = builder(messageTimeout="8s")
    made.set_bolt(audit, Pass("audit"), 2).shuffle_grouping("parse")
    made.set_bolt(join, Hold(), 1).global_grouping("parse")
    made.set_bolt(sink, Pass("sink")).shuffle_grouping(join)
    run_topology(made, {"s": Batches(["x", "y"], ["X"])}, attempts=1)
    return [RAN["parse"], RAN["audit"], RAN["sink"], RAN[join]]


@settings(max_examples=15, deadline=None)
@given(st.lists(NAMES.filter(lambda name: name not in PLAIN), min_size=3, max_size=3, unique=True))
def test_what_runs_again_does_not_depend_on_names(names: list[str]) -> None:
    assert counts(*names) == counts("a", "j", "k")
