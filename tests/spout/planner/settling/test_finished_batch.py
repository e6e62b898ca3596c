"""Test what a finished batch left in ZooKeeper: turns nobody has pinned, an outcome that is missing, late tasks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from by_hand import Lives, Query, numbers
from msgspec.structs import replace
from restarts.restarting import backup, restore
from thorough import cases

from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.checkpoint.model.nodes import NotDone, Plan
from kinesis_trident.checkpoint.store.batches import BatchStore
from kinesis_trident.checkpoint.store.shards import ShardStore
from kinesis_trident.checkpoint.zookeeper.client import connect
from kinesis_trident.spout.errors import CheckpointMismatchError, OutcomeMissingError, SettledBatchError
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.planner.settling.finished_batch import Committed, CommittedBatch, Origin
from kinesis_trident.spout.testing import MemoryKinesis

A = "shardId-000000000000"
B = "shardId-000000000001"
Start = Callable[..., Query]


@pytest.fixture
def lives(make_lives: Callable[..., Lives]) -> Lives:
    return make_lives(shardsPerTask="1")


@pytest.fixture
def kinesis() -> MemoryKinesis:
    kinesis = MemoryKinesis(shards=2)
    for number in range(10):
        kinesis.put((A, B)[number % 2], str(number).encode())
    return kinesis


def test_a_turn_that_nobody_has_pinned_is_settled_as_empty_and_gives_no_rows_later(
    lives: Lives, kinesis: MemoryKinesis
) -> None:
    query = lives.begin(kinesis)
    plan = query.planned()
    first, second = query.run.partitions(query.committed, plan)
    assert numbers(query.task(first)) == [0, 2, 4, 6, 8]
    # As with `limit`: Spark has enough, and commits.
    finished = finish(query, plan)
    assert {shard: pin.count for shard, pin in finished.pins.items()} == {A: 5, B: 0}
    # The batch is not settled yet, and a task that was cancelled wakes up.
    assert query.task(second) == []
    query.commit()
    assert numbers(query.batch()) == [1, 3, 5, 7, 9]
    assert query.run.settled == 1
    with pytest.raises(SettledBatchError, match="txid 1 of stream 'orders' is settled"):
        query.task(second)


@pytest.mark.parametrize("judges", [True, False])
def test_a_pin_that_was_deleted_stops_a_batch_of_which_none_failed(
    lives: Lives, kinesis: MemoryKinesis, judges: bool
) -> None:
    """A turn that Spark has left out has none either: ZooKeeper counts what was deleted."""
    query = lives.begin(kinesis)
    plan = query.planned()
    first, _ = query.run.partitions(query.committed, plan)
    assert numbers(query.task(first)) == [0, 2, 4, 6, 8]
    if judges:
        query.publish(())
    pin = query.store.layout.pin_of(plan.txid, A)
    query.store.client.delete(pin)
    with pytest.raises(OutcomeMissingError, match=rf"{pin} does not exist, and somebody has deleted a pin"):
        finish(query, plan)


def test_parts_of_a_large_pin_that_a_newer_run_marks_are_no_deleted_pin(
    lives: Lives, kinesis: MemoryKinesis
) -> None:
    query = lives.begin(kinesis)
    plan = query.planned()
    first, _ = query.run.partitions(query.committed, plan)
    query.task(first)
    pins = query.store.batches
    pin = pins.get_pins(plan.txid, [A])[A]
    pins.replace_pin(A, replace(pin, positions=("x" * 600_000,), epoch=0), query.run.epoch)
    pins.adopt_pin(plan.txid, A, plan.plan, query.run.epoch)
    finished = finish(query, plan)
    assert finished.pins[B].count == 0


def test_a_turn_whose_rows_nobody_took_is_read_anew(lives: Lives, kinesis: MemoryKinesis) -> None:
    query = lives.begin(kinesis)
    plan = query.planned()
    first, _ = query.run.partitions(query.committed, plan)

    def release() -> None:
        batches, epoch = query.store.batches, query.run.epoch
        batches.release_pins(batches.get_pins(plan.txid, plan.shards), epoch)

    assert numbers(query.task(first)) == [0, 2, 4, 6, 8]
    release()
    kinesis.put(A, b"10")
    assert numbers(query.task(first)) == [0, 2, 4, 6, 8, 10]
    release()
    finished = finish(query, plan)
    assert {shard: pin.count for shard, pin in finished.pins.items()} == {A: 0, B: 0}


def test_a_turn_pinned_while_its_batch_is_settled_counts(lives: Lives, kinesis: MemoryKinesis) -> None:
    query = lives.begin(kinesis)
    plan = query.planned()
    first, second = query.run.partitions(query.committed, plan)
    query.task(first)
    look = query.store.batches.read_finished

    def read_finished(*args: Any, **kinds: bool) -> Any:
        seen = look(*args, **kinds)
        assert numbers(query.task(second)) == [1, 3, 5, 7, 9]
        return seen

    query.store.batches.read_finished = read_finished  # type: ignore[method-assign]
    settled = finish(query, plan)
    assert {shard: pin.count for shard, pin in settled.pins.items()} == {A: 5, B: 5}


def test_nothing_is_pinned_of_a_plan_that_was_never_stored(lives: Lives, kinesis: MemoryKinesis) -> None:
    query = lives.begin(kinesis)
    plan = query.planned()
    # Spark has left the scan out: it never asks for the partitions.
    assert finish(query, plan).pins == {}
    query.commit()
    assert numbers(query.batch()) == list(range(10))


def finish(query: Query, plan: Plan) -> CommittedBatch:
    """Read a batch that this run has planned, and pin what nobody has processed."""
    store, epoch = query.store, query.run.epoch
    return CommittedBatch.of(store, plan, epoch, Origin(ours=True)).pin_empty(store, epoch, is_stored=False)


def judged(query: Query, *failing: int) -> None:
    """A batch that a driver judges, up to before its outcome."""
    query.planned()
    rows = query.rows()
    CurrentBatch.newest(query.store).say_judging()
    query.publish(row for row in rows if row[0] in failing)
    query.commit()


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as server:
        yield server


@pytest.mark.parametrize("first", cases(True, long=(False,)))
def test_zookeeper_from_a_copy_made_before_the_outcome_is_never_all_done(
    own_zookeeper: EmbeddedZooKeeper,
    kinesis: MemoryKinesis,
    app: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
    first: bool,
) -> None:
    lives = Lives(own_zookeeper.hosts, app)
    # Also where the test fails: a client whose server is gone would keep the process from ending.
    request.addfinalizer(lives.end)
    query = lives.begin(kinesis)
    if not first:
        judged(query)
        kinesis.put(A, b"10")
    plan = query.planned()
    rows = query.rows()
    CurrentBatch.newest(query.store).say_judging()
    backup(own_zookeeper, tmp_path)
    query.publish(rows[:3])
    query.commit()
    query.end()
    restore(own_zookeeper, tmp_path)

    with pytest.raises(CheckpointMismatchError, match=rf"txid {plan.txid}.*acks/{plan.txid} does not exist"):
        lives.begin(kinesis, query.checkpoint.copy()).plan()
    # What the error advises: the batch comes once more, as it was, and is judged again.
    again = lives.begin(kinesis)
    assert again.planned().plan == plan.plan
    assert again.rows() == rows
    again.end()
    with caplog.at_level(logging.ERROR):
        going_on = lives.begin(kinesis, query.checkpoint, onCheckpointMismatch="continue")
        assert set(numbers(going_on.drain())) >= {row[0] for row in rows}
    assert f"READ AGAIN under txid {plan.txid + 1}" in caplog.text
    lives.end()


def test_a_batch_logged_after_the_one_without_an_outcome_brings_the_records_of_both(
    own_zookeeper: EmbeddedZooKeeper,
    kinesis: MemoryKinesis,
    app: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    lives = Lives(own_zookeeper.hosts, app)
    # Also where the test fails: a client whose server is gone would keep the process from ending.
    request.addfinalizer(lives.end)
    query = lives.begin(kinesis)
    query.planned()
    rows = query.rows()
    CurrentBatch.newest(query.store).say_judging()
    backup(own_zookeeper, tmp_path)
    query.publish(rows)
    query.commit()
    kinesis.put(A, b"20")
    query.planned()
    query.end()
    restore(own_zookeeper, tmp_path)
    going_on = lives.begin(kinesis, query.checkpoint, onCheckpointMismatch="continue")
    assert set(numbers(going_on.drain())) >= {*(row[0] for row in rows), 20}
    lives.end()


def test_a_plain_run_after_one_that_judged_owes_no_outcome(lives: Lives, kinesis: MemoryKinesis) -> None:
    query = lives.begin(kinesis)
    judged(query, 3)
    query.end()
    plain = lives.begin(kinesis, query.checkpoint)
    plain.planned()
    assert numbers(plain.rows()) == [3]
    plain.commit()
    kinesis.put(A, b"10")
    plain.planned()
    assert plain.run.settled == 2


def test_a_batch_of_a_judging_run_without_an_outcome_stops_it(lives: Lives, kinesis: MemoryKinesis) -> None:
    query = lives.begin(kinesis)
    judged(query)
    kinesis.put(A, b"10")
    plan = query.planned()
    query.rows()
    query.commit()
    with pytest.raises(OutcomeMissingError, match="none counts as done"):
        finish(query, plan)
    with pytest.raises(CheckpointMismatchError):
        query.plan()
    assert query.run.settled == 1


@pytest.mark.parametrize(
    ("part", "call"),
    [
        (ShardStore, "dead_letters"),
        (ShardStore, "checkpoints"),
        (ShardStore, "lineage"),
        (BatchStore, "settled"),
    ],
)
def test_a_run_that_is_replaced_while_it_loads_says_fenced(
    zookeeper: EmbeddedZooKeeper,
    lives: Lives,
    kinesis: MemoryKinesis,
    monkeypatch: pytest.MonkeyPatch,
    part: type[ShardStore | BatchStore],
    call: str,
) -> None:
    lives.begin(kinesis).batch()
    options = lives.parsed()
    client = connect(options.zookeeper)
    real = getattr(part, call)

    def replaced(store: ShardStore | BatchStore) -> Any:
        if store._session.client is client:
            # The newer run goes on, and removes what this one is reading.
            monkeypatch.setattr(part, call, real)
            newer = lives.begin(kinesis)
            newer.planned()
            newer.end()
            raise KeyError(call)
        return real(store)

    monkeypatch.setattr(part, call, replaced)
    try:
        with pytest.raises(FencedError, match="a newer run of application"):
            SourceRun(options, kinesis, client)
    finally:
        client.stop()
        client.close()


def test_a_healthy_batch_takes_few_operations(lives: Lives, app: str) -> None:
    """3 a shard and 12: planning, reading, judging, publishing and settling, all processes together."""
    shards = 20
    kinesis = MemoryKinesis(shards=shards)
    query = lives.begin(kinesis)
    run = query.run._store
    costs = []
    for number in range(4):
        for shard in kinesis.open_shards:
            kinesis.put(shard, str(number).encode())
        before = run.requests + query.store.requests
        plan = query.planned()
        assert len(query.rows()) == shards
        # As `BatchHandler` does.
        batch = CurrentBatch.newest(query.store)
        batch.say_judging()
        query.store.epochs.check_epoch(batch.epoch)
        assert len(batch.pins()) == shards
        batch.publish(Verdict())
        query.commit()
        query.run.purge()
        costs.append(run.requests + query.store.requests - before)
        assert plan.txid == number + 1
    # The first one learns what is there, and the one after it cleans up once what earlier runs left.
    assert max(costs[2:]) <= 3 * shards + 12


def test_failures_are_counted_by_shard_and_reason_and_what_bolts_hold_has_not_failed() -> None:
    pieces = {
        "a": (
            NotDone("1", "3", 3, "no"),
            NotDone("5", "5", 1, "no"),
            NotDone("7", "8", 2, "HELD (bolt join)"),
        ),
        "b": (NotDone("1", "1", 1, "HELD_ANEW (bolt join)"),),
    }
    plan = Plan(txid=1, plan="p", streams={}, positions={})
    assert CommittedBatch(plan, {}, Committed(pieces), True, {}, {}).failures == {
        "a": Counter({"no": 4}),
        "b": Counter(),
    }
