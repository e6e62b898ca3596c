"""A query that goes on after a restart, here or on another machine, on a real ZooKeeper and Kinesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from by_hand import numbers
from restarting import Start, Stream
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.checkpoint.store import atomic_writes
from kinesis_trident.checkpoint.store.fenced_nodes import FencedNodes
from kinesis_trident.spout.testing import MemoryKinesis


def test_a_batch_begun_elsewhere_comes_first_with_its_txid_plan_and_rows(
    start: Start, stream: Stream
) -> None:
    first = stream.put(20)
    older = start()
    assert numbers(older.batch()) == first
    second = stream.put(20)
    plan = older.planned()
    rows = older.rows()
    older.end()
    third = stream.put(20)
    newer = start()
    resumed = newer.planned()
    assert resumed.txid == 2
    assert (resumed.txid, resumed.plan) == (plan.txid, plan.plan)
    assert newer.rows() == rows
    assert numbers(rows) == second
    newer.publish()
    newer.commit()
    assert numbers(newer.drain()) == third


def test_a_batch_planned_and_never_logged_is_as_if_it_had_not_been(start: Start, stream: Stream) -> None:
    wanted = stream.put(20)
    older = start()
    planned = older.run.latest(older.committed, None)
    assert planned is not None
    older.end()
    newer = start()
    plan = newer.planned()
    assert plan.txid == planned.txid == 1
    assert plan.plan != planned.plan
    assert numbers(newer.batch()) == wanted


def test_a_batch_finished_but_not_settled_keeps_its_outcome_on_another_machine(
    start: Start, stream: Stream
) -> None:
    wanted = stream.put(20)
    older = start()
    rows = older.batch(failing={3, 4})
    older.end()
    newer = start()
    assert newer.planned().txid == 1
    assert newer.rows() == rows
    # The second attempt judges otherwise: the published outcome holds.
    adopted = newer.publish(row for row in rows if row[0] == 9)
    assert adopted is not None
    assert sum(len(runs) for runs in adopted.not_done.values()) == 2
    newer.commit()
    again = newer.drain()
    assert [(number, attempt) for number, _, attempt, _ in again] == [(3, 2), (4, 2)]
    assert len(rows) == len(wanted)


def test_retry_counts_go_on_on_another_machine(start: Start, stream: Stream) -> None:
    stream.put(10)
    attempts = []
    for _ in range(3):
        # Each life has a new Spark checkpoint, and settles the batch of the life before.
        life = start()
        if attempts:
            life.batch(failing={5})
        attempts += [attempt for number, _, attempt, _ in life.batch(failing={5}) if number == 5]
        life.end()
    last = start()
    last.batch(failing={5})
    assert attempts == [1, 2, 3]
    assert last.drain() == []
    assert sum(node.count for node in last.store.shards.dead_letters().values()) == 1
    assert not any(node.waiting or node.dead for node in last.store.shards.inflight().values())


def test_a_batch_at_hand_is_replayed_without_what_came_since(start: Start, stream: Stream) -> None:
    stream.put(10)
    life = start()
    life.batch(failing={1})
    second = stream.put(10)
    life.planned()
    rows = life.rows()
    life.end()
    since = stream.put(10)
    again = start(life.checkpoint)
    assert again.rows() == rows
    again.publish()
    again.commit()
    left = {1, *second, *since} - {number for number, *_ in rows}
    assert set(numbers(again.drain())) == left


class Died(BaseException):
    """Stands for a process that is no more."""


def die_in_settling(patch: pytest.MonkeyPatch) -> None:
    """From here on each shard is settled in a multi of its own, and the process dies before the second one."""
    patch.setattr(atomic_writes, "PACK_SIZE", 1)
    begin = FencedNodes.begin
    moved = []

    def until_second(self: FencedNodes, ops: Any, epoch: int) -> Callable[[], None]:
        if any(op.path.startswith(f"{self.layout.checkpoints}/") for op in ops):
            if moved:
                raise Died
            moved.append(ops)
            begin(self, ops, epoch)()
            return lambda: None
        return begin(self, ops, epoch)

    patch.setattr(FencedNodes, "begin", until_second)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_settling_that_was_cut_short_is_taken_up(
    start: Start, stream: Stream, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    stream.put(20)
    life = start()
    rows = life.batch(failing=range(0, 20, 2))
    assert {id_.partition(":")[0] for number, id_, *_ in rows if number % 2 == 0} == {
        id_.partition(":")[0] for _, id_, *_ in rows
    }
    with monkeypatch.context() as patch:
        die_in_settling(patch)
        with pytest.raises(Died):
            life.plan()
    life.end()
    later = start() if elsewhere else start(life.checkpoint)
    assert [node.txid for node in later.store.shards.checkpoints().values()] == [1]
    assert later.store.batches.settled() is None
    if elsewhere:
        assert later.batch() == rows
    again = later.drain()
    assert sorted((number, attempt) for number, _, attempt, _ in again) == [(n, 2) for n in range(0, 20, 2)]
    assert sum(node.read for node in later.store.shards.checkpoints().values()) == 20


def test_shards_that_end_in_a_settling_cut_short_are_drained(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their children are read all the same: the lineage is written after the shards."""
    memory = MemoryKinesis(shards=2)
    parents = [shard.id for shard in memory.list_shards("orders")]
    for number, shard in enumerate(parents):
        memory.put(shard, str(number).encode())
    child = memory.merge(*parents)
    memory.put(child, b"2")
    given = {"streamName": "orders"}
    life = start(kinesis=memory, **given)
    assert numbers(life.batch()) == [0, 1]
    with monkeypatch.context() as patch:
        die_in_settling(patch)
        with pytest.raises(Died):
            life.plan()
    life.end()
    later = start(life.checkpoint, kinesis=memory, **given)
    assert numbers(later.batch()) == [2]
    lineage = later.store.shards.lineage()
    assert lineage is not None
    assert {shard: lineage.shards[shard].state for shard in parents} == dict.fromkeys(parents, "drained")


def test_latest_is_resolved_once(start: Start, stream: Stream) -> None:
    """A query that dies before its first batch has not forgotten what came since."""
    life = start(startingPosition="LATEST")
    assert life.plan() is None
    at = life.store.streams.start(life.store.layout.stream, life.store.layout.created)
    life.end()
    assert at is not None
    since = stream.put(5)
    # Kinesis tells the time in whole seconds: only in another one would a new look give another answer.
    Retrying(
        stop=stop_after_delay(120), wait=wait_fixed(0.05), retry=retry_if_result(lambda later: not later)
    )(lambda: life.kinesis.describe(stream.name).server_time > at.timestamp + 1000)
    assert numbers(start(startingPosition="LATEST").drain()) == since


def test_draining_after_a_crash_reads_what_came_since(start: Start, stream: Stream) -> None:
    """Test that `availableNow` goes to the tip of now: the batch in hand saw an older one."""
    first = stream.put(10)
    life = start()
    life.planned()
    assert numbers(life.rows()) == first
    life.end()
    since = stream.put(10)
    assert numbers(start(life.checkpoint).drain()) == [*first, *since]


def test_an_older_run_writes_nothing_more(start: Start, stream: Stream) -> None:
    stream.put(10)
    older = start()
    older.planned()
    older.rows()
    newer = start(older.checkpoint)
    older.checkpoint = older.checkpoint.copy()
    older.commit()
    with pytest.raises(FencedError, match=r"a newer run .* has taken over: epoch 2"):
        older.plan()
    assert newer.store.batches.settled() is None
    assert numbers(newer.batch()) == list(range(10))
