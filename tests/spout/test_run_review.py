"""A query that meets resharding, retention, takeovers and lost state in the wrong moment: nothing is lost or stuck."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
from by_hand import Lives, Query, Row, numbers
from lives import eventually

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import connect
from kinesis_trident.spout.errors import (
    CheckpointMismatchError,
    DataLossError,
    ExhaustedError,
    SettledBatchError,
    StreamChangedError,
    TurnChangedError,
)
from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters
from kinesis_trident.spout.kinesis import KinesisError, Page
from kinesis_trident.spout.partition import TurnsPartition
from kinesis_trident.spout.reader.task import TurnReader
from kinesis_trident.spout.testing import MemoryKinesis

Start = Callable[..., Query]
A = "shardId-000000000000"


@pytest.fixture
def start(lives: Lives) -> Start:
    """`start(kinesis, checkpoint=None, **options)`: a life of the query; a new checkpoint by default."""
    return lives.begin


def put(kinesis: MemoryKinesis, shard: str, *numbers: int) -> list[int]:
    """Write numbers to a shard: their sequence numbers."""
    return [kinesis.put(shard, str(number).encode()) for number in numbers]


class Recreated(MemoryKinesis):
    """A stream that somebody deletes and makes again."""

    made_again = False

    def describe(self, stream: str) -> Any:
        found = super().describe(stream)
        return dataclasses.replace(found, created=found.created + 5) if self.made_again else found

    def get_records(self, iterator: str, limit: int) -> Page:
        if self.made_again:
            msg = "Invalid ShardIterator"
            raise KinesisError(msg)
        return super().get_records(iterator, limit)


def test_a_stream_recreated_while_it_is_read_stops_the_query(start: Start) -> None:
    kinesis = Recreated()
    put(kinesis, A, 1)
    query = start(kinesis)
    query.batch()
    put(kinesis, A, 2)
    kinesis.made_again = True
    with pytest.raises(StreamChangedError, match="deleted and created again"):
        query.planned()


def test_zookeeper_lost_after_a_reshard_reads_the_children_from_their_beginning(start: Start) -> None:
    kinesis = MemoryKinesis()
    put(kinesis, A, 1, 2)
    query = start(kinesis, zookeeper_root="/before")
    query.drain()
    put(kinesis, A, 3)
    left, right = kinesis.split(A)
    put(kinesis, left, 4)
    put(kinesis, right, 5)
    query.end()
    again = start(
        kinesis,
        query.checkpoint,
        zookeeper_root="/lost",
        startingPosition="LATEST",
        onCheckpointMismatch="continue",
    )
    assert numbers(again.drain())[-3:] == [3, 4, 5]


def batches(query: Query, count: int, failing: tuple[int, ...] = ()) -> list[Row]:
    """Batches until so many records have come."""
    rows: list[Row] = []
    while len(rows) < count:
        rows += query.batch(failing)
    return rows


def test_zookeeper_lost_after_a_shard_was_drained_goes_on_with_its_children(start: Start) -> None:
    kinesis = MemoryKinesis()
    put(kinesis, A, 1, 2)
    left, _ = kinesis.split(A)
    put(kinesis, left, 3)
    query = start(kinesis, zookeeper_root="/before")
    batches(query, 3)
    put(kinesis, left, 4)
    batches(query, 1)
    query.end()
    put(kinesis, left, 5)
    again = start(kinesis, query.checkpoint, zookeeper_root="/lost", onCheckpointMismatch="continue")
    assert numbers(again.drain()) == [4, 5]


def test_zookeeper_that_stands_further_than_the_offset_of_another_root_is_not_moved_back(
    start: Start,
) -> None:
    kinesis = MemoryKinesis()
    query = start(kinesis, zookeeper_root="/before")
    for number in (1, 2, 3):
        put(kinesis, A, number)
        query.batch()
    put(kinesis, A, 4)
    query.planned()
    query.end()
    # Another Spark checkpoint reads everything in fewer batches, then the first one comes.
    other = start(kinesis, zookeeper_root="/other")
    assert numbers(other.drain()) == [1, 2, 3, 4]
    other.end()
    put(kinesis, A, 5)
    with pytest.raises(CheckpointMismatchError, match="Use the checkpointLocation of this application"):
        start(kinesis, query.checkpoint, zookeeper_root="/other", onCheckpointMismatch="continue").rows()
    assert numbers(start(kinesis, other.checkpoint, zookeeper_root="/other").drain()) == [5]


def test_a_jump_over_a_settled_batch_survives_a_crash(start: Start) -> None:
    """With `continue` an old Spark checkpoint takes up ZooKeeper's plan; its replay is that plan again."""
    kinesis = MemoryKinesis()
    query = start(kinesis)
    put(kinesis, A, 1)
    query.batch()
    old = query.checkpoint.copy()
    put(kinesis, A, 2)
    query.batch()
    put(kinesis, A, 3)
    query.planned()
    query.rows()
    query.end()
    jumped = start(kinesis, old, onCheckpointMismatch="continue")
    assert jumped.planned().txid == 3
    jumped.end()
    for choice in ("stop", "continue"):
        again = start(kinesis, old, onCheckpointMismatch=choice)
        assert numbers(again.rows()) == [3]
        again.end()


