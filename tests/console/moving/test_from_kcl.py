"""From KCL's lease table, in a real DynamoDB API, to an application: as typed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from kazoo.client import KazooClient
from lease_table import FIRST, FOURTH, LEADER, SECOND, THIRD, create_table, lease, leases, put
from moving_source import Command, Source

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import StreamsNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.query_by_hand import QueryByHand
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_kinesis import KinesisClient


@pytest.fixture
def from_kcl(
    command: Command, kinesis_server: EmbeddedKinesis, app: str, table: str
) -> Callable[..., tuple[int, str, str]]:
    """`from_kcl(source, *more)`: the import of this test's table."""
    there = ["--from", "kcl", "--table", table, "--dynamodb-endpoint", kinesis_server.endpoint_url]
    return lambda source, *more: command("import", app, *there, *source.options, *more)


@pytest.fixture
def query(
    zookeeper: EmbeddedZooKeeper, kinesis_server: EmbeddedKinesis, app: str
) -> Iterator[Callable[..., QueryByHand]]:
    """`query(source, **options)`: a query by hand, ended after the test, as its threads outlive a failure."""
    made: list[QueryByHand] = []

    def start(source: Source, **options: str) -> QueryByHand:
        given = {
            "streamName": source.stream,
            "region": "us-east-1",
            "endpointUrl": kinesis_server.endpoint_url,
            "applicationName": app,
            "zookeeper.hosts": zookeeper.hosts,
        }
        made.append(QueryByHand.start(given | options))
        return made[-1]

    yield start
    for one in made:
        one.end()


def write(kinesis: KinesisClient, source: Source, *payloads: bytes) -> list[str]:
    """Write records to the only shard; return their sequence numbers."""
    return [
        kinesis.put_record(StreamName=source.stream, Data=data, PartitionKey="k")["SequenceNumber"]
        for data in payloads
    ]


def aggregate(*payloads: bytes) -> bytes:
    aggregator = RecordAggregator()
    for data in payloads:
        aggregator.add_user_record("k", data)
    return bytes(aggregator.clear_and_get().get_contents()[2])


def test_a_dry_run_says_what_would_change_and_changes_nothing(
    from_kcl: Callable[..., tuple[int, str, str]],
    make_source: Callable[..., Source],
    kinesis: KinesisClient,
    dynamodb: DynamoDBClient,
    client: KazooClient,
    app: str,
    table: str,
) -> None:
    source = make_source(2)
    kinesis.split_shard(StreamName=source.stream, ShardToSplit=FIRST, NewStartingHashKey="7")
    create_table(dynamodb, table)
    items = [
        # KCL has deleted the lease of the first shard: its children are being read.
        lease(SECOND, 10**20, owner="worker-1", pendingCheckpoint={"S": "8"}),
        lease(THIRD, 12, 3, version=2),
        lease(FOURTH, "TRIM_HORIZON"),
        LEADER,
    ]
    put(dynamodb, table, *items)
    code, out, err = from_kcl(source, "--dry-run", "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert {row["shard"]: (row["here"], row["there"], row["becomes"]) for row in said["rows"]} == {
        FIRST: (None, None, "SHARD_END"),
        SECOND: (None, *[f"AFTER_SEQUENCE_NUMBER {10**20}:0"] * 2),
        THIRD: (None, *["AFTER_SEQUENCE_NUMBER 12:3"] * 2),
        FOURTH: (None, "TRIM_HORIZON", "TRIM_HORIZON"),
    }
    assert "within the aggregate" in said["rows"][2]["what"]
    assert "does not hold that record" in said["rows"][1]["what"]
    assert len(said["notes"]) == 2
    assert "held by worker-1" in said["notes"][0]
    assert f"prepared a checkpoint of {SECOND}" in said["notes"][1]

    code, out, _ = from_kcl(source, "--dry-run")
    assert code == 0
    assert re.search(rf"{FOURTH} +│ - +│ TRIM_HORIZON +│ TRIM_HORIZON +│ begins with its oldest", out)
    assert "nothing was changed" in out
    assert client.exists(Layout.application_path("/kinesis-trident", app)) is None
    assert leases(dynamodb, table) == {item["leaseKey"]["S"]: item for item in items}


