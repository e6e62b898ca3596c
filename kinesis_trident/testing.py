"""For tests of your own code: topologies in process, Kinesis in memory or as an endpoint, servers, conformance suites.

A name is imported when it is first asked for: none of this needs pytest, and only `EmbeddedKinesis` needs moto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinesis_trident.lazy_names import lazy_names

if TYPE_CHECKING:
    from kinesis_trident.bolt.testing.given_tuples import Batches
    from kinesis_trident.bolt.testing.results import FailedTuple, TopologyResult
    from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
    from kinesis_trident.spout.query_by_hand import DeliveredRow, QueryByHand, SparkCheckpoint
    from kinesis_trident.spout.testing.clock import FakeTime
    from kinesis_trident.spout.testing.faults import Cut, Refuse, Slow
    from kinesis_trident.spout.testing.memory import MemoryKinesis
    from kinesis_trident.spout.testing.quotas import Quotas
    from kinesis_trident.spout.testing.records import aggregate
    from kinesis_trident.spout.testing.scripted import ScriptedKinesis
    from kinesis_trident.trident.testing.conformance import BackingMapConformance, Connect
    from kinesis_trident.trident.testing.run_topology import run_topology

__all__ = [
    "BackingMapConformance",
    "Batches",
    "Connect",
    "Cut",
    "DeliveredRow",
    "EmbeddedKinesis",
    "EmbeddedZooKeeper",
    "FailedTuple",
    "FakeTime",
    "MemoryKinesis",
    "QueryByHand",
    "Quotas",
    "Refuse",
    "ScriptedKinesis",
    "Slow",
    "SparkCheckpoint",
    "TopologyResult",
    "aggregate",
    "run_topology",
]

_HOMES = {
    "BackingMapConformance": "kinesis_trident.trident.testing.conformance",
    "Batches": "kinesis_trident.bolt.testing.given_tuples",
    "Connect": "kinesis_trident.trident.testing.conformance",
    "Cut": "kinesis_trident.spout.testing.faults",
    "DeliveredRow": "kinesis_trident.spout.query_by_hand",
    "EmbeddedKinesis": "kinesis_trident.checkpoint.embedded",
    "EmbeddedZooKeeper": "kinesis_trident.checkpoint.embedded",
    "FailedTuple": "kinesis_trident.bolt.testing.results",
    "FakeTime": "kinesis_trident.spout.testing.clock",
    "MemoryKinesis": "kinesis_trident.spout.testing.memory",
    "QueryByHand": "kinesis_trident.spout.query_by_hand",
    "Quotas": "kinesis_trident.spout.testing.quotas",
    "Refuse": "kinesis_trident.spout.testing.faults",
    "ScriptedKinesis": "kinesis_trident.spout.testing.scripted",
    "Slow": "kinesis_trident.spout.testing.faults",
    "SparkCheckpoint": "kinesis_trident.spout.query_by_hand",
    "TopologyResult": "kinesis_trident.bolt.testing.results",
    "aggregate": "kinesis_trident.spout.testing.records",
    "run_topology": "kinesis_trident.trident.testing.run_topology",
}
"""The module of each name."""

if not TYPE_CHECKING:
    # A type checker reads the imports above, and so knows a wrong name.
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
