"""A machine that sleeps for longer than the retention: what expired meanwhile is a loss, though looks find tips."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from stepped import SlowKinesis, SteppedQuery

from kinesis_trident.spout.kinesis import KinesisError, ThrottledError
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis

SLEPT = 30 * 3_600.0
"""Seconds; the stream keeps 24 hours."""


class Throttled(SlowKinesis):
    """Refuses the next calls of a name."""

    def __init__(self, kinesis: MemoryKinesis, time: FakeTime) -> None:
        super().__init__(kinesis, time, 0.0)
        self.left: dict[str, int] = {}
        self.describe = partial(self._ask, kinesis.describe)
        self.list_shards = partial(self._ask, kinesis.list_shards)

    def _ask(self, call: Callable[..., Any], *asked: object) -> Any:
        if self.left.get(call.__name__):
            self.left[call.__name__] -= 1
            msg = "too many"
            raise ThrottledError(msg)
        return call(*asked)


BLOCKED = {"ackMode": "explicit", "maxInflightRecords": "1", "messageTimeout": "200h"}


@pytest.mark.parametrize(
    ("options", "trouble"),
    [
        ({}, ""),
        pytest.param(BLOCKED, "", id="of a shard that is not read"),
        ({}, "describe"),
        ({}, "list_shards"),
        ({}, "split"),
    ],
)
def test_what_expired_while_the_machine_slept_is_a_loss(options: dict[str, str], trouble: str) -> None:
    """`trouble`: what happens to the first looks after it, or to what would explain that they fail."""
    time = FakeTime()
    kinesis = MemoryKinesis(shards=2, clock=time.milliseconds)
    shard, other = kinesis.open_shards
    calls, slept = Throttled(kinesis, time), 0.0
    query = SteppedQuery(
        calls,
        time,
        steady=lambda: time.now - slept,
        describeShardInterval="10m",
        failOnDataLoss="false",
        **options,
    )

    def go_on(seconds: int) -> None:
        for _ in range(seconds):
            time.sleep(1)
            while query.plan() is not None:
                query.rows()
                query.commit()

    kinesis.put(shard, b"1")
    go_on(10)
    kinesis.trim(shard, kinesis.put(shard, b"2"))
    slept = SLEPT
    time.sleep(slept)
    if trouble in ("list_shards", "split"):
        kinesis.fail(other, KinesisError("odd"))
    if trouble == "split":
        kinesis.split(other)
    calls.left[trouble] = 3
    go_on(700)
    losses = query.run.report().get("lastLosses", [])
    assert any(f"shard {shard}: reading stands at" in loss for loss in losses), losses
    query.end()