def test_an_application_goes_on_with_the_next_user_record(
    from_kcl: Callable[..., tuple[int, str, str]],
    query: Callable[..., QueryByHand],
    source: Source,
    kinesis: KinesisClient,
    dynamodb: DynamoDBClient,
    client: KazooClient,
    app: str,
    table: str,
) -> None:
    """KCL gives a plain record the sub-sequence number 0, and the user records of an aggregate 0, 1, ..."""
    numbers = write(kinesis, source, b"1", aggregate(b"2", b"3", b"4"), b"5")
    create_table(dynamodb, table)
    put(dynamodb, table, lease(FIRST, numbers[1], 1))
    code, out, err = from_kcl(source)
    assert (code, out, err) == (0, f"{FIRST} begins after {numbers[1]}:1\n", "")
    store = SourceStore(client, source.layout(app))
    lineage = store.shards.lineage()
    assert lineage is not None
    assert lineage.shards[FIRST].start == f"AFTER_SEQUENCE_NUMBER {numbers[1]}:1"
    (note,) = store.changes.notes()
    assert (
        note.what == f"import 1 position of kcl from DynamoDB table {table} at {dynamodb.meta.endpoint_url}"
    )
    assert store.changes.backup(note.backup) is not None
    first = query(source)
    assert [row.data for row in first.drain()] == [b"4", b"5"]
    first.end()

    # It has read now; back to where KCL was is a decision, and what stood here is kept.
    put(dynamodb, table, lease(FIRST, numbers[0]))
    code, _, err = from_kcl(source)
    assert code == 1
    assert "has already read stream" in err
    code, _, err = from_kcl(source, "--overwrite")
    assert code == 1
    assert "give --yes" in err
    code, out, _ = from_kcl(source, "--overwrite", "--yes")
    assert code == 0
    assert out.startswith(f"{FIRST} begins after {numbers[0]}:0\n")
    second = query(source, onCheckpointMismatch="continue")
    assert [row.data for row in second.drain()] == [b"2", b"3", b"4", b"5"]
    backup = out.split()[-1]
    kept = store.changes.backup(backup)
    assert kept is not None
    assert kept.checkpoints[FIRST].position == f"AFTER_SEQUENCE_NUMBER {numbers[2]}"


def test_a_shard_that_was_closed_since_is_read_to_its_end_before_its_children(
    from_kcl: Callable[..., tuple[int, str, str]],
    query: Callable[..., QueryByHand],
    dynamodb: DynamoDBClient,
    table: str,
) -> None:
    """Whatever `startingPosition` is: a listing from LATEST on does not have the closed shard.

    Not with moto, which moves the records of a shard to its children.
    """
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        server.create_stream("orders", 1)
        created = server.client().describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
        options = ["--stream", "orders", "--region", "us-east-1", "--endpoint", server.endpoint_url]
        source = Source("orders", round(created["StreamCreationTimestamp"].timestamp() * 1000), options)
        first, _ = write(server.client(), source, b"1", b"2")
        server.split("orders", FIRST)
        write(server.client(), source, b"3")
        create_table(dynamodb, table)
        put(dynamodb, table, lease(FIRST, first))
        code, out, _ = from_kcl(source)
        assert code == 0
        assert out.splitlines() == [
            f"{FIRST} begins after {first}:0",
            f"{SECOND} begins at TRIM_HORIZON",
            f"{THIRD} begins at TRIM_HORIZON",
        ]
        one = query(source, endpointUrl=server.endpoint_url)
        assert [row.data for row in one.drain()] == [b"2", b"3"]
        one.end()  # While its endpoint is there.


def test_an_application_that_reads_the_stream_with_others_is_left_alone(
    from_kcl: Callable[..., tuple[int, str, str]],
    source: Source,
    dynamodb: DynamoDBClient,
    client: KazooClient,
    app: str,
    table: str,
) -> None:
    create_table(dynamodb, table)
    put(dynamodb, table, lease(FIRST, 5))
    shared = SourceStore(client, Layout("/kinesis-trident", app))
    streams = {source.stream: source.created, "other": 1}
    epoch = shared.epochs.raise_epoch("alpha", 11, 1)
    shared.streams.put(StreamsNode(streams=streams, active=tuple(sorted(streams))), epoch)
    code, _, err = from_kcl(source)
    assert code == 1
    assert "together with others" in err


def test_without_splitting_aggregates_one_that_was_begun_comes_again(
    from_kcl: Callable[..., tuple[int, str, str]],
    query: Callable[..., QueryByHand],
    source: Source,
    kinesis: KinesisClient,
    dynamodb: DynamoDBClient,
    table: str,
) -> None:
    whole = aggregate(b"2", b"3")
    numbers = write(kinesis, source, b"1", whole)
    create_table(dynamodb, table)
    put(dynamodb, table, lease(FIRST, numbers[1], 0))
    code, out, _ = from_kcl(source, "-o", "deaggregate=false")
    assert code == 0
    assert f"the record at the position of {FIRST} comes again" in out
    one = query(source, deaggregate="false")
    assert [row.data for row in one.drain()] == [whole]


def test_the_stream_is_found_among_several(
    from_kcl: Callable[..., tuple[int, str, str]],
    source: Source,
    dynamodb: DynamoDBClient,
    table: str,
) -> None:
    create_table(dynamodb, table)
    seconds = source.created // 1000
    put(
        dynamodb,
        table,
        lease(FIRST, 4, identifier=f"123456789012:{source.stream}:{seconds - 9}"),
        lease(FIRST, 5, identifier=f"123456789012:{source.stream}:{seconds}"),
        lease(FIRST, 6, identifier=f"123456789012:other:{seconds}"),
    )
    code, out, _ = from_kcl(source, "--dry-run", "--json")
    assert code == 0
    assert json.loads(out)["rows"][0]["there"] == "AFTER_SEQUENCE_NUMBER 5:0"


