"""A batch in hand, with its rows: what operators over Spark are tried on."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from samples_batch import EACH, SHARDS, segment

from kinesis_trident.bolt.tracking.carriers import AccumulatorCarrier
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import Pin, Plan
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.spout.reader.rows import TurnRows
from kinesis_trident.tracker.ids import tag


@pytest.fixture
def in_hand(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, request: pytest.FixtureRequest
) -> Iterator[tuple[DataFrame, CurrentBatch]]:
    """Rows of two shards, and their batch with its pins."""
    cloudpickle.register_pickle_by_value(request.module)
    client = connect(ZooKeeperConfig(zookeeper.hosts))
    store = SourceStore(client, Layout("/kinesis-trident", app, "lines", 1))
    epoch = store.raise_epoch("here", 1, 1)
    positions = dict.fromkeys(SHARDS, "TRIM_HORIZON")
    store.put_batch(Plan(txid=7, plan="p", streams={"lines": 1}, positions=positions, read=SHARDS), epoch)
    turns = [
        TurnRows("lines", shard, index, 7, tag(epoch, "p"), [segment()]) for index, shard in enumerate(SHARDS)
    ]
    for turn in turns:
        pin = Pin(
            txid=7,
            plan="p",
            epoch=epoch,
            start="TRIM_HORIZON",
            end=f"AFTER_SEQUENCE_NUMBER {EACH}",
            last=str(EACH),
            count=turn.count,
            fresh=turn.count,
            digest=turn.digest(),
            xor=turn.xor(),
        )
        store.create_pin(turn.shard, pin, epoch)
    table = pa.Table.from_batches([rows for turn in turns for rows in turn.record_batches()])
    yield spark.createDataFrame(table).coalesce(1), CurrentBatch.newest(store)
    client.stop()
    client.close()


@pytest.fixture(scope="module")
def carrier(spark: SparkSession) -> AccumulatorCarrier:
    return AccumulatorCarrier()
