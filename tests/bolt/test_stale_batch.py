"""A batch of Spark is handed over with the txid of its own plan, or not at all; its first row shows whose it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from batch_in_hand import EACH, segment
from pyspark.sql import DataFrame, SparkSession

from kinesis_trident import Outcomes
from kinesis_trident.bolt.errors import StaleBatchError
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.reliable import _Plain, _Writer
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch, open_store
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.nodes import NotDone, Pin, Plan, SettledNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.reader.rows import ANCHORS, SCHEMA, Segment, TurnRows
from kinesis_trident.tracker.ids import tag

SHARD = "shardId-000000000000"


@pytest.fixture
def options(
    zookeeper: EmbeddedZooKeeper, kinesis_server: EmbeddedKinesis, make_stream: Callable[..., str], app: str
) -> SourceOptions:
    return SourceOptions.parse(
        {
            "streamName": make_stream(),
            "endpointUrl": kinesis_server.endpoint_url,
            "applicationName": app,
            "zookeeper.hosts": zookeeper.hosts,
        }
    )


def begun(options: SourceOptions, txid: int, shards: Sequence[str] = ()) -> tuple[SourceStore, int]:
    store = open_store(options)
    epoch = store.epochs.raise_epoch("here", 1, 1)
    plan = Plan(
        txid=txid,
        plan="p",
        streams={options.stream_name: 1},
        positions=dict.fromkeys(shards, "TRIM_HORIZON"),
        read=tuple(shards),
    )
    store.batches.put(plan, epoch)
    return store, epoch


class Batch:
    """A batch of one shard in the driver of a run, whose rows no class of Spark's sources holds.

    `rows` are those of the run of `epoch`; `written` has what was handed over: the txid, and the number of rows.
    """

    def __init__(self, options: SourceOptions, spark: SparkSession, segments: Sequence[Segment]) -> None:
        self.options = options
        self.store, self.epoch = begun(options, 7, [SHARD])
        self._spark, self._segments, self._stream = spark, segments, options.stream_name
        self.written: list[tuple[int, int]] = []
        write = _Writer(lambda rows, txid: self.written.append((txid, rows.count())))
        self.process = BatchHandler(options, _Plain(write), 0)
        turn = self._turn(self.epoch)
        pin = Pin(
            txid=7, plan="p", epoch=self.epoch, start="TRIM_HORIZON", end="TRIM_HORIZON", last=None, count=turn.count,
            fresh=turn.count, digest=turn.digest(), xor=turn.xor(),
        )  # fmt: skip
        self.store.batches.create_pin(SHARD, pin, self.epoch)

    def _turn(self, epoch: int) -> TurnRows:
        return TurnRows(self._stream, SHARD, 0, 7, tag(epoch, "p"), self._segments)

    def rows(self, epoch: int) -> DataFrame:
        found = list(self._turn(epoch).record_batches())
        if not found:
            return self._spark.createDataFrame([], SCHEMA)
        return self._spark.createDataFrame(pa.Table.from_batches(found))


@pytest.fixture
def batch(options: SourceOptions, spark: SparkSession) -> Batch:
    return Batch(options, spark, [segment()])


def test_rows_are_handed_over_whatever_spark_calls_what_it_reads_them_with(batch: Batch) -> None:
    batch.process(batch.rows(batch.epoch), 0)
    assert batch.written == [(7, EACH)]


def test_a_plain_query_hands_over_no_record_that_the_query_with_operators_before_it_has_failed(
    batch: Batch,
) -> None:
    """Its operators have failed neighbours, which come again together: one piece of the outcome."""
    pieces = NotDone("3", "6", 4, "a"), NotDone("9", "9", 1, "b"), NotDone("12", "14", 3, "c", "11")
    CurrentBatch.newest(batch.store).publish(Verdict({SHARD: pieces}))
    batch.process(batch.rows(batch.epoch), 0)
    assert batch.written == [(7, EACH - 8)]


def test_sinks_learn_whose_batch_it_is_and_each_attempt_is_another_one(batch: Batch) -> None:
    given: list[Outcomes] = []
    process = BatchHandler(
        batch.options, _Plain(_Writer(lambda _rows, _txid, outcomes: given.append(outcomes))), 0
    )
    for _ in range(2):
        process.process(batch.rows(batch.epoch), CurrentBatch.newest(batch.store))
    first, second = (outcomes.batch for outcomes in given)
    assert (first.home, first.txid, first.epoch) == (batch.store.layout.element, 7, batch.epoch)
    assert first == replace(second, token=first.token)
    assert first.token != second.token


def test_rows_of_another_run_are_not_handed_over(batch: Batch) -> None:
    with pytest.raises(
        StaleBatchError, match="txid 7 of epoch 1, and the current rows were read by another run"
    ):
        batch.process(batch.rows(batch.epoch + 1), 0)
    assert batch.written == []


def test_a_batch_whose_rows_are_filtered_away_in_front_is_skipped_until_the_run_is_known(
    batch: Batch,
) -> None:
    rows = batch.rows(batch.epoch)
    batch.process(rows.where("false"), 0)
    assert batch.written == []
    # No outcome is owed: what a filter drops is done.
    assert batch.store.judging.get() is None
    batch.process(rows, 1)
    batch.process(rows.where("false"), 2)
    assert batch.written == [(7, EACH), (7, 0)]


def test_rows_without_their_anchors_are_known_by_the_tasks_that_read_them(batch: Batch) -> None:
    batch.process(batch.rows(batch.epoch).drop(ANCHORS, "txid"), 0)
    assert batch.written == [(7, EACH)]


def test_a_batch_in_which_no_turn_has_a_row_is_handed_over(
    options: SourceOptions, spark: SparkSession
) -> None:
    batch = Batch(options, spark, [])
    batch.process(batch.rows(batch.epoch), 0)
    assert batch.written == [(7, 0)]


def test_a_batch_that_is_not_settled_is_in_hand(options: SourceOptions) -> None:
    store, epoch = begun(options, 7)
    store.shards.settle({}, {}, None, SettledNode(txid=6, plan="o"), epoch)
    assert CurrentBatch.newest(store).txid == 7


def test_a_settled_batch_is_not_in_hand(options: SourceOptions) -> None:
    store, epoch = begun(options, 7)
    store.shards.settle({}, {}, None, SettledNode(txid=7, plan="p"), epoch)
    with pytest.raises(StaleBatchError, match="txid 7, which is settled"):
        CurrentBatch.newest(store)


def test_no_txid_is_given_with_the_rows_of_a_skipped_batch(
    options: SourceOptions, spark: SparkSession
) -> None:
    store, epoch = begun(options, 7)
    store.shards.settle({}, {}, None, SettledNode(txid=7, plan="p"), epoch)
    written: list[int] = []
    process = BatchHandler(options, _Plain(_Writer(lambda rows, txid: written.append(txid))), 0)
    process(spark.createDataFrame([], "messageId string"), 3)
    assert written == []
    with pytest.raises(StaleBatchError):
        process(spark.createDataFrame([("orders/s:1",)], "messageId string"), 3)
