"""A Spark checkpoint that is older than ZooKeeper, or of another stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from by_hand import numbers
from restarting import Start, Stream, wipe
from thorough import cases

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.errors import CheckpointMismatchError, SettledBatchError, StreamChangedError

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient


def test_a_batch_at_hand_after_a_batch_that_another_checkpoint_has_settled(
    start: Start, stream: Stream, own_zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """ZooKeeper was wiped, and a new Spark checkpoint has come just as far under other plans."""
    given = {"zookeeper_hosts": own_zookeeper.hosts}
    stream.put(10)
    older = start(**given)
    older.batch()
    stream.put(10)
    older.planned()
    older.end()
    wipe(own_zookeeper, tmp_path)
    newer = start(**given)
    newer.batch()
    stream.put(10)
    newer.planned()
    newer.end()
    with pytest.raises(
        CheckpointMismatchError, match=r"txid 1 before it was settled .* by another Spark checkpoint"
    ):
        start(older.checkpoint, onCheckpointMismatch="continue", **given).rows()


@pytest.mark.parametrize("in_hand", cases(True, long=(False,)))
def test_an_older_copy_of_spark_s_checkpoint(
    start: Start, stream: Stream, caplog: pytest.LogCaptureFixture, in_hand: bool
) -> None:
    """Stop; with `continue` ZooKeeper's position is used, and nothing is read twice."""
    everything = stream.put(10)
    life = start()
    done = life.batch()
    everything += stream.put(10)
    if in_hand:
        life.planned()
    older = life.checkpoint.copy()
    for _ in range(2):
        done += life.batch(failing={15})
    life.end()
    # Settles what was finished; what it plans is never logged.
    settling = start(life.checkpoint.copy())
    settling.plan()
    settling.end()
    assert settling.run.settled == 3

    refused = start(older.copy())
    error = SettledBatchError if in_hand else CheckpointMismatchError
    with pytest.raises(error, match=r"settled.*new checkpointLocation.*onCheckpointMismatch=continue"):
        (refused.rows if in_hand else refused.plan)()
    refused.end()
    going_on = start(older, onCheckpointMismatch="continue")
    everything += stream.put(10)
    if in_hand:
        assert going_on.rows() == []
        going_on.commit()
    rows = going_on.drain()
    assert "onCheckpointMismatch=continue" in caplog.text
    assert [number for number in numbers([*done, *rows]) if number != 15] == [
        n for n in everything if n != 15
    ]
    attempts = [attempt for number, _, attempt, _ in [*done, *rows] if number == 15]
    assert attempts == list(range(1, len(attempts) + 1))
    assert len(attempts) > 1


def test_a_batch_that_another_checkpoint_has_planned_over(start: Start, stream: Stream) -> None:
    """Two Spark checkpoints with one txid: the one whose plan was stored is right, the other one stops."""
    stream.put(10)
    older = start()
    older.planned()
    older.end()
    newer = start()
    newer.planned()
    newer.rows()
    newer.end()
    stopped = start(older.checkpoint)
    with pytest.raises(CheckpointMismatchError, match=r"batches/1 holds plan.*new checkpointLocation"):
        stopped.rows()
    stopped.end()
    life = start(newer.checkpoint)
    life.batch()
    life.plan()
    life.end()
    with pytest.raises(SettledBatchError, match=r"txid 1 over, but it is settled"):
        start(older.checkpoint).rows()


def test_a_txid_that_was_settled_by_another_checkpoint(start: Start, stream: Stream) -> None:
    """Spark has committed a batch that ZooKeeper knows under the same txid with another plan."""
    stream.put(10)
    older = start()
    older.planned()
    older.end()
    newer = start()
    newer.batch()
    newer.plan()
    newer.end()
    older.checkpoint.committed = 1
    with pytest.raises(
        CheckpointMismatchError, match="txid 1 is settled already, by another Spark checkpoint"
    ):
        start(older.checkpoint).plan()


@pytest.mark.parametrize("in_hand", cases(True, long=(False,)))
def test_another_stream_under_the_same_checkpoint(
    start: Start, stream: Stream, make_stream: Callable[..., str], in_hand: bool
) -> None:
    stream.put(10)
    life = start()
    life.batch()
    if in_hand:
        stream.put(10)
        life.planned()
    life.end()
    other = start(life.checkpoint, streamName=make_stream(1), onCheckpointMismatch="continue")
    with pytest.raises(StreamChangedError, match=rf"{stream.name}.*another stream.*new checkpointLocation"):
        (other.rows if in_hand else other.plan)()


def test_a_recreated_stream_is_another_stream(start: Start, stream: Stream, kinesis: KinesisClient) -> None:
    stream.put(10)
    life = start()
    life.batch()
    life.end()
    kinesis.delete_stream(StreamName=stream.name, EnforceConsumerDeletion=True)
    kinesis.create_stream(StreamName=stream.name, ShardCount=2)
    kinesis.get_waiter("stream_exists").wait(StreamName=stream.name, WaiterConfig={"Delay": 1})
    wanted = stream.put(5)
    with pytest.raises(StreamChangedError, match="created again"):
        start(life.checkpoint).plan()
    rows = start().drain()
    assert numbers(rows) == wanted
    # A sink has txid 1 of the stream that is gone.
    assert {txid for *_, txid in rows} == {2}