def test_a_shard_past_retention_does_not_keep_its_failed_records(start: Start, tmp_path: Any) -> None:
    kinesis = MemoryKinesis()
    put(kinesis, A, 1, 2)
    query = start(kinesis, deadLetter=str(tmp_path), onExhausted="deadLetter", retryLimit="9")
    batches(query, 2, failing=(2,))
    left, right = kinesis.split(A)
    while query.run._state.shards.lineage[A].state != "drained":
        query.batch(failing=[2])
    put(kinesis, left, 3)
    put(kinesis, right, 4)
    kinesis.forget(A)
    assert numbers(query.drain()) == [3, 4]
    assert query.run.report()["retrying"] == 0
    (file,) = tmp_path.rglob("*.jsonl")
    assert "EXPIRED" in file.read_text()


def unread_shard_is_gone(start: Start, kinesis: MemoryKinesis, **given: str) -> Query:
    """A query down for longer than the retention, over a reshard."""
    put(kinesis, A, 1)
    query = start(kinesis, **given)
    batches(query, 1)
    put(kinesis, A, 2)
    query.end()
    left, _ = kinesis.split(A)
    put(kinesis, left, 3)
    kinesis.forget(A)
    return query


def test_a_shard_gone_unread_is_a_loss(start: Start) -> None:
    kinesis = MemoryKinesis()
    query = unread_shard_is_gone(start, kinesis)
    said = rf"{A} is no longer listed and was read only to AFTER_.* \d+, whose last record arrived .* h ago"
    with pytest.raises(DataLossError, match=said):
        start(kinesis, query.checkpoint, describeShardInterval="1h").plan()
    again = start(kinesis, query.checkpoint, describeShardInterval="1h", failOnDataLoss="false")
    assert numbers(again.drain()) == [3]
    report = again.run.report()
    assert report["losses"] == 1
    assert re.search(said, report["lastLosses"][0])


def test_a_parent_that_goes_before_it_was_ever_read_is_a_loss(start: Start) -> None:
    kinesis = MemoryKinesis()
    query = start(kinesis)
    query.run.initial()
    query.end()
    put(kinesis, A, 1)
    left, _ = kinesis.split(A)
    put(kinesis, left, 2)
    kinesis.forget(A)
    with pytest.raises(DataLossError, match=f"{A} is no longer listed .* TRIM_HORIZON, with no record read"):
        start(kinesis, query.checkpoint).plan()
    again = start(kinesis, query.checkpoint, failOnDataLoss="false")
    assert numbers(again.drain()) == [2]
    assert again.run.report()["losses"] == 1


def test_a_shard_that_goes_between_two_listings_is_a_loss_too(start: Start) -> None:
    kinesis = MemoryKinesis()
    put(kinesis, A, 1)
    query = start(kinesis, describeShardInterval="1h", failOnDataLoss="false")
    batches(query, 1)
    left, _ = kinesis.split(A)
    put(kinesis, left, 2)
    kinesis.forget(A)
    assert numbers(batches(query, 1)) == [2]