def test_shards_that_are_gone(
    from_kcl: Callable[..., tuple[int, str, str]], source: Source, dynamodb: DynamoDBClient, table: str
) -> None:
    create_table(dynamodb, table)
    put(dynamodb, table, lease(FIRST, "LATEST"), lease(SECOND, "SHARD_END"))
    code, out, _ = from_kcl(source, "--dry-run", "--json")
    said = json.loads(out)
    assert code == 0
    assert f"{SECOND} had been read to the end" in said["notes"][0]
    assert said["notes"][1].startswith("LATEST becomes ")
    assert said["rows"][0]["becomes"].startswith("AT_TIMESTAMP ")

    put(dynamodb, table, lease(SECOND, 5))
    code, _, err = from_kcl(source)
    assert code == 1
    assert f"not read to the end of {SECOND} at AFTER_SEQUENCE_NUMBER 5:0" in err
    code, out, _ = from_kcl(source, "--accept-loss")
    assert code == 0
    assert f"what was not read of {SECOND} has expired" in out


def test_a_time_that_only_the_configuration_of_kcl_has(
    from_kcl: Callable[..., tuple[int, str, str]], source: Source, dynamodb: DynamoDBClient, table: str
) -> None:
    create_table(dynamodb, table)
    put(dynamodb, table, lease(FIRST, "AT_TIMESTAMP"))
    code, _, err = from_kcl(source)
    assert code == 1
    assert f"lease {FIRST} begins AT_TIMESTAMP" in err
    code, _, err = from_kcl(source, "--timestamp", "yesterday")
    assert code == 1
    assert "--timestamp is 'yesterday'" in err
    code, out, _ = from_kcl(source, "--timestamp", "2026-01-31T00:00:00Z")
    assert (code, out) == (0, f"{FIRST} begins at AT_TIMESTAMP 1769817600000\n")


def test_what_is_no_lease_table_of_the_stream(
    from_kcl: Callable[..., tuple[int, str, str]],
    make_source: Callable[..., Source],
    kinesis: KinesisClient,
    dynamodb: DynamoDBClient,
    client: KazooClient,
    app: str,
    table: str,
) -> None:
    source = make_source()

    def error(*more: str) -> str:
        code, out, err = from_kcl(source, *more)
        assert (code, out) == (1, "")
        assert len(err.splitlines()) == 1
        return err

    assert f"there is no DynamoDB table {table} at" in error()
    create_table(dynamodb, table, "key")
    assert "has the key key (HASH), so it is not a lease table of KCL" in error()
    dynamodb.delete_table(TableName=table)
    create_table(dynamodb, table)
    assert "holds no lease" in error()
    put(dynamodb, table, {"leaseKey": {"S": "a"}, "value": {"S": "b"}})
    assert "which is no lease" in error()
    dynamodb.delete_item(TableName=table, Key={"leaseKey": {"S": "a"}})
    put(dynamodb, table, lease(SECOND, 5))
    assert f"has positions of {SECOND}, and stream '{source.stream}'" in error()
    put(dynamodb, table, lease(FIRST, 5, identifier="1:other:1"))
    assert "has leases of other, and none of stream" in error()
    dynamodb.delete_item(TableName=table, Key={"leaseKey": {"S": f"1:other:1:{FIRST}"}})
    dynamodb.delete_item(TableName=table, Key={"leaseKey": {"S": SECOND}})
    # An older stream of this name had lower numbers.
    (number,) = write(kinesis, source, b"1")
    put(dynamodb, table, lease(FIRST, int(number) - 1))
    assert "the checkpoint of another stream, or of an older one of this name" in error()
    assert "--prefix does not belong to kcl" in error("--prefix", "x")
    assert client.exists(Layout.application_path("/kinesis-trident", app)) is None


def test_options_of_each_system_are_asked_for(command: Command, source: Source, app: str) -> None:
    for system, option in [
        ("kcl", "--table"),
        ("qubole", "--checkpoint-location"),
        ("storm-kinesis", "--prefix"),
    ]:
        code, _, err = command("import", app, "--from", system, *source.options)
        assert code == 1
        assert f"{system} needs {option}" in err
    code, _, err = command("import", app, "--from", "flink", *source.options)
    assert code == 2
    assert "kinesis-storm-spout" in err
    assert "storm-kinesis" in err


def test_a_run_that_is_connected_is_left_alone_unless_it_is_to_stop(
    from_kcl: Callable[..., tuple[int, str, str]],
    source: Source,
    dynamodb: DynamoDBClient,
    client: KazooClient,
    app: str,
    table: str,
) -> None:
    create_table(dynamodb, table)
    put(dynamodb, table, lease(FIRST, 5))
    store = SourceStore(client, source.layout(app))
    epoch = store.epochs.raise_epoch("worker-7", 4711, 1)
    code, _, err = from_kcl(source)
    assert code == 1
    assert "is running (worker-7, pid 4711" in err
    store.epochs.check_epoch(epoch)
    code, out, _ = from_kcl(source, "--force")
    assert (code, out) == (0, f"{FIRST} begins after 5:0\n")
    assert store.shards.checkpoints()[FIRST].checkpoint == "5"
