"""Lives of a query on a stream of moto's and the shared ZooKeeper, or one of a test's own."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from by_hand import Lives, Query, SparkCheckpoint
from restarting import Start, Stream

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.model import codec
from kinesis_trident.spout.kinesis.client import kinesis_client

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient


@pytest.fixture(autouse=True)
def _some_pack_positions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second test, by its name, has plans and offsets as very many shards have them."""
    if zlib.crc32(request.node.name.encode()) % 2:
        monkeypatch.setattr(codec, "MANY", 0)


@pytest.fixture
def stream(kinesis: KinesisClient, make_stream: Callable[..., str]) -> Stream:
    return Stream(kinesis, make_stream(2))


@pytest.fixture
def start(
    zookeeper: EmbeddedZooKeeper, kinesis_server: EmbeddedKinesis, stream: Stream, app: str
) -> Iterator[Start]:
    """`start(checkpoint=None, kinesis=..., **options)`: a life of the query; a new checkpoint by default."""
    given = {"streamName": stream.name, "endpointUrl": kinesis_server.endpoint_url, "retryLimit": "2"}
    lives = Lives(zookeeper.hosts, app, describeShardInterval="10s", **given)

    def begin(checkpoint: SparkCheckpoint | None = None, kinesis: Any = None, **options: str) -> Query:
        return lives.begin(kinesis or kinesis_client(lives.parsed(**options)), checkpoint, **options)

    yield begin
    lives.end()


@pytest.fixture(scope="module")
def zookeeper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own-zookeeper")


@pytest.fixture(scope="module")
def zookeeper_of_the_file(zookeeper_folder: Path) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(zookeeper_folder) as server:
        yield server


@pytest.fixture
def own_zookeeper(
    zookeeper_of_the_file: EmbeddedZooKeeper, zookeeper_folder: Path, tmp_path: Path
) -> EmbeddedZooKeeper:
    """A ZooKeeper that a test may stop, wipe and restore, in its folder `zookeeper`; one after the other has it."""
    (tmp_path / "zookeeper").symlink_to(zookeeper_folder)
    return zookeeper_of_the_file.start()
