"""A stage of its own for each test of a whole query."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
import stage as stage_module
from kazoo.client import KazooClient
from moto_in_hand import REGION, MotoInHand, moto_in_hand
from pyspark import cloudpickle
from stage import Stage

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient
    from pyspark.sql import SparkSession

cloudpickle.register_pickle_by_value(stage_module)


@pytest.fixture(scope="session")
def keeper(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    """A connection to the shared ZooKeeper."""
    client = connect(ZooKeeperConfig(zookeeper.hosts))
    yield client
    client.stop()
    client.close()


@pytest.fixture
def make_stage(
    spark: SparkSession,
    kinesis: KinesisClient,
    kinesis_server: EmbeddedKinesis,
    zookeeper: EmbeddedZooKeeper,
    keeper: KazooClient,
    make_stream: Callable[..., str],
    app: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., Stage]]:
    """`make_stage(shards=1)`; its queries are stopped after the test."""
    # Spark's workers cannot import the tests.
    cloudpickle.register_pickle_by_value(request.module)
    made: list[Stage] = []

    def make(shards: int = 1) -> Stage:
        made.append(
            Stage(
                spark,
                kinesis,
                kinesis_server.endpoint_url,
                keeper,
                zookeeper.hosts,
                tmp_path,
                make_stream(shards),
                app,
            )
        )
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def stage(make_stage: Callable[..., Stage]) -> Stage:
    """A stage with a stream of one shard."""
    return make_stage()


@pytest.fixture(scope="session")
def moto() -> Iterator[MotoInHand]:
    """A Kinesis whose records can be taken away."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with moto_in_hand() as server:
        yield server


@pytest.fixture
def own_stage(make_stage: Callable[..., Stage], moto: MotoInHand) -> Callable[..., Stage]:
    """`own_stage(shards=1)`: like `make_stage`, on the Kinesis of `moto`."""

    def make(shards: int = 1) -> Stage:
        one = make_stage(shards)
        one.client = boto3.client("kinesis", endpoint_url=moto.endpoint, region_name=REGION)
        one.endpoint = moto.endpoint
        one.stream = f"own-{uuid.uuid4().hex[:12]}"
        one.client.create_stream(StreamName=one.stream, ShardCount=shards)
        one.client.get_waiter("stream_exists").wait(StreamName=one.stream, WaiterConfig={"Delay": 1})
        return one

    return make
