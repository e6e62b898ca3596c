"""A batch in the driver's hands, on a real ZooKeeper: what counts as seen, what failed, what is published."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import cast

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from kinesis_trident.bolt import reliable
from kinesis_trident.bolt.errors import BatchFailedError, FailedShareError, NotCoveredError, StaleBatchError
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.tracking.anchors import anchors_of
from kinesis_trident.bolt.tracking.coverage import SOURCE
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.bolt.tracking.reports import OperatorLedger, Reports
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, NotDone, Pin, Plan
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.settlement import CommittedTurn, InflightRules, settle_shard
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.spout.reader.rows import MESSAGE_ID, Segment, TurnRows
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.ids import tag
from kinesis_trident.tracker.records import Run
from kinesis_trident.tracker.retry import RetryPolicy

A, B = "shardId-000000000000", "shardId-000000000001"
NOW = 1_700_000_000_000
WIRING = {"map": (SOURCE,)}
DUE = Run("10", "12", 3, "9")


@pytest.fixture
def store(zookeeper: EmbeddedZooKeeper, app: str) -> Iterator[SourceStore]:
    client = connect(ZooKeeperConfig(zookeeper.hosts))
    yield SourceStore(client, Layout("/kinesis-trident", app, "orders", 1))
    client.stop()
    client.close()


def plan(txid: int = 7, mark: str = "p") -> Plan:
    """Shard A takes up three records again and reads new ones, shard B only reads."""
    return Plan(
        txid=txid,
        plan=mark,
        streams={"orders": 1},
        positions={A: "AFTER_SEQUENCE_NUMBER 20", B: "TRIM_HORIZON"},
        read=(A, B),
        retries={A: (DUE,)},
    )


def segment(first: int, last: int, attempt: int = 1) -> Segment:
    numbers = range(first, last + 1)
    n = len(numbers)
    columns = [
        pa.array(["k"] * n),
        pa.array([b"d"] * n),
        pa.array([str(number) for number in numbers]),
        pa.array([-1] * n, pa.int64()),
        pa.array([0] * n, pa.timestamp("us", tz="UTC")),
    ]
    return Segment([pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)], attempt)


class Turns:
    """The executors' work: turns read and pinned, operators run over them."""

    def __init__(self, store: SourceStore, epoch: int, mark: str = "p") -> None:
        self.store, self.epoch, self.mark = store, epoch, mark
        self.rows = {
            A: self.turn(A, 0, segment(10, 12, 2), segment(21, 25)),
            B: self.turn(B, 1, segment(1, 4)),
        }

    def turn(self, shard: str, index: int, *segments: Segment) -> TurnRows:
        return TurnRows("orders", shard, index, 7, tag(self.epoch, self.mark), list(segments))

    def pin(self, shard: str) -> Pin:
        rows = self.rows[shard]
        retried = shard == A
        last = "25" if retried else "4"
        pin = Pin(
            txid=7,
            plan=self.mark,
            epoch=self.epoch,
            start=plan().positions[shard],
            end=f"AFTER_SEQUENCE_NUMBER {last}",
            last=last,
            count=rows.count,
            unreadable=rows.find_unreadable(),
            fresh=rows.count - (3 if retried else 0),
            digest=rows.digest(),
            xor=rows.xor(),
            served=(3,) if retried else (),
            through="12" if retried else None,
        )
        return self.store.batches.create_pin(shard, pin, self.epoch)[0]

    def judged(
        self, shard: str, *failed: int, operator: str = "map", rows: TurnRows | None = None
    ) -> Reports:
        """One run of an operator to the end of a turn; `failed` are sequence numbers."""
        ledger = OperatorLedger(operator, 7)
        for batch in (rows or self.rows[shard]).record_batches():
            numbers = [int(text) for text in batch.column("sequenceNumber").to_pylist()]
            bad = {
                row: Failure.said("ValueError: bad") for row, number in enumerate(numbers) if number in failed
            }
            ledger.consume_records(anchors_of(batch), batch.column(MESSAGE_ID), bad)
        return ledger.reports()


@pytest.fixture
def turns(store: SourceStore) -> Turns:
    epoch = store.epochs.raise_epoch("here", 1, NOW)
    store.batches.put(plan(6, "before"), epoch)
    store.batches.put(plan(), epoch)
    return Turns(store, epoch)


def test_the_batch_in_hand_is_the_newest_plan(store: SourceStore, turns: Turns) -> None:
    batch = CurrentBatch.newest(store)
    assert batch.txid == 7
    assert batch.verdict is None


def test_without_a_plan_there_is_no_batch_in_hand(store: SourceStore) -> None:
    with pytest.raises(StaleBatchError, match="holds no plan"):
        CurrentBatch.newest(store)


