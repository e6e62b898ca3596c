"""Storm's API on Spark: reliable per-record processing, bolts and topologies."""

from kinesis_trident.bolt.errors import BoltError, TopologyError
from kinesis_trident.bolt.outcomes import Outcomes
from kinesis_trident.bolt.reliable import Reliable, ReliableSink, foreach_batch, reliable
from kinesis_trident.bolt.storm.api import (
    ArrowBolt,
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    FailedException,
    OutputCollector,
    TopologyContext,
    Tuple,
)
from kinesis_trident.bolt.storm.groupings import KinesisSpout, string_scheme
from kinesis_trident.bolt.storm.topology import TopologyBuilder
from kinesis_trident.spout.acks import Acks

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
