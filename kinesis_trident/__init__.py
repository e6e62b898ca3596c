"""Kinesis in Spark Structured Streaming, with the reliability of Storm and Trident.

    from kinesis_trident import reliable

    orders = spark.readStream.format("kinesis-trident").options(...).load()
    query = reliable(orders).map(parse, "id string").for_each_batch(write).start(checkpointLocation=...)

This is what most users import. Beside it are public: `kinesis_trident.trident` (topologies, operations, aggregators,
states), `kinesis_trident.trident.maps` (for authors of stores) and `kinesis_trident.testing` (fakes and servers for
tests). Everything else may change from one release to the next.

A name is imported when it is first asked for: Spark imports this package in each process that looks for a format.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinesis_trident.bolt.errors import FailedException, TopologyError
    from kinesis_trident.bolt.outcomes import Outcomes
    from kinesis_trident.bolt.reliable import Reliable, ReliableSink, foreach_batch, reliable
    from kinesis_trident.bolt.storm.api import (
        ArrowBolt,
        BasicBolt,
        BasicOutputCollector,
        Bolt,
        OutputCollector,
        TopologyContext,
        Tuple,
    )
    from kinesis_trident.bolt.storm.spout import KinesisSpout, string_scheme
    from kinesis_trident.bolt.storm.topology import TopologyBuilder
    from kinesis_trident.checkpoint.embedded.java import ensure_java
    from kinesis_trident.spout.acks import Acks
    from kinesis_trident.spout.failed_records.dead_letters import DeadLetter, read_dead_letters
    from kinesis_trident.spout.graceful_stop import stop
    from kinesis_trident.tracker.errors import KinesisTridentError

    __version__: str

__all__ = [
    "Acks",
    "ArrowBolt",
    "BasicBolt",
    "BasicOutputCollector",
    "Bolt",
    "DeadLetter",
    "FailedException",
    "KinesisSpout",
    "KinesisTridentError",
    "Outcomes",
    "OutputCollector",
    "Reliable",
    "ReliableSink",
    "TopologyBuilder",
    "TopologyContext",
    "TopologyError",
    "Tuple",
    "__version__",
    "ensure_java",
    "foreach_batch",
    "read_dead_letters",
    "reliable",
    "stop",
    "string_scheme",
]

_STORM = "bolt.storm.api"
_HOMES = {
    "Acks": "spout.acks",
    "ArrowBolt": _STORM,
    "BasicBolt": _STORM,
    "BasicOutputCollector": _STORM,
    "Bolt": _STORM,
    "DeadLetter": "spout.failed_records.dead_letters",
    "FailedException": "bolt.errors",
    "KinesisSpout": "bolt.storm.spout",
    "KinesisTridentError": "tracker.errors",
    "Outcomes": "bolt.outcomes",
    "OutputCollector": _STORM,
    "Reliable": "bolt.reliable",
    "ReliableSink": "bolt.reliable",
    "TopologyBuilder": "bolt.storm.topology",
    "TopologyContext": _STORM,
    "TopologyError": "bolt.errors",
    "Tuple": _STORM,
    "ensure_java": "checkpoint.embedded.java",
    "foreach_batch": "bolt.reliable",
    "read_dead_letters": "spout.failed_records.dead_letters",
    "reliable": "bolt.reliable",
    "stop": "spout.graceful_stop",
    "string_scheme": "bolt.storm.spout",
}
"""Where each name of the face lives."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("kinesis-trident")
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from kinesis_trident._spark import spark_needed

    with spark_needed(f"{__name__}.{name}"):
        found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