def test_a_planned_shard_that_goes_before_it_is_read_does_not_hold_the_query_for_ever(start: Start) -> None:
    kinesis = MemoryKinesis()
    put(kinesis, A, 1)
    query = start(kinesis)
    query.planned()
    query.end()
    left, _ = kinesis.split(A)
    put(kinesis, left, 2)
    kinesis.forget(A)
    with pytest.raises(DataLossError, match=A):
        start(kinesis, query.checkpoint).rows()
    again = start(kinesis, query.checkpoint, failOnDataLoss="false")
    assert numbers(again.drain()) == [2]


@pytest.mark.parametrize(
    "later", [{"onExhausted": "fail"}, {"onExhausted": "fail", "spout": "transactional"}]
)
def test_no_record_is_skipped_when_the_dead_letter_is_taken_away(
    start: Start, tmp_path: Any, later: dict[str, str]
) -> None:
    kinesis = MemoryKinesis()
    put(kinesis, A, 1)
    query = start(kinesis, deadLetter=str(tmp_path), onExhausted="deadLetter", retryLimit="0")
    query.batch(failing=[1])
    assert query.planned().dead
    query.end()
    again = start(kinesis, query.checkpoint, retryLimit="0", **later)
    assert again.batch() == []
    with pytest.raises(ExhaustedError):
        again.plan()
    assert again.run.report()["deadLettered"] == 0


def test_a_fenced_run_says_so_however_often_it_is_asked(
    start: Start, zookeeper: EmbeddedZooKeeper, app: str
) -> None:
    kinesis = MemoryKinesis()
    query = start(kinesis)
    newer = start(kinesis)
    query.until_replaced()
    for _ in range(3):
        with pytest.raises(FencedError, match=f"epoch {newer.run.epoch}"):
            query.plan()
    with pytest.raises(FencedError):
        query.run.purge()
    query.run.close()
    query.run.close()
    assert newer.plan() is None


def test_a_takeover_during_a_call_ends_the_session_although_no_other_call_comes(start: Start) -> None:
    kinesis = MemoryKinesis()
    put(kinesis, A, 1)
    query = start(kinesis)
    query.planned()
    client = query.run._client
    with query.run._takeover.call():
        newer = start(kinesis, query.checkpoint)
        query.until_replaced()
        assert client.connected
    # By this thread, or by the one that has noticed, if that is at it.
    eventually(lambda: not client.connected, "the session ends")
    assert numbers(newer.rows()) == [1]


def test_a_withdrawn_request_to_stop_does_not_end_the_process_at_a_later_takeover(
    start: Start, zookeeper: EmbeddedZooKeeper, app: str
) -> None:
    kinesis = MemoryKinesis()
    query = start(kinesis)
    ended: list[bool] = []
    query.run._takeover._on_replaced = lambda: ended.append(True)
    asking = connect(query.run._options.zookeeper)
    SourceStore(asking, query.run.layout).stop.ask(query.run.epoch)
    eventually(lambda: query.run._takeover._ends_when_replaced, "the request arrives")
    asking.stop()
    asking.close()
    eventually(lambda: not query.run._takeover._ends_when_replaced, "the request is withdrawn")
    start(kinesis)
    eventually(lambda: query.run._takeover._closed_for is not None, "the process has noticed the takeover")
    assert ended == []


def partitions(query: Query) -> list[TurnsPartition]:
    assert query.in_hand is not None
    return query.run.partitions(query.committed, query.in_hand)


def read(query: Query, part: TurnsPartition, kinesis: Any = None, *, look_first: bool = False) -> list[int]:
    reader = TurnReader(part, kinesis or query.kinesis, query.store, look_first=look_first)
    return [int(data) for batch in reader.rows() for data in batch.column("data").to_pylist()]


def test_nontransactional_actions_one_after_the_other_get_the_same_rows(start: Start) -> None:
    kinesis = MemoryKinesis()
    put(kinesis, A, 1)
    query = start(kinesis, spout="nontransactional")
    query.planned()
    (part,) = partitions(query)
    assert read(query, part) == [1]
    put(kinesis, A, 2)
    assert read(query, part) == [1]
    query.publish()
    query.commit()
    assert numbers(batches(query, 1)) == [2]


