"""Pages that explain, and whose blocks are run too: what they load, write and type does what they show."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from doc_blocks import PAGES, blocks_of
from guide import Orders, Unfinished, page
from older_spark import needs_available_now, needs_registration
from pyspark.errors import PySparkException

from kinesis_trident import Acks
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.embedded.java import ensure_java
from kinesis_trident.spout.options.starting_position import position_spec
from kinesis_trident.testing import MemoryKinesis, Quotas, ScriptedKinesis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON = ("python",)


def test_looks_at_an_application(tmp_path: Path, hosts: str, unfinished: Unfinished) -> None:
    unfinished("orders-job")
    page("retries", tmp_path, hosts).check()
    page("console", tmp_path, hosts).check()


def test_a_job_that_was_killed(tmp_path: Path, hosts: str) -> None:
    kinesis = MemoryKinesis("orders", shards=2)
    first, second = kinesis.open_shards
    options = {
        "streamName": "orders",
        "region": "us-east-1",
        "applicationName": "orders-job",
        "zookeeper.hosts": hosts,
        "startingPosition": "TRIM_HORIZON",
        "retryBackoff": "24h..24h x1",
        "shardsPerTask": "1",
    }
    for shard, data in ((first, b"late"), (first, b"one"), (first, b"two"), (second, b"three")):
        kinesis.put(shard, data)
    ahead = 0.0
    # The clock stands still otherwise: a look is waited for, however long it takes.
    query = Orders.start(options, kinesis, steady=lambda: ahead, hold=0.0)
    query.deliver()
    # The calls of its turns count from when they are heard of.
    assert query.plan() is None
    for shard in (first, second):
        kinesis.put(shard, b"four")
    # Looks at both shards are due by now, whatever the calls before have used up of their limits.
    ahead = 60.0
    plan = query.planned()
    tasks = query.run.partitions(query.committed, plan)
    assert len(tasks) == 2
    query.task(tasks[0])
    query.end()
    guide = page("zookeeper", tmp_path, hosts)
    guide.check()

    (client,) = (
        block
        for block in re.findall(r"^```sh\n(.*?)^```$", guide.text, re.MULTILINE | re.DOTALL)
        if "zlib" not in block
    )
    environment = os.environ | {
        "PATH": f"{ensure_java()}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    }
    done = subprocess.run(
        ["bash", "-c", client.replace("localhost:2181", hosts)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    # The shell prints the events of its session from a thread of their own: before, after or amid the answer.
    said = re.sub(r"\n(WATCHER::|WatchedEvent [^\n]*)\n", "", done.stdout)
    assert said.strip().endswith("[orders-job]"), (done.stdout, done.stderr)


def test_acks_from_another_process(
    spark: SparkSession, tmp_path: Path, hosts: str, kinesis: ScriptedKinesis
) -> None:
    memory = MemoryKinesis("orders")
    names = [
        f"orders/{shard}:{memory.put(shard, data)}"
        for shard in memory.open_shards
        for data in (b"a", b"b", b"c")
    ]
    options = {
        "streamName": "orders",
        "region": "us-east-1",
        "applicationName": "orders-acked",
        "zookeeper.hosts": hosts,
        "startingPosition": "TRIM_HORIZON",
        "ackMode": "explicit",
        "messageTimeout": "5m",
        "retryBackoff": "1ms..1ms x1",
    }
    query = Orders.start(options, memory)
    query.deliver()
    query.plan()
    given = {"confirmed": names[:1], "refused": names[1:2], "still_at_it": names[2:]}
    page("acks", tmp_path, hosts, kinesis, names=given).check()
    (again,) = query.batch()
    assert (again.data, again.attempt) == (b"b", 2)
    query.end()
    with Acks("orders-acked", {"zookeeper.hosts": hosts}) as acks:
        acks.ack(names)


def test_pages_that_load_and_write(
    spark: SparkSession, tmp_path: Path, hosts: str, kinesis: ScriptedKinesis
) -> None:
    names: dict[str, Any] = {}
    for name in ("fan-out", "positions", "writing"):
        guide = page(name, tmp_path, hosts, kinesis, names=names, kinds=PYTHON)
        guide.check()
    rows = spark.read.format("kinesis-trident")
    for stream in ("orders", "payments"):
        read = rows.options(streamName=stream, endpointUrl=kinesis.endpoint_url).load().collect()
        new = {(row.partitionKey, bytes(row.data)) for row in read if row.partitionKey != "key"}
        assert new == {("ann", b"a pen"), ("bob", b"two pads")}


@needs_registration
def test_deploying(spark: SparkSession, tmp_path: Path, hosts: str) -> None:
    guide = page("deploying", tmp_path, hosts)
    guide.check()
    with pytest.raises(PySparkException) as raised:
        spark.readStream.format("kinesis-trident").option("retrylimt", "3").load()
    (shown,) = (block.text for block in blocks_of(guide.path) if "DATA_SOURCE_ERROR" in block.text)
    first, _, last = shown.splitlines()
    assert first in str(raised.value)
    assert last.strip() in str(raised.value)


def test_positions_are_read() -> None:
    documents = [block.text for block in blocks_of(PAGES["positions.md"]) if block.kind == "json"]
    for document in (
        "\n\n".join(documents).replace("4959...", "4959").replace("4960...", "4960").split("\n\n")
    ):
        assert json.loads(document)
        assert position_spec(document)


def test_commands_over_http(program_of: Callable[[str], Path]) -> None:
    program_of("curl")
    (block,) = (block for block in blocks_of(PAGES["testing.md"]) if "curl" in block.text)
    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:
        kinesis.create_stream("orders")
        printed = [
            subprocess.run(
                ["bash", "-c", command],
                env=os.environ | {"ENDPOINT": kinesis.endpoint_url},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for command in block.commands
        ]
        assert len(kinesis.shards("orders")) == 2
        assert kinesis.faults_left == 1
    shown = [line for line in block.text.splitlines() if not re.match(r"\$|    -d", line)]
    assert printed == shown


@needs_available_now
def test_a_job_against_the_endpoint(
    spark: SparkSession, tmp_path: Path, zookeeper: EmbeddedZooKeeper, app: str
) -> None:
    (block,) = (block for block in blocks_of(PAGES["testing.md"]) if "test_my_job" in block.text)
    names: dict[str, Any] = {
        "my_job": lambda df: df.writeStream.format("parquet").option("path", str(tmp_path / "out")),
    }
    exec(block.text, names)
    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:
        kinesis.create_stream("orders")
        options = {
            **kinesis.options("orders"),
            "applicationName": app,
            "zookeeper.hosts": zookeeper.hosts,
            "startingPosition": "TRIM_HORIZON",
        }
        names["test_my_job"](spark, kinesis, options, tmp_path / "checkpoint")
        assert kinesis.faults_left == 0
    assert [bytes(row.data) for row in spark.read.parquet(str(tmp_path / "out")).collect()] == [b'{"id": 1}']
