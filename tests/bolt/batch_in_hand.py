"""A batch of two shards as a DataFrame, with its pins in ZooKeeper: what operators need, without Kinesis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import Pin, Plan
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.reader.rows import Segment, TurnRows
from kinesis_trident.tracker.ids import tag

__all__ = ["EACH", "SHARDS", "batch_in_hand"]

SHARDS = ("shardId-000000000000", "shardId-000000000001")
EACH = 20


def segment() -> Segment:
    numbers = range(1, EACH + 1)
    columns = [
        pa.array(["k"] * EACH),
        pa.array([f"{n} x {n % 4}".encode() for n in numbers]),
        pa.array([str(n) for n in numbers]),
        pa.array([-1] * EACH, pa.int64()),
        pa.array([0] * EACH, pa.timestamp("us", tz="UTC")),
    ]
    return Segment([pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)], 1)


@contextmanager
def batch_in_hand(spark: SparkSession, hosts: str, app: str) -> Iterator[tuple[DataFrame, CurrentBatch]]:
    """Rows of two shards, `EACH` in each, and their batch with its pins."""
    client = connect(ZooKeeperConfig(hosts))
    store = SourceStore(client, Layout("/kinesis-trident", app, "lines", 1))
    epoch = store.epochs.raise_epoch("here", 1, 1)
    positions = dict.fromkeys(SHARDS, "TRIM_HORIZON")
    store.batches.put(Plan(txid=7, plan="p", streams={"lines": 1}, positions=positions, read=SHARDS), epoch)
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
        store.batches.create_pin(turn.shard, pin, epoch)
    table = pa.Table.from_batches([rows for turn in turns for rows in turn.record_batches()])
    yield spark.createDataFrame(table).coalesce(1), CurrentBatch.newest(store)
    client.stop()
    client.close()
