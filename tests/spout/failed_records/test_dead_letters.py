from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pyarrow as pa
import pytest

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis
from kinesis_trident.spout.errors import DeadLetterError
from kinesis_trident.spout.failed_records.compacting import compact_letters
from kinesis_trident.spout.failed_records.dead_letters import DeadLetter, read_dead_letters
from kinesis_trident.spout.failed_records.letter_writer import DeadLetterWriter, Letter
from kinesis_trident.spout.kinesis import KinesisError, StreamInfo
from kinesis_trident.tracker.records import Noted, Run

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

ARRIVAL = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
FAILURES = (Noted(1_700_000_000_000, "ValueError: bad"), Noted(1_700_000_001_500, "KeyError: 'id'"))
SEQUENCE = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898
SHARD = "shardId-000000000003"


@dataclass(frozen=True)
class Target:
    dead_letter: str | None
    application_name: str = "my/app"


@dataclass
class Recorder:
    """The part of the interface to Kinesis that dead letters use, in memory."""

    full: bool = False
    put: dict[str, list[tuple[bytes, str]]] = field(default_factory=dict)

    def put_records(self, stream: str, records: list[tuple[bytes, str]]) -> None:
        if self.full:
            raise KinesisError("no stream of that name")
        self.put.setdefault(stream, []).extend(records)


def writer(target: str, kinesis: object = None) -> DeadLetterWriter:
    return DeadLetterWriter(Target(target), kinesis or Recorder(), clock=lambda: 1_700_000_009_000)  # type: ignore[arg-type]


def batch(*records: tuple[int, int, bytes, str]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "partitionKey": [key for _, _, _, key in records],
            "data": pa.array([data for _, _, data, _ in records], pa.binary()),
            "sequenceNumber": [str(sequence) for sequence, _, _, _ in records],
            "subSequenceNumber": pa.array([sub for _, sub, _, _ in records], pa.int64()),
            "approximateArrivalTimestamp": pa.array([ARRIVAL] * len(records), pa.timestamp("us", tz="UTC")),
        }
    )


def run(first: int, last: int, count: int) -> Run:
    return Run(str(first), str(last), count, attempt=4, failures=FAILURES)


def letters() -> list[Letter]:
    found = batch((SEQUENCE, -1, b"\x00\xff one", "k\u00e91"), (SEQUENCE + 9, 2, b"", "k2"))
    return [(run(SEQUENCE, SEQUENCE + 9, 2), [found], False)]


def lines(folder: Path) -> list[dict[str, object]]:
    return [
        json.loads(line) for path in sorted(folder.rglob("*.jsonl")) for line in path.read_text().splitlines()
    ]


def test_a_document_says_all_there_is_to_know(tmp_path: Path) -> None:
    info = StreamInfo(
        "orders", "arn:aws:kinesis:eu-west-1:123456789012:stream/orders", 1_600_000_000_001, 24, "", 0
    )
    writer(str(tmp_path)).write(stream="orders", txid=7, letters={SHARD: letters()}, info=info)
    first, second = lines(tmp_path)
    assert first == {
        "messageId": f"orders/{SHARD}:{SEQUENCE}",
        "stream": "orders",
        "shardId": SHARD,
        "sequenceNumber": str(SEQUENCE),
        "subSequenceNumber": -1,
        "partitionKey": "k\u00e91",
        "data": base64.b64encode(b"\x00\xff one").decode(),
        "approximateArrivalTimestamp": "2026-01-02T03:04:05.678+00:00",
        "attempts": 4,
        "reasons": [
            {"time": "2023-11-14T22:13:20.000+00:00", "reason": "ValueError: bad"},
            {"time": "2023-11-14T22:13:21.500+00:00", "reason": "KeyError: 'id'"},
        ],
        "txid": 7,
        "applicationName": "my/app",
        "count": 1,
        "streamCreated": "2020-09-13T12:26:40.001+00:00",
        "account": "123456789012",
    }
    assert second["messageId"] == f"orders/{SHARD}:{SEQUENCE + 9}:2"
    assert (second["subSequenceNumber"], second["data"]) == (2, "")