def test_a_record_that_cannot_be_decoded_is_waited_for_by_nobody(store: SourceStore, turns: Turns) -> None:
    """It has no row; records beside it that fail are no neighbours."""
    turns.rows[B].leave_out([NotDone("2", "2", 1, "UNREADABLE")])
    batch, pins = CurrentBatch.newest(store), {A: turns.pin(A), B: turns.pin(B)}
    reports = turns.judged(A) | turns.judged(B, 1, 3)
    batch.facts.require_covered(WIRING, reports, pins)
    outcome = batch.facts.judge(batch.facts.failed(WIRING, reports, pins), pins, {})
    assert [(piece.first, piece.last, piece.count) for piece in outcome.not_done[B]] == [
        ("1", "1", 1),
        ("3", "3", 1),
    ]
    turns.rows[B].leave_out([NotDone("1", "4", 4, "UNREADABLE")])
    assert msgspec.structs.replace(pins[B], unreadable=turns.rows[B].find_unreadable()).rows == 0


def test_a_batch_is_covered_when_every_pinned_row_was_seen(store: SourceStore, turns: Turns) -> None:
    batch = CurrentBatch.newest(store)
    assert batch.facts.find_uncovered(WIRING, {}, batch.pins()) == [("map", A), ("map", B)]
    pins = {A: turns.pin(A)}
    assert batch.pins() == pins
    reports = turns.judged(A, 10)
    assert batch.facts.find_uncovered(WIRING, reports, pins) == [("map", B)]
    with pytest.raises(
        NotCoveredError, match=f"^the operator map did not see every record of {B}.*it reads batch 7 again"
    ):
        batch.facts.require_covered(WIRING, reports, pins)
    pins = {A: turns.pin(A), B: turns.pin(B)}
    assert batch.facts.find_uncovered(WIRING, reports, pins) == [("map", B)]
    batch.facts.require_covered(WIRING, reports | turns.judged(B), pins)


def test_a_report_of_fewer_or_other_rows_does_not_cover(store: SourceStore, turns: Turns) -> None:
    batch = CurrentBatch.newest(store)
    pins = {A: turns.pin(A), B: turns.pin(B)}
    fewer = turns.judged(B, rows=turns.turn(B, 1, segment(1, 3)))
    other = turns.judged(B, rows=turns.turn(B, 1, Segment([], 1), segment(1, 4)))
    elsewhere = turns.judged(B, rows=turns.turn(B, 0, segment(1, 4)))
    assert batch.facts.find_uncovered(WIRING, turns.judged(A) | fewer | other, pins) == [("map", B)]
    # What saw other rows of A besides does not cover A.
    assert batch.facts.find_uncovered(WIRING, turns.judged(A) | elsewhere, pins) == [("map", A), ("map", B)]


def test_an_empty_pinned_turn_needs_no_report(store: SourceStore, turns: Turns) -> None:
    batch = CurrentBatch.newest(store)
    empty = msgspec.structs.replace(turns.pin(B), count=0, fresh=0, xor=0, last=None)
    assert batch.facts.find_uncovered(WIRING, turns.judged(A), {A: turns.pin(A), B: empty}) == []


def test_reports_of_another_run_plan_batch_or_operator_are_not_heard(
    store: SourceStore, turns: Turns
) -> None:
    batch = CurrentBatch.newest(store)
    mine = turns.judged(B, 2)
    foreign = Turns(store, turns.epoch + 1).judged(B, 3)
    foreign |= Turns(store, turns.epoch, "q").judged(B, 3)
    foreign |= {key._replace(txid=6): runs for key, runs in mine.items()}
    assert batch.facts.reports(mine | foreign) == mine
    assert len(foreign) == 3
    other = turns.judged(B, 2, operator="other")
    pins = {A: turns.pin(A), B: turns.pin(B)}
    assert batch.facts.find_uncovered(WIRING, other | turns.judged(A), pins) == [("map", B)]
    assert batch.facts.failed(WIRING, other, pins) == {}


def test_a_pin_of_another_plan_does_not_count(store: SourceStore, turns: Turns) -> None:
    turns.pin(A)
    other = Turns(store, turns.epoch, "q")
    other.pin(B)
    assert list(CurrentBatch.newest(store).pins()) == [A]


def test_failures_of_all_readings_of_the_pinned_rows_count_and_no_others(
    store: SourceStore, turns: Turns
) -> None:
    # With spout=nontransactional two readings of a turn may differ: ordinals of one mean nothing in the other.
    batch = CurrentBatch.newest(store)
    pins = {A: turns.pin(A), B: turns.pin(B)}
    longer = turns.judged(B, 9, rows=turns.turn(B, 1, segment(1, 9)))
    reports = turns.judged(B, 2) | longer
    failed = batch.facts.failed(WIRING, reports, pins)
    assert batch.facts.judge(failed, pins, {}).not_done == {
        B: (NotDone("2", "2", 1, "ValueError: bad", "1"),)
    }
    assert batch.facts.failed(WIRING, longer, pins) == {}


def test_published_is_adopted_by_who_comes_next(store: SourceStore, turns: Turns) -> None:
    batch = CurrentBatch.newest(store)
    pins = {A: turns.pin(A), B: turns.pin(B)}
    outcome = batch.facts.judge({}, pins, {f"orders/{B}:3": Failure.said("full")})
    batch.publish(outcome)
    again = CurrentBatch.newest(store)
    assert again.verdict is not None
    assert again.verdict.not_done == {B: (NotDone("3", "3", 1, "full"),)}
    assert again.first_of(B, again.verdict.not_done[B][0]) == f"orders/{B}:3"
    again.publish(Verdict())
    assert again.verdict is not None
    assert again.verdict.not_done == {B: (NotDone("3", "3", 1, "full"),)}


