"""From the checkpoints of Qubole's and awslabs' connectors, in the forms of their sources, to an application.

Offsets: `KinesisSourceOffset.json` (qubole/kinesis-sql 8d0f125), `KinesisV2SourceOffset.json` (awslabs/
spark-sql-kinesis-connector 0f4c005). Ends of batches: json4s of the case class `ShardInfo` of each, in the folder of
`HDFSMetadataCommitter`, or with awslabs in the table of `DynamodbMetadataCommitter`. Logs: `OffsetSeqLog` and
`CommitLog` of Spark.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from lease_table import create_table
from moving_source import Command, Source

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis
from kinesis_trident.checkpoint.errors import MigrationError
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.common.folder import Folder
from kinesis_trident.console.moving.foreign import ForeignCheckpoint, System
from kinesis_trident.console.moving.offset_log import ends_in_folder, read_offset_log

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

FIRST, SECOND, THIRD = (f"shardId-{i:012d}" for i in range(3))
FOLDER = {System.QUBOLE: "shard-commit", System.AWSLABS: "shard-source"}
METADATA = (
    '{"batchWatermarkMs":0,"batchTimestampMs":1763800000000,"conf":{"spark.sql.streaming.stateStore.providerClass":'
    '"org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider","spark.sql.shuffle.partitions":"2"}}'
)
Entry = tuple[str, str] | tuple[str, str, int, bool]
"""iteratorType and iteratorPosition; with awslabs subSequenceNumber and isLast too."""


def entry(said: Entry, *, as_text: bool) -> dict[str, object]:
    found: dict[str, object] = dict(
        zip(("iteratorType", "iteratorPosition", "subSequenceNumber", "isLast"), said, strict=False)
    )
    return {name: json.dumps(value).strip('"') if as_text else value for name, value in found.items()}


def offset(batch: int, stream: str, shards: dict[str, Entry]) -> str:
    """An offset: all values are strings."""
    metadata = {"metadata": {"batchId": str(batch), "streamName": stream}}
    entries = {shard: entry(said, as_text=True) for shard, said in shards.items()}
    return json.dumps(metadata | entries, separators=(",", ":"))


def shard_info(shard: str, said: Entry) -> str:
    return json.dumps({"shardId": shard} | entry(said, as_text=False), separators=(",", ":"))


class Checkpoint:
    """A checkpointLocation that a query has left."""

    def __init__(self, path: Path, system: System) -> None:
        self.path = path
        self.system = system
        for name in ("offsets", "commits", "sources/0"):
            (path / name).mkdir(parents=True)
        (path / "metadata").write_text('{"id":"3574feba-646d-4735-83c4-66f657e52517"}')

    def log(self, batch: int, *lines: str, version: str = "v1") -> None:
        (self.path / f"offsets/{batch}").write_text("\n".join([version, METADATA, *lines]))
        (self.path / f"offsets/.{batch}.crc").write_bytes(b"crc\0")

    def commit(self, batch: int) -> None:
        (self.path / f"commits/{batch}").write_text('v1\n{"nextBatchWatermarkMs":0}')

    def end(self, batch: int, ends: dict[str, Entry], root: Path | None = None, source: int = 0) -> None:
        folder = (root or self.path / f"sources/{source}") / FOLDER[self.system] / str(batch)
        folder.mkdir(parents=True)
        for shard, said in ends.items():
            (folder / shard).write_text(shard_info(shard, said))
            (folder / f".{shard}.crc").write_bytes(b"crc\0")

    def read(self, source: int | None = None, stream: str = "orders") -> ForeignCheckpoint:
        folder = Folder(str(self.path))
        return read_offset_log(self.system, folder, stream, ends_in_folder(self.system, folder, None), source)


@pytest.fixture
def qubole(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "qubole", System.QUBOLE)


@pytest.fixture
def awslabs(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "awslabs", System.AWSLABS)


def test_a_committed_batch_counts_up_to_where_its_tasks_ended(qubole: Checkpoint) -> None:
    begins: dict[str, Entry] = {
        FIRST: ("AFTER_SEQUENCE_NUMBER", "10"),
        SECOND: ("AT_TIMESTAMP", "1763800000000"),
        THIRD: ("SHARD_END", ""),
    }
    # The source's number of a batch is not that of Spark's file.
    for batch in (8, 9, 10):
        qubole.log(batch, offset(batch - 3, "orders", begins))
    qubole.end(7, {FIRST: ("AFTER_SEQUENCE_NUMBER", "20"), SECOND: ("TRIM_HORIZON", "")})
    qubole.commit(9)
    qubole.commit(10)
    found = qubole.read()
    assert found.positions == {FIRST: "AFTER_SEQUENCE_NUMBER 20", SECOND: "TRIM_HORIZON", THIRD: "SHARD_END"}
    assert found.notes == ()


def test_a_batch_that_is_not_committed_is_read_again(qubole: Checkpoint) -> None:
    qubole.log(0, offset(0, "orders", {FIRST: ("TRIM_HORIZON", "")}))
    qubole.end(0, {FIRST: ("AFTER_SEQUENCE_NUMBER", "10")})
    assert qubole.read().positions == {FIRST: "TRIM_HORIZON"}
    qubole.commit(0)
    assert qubole.read().positions == {FIRST: "AFTER_SEQUENCE_NUMBER 10"}
    qubole.log(1, offset(1, "orders", {FIRST: ("AFTER_SEQUENCE_NUMBER", "10")}))
    # Its tasks have ended, and its sink has perhaps not.
    qubole.end(1, {FIRST: ("AFTER_SEQUENCE_NUMBER", "30")})
    found = qubole.read()
    assert found.positions == {FIRST: "AFTER_SEQUENCE_NUMBER 10"}
    assert "batch 1 is logged and not committed" in found.notes[0]


def test_a_batch_of_no_new_records_has_the_number_of_the_one_before(awslabs: Checkpoint) -> None:
    begins: dict[str, Entry] = {FIRST: ("AFTER_SEQUENCE_NUMBER", "10", -1, True)}
    awslabs.log(4, offset(4, "orders", begins))
    awslabs.end(4, {FIRST: ("AFTER_SEQUENCE_NUMBER", "20", -1, True)})
    awslabs.commit(4)
    awslabs.log(5, offset(4, "orders", begins))
    assert awslabs.read().positions == {FIRST: "AFTER_SEQUENCE_NUMBER 20"}


def test_awslabs_knows_records_within_aggregates(awslabs: Checkpoint) -> None:
    begins: dict[str, Entry] = {
        FIRST: ("AFTER_SEQUENCE_NUMBER", "10", 1, False),
        SECOND: ("AFTER_SEQUENCE_NUMBER", "11", 4, True),
    }
    awslabs.log(0, offset(0, "orders", begins))
    assert awslabs.read().positions == {
        FIRST: "AFTER_SEQUENCE_NUMBER 10:1",
        SECOND: "AFTER_SEQUENCE_NUMBER 11",
    }
    awslabs.end(0, {FIRST: ("AFTER_SEQUENCE_NUMBER", "12", 7, False), SECOND: ("LATEST", "", -1, True)})
    awslabs.commit(0)
    assert awslabs.read().positions == {FIRST: "AFTER_SEQUENCE_NUMBER 12:7", SECOND: "LATEST"}


def test_an_end_that_was_not_kept_costs_a_repetition_and_not_a_record(awslabs: Checkpoint) -> None:
    begins: dict[str, Entry] = {
        FIRST: ("AFTER_SEQUENCE_NUMBER", "10", -1, True),
        SECOND: ("TRIM_HORIZON", "", -1, True),
    }
    awslabs.log(0, offset(0, "orders", begins))
    awslabs.commit(0)
    found = awslabs.read()
    assert found.positions == {FIRST: "AFTER_SEQUENCE_NUMBER 10", SECOND: "TRIM_HORIZON"}
    assert f"not where it ended in {FIRST}, {SECOND}: its records there are read again" in found.notes[0]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_source_is_found_by_its_stream(qubole: Checkpoint, version: str) -> None:
    lines = [
        '{"topic":{"0":5}}',
        "-",
        offset(0, "payments", {FIRST: ("TRIM_HORIZON", "")}),
        offset(0, "orders", {FIRST: ("AFTER_SEQUENCE_NUMBER", "7")}),
    ]
    if version == "v2":
        lines = [f"{number}:{line}" for number, line in enumerate(lines)]
    qubole.log(0, *lines, version=version)
    assert qubole.read().positions == {FIRST: "AFTER_SEQUENCE_NUMBER 7"}
    qubole.end(0, {FIRST: ("AFTER_SEQUENCE_NUMBER", "9")}, source=3)
    qubole.commit(0)
    assert qubole.read().positions == {FIRST: "AFTER_SEQUENCE_NUMBER 9"}
    with pytest.raises(
        MigrationError, match="no source reads stream 'other'; the streams are orders, payments"
    ):
        qubole.read(stream="other")


def test_two_sources_of_one_stream(qubole: Checkpoint) -> None:
    begins = [("AFTER_SEQUENCE_NUMBER", number) for number in ("5", "6")]
    qubole.log(0, *(offset(0, "orders", {FIRST: begin}) for begin in begins))
    with pytest.raises(MigrationError, match=r"sources 0, 1 read stream 'orders'\. Choose one with --source"):
        qubole.read()
    assert qubole.read(source=1).positions == {FIRST: "AFTER_SEQUENCE_NUMBER 6"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with '', not with v1"),
        ("v9\n{}\n{}", "begins with 'v9', not with v1"),
        ('v1\n{}\n{"metadata":{"streamName":"orders"}}', "the offset of source 0 cannot be read"),
        ('v1\n{}\n{"metadata"', "the offset of source 0 cannot be read"),
        ('v1\n{}\n{"txid":1,"plan":"p"}', "no source reads stream 'orders'; the streams are none"),
        (
            'v1\n{}\n{"metadata":{"streamName":"orders","batchId":"1"},"shardId-0":{"iteratorType":"X"}}',
            "is not an offset of the connector",
        ),
    ],
)
def test_what_is_no_log_of_theirs(qubole: Checkpoint, text: str, message: str) -> None:
    (qubole.path / "offsets/3").write_text(text)
    with pytest.raises(MigrationError, match=message) as raised:
        qubole.read()
    assert "offsets/3" in str(raised.value)


def test_an_end_of_another_shard_or_none(qubole: Checkpoint) -> None:
    qubole.log(0, offset(0, "orders", {FIRST: ("TRIM_HORIZON", "")}))
    qubole.commit(0)
    qubole.end(0, {FIRST: ("AFTER_SEQUENCE_NUMBER", "10")})
    place = qubole.path / "sources/0/shard-commit/0" / FIRST
    place.write_text(shard_info(SECOND, ("TRIM_HORIZON", "")))
    with pytest.raises(MigrationError, match=f"the end of a batch in {FIRST} is of shard '{SECOND}'"):
        qubole.read()
    place.write_text("")
    with pytest.raises(MigrationError, match=f"the end of a batch in {FIRST} cannot be read"):
        qubole.read()


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "nowhere"))
    with pytest.raises(MigrationError, match="has no offsets, so no query has used it"):
        read_offset_log(System.QUBOLE, folder, "orders", lambda *_: {}, None)
    with pytest.raises(MigrationError, match=r"cannot be read: .*Check the path"):
        read_offset_log(System.QUBOLE, Folder("nothing://there"), "orders", lambda *_: {}, None)


def test_as_typed(
    command: Command,
    awslabs: Checkpoint,
    source: Source,
    client: KazooClient,
    kinesis_server: EmbeddedKinesis,
    dynamodb: DynamoDBClient,
    app: str,
    table: str,
    tmp_path: Path,
) -> None:
    """With the ends of batches in the checkpoint, in a folder of their own, and in a table."""
    begins: dict[str, Entry] = {FIRST: ("TRIM_HORIZON", "", -1, True)}
    awslabs.log(0, offset(0, source.stream, begins))
    awslabs.commit(0)
    awslabs.end(0, {FIRST: ("AFTER_SEQUENCE_NUMBER", "5", 2, False)})
    awslabs.end(0, {FIRST: ("AFTER_SEQUENCE_NUMBER", "6", -1, True)}, tmp_path / "elsewhere")
    create_table(dynamodb, table, "metadataKey", "metadataSortKey")
    ended = shard_info(FIRST, ("AFTER_SEQUENCE_NUMBER", "7", 3, False))
    for batch, text in (("0", ended), ("1", "{}")):
        item = {"metadataKey": {"S": batch}, "metadataSortKey": {"S": FIRST}, "metadataValue": {"S": text}}
        dynamodb.put_item(TableName=table, Item=item)
    typed = [
        "import",
        app,
        "--from",
        "awslabs",
        "--checkpoint-location",
        awslabs.path.as_uri(),
        *source.options,
    ]

    def there(*more: str) -> str:
        code, out, err = command(*typed, *more, "--dry-run", "--json")
        assert (code, err) == (0, "")
        (row,) = json.loads(out)["rows"]
        return str(row["becomes"])

    assert there() == "AFTER_SEQUENCE_NUMBER 5:2"
    assert there("--metadata-path", str(tmp_path / "elsewhere")) == "AFTER_SEQUENCE_NUMBER 6"
    at_table = ["--table", table, "--dynamodb-endpoint", kinesis_server.endpoint_url]
    assert there(*at_table) == "AFTER_SEQUENCE_NUMBER 7:3"
    code, out, _ = command(*typed, *at_table)
    assert (code, out) == (0, f"{FIRST} begins after 7:3\n")
    assert SourceStore(client, source.layout(app)).shards.checkpoints()[FIRST].sub == 3

    dynamodb.delete_table(TableName=table)
    create_table(dynamodb, table)
    code, _, err = command(*typed, *at_table)
    assert code == 1
    assert "it is not the table of the option kinesis.dynamodb.tableName" in err
