"""Records acked by another process after their batch, over a SIGKILL to all of the query's processes and restarts."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import PATIENCE, Job, layout_of, options, put
from kazoo.client import KazooClient
from moto_in_hand import MotoInHand
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from stage import Stage

from kinesis_trident import Acks, reliable, stop
from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.testing import aggregate

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

# Two lives of a job; each waits as the harness has it.
pytestmark = pytest.mark.timeout(1200)

CONTINUOUSLY = {"processingTime": "200 milliseconds"}
TELL = """
import json, sys
from kinesis_trident import Acks
app, op, ids, options = json.load(sys.stdin)
with Acks(app, options) as acks:
    print(acks.ack(ids) if op == "ack" else acks.fail(ids, "the warehouse said no"))
"""


@pytest.fixture
def job(
    kinesis: KinesisClient, kinesis_server: EmbeddedKinesis, zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> Iterator[Job]:
    stream = f"acked-{uuid.uuid4().hex[:12]}"
    kinesis.create_stream(StreamName=stream, ShardCount=2)
    kinesis.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    given = options(stream, zookeeper, kinesis_server)
    one = Job(tmp_path, {**given, "ackMode": "explicit", "messageTimeout": "1h"})
    yield one
    one.kill()


def tell(job: Job, op: str, ids: list[str]) -> None:
    """Ack or fail records in a process of its own, as a sink would that confirms later."""
    said = subprocess.run(
        [sys.executable, "-c", TELL],
        input=json.dumps([job.options["applicationName"], op, ids, job.options]),
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert int(said.stdout) == len(ids)


@pytest.mark.long
def test_acks_of_another_process_outlive_a_kill_and_what_failed_comes_back(
    job: Job, kinesis: KinesisClient, keeper: KazooClient
) -> None:
    """tests/spout/test_acks.py and the model have lives without Spark, tests/guides another process that acks."""
    stream = job.options["streamName"]
    # All good ones: the job fails some others of each forty by itself.
    ids = put(kinesis, stream, range(13, 23))
    store = SourceStore(keeper, layout_of(kinesis, stream))

    def unacked() -> int:
        return sum(run.count for node in store.shards.inflight().values() for run in node.pending)

    def written(attempt: int) -> set[int]:
        return {i for rows in job.output().values() for i, _, times in rows if times == attempt}

    job.start(trigger=CONTINUOUSLY)
    job.until(lambda: unacked() == len(ids), "all good records to be in flight")
    tell(job, "ack", [ids[i] for i in (13, 14, 15)])
    job.until(lambda: unacked() == len(ids) - 3, "the acks to be taken in")
    job.kill()
    tell(job, "ack", [ids[i] for i in (16, 17)])

    job.start(trigger=CONTINUOUSLY)
    job.until(lambda: unacked() == len(ids) - 5, "the acks of the time between to be taken in")
    assert not written(2)
    tell(job, "fail", [ids[i] for i in range(18, 23)])
    job.until(lambda: written(2) == set(range(18, 23)), "what failed, again")
    tell(job, "ack", [ids[i] for i in ids if i not in range(13, 18)])
    tips = {
        shard: str(max(int(id_.rpartition(":")[2]) for id_ in ids.values() if shard in id_))
        for shard in shards(ids)
    }
    job.until(
        lambda: (
            tips
            == {shard: node.checkpoint for shard, node in store.shards.checkpoints().items() if shard in tips}
        ),
        "the checkpoints at the ends",
    )
    assert unacked() == 0
    times: dict[str, set[int]] = {}
    for message_id, attempt, _ in job.deliveries():
        times.setdefault(message_id, set()).add(attempt)
    assert all(times[ids[i]] == {1} for i in range(13, 18))


def shards(ids: dict[int, str]) -> set[str]:
    return {id_.rpartition("/")[2].partition(":")[0] for id_ in ids.values()}


def test_several_streams_user_records_and_spooled_retries_wait_for_their_acks(
    own_stage: Callable[..., Stage], moto: MotoInHand
) -> None:
    """Two streams, one of them with an aggregate; acks while the query is down; the bound is in the progress."""
    stage, other = own_stage(), own_stage()
    plain = stage.put(["a", "flaky", "b"])
    answer = other.client.put_record(
        StreamName=other.stream,
        Data=aggregate((text, "k") for text in (b"u0", b"u1", b"u2")),
        PartitionKey="k",
    )
    users = [f"{other.stream}/{answer['ShardId']}:{answer['SequenceNumber']}:{sub}" for sub in range(3)]
    shards = [f"{one.stream}/{one.shard()}" for one in (stage, other)]
    options = {
        "streamName": f"{stage.stream},{other.stream}",
        "ackMode": "explicit",
        "messageTimeout": "1h",
        "retrySpool": stage.at("spool"),
        "maxInflightRecords": 3,
    }
    seen: set[tuple[str, str, int]] = set()

    def parse(record):  # type: ignore[no-untyped-def]
        if record.data == b"flaky" and record.attempt == 1:
            raise ValueError("flaky")
        return record.messageId, record.data.decode(), record.attempt

    def write(rows: DataFrame, txid: int) -> None:
        seen.update(tuple(row) for row in rows.collect())
        # It is gone from its stream before its retry: only the spool has it.
        moto.expire(stage.stream, plain[1:2])

    def start() -> StreamingQuery:
        stream = reliable(stage.load(**options)).map(parse, "id string, text string, attempt int")
        return stage.start(stream, write)

    query = start()
    stage.until(lambda: (plain[1], "flaky", 2) in seen, "the spooled retry")
    stage.until(lambda: stage.progress(query).get("unacked") == 6, "all to be in flight")

    def blocked() -> list[str]:
        told = stage.progress(query)["shards"]
        return [told.get(shard, {}).get("blocked", "") for shard in shards]

    stage.until(lambda: all(blocked()), "both shards to say that they are blocked")
    for said in blocked():
        assert said.startswith("3 records are read and not done, and maxInflightRecords is 3")
    more = stage.put(["c"])
    query.stop()
    stage.queries.remove(query)
    delivered = {id_: attempt for id_, _, attempt in seen}
    assert delivered == dict.fromkeys([*plain, *users], 1) | {plain[1]: 2}

    with Acks(stage.app, {"zookeeper.hosts": stage.hosts}) as acks:
        assert acks.ack([plain[0], users[0], users[2]]) == 3
        assert acks.fail([users[1]], "the warehouse said no") == 1
        seen.clear()
        query = start()
        wanted = {(more[0], "c", 1), (users[1], "u1", 2)}
        stage.until(lambda: seen >= wanted, "what there is room for, and what was refused")
        assert seen == wanted
        acks.ack([*plain[1:], *more, users[1]])
        store = SourceStore(stage.zookeeper, Layout("/kinesis-trident", stage.app))
        ends = {(more[0], -1), (users[2], 2)}

        def checkpoints() -> set[tuple[str, int]]:
            return {(node.checkpoint or "", node.sub) for node in store.shards.checkpoints().values()}

        tips = {(id_.split(":")[1], sub) for id_, sub in ends}
        stage.until(lambda: checkpoints() == tips, "the checkpoints at the ends")
    assert not any(node.pending or node.waiting for node in store.shards.inflight().values())


def test_an_acks_of_before_reaches_the_query_that_reads_its_stream_with_another(
    own_stage: Callable[..., Stage],
) -> None:
    """It has looked where the stream lives; the home of the two streams is another one."""
    stage, other = own_stage(), own_stage()
    seen: set[tuple[str, int]] = set()

    def parse(record):  # type: ignore[no-untyped-def]
        return record.messageId, record.attempt

    def write(rows: DataFrame, txid: int) -> None:
        seen.update(tuple(row) for row in rows.collect())

    def start(streams: str) -> StreamingQuery:
        source = stage.load(streamName=streams, ackMode="explicit", messageTimeout="1h")
        return stage.start(reliable(source).map(parse, "id string, attempt int"), write)

    first = stage.put(["a", "b"])
    query = start(stage.stream)
    stage.until(lambda: len(seen) == 2, "the batch of the one stream")
    with Acks(stage.app, {"zookeeper.hosts": stage.hosts}) as acks:
        assert acks.ack(first) == 2
        stop(query)
        stage.queries.remove(query)
        later, more = stage.put(["c"]), other.put(["d"])
        start(f"{stage.stream},{other.stream}")
        stage.until(lambda: seen >= {(later[0], 1), (more[0], 1)}, "the batch of both")
        assert acks.fail(later, "the warehouse said no") == 1
        stage.until(lambda: (later[0], 2) in seen, "what was refused comes again")
        assert acks.ack([*later, *more]) == 2
        store = SourceStore(stage.zookeeper, Layout("/kinesis-trident", stage.app))
        stage.until(
            lambda: not any(node.pending or node.waiting for node in store.shards.inflight().values()),
            "all are done",
        )
    assert seen == {*((id_, 1) for id_ in (*first, *later, *more)), (later[0], 2)}
