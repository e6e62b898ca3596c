"""Very many failing records: what a batch logs and writes is bounded, by count, and does not grow with history."""

from __future__ import annotations

import json

import pytest

from benchmarks.failures import Life, speed
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.planner.offsets import offset_from_plan
from kinesis_trident.spout.planner.run import SourceRun

KIB = 1024


def test_a_speed_is_not_that_of_waiting_for_a_look(
    zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rest(_run: SourceRun, _seconds: float) -> None:
        pytest.fail("the benchmark waits")

    monkeypatch.setattr(SourceRun, "_rest", rest)
    assert speed(zookeeper.hosts, 0.0, records=20, batches=8).drained == 0


def test_a_tenth_of_ten_shards_failing_stays_within_its_bounds(zookeeper: EmbeddedZooKeeper) -> None:
    life = Life(zookeeper.hosts, shards=10)
    written = []
    for _ in range(12):
        life.kinesis.fill(400)
        before = life.wrote
        life.batch(0.1)
        written.append(life.wrote - before)
    life.settle()
    # The slower the machine, the more of them have come again.
    assert life.waiting > 1_000
    assert life.offset <= 48 * KIB
    assert life.event <= 64 * KIB
    assert max(written) <= 1024 * KIB
    life.end()


def test_a_turn_of_which_half_fails_is_written_once(zookeeper: EmbeddedZooKeeper) -> None:
    life = Life(zookeeper.hosts, shards=1)
    life.kinesis.fill(20_000)
    life.batch(0.5)
    before = life.wrote
    life.settle()
    once = life.wrote - before
    # Half of the record that a look found, and half of those that the task read.
    assert life.waiting == 10_001
    # A run has two positions, whose digits deflate to some 16 bytes each, in base64; there is next to nothing else.
    assert 300 * KIB < once < 480 * KIB
    life.clock.ahead += 3600
    plan = life.plan()
    assert plan is not None
    assert 400 < len(plan.retries["shardId-000000000000"]) < 2_000
    assert len(json.dumps(offset_from_plan(plan))) < 24 * KIB
    # Some of them come again and are settled: the others are written once more, in one piece.
    life.batch(0.0)
    # The copy of the day is kept beside the planner.
    life.run._purger._executor.submit(int).result()
    before = life.wrote
    life.settle()
    assert life.waiting == 10_001
    assert life.run.report()["retrying"] < 10_000
    assert life.wrote - before < once
    life.end()
