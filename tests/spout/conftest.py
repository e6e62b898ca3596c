"""A scripted endpoint whose clock stands still, and the lives of an application without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from by_hand import Lives

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.testing import FakeTime, ScriptedKinesis


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def server(time: FakeTime) -> Iterator[ScriptedKinesis]:
    """A stream of one shard, and a clock that stands still."""
    with ScriptedKinesis(clock=time.milliseconds) as server:
        server.create_stream("orders")
        yield server


@pytest.fixture
def lives(zookeeper: EmbeddedZooKeeper, app: str) -> Iterator[Lives]:
    """The lives of the test's application, which end with the test."""
    lives = Lives(zookeeper.hosts, app)
    yield lives
    lives.end()
