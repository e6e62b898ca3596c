"""A scripted endpoint whose clock stands still."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
