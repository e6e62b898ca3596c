"""From an application to KCL's lease table, in a real DynamoDB API: as typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import samples
from kazoo.client import KazooClient
from lease_table import FIRST, FOURTH, SECOND, THIRD, create_table, lease, leases, put
from moving_source import Command, Source

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis
from kinesis_trident.checkpoint.errors import MigrationError
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, ShardLineage, ShardsNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.console.moving.kcl import KclTarget, read_kcl
from kinesis_trident.console.moving.outgoing import hand_over, plan_departure
from kinesis_trident.console.moving.tables import Table
from kinesis_trident.spout.kinesis import Shard, StreamInfo
from kinesis_trident.tracker.records import PendingRun, Run

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_kinesis import KinesisClient


@pytest.fixture
def to_kcl(
    command: Command, kinesis_server: EmbeddedKinesis, app: str, table: str
) -> Callable[..., tuple[int, str, str]]:
    """`to_kcl(source, *more)`: the export to this test's table."""
    there = ["--to", "kcl", "--table", table, "--dynamodb-endpoint", kinesis_server.endpoint_url]
    return lambda source, *more: command("export", app, *there, *source.options, *more)


def settle(store: SourceStore, lineage: dict[str, ShardLineage], **nodes: Any) -> int:
    """Leave a home whose shards, by name, have these checkpoints and records in flight; return its epoch."""
    epoch = store.epochs.raise_epoch("alpha", 11, 1)
    store.shards.settle(nodes, {}, ShardsNode(shards=lineage), samples.settled(1), epoch)
    store.client.delete(store.layout.owner)
    return epoch


def test_what_kcl_finds_in_its_table(
    to_kcl: Callable[..., tuple[int, str, str]],
    make_source: Callable[..., Source],
    kinesis: KinesisClient,
    dynamodb: DynamoDBClient,
    client: KazooClient,
    app: str,
    table: str,
) -> None:
    """Each attribute as `DynamoDBLeaseSerializer.toDynamoRecord` writes it, in a table as KCL creates it."""
    source = make_source(2)
    kinesis.split_shard(StreamName=source.stream, ShardToSplit=FIRST, NewStartingHashKey="7")
    store = SourceStore(client, source.layout(app))
    inside = CheckpointNode(checkpoint="20", sub=1, txid=1, position="AFTER_SEQUENCE_NUMBER 31")
    settle(
        store,
        {
            FIRST: ShardLineage(state="drained"),
            SECOND: ShardLineage(),
            THIRD: ShardLineage(parents=(FIRST,)),
            FOURTH: ShardLineage(parents=(FIRST,)),
        },
        **{
            FIRST: (samples.checkpoint(1, 9), None),
            SECOND: (
                inside,
                samples.inflight(1, Run("5", "5"), Run("20:2", "20:3", 2), dead=(Run("30", "30"),)),
            ),
            THIRD: (samples.checkpoint(1, 7), None),
        },
    )
    code, out, err = to_kcl(source, "--dry-run", "--json")
    assert (code, err) == (0, "")
    rows = {row["shard"]: row for row in json.loads(out)["rows"]}
    assert {shard: row["becomes"] for shard, row in rows.items()} == {
        FIRST: "SHARD_END",
        SECOND: "AFTER_SEQUENCE_NUMBER 20:1",
        THIRD: "AFTER_SEQUENCE_NUMBER 7:0",
        FOURTH: "TRIM_HORIZON",
    }
    assert "3 records not done: come again, with all that came after" in rows[SECOND]["what"]
    assert "1 record asked for again: kcl does not know of them" in rows[SECOND]["what"]
    assert table not in dynamodb.list_tables()["TableNames"]

    code, out, err = to_kcl(source)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 4
    assert dynamodb.describe_table(TableName=table)["Table"]["KeySchema"] == [
        {"AttributeName": "leaseKey", "KeyType": "HASH"}
    ]
    found = leases(dynamodb, table)
    assert found[FIRST]["checkpoint"] == {"S": "SHARD_END"}
    assert sorted(found[FIRST]["childShardIds"]["SS"]) == [THIRD, FOURTH]
    (keys,) = (
        shard["HashKeyRange"]
        for shard in kinesis.list_shards(StreamName=source.stream)["Shards"]
        if shard["ShardId"] == THIRD
    )
    assert found[THIRD] == {
        "leaseKey": {"S": THIRD},
        "leaseCounter": {"N": "0"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "7"},
        "checkpointSubSequenceNumber": {"N": "0"},
        "parentShardId": {"SS": [FIRST]},
        "startingHashKey": {"S": keys["StartingHashKey"]},
        "endingHashKey": {"S": keys["EndingHashKey"]},
        "entityType": {"S": "LEASE"},
    }
    assert (found[SECOND]["checkpoint"], found[SECOND]["checkpointSubSequenceNumber"]) == (
        {"S": "20"},
        {"N": "1"},
    )
    (note,) = store.changes.notes()
    assert note.what.startswith(f"export 4 checkpoints to kcl at DynamoDB table {table} at ")

    # What was handed over comes back as it is.
    info = StreamInfo(source.stream, "arn", source.created, 24, "ACTIVE", 1)
    assert read_kcl(Table(dynamodb, table), info, None).positions == {
        FIRST: "SHARD_END",
        SECOND: "AFTER_SEQUENCE_NUMBER 20:1",
        THIRD: "AFTER_SEQUENCE_NUMBER 7:0",
        FOURTH: "TRIM_HORIZON",
    }


