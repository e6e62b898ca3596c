"""Storm's API on Spark: reliable per-record processing."""

from bolt.errors import BoltError
from bolt.outcomes import Outcomes
from bolt.reliable import Reliable, ReliableSink, foreach_batch, reliable
from spout.acks import Acks

__all__ = ["Acks", "BoltError", "Outcomes", "Reliable", "ReliableSink", "foreach_batch", "reliable"]
