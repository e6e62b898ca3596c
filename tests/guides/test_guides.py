"""The guides, a task each: their code runs in one Spark session, on servers of this test, and prints what they say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from doc_page import ROOT, Page
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.testing import MemoryKinesis, QueryByHand, Quotas, ScriptedKinesis, SparkCheckpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = ROOT / "docs"
REASONS = {
    b"broken": "JSONDecodeError: Expecting value",
    b"late": "TimeoutError: the price service does not answer",
}
HOSTS = "zk1:2181,zk2:2181,zk3:2181"


@pytest.fixture(scope="module")
def hosts(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The shared ZooKeeper below a path of its own: the guides' applications have plain names."""
    path = f"/{tmp_path_factory.mktemp('guides').name}"
    client = KazooClient(zookeeper.hosts)
    client.start()
    client.ensure_path(path)
    client.stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KINESIS_TRIDENT_ZOOKEEPER", zookeeper.hosts + path)
        yield zookeeper.hosts + path


@pytest.fixture
def kinesis() -> Iterator[ScriptedKinesis]:
    """A Kinesis with the streams of the guides, which reshards as the service does."""
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        for stream in ("orders", "payments"):
            server.create_stream(stream)
            (shard,) = server.shards(stream)
            for number in range(3):
                server.put(stream, shard, f"{stream} {number}".encode())
        yield server


def page(name: str, folder: Path, hosts: str, kinesis: ScriptedKinesis) -> Page:
    endpoint = kinesis.endpoint_url
    ours = {
        HOSTS: hosts,
        '"region", "eu-west-1"': f'"endpointUrl", "{endpoint}"',
        'region_name="eu-west-1"': f'region_name="us-east-1", endpoint_url="{endpoint}"',
        "--region eu-west-1": f"--region us-east-1 --endpoint {endpoint}",
        "/data": str(folder),
    }
    return Page(DOCS / f"{name}.md", folder, {"__name__": "__main__"}, ours)


def read(folder: Path, pattern: str) -> list[str]:
    """The lines of the files, without Spark's marks."""
    return sorted(line for path in folder.glob(pattern) for line in path.read_text().splitlines())


def test_a_reshard(spark: SparkSession, tmp_path: Path, hosts: str, kinesis: ScriptedKinesis) -> None:
    guide = page("resharding", tmp_path, hosts, kinesis)
    guide.check()
    assert len(kinesis.shards("orders")) == 2
    later = ["ann", "bob", "cid", "dan", "eve"]
    assert read(tmp_path, "texts/*.txt") == later + [f"orders {number}" for number in range(3)]


def test_several_streams(spark: SparkSession, tmp_path: Path, hosts: str, kinesis: ScriptedKinesis) -> None:
    page("several-streams", tmp_path, hosts, kinesis).check()
    for stream in ("orders", "payments"):
        rows = [json.loads(line) for line in read(tmp_path, f"{stream}/txid=*/epoch=*/*.json")]
        assert [(row["kind"], row["text"]) for row in rows] == [
            (stream, f"{stream} {number}") for number in range(3)
        ]


def test_a_backfill(spark: SparkSession, tmp_path: Path, hosts: str, kinesis: ScriptedKinesis) -> None:
    page("backfill", tmp_path, hosts, kinesis).check()
    for folder in ("backfill", "again"):
        rows = spark.read.parquet(str(tmp_path / folder)).collect()
        assert sorted(row.json for row in rows) == [f"orders {number}" for number in range(3)]


def test_a_login(
    spark: SparkSession,
    tmp_path: Path,
    hosts: str,
    kinesis: ScriptedKinesis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORDERS_LOGIN", "orders:secret")
    guide = page("security", tmp_path, hosts, kinesis)
    guide.check()
    (policy,) = re.findall(r"^```json\n(.*?)^```$", guide.text, re.MULTILINE | re.DOTALL)
    actions = set(re.findall(r'"(kinesis:\w+)"', policy))
    rows = re.findall(
        r"^\| (`\w+:\w+`.*?) \| (.*?) \| (.*?) \|$", (DOCS / "deploying.md").read_text(), re.MULTILINE
    )
    needed = {
        action
        for names, _, why in rows
        if "consumerMode=efo" not in why
        for action in re.findall(r"kinesis:\w+", names)
    }
    assert actions == needed
    assert json.loads(policy)["Version"]


class Orders(QueryByHand):
    """A query whose failed records say why."""

    def publish(
        self, rows: Iterable[Any] = (), reason: Callable[[Any], str] = lambda row: REASONS[row.data]
    ) -> None:
        super().publish(rows, reason)


def test_looks_at_checkpoints(tmp_path: Path, hosts: str, kinesis: ScriptedKinesis) -> None:
    memory, checkpoint = MemoryKinesis("orders"), SparkCheckpoint()
    (shard,) = memory.open_shards
    options = {
        "streamName": "orders",
        "region": "us-east-1",
        "applicationName": "orders-checked",
        "zookeeper.hosts": hosts,
        "startingPosition": "TRIM_HORIZON",
        "retryLimit": "1",
        "deadLetter": str(tmp_path / "letters"),
    }

    def deliver(backoff: str, *data: bytes) -> Orders:
        for one in data:
            memory.put(shard, one)
        query = Orders.start(options | {"retryBackoff": backoff}, memory, checkpoint)
        query.batch(lambda row: row.data in REASONS)
        return query

    first = deliver("1ms..1ms x1", b"one", b"broken", b"two")
    while not (tmp_path / "letters").exists():
        if first.plan() is not None:
            first.batch(lambda row: row.data in REASONS)
    assert first.plan() is None
    first.end()
    query = deliver("24h..24h x1", b"three", b"late", b"four")
    assert query.plan() is None
    try:
        page("checkpoints", tmp_path, hosts, kinesis).check()
    finally:
        query.end()
