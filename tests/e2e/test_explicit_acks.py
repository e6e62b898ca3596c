"""Records acked by another process after their batch, over a SIGKILL to all of the query's processes."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import Job, layout_of, options, put
from kazoo.client import KazooClient

from checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from checkpoint.store import SourceStore

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

# Two lives of a job; each waits as the harness has it.
pytestmark = pytest.mark.timeout(1200)

CONTINUOUSLY = {"processingTime": "200 milliseconds"}
TELL = """
import json, sys
from bolt import Acks
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
        timeout=120,
    )
    assert int(said.stdout) == len(ids)


def test_acks_of_another_process_outlive_a_kill_and_what_failed_comes_back(
    job: Job, kinesis: KinesisClient, keeper: KazooClient
) -> None:
    stream = job.options["streamName"]
    # All good ones: the job fails some others of each forty by itself.
    ids = put(kinesis, stream, range(13, 23))
    store = SourceStore(keeper, layout_of(kinesis, stream))

    def unacked() -> int:
        return sum(run.count for node in store.inflight().values() for run in node.pending)

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
            tips == {shard: node.checkpoint for shard, node in store.checkpoints().items() if shard in tips}
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
