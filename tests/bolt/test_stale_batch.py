"""A batch without a plan of its own is not taken for another one, whose txid would be given with no rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from kinesis_trident.bolt.errors import StaleBatchError
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.reliable import _Plain, _Writer
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch, open_store
from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.nodes import Plan, SettledNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.options.source import SourceOptions


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


def begun(options: SourceOptions, txid: int) -> tuple[SourceStore, int]:
    store = open_store(options)
    epoch = store.epochs.raise_epoch("here", 1, 1)
    store.batches.put(Plan(txid=txid, plan="p", streams={options.stream_name: 1}, positions={}), epoch)
    return store, epoch


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