def test_a_lease_that_is_further_on_or_held_is_not_taken_back(
    to_kcl: Callable[..., tuple[int, str, str]],
    source: Source,
    dynamodb: DynamoDBClient,
    client: KazooClient,
    app: str,
    table: str,
) -> None:
    store = SourceStore(client, source.layout(app))
    epoch = settle(store, {FIRST: ShardLineage()}, **{FIRST: (samples.checkpoint(1, 7), None)})
    create_table(dynamodb, table)
    identifier = f"123456789012:{source.stream}:1"
    there = lease(FIRST, 8, identifier=identifier, owner="w", pendingCheckpoint={"S": "9"})
    put(dynamodb, table, there)
    code, out, _ = to_kcl(source, "--dry-run")
    assert code == 0
    assert "further on than 7:0" in out
    assert "needs --overwrite" in out
    code, _, err = to_kcl(source)
    assert code == 1
    assert f"lease {identifier}:{FIRST} of DynamoDB table {table}" in err
    assert "is at 8:0, further on than 7:0" in err
    assert leases(dynamodb, table)[f"{identifier}:{FIRST}"] == there
    code, _, _ = to_kcl(source, "--overwrite")
    assert code == 0
    (item,) = leases(dynamodb, table).values()
    assert (item["checkpoint"], item["leaseCounter"], item["leaseOwner"]) == (
        {"S": "7"},
        {"N": "18"},
        {"S": "w"},
    )
    assert item["shardId"] == {"S": FIRST}
    assert "pendingCheckpoint" not in item

    # A worker of KCL that runs raises the counter.
    info = StreamInfo(source.stream, "arn", source.created, 24, "ACTIVE", 1)
    target = KclTarget(Table(dynamodb, table), info, [Shard(FIRST)])
    store.shards.settle({FIRST: (samples.checkpoint(2, 9), None)}, {}, None, samples.settled(2), epoch)
    departure = plan_departure(store, target)
    put(dynamodb, table, item | {"leaseCounter": {"N": "19"}})
    with pytest.raises(MigrationError, match="a worker of KCL is running; 0 of 1 leases were written"):
        hand_over(store, target, departure, overwrite=False)
    assert leases(dynamodb, table)[f"{identifier}:{FIRST}"]["checkpoint"] == {"S": "7"}


def test_where_nothing_is_done(
    to_kcl: Callable[..., tuple[int, str, str]],
    source: Source,
    dynamodb: DynamoDBClient,
    client: KazooClient,
    app: str,
    table: str,
) -> None:
    store = SourceStore(client, source.layout(app))
    epoch = settle(store, {FIRST: ShardLineage(start="AT_TIMESTAMP 1769817600000")})
    code, out, _ = to_kcl(source, "--dry-run", "--json")
    assert code == 0
    (row,) = json.loads(out)["rows"]
    assert row["what"] == "nothing is done: give KCL the initial position AT_TIMESTAMP 2026-01-31T00:00:00Z"
    code, _, _ = to_kcl(source)
    assert code == 0
    assert leases(dynamodb, table)[FIRST]["checkpoint"] == {"S": "AT_TIMESTAMP"}

    unacked = InflightNode(txid=2, waiting=(), pending=(PendingRun(txid=2, open=(0, 4)),), turns=(2,))
    node = CheckpointNode(checkpoint=None, txid=2, position="AFTER_SEQUENCE_NUMBER 9")
    store.shards.settle({FIRST: (node, unacked)}, {}, None, samples.settled(2), epoch)
    code, _, err = to_kcl(source)
    assert code == 1
    assert "has no record that is done, and is at AFTER_SEQUENCE_NUMBER 9" in err

    store.epochs.raise_epoch("worker-7", 4711, 1)
    done = CheckpointNode(checkpoint="9", txid=3, position="AFTER_SEQUENCE_NUMBER 9")
    store.shards.settle(
        {FIRST: (done, InflightNode(txid=3, waiting=()))}, {}, None, samples.settled(3), epoch + 1
    )
    code, _, err = to_kcl(source)
    assert code == 1
    assert "is running (worker-7, pid 4711" in err
    code, _, _ = to_kcl(source, "--force")
    assert code == 0
    assert leases(dynamodb, table)[FIRST]["checkpoint"] == {"S": "9"}


def test_who_cannot_go_on(
    command: Command,
    to_kcl: Callable[..., tuple[int, str, str]],
    source: Source,
    dynamodb: DynamoDBClient,
    client: KazooClient,
    app: str,
    table: str,
) -> None:
    store = SourceStore(client, source.layout(app))
    settle(store, {})
    code, _, err = to_kcl(source)
    assert code == 1
    assert "has no shards, so there is nothing to hand over" in err
    create_table(dynamodb, table, "wid")
    code, _, err = to_kcl(source)
    assert code == 1
    assert "-WorkerMetricStats" in err
    for system in ("qubole", "awslabs"):
        code, _, err = command("export", app, "--to", system, *source.options)
        assert code == 1
        assert f"cannot be handed over to {system}" in err
