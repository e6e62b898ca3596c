"""The runbook's errors that stop a running query: records lost or exhausted, another run, ZooKeeper's data."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from batch_in_hand import segment
from by_hand import Lives, numbers
from command_line import Command
from kazoo.client import KazooClient
from lives import remove
from night import Night, entry

from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import (
    CorruptNodeError,
    FencedError,
    NewerFormatError,
    StateMissingError,
    ZooKeeperUnavailableError,
)
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.spout.errors import (
    DataLossError,
    DeadLetterError,
    ExhaustedError,
    OutcomeMissingError,
    PinnedRecordsGoneError,
    ProtocolMismatchError,
    SettledBatchError,
    SpoolError,
    StreamRecreatedError,
    TurnChangedError,
)
from kinesis_trident.spout.failed_records.retry_ranges import DeaggregateChangedError
from kinesis_trident.spout.failed_records.retry_spool import RetrySpool
from kinesis_trident.spout.reader.task import TurnReader, read_turns
from kinesis_trident.spout.testing import MemoryKinesis, ScriptedKinesis
from kinesis_trident.spout.testing.shard import aggregate

A = "shardId-000000000000"
HOUR = 3600


def put(kinesis: MemoryKinesis, *texts: int) -> None:
    for text in texts:
        kinesis.put(A, str(text).encode())


@pytest.fixture
def kinesis() -> MemoryKinesis:
    """A stream that holds 1, 2 and 3."""
    made = MemoryKinesis()
    put(made, 1, 2, 3)
    return made


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as server:
        yield server


@entry("ExhaustedError")
def test_a_record_that_failed_too_often(
    night: Night, lives: Lives, kinesis: MemoryKinesis, command: Command, tmp_path: Path
) -> None:
    given = {"retryLimit": "0", "onExhausted": "fail"}
    query = lives.begin(kinesis, **given)
    query.batch(failing=[2])
    with night.raises(ExhaustedError) as stopped:
        query.plan()
    query.end()
    night.tries("set the option `deadLetter`")
    given |= {"onExhausted": "deadLetter", "deadLetter": str(tmp_path)}
    other = lives.begin(kinesis, query.checkpoint.copy(), **given)
    other.planned()
    assert other.rows() == []
    assert list(tmp_path.rglob("*.jsonl"))
    other.end()
    night.tries("the command that the message ends with")
    said = re.search(r"`kinesis-trident ([^`]*)`", str(stopped.value))
    assert said is not None
    assert command(*shlex.split(said[1]))[0] == 0
    night.tries("start the query again")
    assert numbers(lives.begin(kinesis, query.checkpoint, **given).drain()) == [2]


@entry("DataLossError")
def test_records_that_expired_unread(night: Night, lives: Lives, kinesis: MemoryKinesis) -> None:
    query = lives.begin(kinesis)
    query.batch()
    put(kinesis, 4)
    query.end()
    left, _ = kinesis.split(A)
    kinesis.put(left, b"5")
    kinesis.forget(A)
    with night.raises(DataLossError):
        lives.begin(kinesis, query.checkpoint.copy()).plan()
    night.tries("`failOnDataLoss=false`")
    again = lives.begin(kinesis, query.checkpoint, failOnDataLoss="false")
    assert numbers(again.drain()) == [5]
    again.end()
    night.tries("Set it back afterwards")
    kinesis.put(left, b"6")
    assert numbers(lives.begin(kinesis, again.checkpoint).drain()) == [6]


@entry("FencedError")
def test_a_newer_run_of_the_application(night: Night, lives: Lives, kinesis: MemoryKinesis, app: str) -> None:
    query = lives.begin(kinesis)
    query.batch()
    newer = lives.begin(kinesis, query.checkpoint)
    newer.plan()
    with night.raises(FencedError):
        query.plan()
    night.tries("give each query its own `applicationName`")
    other = lives.begin(kinesis, applicationName=f"{app}-2")
    assert len(other.batch()) == 3
    put(kinesis, 4)
    assert numbers(newer.batch()) == [4]


@entry("StateMissingError")
def test_zookeeper_s_data_replaced_by_an_older_copy(
    night: Night, lives: Lives, kinesis: MemoryKinesis, command: Command, app: str, client: KazooClient
) -> None:
    query = lives.begin(kinesis)
    query.batch()
    query.plan()
    base = query.run.layout.base
    remove(client, base)
    put(kinesis, 4)
    with night.raises(StateMissingError):
        query.planned()
        query.rows()
    query.end()
    night.tries("`onCheckpointMismatch=continue`")
    query.checkpoint.offsets[query.checkpoint.committed :] = []
    again = lives.begin(kinesis, query.checkpoint, onCheckpointMismatch="continue")
    assert 4 in numbers(again.drain())
    # A single node that somebody has deleted.
    again.end()
    lives.begin(kinesis, again.checkpoint).end()
    client.delete(f"{base}/checkpoints", recursive=True)
    with pytest.raises(StateMissingError, match="checkpoints does not exist"):
        lives.begin(kinesis, again.checkpoint)
    night.tries("`kinesis-trident checkpoints APP backups`")
    copies = json.loads(command("checkpoints", app, "backups", "--json")[1])["rows"]
    newest = max(copy["backup"] for copy in copies if "-run-" in copy["backup"])
    assert command("checkpoints", app, "import", newest, "--yes")[0] == 0
    lives.begin(kinesis, again.checkpoint).end()


@entry("ZooKeeperUnavailableError")
def test_a_zookeeper_that_does_not_answer(
    night: Night,
    own_zookeeper: EmbeddedZooKeeper,
    kinesis: MemoryKinesis,
    app: str,
    request: pytest.FixtureRequest,
) -> None:
    night.names[own_zookeeper.hosts] = "zk1:2181"
    lives = Lives(own_zookeeper.hosts, app)
    # Also where the test fails: a client whose server is gone would keep the process from ending.
    request.addfinalizer(lives.end)
    query = lives.begin(kinesis)
    query.batch()
    for store in (query.store, query.run._store):
        store._session.timeout = 1.0
    own_zookeeper.stop()
    with night.raises(ZooKeeperUnavailableError):
        query.plan()
    query.end()
    night.tries("start the query again with the same checkpointLocation")
    own_zookeeper.start()
    night.tries(
        "`echo srvr | nc HOST 2181`: one that serves says `Mode: leader`, `follower`, `observer` or `standalone`"
    )
    host, _, port = own_zookeeper.hosts.partition(":")
    with socket.create_connection((host, int(port))) as asked:
        asked.sendall(b"srvr")
        assert b"Mode: standalone" in b"".join(iter(lambda: asked.recv(4096), b""))
    put(kinesis, 4)
    assert numbers(lives.begin(kinesis, query.checkpoint).drain()) == [4]


@entry("CorruptNodeError")
def test_a_node_that_cannot_be_read(
    night: Night, lives: Lives, kinesis: MemoryKinesis, command: Command, app: str
) -> None:
    query = lives.begin(kinesis)
    query.batch(failing=[2])
    query.plan()
    query.end()
    # Its start has kept a copy.
    query = lives.begin(kinesis, query.checkpoint)
    path = query.run.layout.inflight_of(A)
    query.store.client.set(path, b'{"v": 1, "txid": "on')
    query.end()
    with night.raises(CorruptNodeError):
        lives.begin(kinesis, query.checkpoint.copy()).plan()
    night.tries("`kinesis-trident checkpoints APP import BACKUP`")
    (backup, _, _) = command("checkpoints", app, "backups")[1].split(maxsplit=2)
    assert command("checkpoints", app, "import", backup, "--yes")[0] == 0
    query = lives.begin(kinesis, query.checkpoint)
    assert numbers(query.batch(failing=[2])) == [2]
    query.plan()
    query.store.client.set(path, b'{"v": 1, "txid": "on')
    query.end()
    night.tries("Deleting the node mends nothing")
    query.store.client.start()
    query.store.client.delete(path)
    with pytest.raises(StateMissingError, match=re.escape(path)):
        lives.begin(kinesis, query.checkpoint.copy()).plan()
    # Those of runs are whole; what a command has kept had no such node.
    listed = [line.split()[0] for line in command("checkpoints", app, "backups")[1].splitlines() if line]
    backup = next(name for name in listed if "-run-" in name)
    assert command("checkpoints", app, "import", backup, "--yes")[0] == 0
    put(kinesis, 4)
    assert sorted(numbers(lives.begin(kinesis, query.checkpoint).drain())) == [2, 4]


@entry("NewerFormatError")
def test_a_node_of_a_newer_release(night: Night, lives: Lives, kinesis: MemoryKinesis) -> None:
    query = lives.begin(kinesis)
    query.batch(failing=[2])
    query.plan()
    path = query.run.layout.inflight_of(A)
    good, _ = query.store.client.get(path)
    query.store.client.set(path, b'{"v":9,' + good[7:])
    query.end()
    with night.raises(NewerFormatError):
        lives.begin(kinesis, query.checkpoint.copy()).plan()
    night.tries("Use the newer release again")
    client = lives.begin(kinesis, applicationName=f"{query.run.layout.application}-2").store.client
    client.set(path, good)
    assert numbers(lives.begin(kinesis, query.checkpoint).drain()) == [2]


@entry("PinnedRecordsGoneError")
def test_a_replay_whose_records_are_gone(night: Night, lives: Lives) -> None:
    with ScriptedKinesis() as server:
        server.create_stream("orders")
        server.put("orders", server.shards("orders")[0], b"1")
        server.advance(13 * HOUR)
        server.put("orders", server.shards("orders")[0], b"2")
        given = {"endpointUrl": server.endpoint_url, "clientNumRetries": "0", "maxShardSkew": "off"}
        strict = given | {"spout": "transactional", "onExhausted": "fail"}
        query = lives.begin(**strict)
        query.planned()
        assert numbers(query.rows()) == [1, 2]
        query.end()
        server.advance(12 * HOUR)
        with night.raises(PinnedRecordsGoneError):
            lives.begin(checkpoint=query.checkpoint, **strict).rows()
        night.tries("`spout=opaque`")
        assert numbers(lives.begin(checkpoint=query.checkpoint, **given).rows()) == [2]
        lives.end()


@entry("StreamRecreatedError")
def test_a_stream_recreated_after_its_batch_was_planned(night: Night, lives: Lives) -> None:
    with ScriptedKinesis() as server:
        server.create_stream("orders")
        server.put("orders", A, b"1")
        given = {"endpointUrl": server.endpoint_url, "clientNumRetries": "0", "describeShardInterval": "1h"}
        # What a look finds is not all that the task asks for.
        given["maxRecordsPerFetch"] = "1"
        query = lives.begin(**given)
        query.batch()
        server.put("orders", A, b"2")
        query.planned()
        (part,) = query.run.partitions(query.committed, query.in_hand)
        server.recreate("orders")
        server.put("orders", A, b"7")
        with night.raises(StreamRecreatedError):
            query.task(part)
        query.end()
        night.tries("`failOnDataLoss=false`")
        again = lives.begin(checkpoint=query.checkpoint.copy(), failOnDataLoss="false", **given)
        assert numbers(again.drain()) == [7]
        again.end()
        night.tries("a new checkpointLocation")
        assert numbers(lives.begin(**given).drain()) == []
        lives.end()


@entry("SettledBatchError")
def test_rows_of_a_batch_read_after_it_is_settled(night: Night, lives: Lives, kinesis: MemoryKinesis) -> None:
    query = lives.begin(kinesis)
    query.planned()
    (part,) = query.run.partitions(query.committed, query.in_hand)
    query.publish()
    query.commit()
    query.planned()
    with night.raises(SettledBatchError):
        query.task(part)
    night.tries("inside its own `foreachBatch`")
    assert numbers(query.rows()) == [1, 2, 3]


@entry("OutcomeMissingError")
def test_a_batch_whose_outcome_is_missing(night: Night, lives: Lives, kinesis: MemoryKinesis) -> None:
    query = lives.begin(kinesis)
    plan = query.planned()
    rows = query.rows()
    CurrentBatch.newest(query.store).say_judging()
    query.publish(rows[:1])
    query.commit()
    # As after ZooKeeper came back from a copy that is older than the outcome.
    query.store.client.delete(query.run.layout.acks_of(plan.txid), recursive=True)
    query.end()
    with night.raises(OutcomeMissingError):
        begun = lives.begin(kinesis, query.checkpoint.copy())
        begun.plan()
    begun.end()
    night.tries("a new checkpointLocation: the batch comes once more")
    fresh = lives.begin(kinesis)
    fresh.planned()
    assert fresh.rows() == rows
    fresh.end()
    night.tries("`onCheckpointMismatch=continue`")
    again = lives.begin(kinesis, query.checkpoint, onCheckpointMismatch="continue")
    assert set(numbers(again.drain())) == {1, 2, 3}


@entry("TurnChangedError")
def test_two_readings_of_a_nontransactional_turn(night: Night, lives: Lives, app: str) -> None:
    kinesis = MemoryKinesis()
    put(kinesis, 1)
    query = lives.begin(kinesis, spout="nontransactional")
    query.planned()
    (part,) = query.run.partitions(query.committed, query.in_hand)
    shorter = TurnReader(part, kinesis, query.store, look_first=False).rows()
    next(shorter)
    put(kinesis, 2)
    assert len(query.task(part)) == 2
    with night.raises(TurnChangedError):
        list(shorter)
    night.tries("Spark tries the task again")
    assert numbers(query.task(part)) == [1, 2]
    query.end()
    night.tries("set `spout=opaque`")
    query = lives.begin(kinesis, applicationName=f"{app}-2")
    query.planned()
    (part,) = query.run.partitions(query.committed, query.in_hand)
    shorter = TurnReader(part, kinesis, query.store, look_first=False).rows()
    begun = [next(shorter)]
    put(kinesis, 3)
    assert len(query.task(part)) == sum(batch.num_rows for batch in (*begun, *shorter))


@entry("ProtocolMismatchError")
def test_an_executor_of_another_version(night: Night, lives: Lives, kinesis: MemoryKinesis) -> None:
    query = lives.begin(kinesis)
    query.planned()
    (part,) = query.run.partitions(query.committed, query.in_hand)
    older = dataclasses.replace(part, protocol=1)
    with night.raises(ProtocolMismatchError):
        list(read_turns(older, first_attempt=True))
    night.tries("Install the same version")
    assert numbers(query.task(part)) == [1, 2, 3]


@entry("DeadLetterError")
def test_a_dead_letter_folder_that_cannot_be_written(
    night: Night, lives: Lives, kinesis: MemoryKinesis, tmp_path: Path
) -> None:
    target = tmp_path / "dead-letters"
    query = lives.begin(kinesis, retryLimit="0", onExhausted="deadLetter", deadLetter=str(target))
    query.batch(failing=[2])
    query.planned()
    # At the start nothing was in its way.
    target.write_text("")
    with night.raises(DeadLetterError):
        query.rows()
    night.tries("the batch is read again")
    target.unlink()
    assert query.rows() == []
    assert list(target.rglob("*.jsonl"))


@entry("SpoolError")
def test_a_retry_folder_that_cannot_be_written(night: Night, tmp_path: Path) -> None:
    target = tmp_path / "spool"
    target.write_text("")
    spool = RetrySpool(str(target), Layout("/kinesis-trident", "orders-job", "orders", 1))
    with night.raises(SpoolError):
        spool.put(A, 7, segment().batches)
    night.tries("the batch is read again")
    target.unlink()
    spool.put(A, 7, segment().batches)
    assert list(target.rglob("*.arrow"))


@entry("DeaggregateChangedError")
def test_deaggregate_changed_while_records_wait(night: Night, lives: Lives) -> None:
    kinesis = MemoryKinesis()
    kinesis.put(A, aggregate([(b"1", "user 1"), (b"2", "user 2")]))
    query = lives.begin(kinesis)
    query.batch(failing=[2])
    query.end()
    changed = lives.begin(kinesis, query.checkpoint.copy(), deaggregate="false")
    with night.raises(DeaggregateChangedError):
        # The batch that takes up the record, which may not be the first.
        while True:
            changed.batch()
    changed.end()
    night.tries("Set `deaggregate` back")
    back = lives.begin(kinesis, changed.checkpoint)
    assert numbers(back.rows()) == [2]
    back.publish()
    back.commit()
    back.plan()
    back.end()
    night.tries("when no failed record waits and no batch is unfinished")
    kinesis.put(A, b"3")
    assert numbers(lives.begin(kinesis, back.checkpoint, deaggregate="false").drain()) == [3]