@pytest.mark.parametrize(
    ("expired", "found", "message_id", "count"),
    [
        (run(5, 5, 1), 0, "5", 1),
        (run(5, 8, 4), 0, "5..8", 4),
        (run(5, 8, 4), 3, "5..8", 1),
        (Run("", "8", 3, prev="4", attempt=4, failures=FAILURES), 0, "after 4..8", 3),
    ],
)
def test_what_has_expired_goes_without_its_payload(
    tmp_path: Path, expired: Run, found: int, message_id: str, count: int
) -> None:
    batches = [batch(*((6 + i, -1, b"x", "k") for i in range(found)))]
    written = writer(str(tmp_path)).write(stream="s", txid=1, letters={SHARD: [(expired, batches, True)]})
    assert len(written) == found + 1
    gone = written[-1]
    assert (gone.message_id, gone.count) == (f"s/{SHARD}:{message_id}", count)
    assert (gone.data, gone.partition_key, gone.approximate_arrival_timestamp) == (None, None, None)
    assert gone.sequence_number == (expired.first or None)
    assert [reason.reason for reason in gone.reasons] == ["ValueError: bad", "KeyError: 'id'", "EXPIRED"]
    assert gone.reasons[-1].time == "2023-11-14T22:13:29.000+00:00"
    assert lines(tmp_path)[-1]["data"] is None


def test_a_run_that_is_only_partly_reached_is_not_called_expired(tmp_path: Path) -> None:
    written = writer(str(tmp_path)).write(
        stream="s", txid=1, letters={SHARD: [(run(5, 8, 4), [batch((5, -1, b"x", "k"))], False)]}
    )
    assert [letter.message_id for letter in written] == [f"s/{SHARD}:5"]


def test_an_expiry_that_the_run_tells_of_is_told_once(tmp_path: Path) -> None:
    known = Run("5", "5", failures=(Noted(1_700_000_000_000, "EXPIRED"),))
    (gone,) = writer(str(tmp_path)).write(stream="s", txid=1, letters={SHARD: [(known, [], True)]})
    assert [reason.reason for reason in gone.reasons] == ["EXPIRED"]


@pytest.mark.parametrize("as_uri", [False, True])
def test_a_replay_replaces_its_file_and_no_other(tmp_path: Path, as_uri: bool) -> None:
    folder = tmp_path / "not" / "there yet"
    out = writer(folder.as_uri() if as_uri else str(folder))
    for shard in (SHARD, "shardId/odd"):
        for txid in (7, 8):
            out.write(stream="orders", txid=txid, letters={shard: letters()})
    out.write(stream="orders", txid=7, letters={SHARD: letters()[:1]})
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert [name.rpartition("-")[0] for name in files] == [
        "my%2Fapp/orders/000000000007-shardId%2Fodd",
        f"my%2Fapp/orders/000000000007-{SHARD}",
        "my%2Fapp/orders/000000000008-shardId%2Fodd",
        f"my%2Fapp/orders/000000000008-{SHARD}",
    ]
    out.write(stream="orders", txid=7, letters={SHARD: letters()}, plan="p2")
    assert len(list(folder.glob(f"my%2Fapp/orders/000000000007-{SHARD}-p2-*~*.jsonl"))) == 1


def test_turns_that_are_written_together_are_one_file_and_what_of_it_is_written_again_is_left_out(
    tmp_path: Path,
) -> None:
    out = writer(str(tmp_path))
    both = {SHARD: letters(), "shardId-000000000004": [(run(5, 8, 4), [], True)]}
    written = out.write(stream="orders", txid=7, letters=both, plan="p")
    (path,) = tmp_path.rglob("*.jsonl")
    assert list(read_dead_letters(tmp_path)) == written
    # The task is repeated: as it was, and cut otherwise.
    for some in (both, *({shard: runs} for shard, runs in both.items())):
        assert out.write(stream="orders", txid=7, letters=some, plan="p", again=True) == []
    assert list(tmp_path.rglob("*.jsonl")) == [path]
    # The first one has not read as far; another plan of the same txid is another batch.
    further = {SHARD: [*letters(), (run(SEQUENCE + 20, SEQUENCE + 20, 1), [], True)]}
    rest = out.write(stream="orders", txid=7, letters=further, plan="p", again=True)
    assert [letter.message_id for letter in rest] == [f"orders/{SHARD}:{SEQUENCE + 20}"]
    assert len(out.write(stream="orders", txid=7, letters=both, plan="p2", again=True)) == 3


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    out = writer(str(tmp_path))
    written = [
        letter
        for txid in (2, 10)
        for letter in out.write(
            stream="s", txid=txid, letters={SHARD: [*letters(), (run(5, 8, 4), [], True)]}
        )
    ]
    read = list(read_dead_letters(tmp_path))
    assert read == written
    assert read[0].data == b"\x00\xff one"
    assert list(read_dead_letters(tmp_path.as_uri())) == written


