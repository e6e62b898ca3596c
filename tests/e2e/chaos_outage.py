"""ZooKeeper goes away under a running query, comes back, and loses everything: what a user of Spark sees."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import A_LIFE, Job, kind, layout_of, options, put

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

pytestmark = pytest.mark.long


def settled(zookeeper: EmbeddedZooKeeper, kinesis: KinesisClient, stream: str) -> int:
    """The newest settled txid, 0 for none."""
    client = connect(ZooKeeperConfig(zookeeper.hosts))
    try:
        node = SourceStore(client, layout_of(kinesis, stream)).batches.settled()
    finally:
        client.stop()
        client.close()
    return node.txid if node else 0


def test_zookeeper_away_then_wiped(
    kinesis_server: EmbeddedKinesis, kinesis: KinesisClient, make_stream: Callable[..., str], tmp_path: Path
) -> None:
    stream = make_stream(2)
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as zookeeper:
        given = options(stream, zookeeper, kinesis_server) | {"onExhausted": "skip"}
        # The life that loses it for good is not to wait long; a machine that stands still for seconds is no loss.
        job = Job(tmp_path, given | {"zookeeper.sessionTimeout": "10s"})
        try:
            ids = put(kinesis, stream, range(A_LIFE))
            job.start(trigger={"processingTime": "0 seconds"})
            job.until(lambda: settled(zookeeper, kinesis, stream), "the first settled batch")
            zookeeper.stop()
            assert job.finish() != 0
            assert "ZooKeeperUnavailableError" in job.said()
            # A worker may have had no connection yet.
            assert re.search(f"ZooKeeper at {zookeeper.hosts} (did not answer )?within 10 s", job.said())

            zookeeper.start()
            job.options = given
            ids |= put(kinesis, stream, range(A_LIFE, 2 * A_LIFE))
            job.start()
            assert job.finish() == 0, job.tail()
            good = Counter(number for number in ids if kind(number) != "bad")
            assert Counter(row[0] for rows in job.output().values() for row in rows) == good

            zookeeper.stop()
            shutil.rmtree(tmp_path / "zookeeper" / "data")
            zookeeper.start()
            last = max(job.logged())
            ids |= put(kinesis, stream, range(2 * A_LIFE, 3 * A_LIFE))
            job.start()
            assert job.finish() != 0
            assert "CheckpointMismatchError" in job.said()
            assert f"stands at txid {last}, but ZooKeeper" in job.said()
            assert "onCheckpointMismatch=continue" in job.said()
            assert max(job.logged()) == last

            job.options = given | {"onCheckpointMismatch": "continue"}
            job.start()
            assert job.finish() == 0, job.tail()
            after = [row for txid, rows in job.output().items() if txid > last for row in rows]
            assert set(range(2 * A_LIFE, 3 * A_LIFE)) - {row[0] for row in after} == {
                number for number in range(2 * A_LIFE, 3 * A_LIFE) if kind(number) == "bad"
            }
            # Only the last batch is read again.
            assert {row[0] for row in after if row[0] < 2 * A_LIFE} <= {row[0] for row in job.output()[last]}
        finally:
            job.kill()
