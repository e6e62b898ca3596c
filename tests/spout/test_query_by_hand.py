"""Spark's part, played by hand: what is shipped for users' tests keeps to Spark's protocol."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.testing import MemoryKinesis, QueryByHand, SparkCheckpoint

TEXT = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
(CODE,) = [
    block for block in re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S) if "QueryByHand" in block
]


def options(zookeeper: EmbeddedZooKeeper, app: str) -> dict[str, str]:
    return {
        "streamName": "orders",
        "region": "us-east-1",
        "applicationName": app,
        "zookeeper.hosts": zookeeper.hosts,
        "startingPosition": "TRIM_HORIZON",
    }


def test_the_example_of_the_page_runs(zookeeper: EmbeddedZooKeeper, app: str) -> None:
    names: dict[str, Any] = {}
    exec(CODE.replace('"by-hand"', f'"{app}"'), names)
    names["test_a_failed_record_comes_back"](zookeeper)


def test_a_new_checkpoint_has_a_batch_0_also_where_nothing_is_to_be_read(
    zookeeper: EmbeddedZooKeeper, app: str
) -> None:
    checkpoint = SparkCheckpoint()
    kinesis = MemoryKinesis("orders")
    query = QueryByHand.start(options(zookeeper, app), kinesis, checkpoint)
    assert query.plan() is None
    assert (len(checkpoint.offsets), checkpoint.committed) == (1, 1)
    assert query.plan() is None
    assert len(checkpoint.offsets) == 1
    (shard,) = kinesis.open_shards
    kinesis.put(shard, b"news")
    assert [row.data for row in query.batch()] == [b"news"]
    query.end()


def test_a_query_that_has_ended_says_so_at_once(zookeeper: EmbeddedZooKeeper, app: str) -> None:
    kinesis = MemoryKinesis("orders")
    query = QueryByHand.start(options(zookeeper, app), kinesis)
    kinesis.put(kinesis.open_shards[0], b"one")
    assert [row.data for row in query.drain()] == [b"one"]
    with pytest.raises(AssertionError, match="no next batch: the run has drained"):
        query.planned()
    with pytest.raises(AssertionError, match="no next batch"):
        query.batch()
    query.stop()
    for call in (
        query.planned,
        query.plan,
        query.batch,
        query.rows,
        query.commit,
        query.publish,
        query.drain,
    ):
        with pytest.raises(AssertionError, match="the query has ended: start another one"):
            call()
    killed = QueryByHand.start(options(zookeeper, app), kinesis, query.checkpoint)
    killed.end()
    with pytest.raises(AssertionError, match="the query has ended"):
        killed.planned()


def test_a_batch_is_cleaned_up_after_once_the_next_one_is_logged(
    zookeeper: EmbeddedZooKeeper, app: str
) -> None:
    kinesis = MemoryKinesis("orders")
    query = QueryByHand.start(options(zookeeper, app), kinesis)
    copies = []
    for data in (b"one", b"two"):
        kinesis.put(kinesis.open_shards[0], data)
        query.planned()
        query.run._purger._executor.submit(lambda: None).result(60)
        copies.append([copy.settled for copy in query.store.changes.backups().values()])
        query.batch()
    query.end()
    # A part of it is the copy of the checkpoints.
    assert copies == [[], [1]]


def test_steps_out_of_order_say_what_comes_first(zookeeper: EmbeddedZooKeeper, app: str) -> None:
    query = QueryByHand.start(options(zookeeper, app), MemoryKinesis("orders"))
    with pytest.raises(AssertionError, match=r"plan\(\) one first"):
        query.commit()
    kinesis = query.kinesis
    kinesis.put(kinesis.open_shards[0], b"one")  # type: ignore[attr-defined]
    query.planned()
    with pytest.raises(AssertionError, match=r"batch 1 is not committed: commit\(\) it first"):
        query.plan()
    with pytest.raises(AssertionError, match="read its rows before"):
        query.publish()
    query.end()