@pytest.mark.parametrize("first", ["longer", "shorter"])
def test_of_two_nontransactional_readings_none_loses_what_only_the_other_has(
    start: Start, first: str
) -> None:
    kinesis = MemoryKinesis()
    put(kinesis, A, 1)
    query = start(kinesis, spout="nontransactional")
    query.planned()
    (part,) = partitions(query)
    shorter = TurnReader(part, kinesis, query.store, look_first=False).rows()
    next(shorter)
    put(kinesis, A, 2)
    longer = TurnReader(part, kinesis, query.store, look_first=False).rows()
    begun = next(longer)

    def whole() -> list[int]:
        return [int(data) for rows in (begun, *longer) for data in rows.column("data").to_pylist()]

    if first == "longer":
        assert whole() == [1, 2]
        with pytest.raises(TurnChangedError, match="another task has read 2 records"):
            list(shorter)
        expected: list[int] = []
    else:
        assert list(shorter) == []
        assert whole() == [1, 2]
        expected = [2]
    query.publish()
    query.commit()
    assert numbers(query.drain()) == expected


def test_a_settled_batch_gives_no_rows(start: Start) -> None:
    kinesis = MemoryKinesis()
    put(kinesis, A, 1)
    query = start(kinesis)
    query.planned()
    (part,) = partitions(query)
    query.publish()
    query.commit()
    # Nothing of it ran, so it was an empty turn: the record comes with the next batch, not with this one too.
    assert query.planned().txid == part.txid + 1
    with pytest.raises(SettledBatchError, match=f"txid {part.txid} "):
        read(query, part)
    assert numbers(query.rows()) == [1]


def test_a_second_task_that_reaches_less_takes_no_dead_letter_away(start: Start, tmp_path: Any) -> None:
    kinesis = MemoryKinesis()
    put(kinesis, A, 1, 2, 3)
    given = {
        "deadLetter": str(tmp_path),
        "onExhausted": "deadLetter",
        "retryLimit": "0",
        "retryRangesPerShard": "1",
    }
    query = start(kinesis, maxRecordsPerFetch="1", retryBytesPerShard="1", **given)
    query.batch(failing=[1, 3])
    query.planned()
    (part,) = partitions(query)
    options = dataclasses.replace(part.options, retry_bytes_per_shard=1_000_000)
    assert read(query, dataclasses.replace(part, options=options)) == []
    letters = {letter.message_id for letter in read_dead_letters(tmp_path)}
    assert len(letters) == 2
    # Another action, or a speculative copy, that was throttled on its way.
    options = dataclasses.replace(part.options, retry_bytes_per_shard=1)
    assert read(query, dataclasses.replace(part, options=options)) == []
    assert {letter.message_id for letter in read_dead_letters(tmp_path)} == letters


@pytest.mark.parametrize("judged", [False, True])
def test_a_retried_record_that_goes_before_a_replay_is_not_taken_for_done_unjudged(
    start: Start, tmp_path: Any, *, judged: bool
) -> None:
    kinesis = MemoryKinesis()
    given = {"deadLetter": str(tmp_path), "onExhausted": "deadLetter", "retryLimit": "9"}
    first, _ = put(kinesis, A, 1, 2)
    query = start(kinesis, **given)
    batches(query, 2, failing=(1,))
    assert query.planned().retries
    assert numbers(query.rows()) == [1]
    if judged:
        query.publish()
    query.end()
    kinesis.trim(A, first)
    again = start(kinesis, query.checkpoint, **given)
    assert again.rows() == []
    again.commit()
    assert again.drain() == []
    report = again.run.report()
    assert report["retrying"] == 0
    assert report["deadLettered"] == (0 if judged else 1)
    assert ["EXPIRED" in path.read_text() for path in tmp_path.rglob("*.jsonl")] == ([] if judged else [True])


def test_a_batch_of_which_nothing_was_run_is_named_at_a_restart_and_loses_nothing(start: Start) -> None:
    """Spark leaves out a scan behind a filter that is always false, so the plan was never stored."""
    kinesis = MemoryKinesis()
    put(kinesis, A, 1)
    query = start(kinesis)
    query.planned()
    query.commit()
    query.end()
    with pytest.raises(CheckpointMismatchError, match="nothing of the batch was ever run"):
        start(kinesis, query.checkpoint).plan()
    again = start(kinesis, query.checkpoint, onCheckpointMismatch="continue")
    assert numbers(again.drain()) == [1]
