"""Storm's API on Spark: reliable per-record processing, bolts and topologies."""

from bolt.declared import KinesisSpout, string_scheme
from bolt.errors import BoltError, TopologyError
from bolt.outcomes import Outcomes
from bolt.reliable import Reliable, ReliableSink, foreach_batch, reliable
from bolt.storm import (
    ArrowBolt,
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    FailedException,
    OutputCollector,
    TopologyContext,
    Tuple,
)
from bolt.topology import TopologyBuilder
from spout.acks import Acks

__all__ = [
    "Acks",
    "ArrowBolt",
    "BasicBolt",
    "BasicOutputCollector",
    "Bolt",
    "BoltError",
    "FailedException",
    "KinesisSpout",
    "Outcomes",
    "OutputCollector",
    "Reliable",
    "ReliableSink",
    "TopologyBuilder",
    "TopologyContext",
    "TopologyError",
    "Tuple",
    "foreach_batch",
    "reliable",
    "string_scheme",
]
