"""Test the counts of a run: each record once in each count, in the progress, in ZooKeeper, and in the pins of turns."""

from __future__ import annotations

from itertools import pairwise

import pytest
from by_hand import Lives

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.run_status import RunCounts
from kinesis_trident.spout.acks import Acks
from kinesis_trident.spout.kinesis import IteratorExpiredError, ThrottledError
from kinesis_trident.spout.planner.watching.counting import add_failure
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis
from kinesis_trident.tracker.failure import error_class
from kinesis_trident.tracker.few_failures import MAX_REASONS

A = "shardId-000000000000"


def test_a_record_is_acked_retried_exhausted_and_dead_lettered_once(lives: Lives) -> None:
    lives.clock = time = FakeTime()
    kinesis = MemoryKinesis(clock=time.milliseconds)
    for number in range(4):
        kinesis.put(A, str(number).encode())
    query = lives.begin(kinesis)
    query.planned()
    kinesis.fail(A, IteratorExpiredError("too old"), ThrottledError("slow down"))
    said = []
    while not said or said[-1].get("deadLettered") != 1:
        query.batch(failing=[0])
        query.plan()
        said.append(query.run.report()["counts"])
        time.sleep(2)
    last = said[-1]
    # One of four fails twice: delivered again once, then it is on its way to the dead letter.
    assert (last["acked"], last["failed"], last["retried"]) == (3, {"ValueError": 2}, 1)
    assert (last["exhausted"], last["deadLettered"], last["bytes"]) == (1, 1, 4)
    assert (last["throttles"], last["renewals"]) == (1, 1)
    assert last["batches"] >= 3
    assert last["settleSeconds"] >= last["lastSettleSeconds"] > 0
    assert last["operations"] > last["lastOperations"] > 0
    assert last["written"] > last["lastWritten"] > 0
    for before, after in pairwise(said):
        counted = [name for name in before if not name.startswith("last") and name != "failed"]
        assert [name for name in counted if after[name] < before[name]] == []


def test_records_that_are_acked_and_failed_by_name_are_counted(
    lives: Lives, zookeeper: EmbeddedZooKeeper
) -> None:
    lives.clock = time = FakeTime()
    kinesis = MemoryKinesis(clock=time.milliseconds)
    for number in range(5):
        kinesis.put(A, str(number).encode())
    # Beside this clock, which stands still, the source counts the seconds that pass: hours are far from them.
    query = lives.begin(kinesis, ackMode="explicit", messageTimeout="1h", retryLimit="0")
    rows = query.batch()
    query.plan()
    assert "acked" not in query.run.report()["counts"]
    acks = Acks(query.run.layout.application, {"zookeeper.hosts": zookeeper.hosts})
    acks.ack([rows[0][1], rows[1][1]])
    acks.fail([rows[2][1]], "KeyError: 'id'")
    acks.fail([rows[3][1]], "no such order", retry=False)
    acks.close()
    # One shard: its requests are taken in together.
    while sum(query.run.report().get("acks", {}).values()) < 5:
        if query.in_hand is None:
            query.plan()
        else:
            query.batch()
    assert query.run.report()["counts"]["acked"] == 2
    assert query.run.report()["counts"]["failed"] == {"ACKS_FAIL": 1, "PERMANENT": 1}
    time.sleep(2 * 3600)
    if query.in_hand is not None:
        query.batch()
    query.plan()
    counts = query.run.report()["counts"]
    assert (counts["timedOut"], counts["exhausted"]) == (1, 3)
    assert counts["failed"] == {"ACKS_FAIL": 1, "PERMANENT": 1, "TIMEOUT": 1}


def test_the_classes_of_failures_are_few() -> None:
    counts = RunCounts()
    for number in range(100):
        add_failure(counts, f"Error{number}", 2)
    assert len(counts.failed) == MAX_REASONS + 1
    assert counts.failed["other"] == 2 * (100 - MAX_REASONS)


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("ValueError: bad amount 12", "ValueError"),
        ("my.package.Error: x", "my.package.Error"),
        ("TIMEOUT (bolt join)", "TIMEOUT"),
        ("WORKER_DIED", "WORKER_DIED"),
        ("order 4711 is bad", "other"),
        ("", "other"),
        ("x" * 65, "other"),
    ],
)
def test_a_reason_is_counted_by_its_class(reason: str, name: str) -> None:
    assert error_class(reason) == name
