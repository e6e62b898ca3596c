"""The runbook's errors at a start: checkpoints that do not fit, ZooKeeper, streams read together, Java."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import samples
from by_hand import Lives, numbers
from command_line import Command
from night import Night, entry
from quota_server import MeanZooKeeper, limit
from test_several_streams import MemoryStreams

from kinesis_trident import Acks
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper, free_port
from kinesis_trident.checkpoint.embedded.java import JavaMissingError, find_java
from kinesis_trident.checkpoint.errors import (
    BatchMissingError,
    CheckpointError,
    CheckpointMovedBackError,
    EmbeddedServerError,
    HomeError,
    MigrationError,
    NodeTooLargeError,
    PlanConflictError,
    RenamedError,
    TakeoverRefusedError,
    ZooKeeperAccessError,
    ZooKeeperConfigError,
    ZooKeeperRefusedError,
)
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import DeadLettersNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect, connected
from kinesis_trident.checkpoint.zookeeper.operations import Create
from kinesis_trident.checkpoint.zookeeper.session import REQUEST_LIMIT, Session
from kinesis_trident.console.moving.foreign import System
from kinesis_trident.console.moving.storm import StormPaths, read_storm
from kinesis_trident.spout.errors import AckError, CheckpointMismatchError, OffsetError, StreamChangedError
from kinesis_trident.spout.testing import MemoryKinesis, ScriptedKinesis
from kinesis_trident.tracker.errors import BackoffError, DelayError, OrderError, UnknownRunError
from kinesis_trident.tracker.open_shard import OpenShard
from kinesis_trident.tracker.position_keys import unpack
from kinesis_trident.tracker.records import Run
from kinesis_trident.tracker.retry import Backoff, Fates, RetryPolicy
from kinesis_trident.tracker.settling import TurnFacts, settle

A = "shardId-000000000000"
ROOT = Path(__file__).parents[2]
NOW = 1_700_000_000_000


@pytest.fixture
def kinesis() -> MemoryKinesis:
    """A stream that holds 1, 2 and 3."""
    made = MemoryKinesis()
    for number in (1, 2, 3):
        made.put(A, str(number).encode())
    return made


@pytest.fixture
def store(zookeeper: EmbeddedZooKeeper, app: str) -> Iterator[SourceStore]:
    client = connect(ZooKeeperConfig(zookeeper.hosts))
    yield SourceStore(client, Layout("/kinesis-trident", app, "orders", NOW))
    client.stop()
    client.close()


@entry("CheckpointMismatchError")
def test_an_older_copy_of_spark_s_checkpoint(night: Night, lives: Lives, kinesis: MemoryKinesis) -> None:
    query = lives.begin(kinesis)
    query.batch()
    older = query.checkpoint.copy()
    for number in (4, 5):
        kinesis.put(A, str(number).encode())
        query.batch()
    query.plan()
    query.end()
    with night.raises(CheckpointMismatchError):
        lives.begin(kinesis, older.copy()).plan()
    night.tries("use the checkpointLocation of the application's last run")
    kinesis.put(A, b"6")
    assert numbers(lives.begin(kinesis, query.checkpoint).drain()) == [6]
    kinesis.put(A, b"7")
    night.tries("`onCheckpointMismatch=continue`")
    assert numbers(lives.begin(kinesis, older, onCheckpointMismatch="continue").drain()) == [7]
    night.tries("a new checkpointLocation")
    kinesis.put(A, b"8")
    fresh = lives.begin(kinesis)
    (last,) = fresh.batch()
    fresh.end()
    night.tries("comes once more, with its txid")
    assert lives.begin(kinesis).drain() == [last]
    kinesis.put(A, b"9")
    fresh = lives.begin(kinesis)
    (last,) = fresh.batch()
    fresh.end()
    assert lives.begin(kinesis, query.checkpoint.copy(), onCheckpointMismatch="continue").drain() == [last]


@entry("RenamedError")
def test_an_application_with_another_name(
    night: Night, lives: Lives, kinesis: MemoryKinesis, command: Command, app: str
) -> None:
    query = lives.begin(kinesis)
    query.batch()
    query.end()
    assert command("rename", app, f"{app}-new", "--yes")[0] == 0
    with night.raises(RenamedError):
        lives.begin(kinesis, query.checkpoint)
    night.tries("Use the new name")
    kinesis.put(A, b"7")
    query = lives.begin(kinesis, query.checkpoint, applicationName=f"{app}-new")
    assert numbers(query.drain()) == [7]
    query.end()
    night.tries("run `kinesis-trident rename NEW OLD`")
    assert command("rename", f"{app}-new", app, "--yes")[0] == 0
    assert lives.begin(kinesis, query.checkpoint).drain() == []


@entry("PlanConflictError")
def test_another_plan_of_the_same_txid(night: Night, lives: Lives, kinesis: MemoryKinesis) -> None:
    older = lives.begin(kinesis)
    older.planned()
    older.end()
    newer = lives.begin(kinesis)
    newer.planned()
    newer.rows()
    newer.end()
    begun = lives.begin(kinesis, older.checkpoint)
    with night.raises(PlanConflictError):
        begun.store.batches.put(older.checkpoint.at(len(older.checkpoint.offsets)), begun.run.epoch)
    begun.end()
    night.tries("the batch in ZooKeeper comes first, with its txid and its rows")
    fresh = lives.begin(kinesis)
    assert fresh.planned().txid == 1
    assert numbers(fresh.rows()) == [1, 2, 3]
    fresh.end()
    night.tries("the checkpointLocation of the application's last run")
    assert numbers(lives.begin(kinesis, newer.checkpoint).batch()) == [1, 2, 3]


@entry("OffsetError")
def test_the_offset_of_a_later_release(night: Night, lives: Lives, kinesis: MemoryKinesis, app: str) -> None:
    query = lives.begin(kinesis)
    query.batch()
    query.end()
    later = query.checkpoint.copy()
    later.offsets = [json.dumps(json.loads(text) | {"v": 9}) for text in later.offsets]
    with night.raises(OffsetError):
        lives.begin(kinesis, later).plan()
    night.tries("a new checkpointLocation")
    kinesis.put(A, b"4")
    fresh = lives.begin(kinesis)
    assert numbers(fresh.drain()) == [1, 2, 3, 4]
    fresh.end()
    night.tries("Use the release that wrote it")
    other = lives.begin(kinesis, applicationName=f"{app}-2")
    other.batch()
    other.end()
    kinesis.put(A, b"5")
    assert numbers(lives.begin(kinesis, other.checkpoint, applicationName=f"{app}-2").drain()) == [5]


@entry("StreamChangedError")
def test_another_stream_under_the_same_checkpoint(night: Night, lives: Lives, app: str) -> None:
    kinesis = MemoryStreams("orders", "payments")
    kinesis.put("orders", 1)
    kinesis.put("payments", 2)
    query = lives.begin(kinesis)
    query.batch()
    query.end()
    with night.raises(StreamChangedError):
        lives.begin(kinesis, query.checkpoint, streamName="payments").plan()
    night.tries("a new checkpointLocation")
    assert numbers(lives.begin(kinesis, streamName="payments").drain()) == [2]
    lives.end()

    with ScriptedKinesis() as server:
        given = {"endpointUrl": server.endpoint_url, "applicationName": f"{app}-2"}
        server.create_stream("orders")
        server.put("orders", A, b"1")
        query = lives.begin(**given)
        query.batch()
        query.end()
        server.recreate("orders")
        server.put("orders", A, b"7")
        with pytest.raises(StreamChangedError):
            lives.begin(checkpoint=query.checkpoint.copy(), **given).plan()
        night.tries("set `failOnDataLoss=false` to go on with its first record")
        again = lives.begin(checkpoint=query.checkpoint.copy(), failOnDataLoss="false", **given)
        assert numbers(again.drain()) == [7]
        night.tries("For a stream that was created again, too")
        server.put("orders", A, b"8")
        assert 8 in numbers(lives.begin(**given).drain())
        lives.end()


@entry("HomeError")
def test_a_stream_that_joins_others_with_a_batch_that_is_not_settled(night: Night, lives: Lives) -> None:
    kinesis = MemoryStreams("orders", "payments")
    kinesis.put("orders", 1)
    alone = lives.begin(kinesis)
    alone.batch()
    with night.raises(HomeError):
        lives.begin(kinesis, alone.checkpoint, streamName="orders,payments")
    night.tries("`kinesis_trident.stop(query)`")
    settling = lives.begin(kinesis, alone.checkpoint)
    settling.run.settle_finished(settling.committed)
    kinesis.put("payments", 5)
    together = lives.begin(kinesis, settling.checkpoint, streamName="orders,payments")
    assert numbers(together.drain()) == [5]


@entry("TakeoverRefusedError")
def test_runs_that_keep_taking_over(night: Night, store: SourceStore) -> None:
    epoch = store.epochs.raise_epoch("worker-1", 11, NOW)
    for _ in range(3):
        older, epoch = epoch, store.epochs.raise_epoch("worker-2", 22, NOW)
        store.epochs.report_fenced(older)
    with night.raises(TakeoverRefusedError):
        store.epochs.raise_epoch("worker-3", 33, NOW)
    night.tries("delete the nodes below `fenced`")
    for name in store.client.get_children(store.layout.fenced):
        store.client.delete(f"{store.layout.fenced}/{name}")
    assert store.epochs.raise_epoch("worker-3", 33, NOW) == epoch + 1
    night.tries("Give each query its own `applicationName`")
    other = SourceStore(store.client, replace(store.layout, application=f"{store.layout.application}-2"))
    assert other.epochs.raise_epoch("worker-2", 22, NOW) == 1


@entry("ZooKeeperConfigError")
def test_a_login_that_is_not_of_the_form(night: Night, lives: Lives, kinesis: MemoryKinesis) -> None:
    with night.raises(ZooKeeperConfigError):
        lives.begin(kinesis, zookeeper_tls_ca="/etc/ssl/zookeeper-ca.pem")
    night.tries("Correct the option")
    assert len(lives.begin(kinesis).batch()) == 3


@entry("ZooKeeperAccessError")
def test_nodes_that_another_login_has_made(night: Night, lives: Lives, kinesis: MemoryKinesis) -> None:
    given = {"zookeeper_digest_password": "orders:secret"}
    query = lives.begin(kinesis, **given)
    query.batch()
    query.end()
    with night.raises(ZooKeeperAccessError):
        lives.begin(kinesis, query.checkpoint.copy()).plan()
    night.tries("`zookeeper.digest.password`")
    kinesis.put(A, b"4")
    assert numbers(lives.begin(kinesis, query.checkpoint, **given).drain()) == [4]


@entry("ZooKeeperRefusedError")
def test_a_quota_that_is_met(night: Night, tmp_path: Path, kinesis: MemoryKinesis, app: str) -> None:
    with MeanZooKeeper(tmp_path) as server, connected(ZooKeeperConfig(server.hosts)) as client:
        lives = Lives(server.hosts, app)
        limit(client, "/kinesis-trident", 1)
        with night.raises(ZooKeeperRefusedError):
            lives.begin(kinesis)
        night.tries("`setquota`")
        limit(client, "/kinesis-trident", 1000)
        assert lives.begin(kinesis).batch()
        lives.end()


@entry("EmbeddedServerError")
def test_a_port_that_is_in_use(night: Night, zookeeper: EmbeddedZooKeeper) -> None:
    with night.raises(EmbeddedServerError):
        EmbeddedZooKeeper(port=zookeeper.port).start()
    night.tries("Choose another port")
    with EmbeddedZooKeeper(port=free_port()) as other:
        assert other.running


@entry("JavaMissingError")
def test_a_machine_without_java(night: Night, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = find_java().parent.parent
    with monkeypatch.context() as patch:
        patch.delenv("JAVA_HOME", raising=False)
        patch.setenv("PATH", str(tmp_path))
        patch.setattr("kinesis_trident.checkpoint.embedded.java.find_spec", lambda _: None)
        with night.raises(JavaMissingError):
            find_java()
        night.tries("set JAVA_HOME to one")
        patch.setenv("JAVA_HOME", str(home))
        assert find_java().parent.parent == home


@entry("MissingPackageError")
def test_a_python_without_pyspark(night: Night) -> None:
    program = "import sys; sys.modules['pyspark'] = None; import kinesis_trident; kinesis_trident.reliable"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT
    )
    night.shows(done.stderr.splitlines()[-1])


@entry("BackoffError")
def test_a_backoff_that_is_not_of_the_form(night: Night) -> None:
    with night.raises(BackoffError):
        Backoff.parse("1s to 60s")
    night.tries("`1s..60s x2`")
    assert Backoff.parse("1s..60s x2").cap_ms == 60_000


@entry("AckError")
def test_an_ack_of_what_is_no_message_id(
    night: Night, lives: Lives, kinesis: MemoryKinesis, app: str, zookeeper: EmbeddedZooKeeper
) -> None:
    query = lives.begin(kinesis, ackMode="explicit")
    ids = [row[1] for row in query.batch()]
    with Acks(app, {"zookeeper.hosts": zookeeper.hosts}) as acks:
        with night.raises(AckError):
            acks.ack(["4711", *ids])
        night.tries("column `messageId`")
        assert acks.ack(ids) == 3


@entry("DelayError")
def test_a_delay_without_a_unit(
    night: Night, lives: Lives, kinesis: MemoryKinesis, app: str, zookeeper: EmbeddedZooKeeper
) -> None:
    query = lives.begin(kinesis, ackMode="explicit")
    first, second, third = (row[1] for row in query.batch())
    with Acks(app, {"zookeeper.hosts": zookeeper.hosts}) as acks:
        with night.raises(DelayError):
            acks.fail([first], "busy", after="10")
        night.tries("a duration with its unit, such as `10m`")
        acks.fail([first], "busy", after="10m")
        night.tries("Leave `after` out beside `retry=False`")
        acks.fail([second], "no such customer", retry=False)
        acks.ack([third])
    query.plan()
    shard = query.run.layout.name_of(query.run.layout.key_of(A))
    node = query.store.shards.inflight()[shard]
    assert [run.failures[-1].text for run in (*node.waiting, *node.dead)] == [
        "AFTER 600s: busy",
        "PERMANENT: no such customer",
    ]


@entry("MigrationError")
def test_a_storm_layout_that_is_not_there(night: Night, store: SourceStore, app: str) -> None:
    paths = StormPaths(System.STORM_KINESIS, f"/{app}", "orders")
    with night.raises(MigrationError):
        read_storm(store.client, paths)
    night.tries("Check prefix")
    store.client.create(f"/{app}/orders/{A}", b'{"committedSequenceNumber": "7"}', makepath=True)
    assert read_storm(store.client, paths).positions == {A: "AFTER_SEQUENCE_NUMBER 7"}


@entry("BatchMissingError")
def test_a_batch_whose_plan_is_gone(night: Night, store: SourceStore) -> None:
    epoch = store.epochs.raise_epoch("worker-1", 11, NOW)
    with night.raises(BatchMissingError):
        store.batches.create_pin(A, samples.pin(epoch), epoch)


@entry("CheckpointMovedBackError")
def test_a_checkpoint_that_would_move_back(night: Night, store: SourceStore) -> None:
    epoch = store.epochs.raise_epoch("worker-1", 11, NOW)
    store.shards.settle({A: (samples.checkpoint(1, 10), None)}, {}, None, samples.settled(1), epoch)
    with night.raises(CheckpointMovedBackError):
        store.shards.settle({A: (samples.checkpoint(2, 9), None)}, {}, None, samples.settled(2), epoch)


@entry("CheckpointError")
def test_a_dead_letter_without_its_shard(night: Night, store: SourceStore) -> None:
    epoch = store.epochs.raise_epoch("worker-1", 11, NOW)
    with night.raises(CheckpointError):
        store.shards.settle(
            {}, {A: DeadLettersNode(count=1, target="/mnt/orders")}, None, samples.settled(1), epoch
        )


@entry("NodeTooLargeError")
def test_a_request_that_is_too_large(night: Night, store: SourceStore) -> None:
    path = f"{store.layout.inflight}/{A}"
    with night.raises(NodeTooLargeError):
        Session(store.client, 60).commit([Create(path, b"x" * REQUEST_LIMIT)])


@entry("OrderError")
def test_positions_that_cannot_be_read(night: Night) -> None:
    with night.raises(OrderError):
        unpack("4711")


@entry("UnknownRunError")
def test_a_run_that_the_tracker_does_not_know(night: Night) -> None:
    facts = TurnFacts(due=[(Run("10", "12", 3, "9"), True)], served=[3])
    with night.raises(UnknownRunError):
        settle(OpenShard(), facts, Fates(RetryPolicy(), NOW, random.Random(1)))