def test_an_older_run_publishes_nothing(store: SourceStore, turns: Turns) -> None:
    batch = CurrentBatch.newest(store)
    store.epochs.raise_epoch("there", 2, NOW)
    with pytest.raises(FencedError):
        batch.publish(Verdict())
    assert store.batches.get_outcome(7) is None


def test_a_run_that_is_replaced_between_two_attempts_does_not_begin_the_second(
    store: SourceStore, turns: Turns
) -> None:
    options = SourceOptions.parse(
        {"streamName": "orders", "applicationName": store.layout.application, "zookeeper.hosts": "z"}
    )
    calls: list[int] = []

    def attempt(_rows: object, batch: CurrentBatch, _handler: BatchHandler) -> None:
        calls.append(batch.txid)
        store.epochs.raise_epoch("there", 2, NOW)
        raise BatchFailedError

    handler = BatchHandler(options, attempt, 3)
    with pytest.raises(FencedError):
        handler.process(cast(DataFrame, None), CurrentBatch.newest(store))
    assert calls == [7]


def a_share_of(store: SourceStore, most: str) -> SourceOptions:
    given = {"streamName": "orders", "applicationName": store.layout.application, "zookeeper.hosts": "z"}
    return SourceOptions.parse({**given, "maxFailedShare": most})


def test_a_plain_function_that_refuses_nothing_counts_its_records_for_a_share(
    store: SourceStore, turns: Turns
) -> None:
    fresh = sum(turns.pin(shard).fresh for shard in (A, B))
    plain = reliable._Plain(reliable._Writer(lambda rows, txid: None))
    handler = BatchHandler(a_share_of(store, "0.5"), plain, 0)
    verdict = plain(cast(DataFrame, None), CurrentBatch.newest(store), handler)
    assert verdict == Verdict()
    assert verdict.fresh == fresh > 0


def test_records_that_are_done_count_among_those_of_which_a_share_fails(
    store: SourceStore, turns: Turns
) -> None:
    options = a_share_of(store, "0.5")
    bad = Verdict({B: tuple(NotDone(str(at), str(at), 1, "ValueError: 1") for at in range(1, 10))}, 10)
    few = Verdict({B: tuple(NotDone(str(at), str(at), 1, "ValueError: 1") for at in range(1, 5))}, 5)
    verdicts = iter([few, Verdict({}, 20), few, Verdict({}, 20), bad])
    handler = BatchHandler(options, lambda *_: next(verdicts), 0, sleep=lambda _: None)
    handler._opened = store
    epoch = CurrentBatch.newest(store).epoch
    for txid in range(8, 12):
        store.batches.put(plan(txid), epoch)
        handler.process(cast(DataFrame, None), CurrentBatch.newest(store))
    store.batches.put(plan(12), epoch)
    with pytest.raises(FailedShareError, match="9 of 10 new records failed"):
        handler.process(cast(DataFrame, None), CurrentBatch.newest(store))
    verdicts = iter([Verdict({}, 20)])
    assert (noted := store.failing.get(fresh=True)) is not None
    assert noted.failed == 9
    handler.process(cast(DataFrame, None), CurrentBatch.newest(store))
    assert (noted := store.failing.get(fresh=True)) is not None
    assert noted.failed == 0


def test_what_operators_and_sink_refuse_comes_back_and_the_checkpoint_stands_just_before(
    store: SourceStore, turns: Turns
) -> None:
    batch = CurrentBatch.newest(store)
    pins = {A: turns.pin(A), B: turns.pin(B)}
    reports = turns.judged(A, 10, 21, 22) | turns.judged(B, 3)
    batch.publish(
        batch.facts.judge(
            batch.facts.failed(WIRING, reports, pins), pins, {f"orders/{A}:24": Failure.said("full")}
        )
    )
    published = store.batches.get_outcome(7)
    assert published is not None
    before = {
        A: ShardState(
            TRIM_HORIZON,
            CheckpointNode(checkpoint="9", txid=6, position="AFTER_SEQUENCE_NUMBER 20"),
            InflightNode(txid=6, waiting=(DUE,)),
        ),
        B: ShardState(TRIM_HORIZON),
    }
    settled = {
        shard: settle_shard(
            before[shard],
            CommittedTurn(plan(), shard, f"orders/{shard}", pins[shard], published.not_done[shard], NOW),
            InflightRules(RetryPolicy(), random.Random(1), 1000),
        )[0]
        for shard in (A, B)
    }
    assert {shard: result.checkpoint.checkpoint for shard, result in settled.items()} == {A: "9", B: "2"}
    assert {
        shard: [(run.first, run.last, run.count, run.prev, run.attempt) for run in result.inflight.waiting]
        for shard, result in settled.items()
    } == {
        A: [("10", "10", 1, "9", 2), ("21", "22", 2, "20", 1), ("24", "24", 1, None, 1)],
        B: [("3", "3", 1, "2", 1)],
    }
