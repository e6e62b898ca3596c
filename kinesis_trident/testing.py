"""What tests of jobs need: Kinesis in memory or as an endpoint with faults, servers on loopback, a conformance suite."""

from __future__ import annotations

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.spout.testing import (
    Cut,
    FakeTime,
    MemoryKinesis,
    Quotas,
    Refuse,
    ScriptedKinesis,
    Slow,
    aggregate,
)

__all__ = [
    "Cut",
    "EmbeddedKinesis",
    "EmbeddedZooKeeper",
    "FakeTime",
    "MemoryKinesis",
    "Quotas",
    "Refuse",
    "ScriptedKinesis",
    "Slow",
    "aggregate",
]
