"""docs/moving.md: its commands are run in the order of the page, and print what it says.

Only names of places are replaced: the stream and the applications, as others use the same servers; the bucket by a
folder; and the endpoints are added. `UPDATE_GUIDE=1` writes the outputs into the page.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import samples
from aws_kinesis_agg.aggregator import RecordAggregator
from kazoo.client import KazooClient
from lease_table import create_table, lease, put
from moving_source import Command, Source
from test_from_spark import Checkpoint, offset

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import ShardLineage, ShardsNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.console.moving.foreign import System
from kinesis_trident.tracker.records import Run

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_kinesis import KinesisClient

PAGE = Path(__file__).resolve().parents[3] / "docs" / "moving.md"
FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"
COMMAND = re.compile(
    r"((?:^    \$ kinesis-trident .*\n)(?:^          .*\n)*)((?:^    (?!\$).+\n)*)", re.MULTILINE
)
"""A command, which goes on in lines that are indented further, and its output."""


def write(kinesis: KinesisClient, stream: str) -> list[int]:
    """Write three records to each shard, the last of the second one an aggregate; return their sequence numbers."""
    aggregator = RecordAggregator()
    for user in (b"a", b"b", b"c"):
        aggregator.add_user_record("k", user)
    found = []
    for key in ("0", str(2**127)):
        for data in (b"1", b"2", aggregator.clear_and_get().get_contents()[2] if key != "0" else b"3"):
            answer = kinesis.put_record(StreamName=stream, Data=data, PartitionKey="k", ExplicitHashKey=key)
            found.append(int(answer["SequenceNumber"]))
    return found


def test_the_guide(
    command: Command,
    make_source: Callable[..., Source],
    kinesis: KinesisClient,
    kinesis_server: EmbeddedKinesis,
    dynamodb: DynamoDBClient,
    client: KazooClient,
    app: str,
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "118")
    source = make_source(2)
    one, two, three, four, five, aggregate = write(kinesis, source.stream)
    create_table(dynamodb, table)
    put(dynamodb, table, lease(FIRST, two), lease(SECOND, aggregate, 1))
    spark = Checkpoint(tmp_path / "orders", System.AWSLABS)
    begins = ("AFTER_SEQUENCE_NUMBER", str(one), -1, True)
    spark.log(41, offset(41, source.stream, {FIRST: begins, SECOND: ("TRIM_HORIZON", "", -1, True)}))
    spark.commit(41)
    spark.end(41, {FIRST: ("AFTER_SEQUENCE_NUMBER", str(three), -1, True)})
    for shard, number in ((FIRST, two), (SECOND, four)):
        path = f"/kinesis-storm/orders-topology/{source.stream}/{shard}/state"
        client.create(path, f'{{"checkpoint":"{number}"}}'.encode(), makepath=True)
    job = SourceStore(client, Layout("/kinesis-trident", f"{app}-job", source.stream, source.created))
    epoch = job.epochs.raise_epoch("alpha", 11, 1)
    failed = samples.inflight(1, Run(str(five), str(five)))
    waits = samples.checkpoint(1, four)
    done = {FIRST: (samples.checkpoint(1, three), None), SECOND: (waits, failed)}
    lineage = ShardsNode(shards={FIRST: ShardLineage(), SECOND: ShardLineage()})
    job.shards.settle(done, {}, lineage, samples.settled(1), epoch)
    client.delete(job.layout.owner)

    imported = 0
    names = {
        "orders-kcl-new": f"{table}-new",
        "orders-kcl": table,
        "orders-job": f"{app}-job",
        "s3://bucket/checkpoints/orders": str(spark.path),
        "at https://dynamodb.us-east-1.amazonaws.com": f"at {kinesis_server.endpoint_url}",
    }

    def run(typed: str, expected: str) -> str:
        nonlocal imported
        theirs = names | {"orders-new": f"{app}-{imported}"}
        words = []
        for word in shlex.split(re.sub(r"\\\n", " ", typed).strip().removeprefix("$ "))[1:]:
            words.append(theirs.get(word, source.stream if word == "orders" else word))
        if "kcl" in words:
            words += ["--dynamodb-endpoint", kinesis_server.endpoint_url]
        if "--region" in words:
            words += ["--endpoint", kinesis_server.endpoint_url]
        code, out, err = command(*words)
        assert (code, err) == (0, ""), typed
        imported += words[0] == "import" and "--dry-run" not in words
        for name, its in sorted(theirs.items(), key=lambda pair: -len(pair[1])):
            out = out.replace(its, name)
        out = out.replace(source.stream, "orders")
        said = "".join(f"    {line}".rstrip() + "\n" for line in out.splitlines())
        if "UPDATE_GUIDE" not in os.environ:
            assert said == expected, typed
        return said

    text = PAGE.read_text(encoding="utf-8")
    found = COMMAND.sub(lambda match: match[1] + run(match[1], match[2]), text)
    assert imported >= 2
    assert len(COMMAND.findall(text)) >= 7
    if "UPDATE_GUIDE" in os.environ:
        PAGE.write_text(found, encoding="utf-8")
