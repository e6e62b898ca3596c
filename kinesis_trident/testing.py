"""For tests of your own code: topologies in process, Kinesis in memory or as an endpoint, servers, conformance suites.

A name is imported when it is first asked for: none of this needs pytest, and only `EmbeddedKinesis` needs moto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinesis_trident.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from kinesis_trident.bolt.testing.given_tuples import (
        Batches as Batches,
        FailedTuple as FailedTuple,
        TopologyResult as TopologyResult,
    )
    from kinesis_trident.checkpoint.embedded import (
        EmbeddedKinesis as EmbeddedKinesis,
        EmbeddedZooKeeper as EmbeddedZooKeeper,
    )
    from kinesis_trident.spout.query_by_hand import (
        DeliveredRow as DeliveredRow,
        QueryByHand as QueryByHand,
        SparkCheckpoint as SparkCheckpoint,
    )
    from kinesis_trident.spout.testing.clock import FakeTime as FakeTime
    from kinesis_trident.spout.testing.faults import (
        Cut as Cut,
        Refuse as Refuse,
        Slow as Slow,
    )
    from kinesis_trident.spout.testing.local_spark import start_spark as start_spark
    from kinesis_trident.spout.testing.memory import MemoryKinesis as MemoryKinesis
    from kinesis_trident.spout.testing.quotas import Quotas as Quotas
    from kinesis_trident.spout.testing.scripted import ScriptedKinesis as ScriptedKinesis
    from kinesis_trident.spout.testing.shard import aggregate as aggregate
    from kinesis_trident.trident.testing.conformance import (
        BackingMapConformance as BackingMapConformance,
        Connect as Connect,
    )
    from kinesis_trident.trident.testing.run_trident import run_topology as run_topology
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__)
