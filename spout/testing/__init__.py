"""Kinesis for tests, including yours: in memory (`MemoryKinesis`), or as an endpoint on loopback (`ScriptedKinesis`).

They provide what the service has and local servers do not: 56-digit sequence numbers, iterators that expire, quotas,
empty pages behind the tip, closed shards that end and name their children, and faults at any call.
"""

from __future__ import annotations

from kinesis_trident.spout.testing.clock import FakeTime
from kinesis_trident.spout.testing.faults import Cut, Refuse, Slow
from kinesis_trident.spout.testing.memory import MemoryKinesis
from kinesis_trident.spout.testing.quotas import Quotas
from kinesis_trident.spout.testing.scripted import ScriptedKinesis
from kinesis_trident.spout.testing.shard import aggregate

__all__ = ["Cut", "FakeTime", "MemoryKinesis", "Quotas", "Refuse", "ScriptedKinesis", "Slow", "aggregate"]
