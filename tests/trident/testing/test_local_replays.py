"""Failed tuples come back by the spout's own retry policy, with the clock of the test."""

from __future__ import annotations

from typing import Any

import pytest

from kinesis_trident import BasicBolt, Bolt, KinesisSpout, TopologyBuilder, string_scheme
from kinesis_trident.bolt.errors import BatchFailedError
from kinesis_trident.testing import Batches, FakeTime, run_topology

START = 1_700_000_000


class Upto(BasicBolt):
    """Fails a tuple until the attempt that it names."""

    fields = "text string, attempt int, txid bigint, arrived timestamp"

    def execute(self, tup: Any, collector: Any) -> None:
        if tup["attempt"] < int(tup["text"]):
            msg = f"attempt {tup['attempt']}"
            raise ValueError(msg)
        collector.emit([tup["text"], tup["attempt"], tup["txid"], tup["approximateArrivalTimestamp"]])


class Together(Bolt):
    """One tuple of all of its task."""

    fields = "texts array<string>"

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector, self.held = collector, []  # type: ignore[var-annotated]

    def execute(self, tup: Any) -> None:
        self.held.append(tup)

    def cleanup(self) -> None:
        self.collector.emit([[tup["text"] for tup in self.held]], self.held)
        for tup in self.held:
            self.collector.ack(tup)


def topology(**options: object) -> TopologyBuilder:
    builder = TopologyBuilder()
    given: dict[str, Any] = {"retryBackoff": "10s..1m x2", **options}
    spout = KinesisSpout(
        streamName="s", applicationName="a", zookeeper__hosts="z", scheme=string_scheme("text"), **given
    )
    builder.set_spout("spout", spout)
    builder.set_bolt("upto", Upto()).shuffle_grouping("spout")
    builder.set_bolt("together", Together(), 1).shuffle_grouping("upto")
    return builder


def test_a_failed_tuple_comes_back_until_it_is_acked_or_exhausted() -> None:
    clock = FakeTime(START)
    result = run_topology(topology(), {"spout": ["1", "3", "9", "1"]}, attempts=None, clock=clock)
    assert result.acked["spout"] == ["1", "1", "3"]
    (third,) = (row for row in result.emitted["upto"] if row.text == "3")
    assert (third.attempt, third.arrived.timestamp()) == (3, START)
    assert [(one.values, one.attempt) for one in result.failed if one.values == "9"] == [
        ("9", 1), ("9", 2), ("9", 3), ("9", 4)
    ]  # fmt: skip
    (last,) = result.exhausted
    assert last == ("spout", "9", 4, "ValueError: attempt 4 (bolt upto)", None)
    # Each batch ran when a failed tuple was due: within the bounds of the policy, at whole seconds.
    dues = sorted({one.due for one in result.failed if one.due is not None})
    assert clock.now == dues[-1]
    assert all(due == int(due) for due in dues)
    for attempt, bound in enumerate((10, 20, 40), 1):
        before = START if attempt == 1 else next(o.due for o in result.failed if o[1:3] == ("9", attempt - 1))
        (due,) = (one.due for one in result.failed if one[1:3] == ("9", attempt))
        assert before is not None
        assert due is not None
        assert before <= due <= before + bound + 1


def test_the_first_attempt_alone_is_the_default_and_a_number_bounds_them() -> None:
    once = run_topology(topology(), {"spout": ["1", "2"]})
    assert once.acked["spout"] == ["1"]
    assert [(one.values, one.attempt, one.due is None) for one in once.failed] == [("2", 1, False)]
    assert once.exhausted == []
    twice = run_topology(topology(), {"spout": ["2", "3"]}, attempts=2)
    assert twice.acked["spout"] == ["2"]
    assert sorted(twice.emitted["spout"]) == ["2", "2", "3", "3"]
    assert (len(twice.failed), twice.exhausted) == (3, [])


def test_a_limit_of_no_retries_exhausts_at_once() -> None:
    result = run_topology(topology(retryLimit=0), {"spout": ["1", "2"]}, attempts=None)
    assert [(one.values, one.attempt) for one in result.exhausted] == [("2", 1)]


def test_retries_come_with_new_tuples_of_a_later_batch() -> None:
    spout = {"spout": Batches(["2"], [], ["1", "1"])}
    result = run_topology(topology(retryBackoff="0s..0s x1"), spout, attempts=None)
    assert [row.texts for row in result.emitted["together"]] == [["2", "1", "1"]]
    # The retry has its place before the new ones, and the batch without tuples did not run.
    assert [(row.text, row.attempt, row.txid) for row in result.emitted["upto"]] == [
        ("2", 2, 2), ("1", 1, 2), ("1", 1, 2)
    ]  # fmt: skip


def test_a_transactional_spout_fails_the_batch() -> None:
    with pytest.raises(BatchFailedError, match=r"1 record failed.*spout=transactional"):
        run_topology(topology(spout="transactional"), {"spout": ["2"]})
    assert run_topology(topology(spout="transactional"), {"spout": ["1"]}).acked["spout"] == ["1"]


def test_many_tuples_fail_and_come_back_each_with_its_own_reason() -> None:
    texts = [str(1 + n % 3) for n in range(300)]
    result = run_topology(topology(), {"spout": texts}, attempts=None)
    assert len(result.acked["spout"]) == 300
    assert len(result.failed) == 300
    assert {(one.values, one.attempt, one.reason) for one in result.failed} == {
        ("2", 1, "ValueError: attempt 1 (bolt upto)"),
        ("3", 1, "ValueError: attempt 1 (bolt upto)"),
        ("3", 2, "ValueError: attempt 2 (bolt upto)"),
    }