def test_folders_and_lines_that_cannot_be_read_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DeadLetterError, match=f"cannot read dead letters from {tmp_path}/none"):
        list(read_dead_letters(tmp_path / "none"))
    writer(str(tmp_path)).write(stream="s", txid=1, letters={SHARD: letters()})
    (path,) = tmp_path.rglob("*.jsonl")
    older = path.with_name(f"{path.name.partition('~')[0]}.jsonl")
    older.write_bytes(path.read_bytes() + b'{"messageId":1}\n')
    assert len(list(read_dead_letters(tmp_path))) == 2
    [said] = caplog.messages
    assert f"{older} was cut off or damaged, and is left out: line 3 is not a dead letter" in said


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for target, says in (
        (f"{tmp_path}/file", "file"),
        ("relative/folder", "must be absolute"),
        ("nosuch://user:secret@host/folder?secret_key=hidden", "nosuch://host/folder"),
    ):
        with pytest.raises(DeadLetterError, match=f"txid 7 to .*{says}") as caught:
            writer(target).write(stream="orders", txid=7, letters={SHARD: letters()})
        for word in ("'orders'", SHARD, "option deadLetter", "the batch is retried"):
            assert word in str(caught.value)
        assert "hidden" not in str(caught.value).partition(": ")[0]
    with pytest.raises(DeadLetterError, match="the option deadLetter is not set"):
        DeadLetterWriter(Target(None), Recorder())  # type: ignore[arg-type]


def test_half_a_file_is_never_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = writer(str(tmp_path))
    before = out.write(stream="s", txid=1, letters={SHARD: letters()[:1]})

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(DeadLetterError, match="No space left"):
            out.write(stream="s", txid=1, letters={SHARD: [(run(5, 5, 1), [], True)]})
    assert list(read_dead_letters(tmp_path)) == before
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_a_stream_gets_documents_under_the_original_keys() -> None:
    kinesis = Recorder()
    writer("kinesis://dead", kinesis).write(
        stream="orders", txid=7, letters={SHARD: [*letters(), (run(5, 8, 4), [], True)]}
    )
    assert [key for _, key in kinesis.put["dead"]] == ["k\u00e91", "k2", f"orders/{SHARD}:5..8"]
    first = json.loads(kinesis.put["dead"][0][0])
    assert first["messageId"] == f"orders/{SHARD}:{SEQUENCE}"
    with pytest.raises(DeadLetterError, match="to kinesis://dead: no stream of that name"):
        writer("kinesis://dead", Recorder(full=True)).write(stream="s", txid=1, letters={SHARD: letters()})


class BotoPut:
    """Puts through boto3, one request."""

    def __init__(self, client: KinesisClient) -> None:
        self._client = client

    def put_records(self, stream: str, records: list[tuple[bytes, str]]) -> None:
        answer = self._client.put_records(
            StreamName=stream, Records=[{"Data": data, "PartitionKey": key} for data, key in records]
        )
        assert answer["FailedRecordCount"] == 0


def test_a_real_stream_takes_the_documents(kinesis: KinesisClient, make_stream: Callable[..., str]) -> None:
    name = make_stream()
    writer(f"kinesis://{name}", BotoPut(kinesis)).write(stream="orders", txid=7, letters={SHARD: letters()})
    shard = kinesis.list_shards(StreamName=name)["Shards"][0]["ShardId"]
    iterator = kinesis.get_shard_iterator(StreamName=name, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    records = kinesis.get_records(ShardIterator=iterator["ShardIterator"])["Records"]
    assert [record["PartitionKey"] for record in records] == ["k\u00e91", "k2"]
    assert [json.loads(record["Data"])["txid"] for record in records] == [7, 7]


def test_a_folder_in_an_object_store(kinesis_server: EmbeddedKinesis) -> None:
    """moto's server speaks S3 too."""
    boto3.client("s3", endpoint_url=kinesis_server.endpoint_url, region_name="us-east-1").create_bucket(
        Bucket="dead"
    )
    host = kinesis_server.endpoint_url.removeprefix("http://")
    # As users of Spark write it.
    target = f"s3a://dead/letters?scheme=http&endpoint_override={host}&region=us-east-1"
    out = writer(target)
    out.write(stream="s", txid=1, letters={SHARD: letters()})
    again: list[DeadLetter] = out.write(stream="s", txid=1, letters={SHARD: letters()})
    assert list(read_dead_letters(target)) == again
    out.write(stream="s", txid=2, letters={SHARD: letters()})
    both = list(read_dead_letters(target))
    for before, after in ((2, 1), (1, 1)):
        done = compact_letters(target, "my/app", "s", lambda _: True)
        assert (done.before, done.after) == (before, after)
        assert list(read_dead_letters(target)) == both
