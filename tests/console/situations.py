"""A query in trouble, and the clock of a night: what the tests of the console and of the runbook share."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from by_hand import Query
from msgspec.structs import replace

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.testing import MemoryKinesis, ScriptedKinesis

__all__ = ["A", "Clock", "filled", "looked", "moved_clock", "scripted_options"]

A = "shardId-000000000000"


class Clock:
    """The wall clock of a query, which a test moves on."""

    ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


def moved_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the command line, and of lives that are given it."""
    moved = Clock()
    monkeypatch.setattr("kinesis_trident.console.text.time", SimpleNamespace(time=moved))
    return moved


def filled(count: int = 3, clock: Clock | None = None) -> MemoryKinesis:
    kinesis = MemoryKinesis(clock=lambda: int((clock or time.time)() * 1000))
    for number in range(count):
        kinesis.put(A, str(number).encode())
    return kinesis


def looked(query: Query) -> None:
    """Have a query that has read everything look once more, and wait until the status of that is in ZooKeeper."""
    # An older status may still be on its way to ZooKeeper, and nothing else is sent until it is there.
    begun = query.run._now()
    # A look that was made just now was made before what the test has changed since.
    sights = query.run._state.sights
    unpaced = sights.of("never looked at")
    due = {
        shard: replace(one, pace=unpaced.pace, budget=unpaced.budget)
        for shard, one in sights.by_shard.items()
    }
    query.run._state.sights = sights.put(due)
    for _ in range(3000):
        # The status is written every few seconds by a clock that only moves on, and nothing waits for it.
        query.run._notes._due = 0
        query.plan()
        node = query.store.status.get()
        if node is not None and node.time > begun:
            return
    raise AssertionError


def scripted_options(kinesis: ScriptedKinesis, zookeeper: EmbeddedZooKeeper, app: str) -> SourceOptions:
    """Return the options with which a query reads `orders` of a scripted endpoint."""
    return SourceOptions.parse(
        {
            "streamName": "orders",
            "region": "us-east-1",
            "endpointUrl": kinesis.endpoint_url,
            "awsAccessKeyId": "testing",
            "awsSecretAccessKey": "testing",
            "applicationName": app,
            "zookeeper.hosts": zookeeper.hosts,
        }
    )
