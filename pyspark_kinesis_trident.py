"""Makes Spark find the format `kinesis-trident` by itself.

Spark registers the `DefaultSource` of every installed top-level module named `pyspark_*` when a session
first loads a source. One such module that fails on import disables the discovery of all of them, so what is
imported here must import nothing that can fail.
"""

from spout.source import KinesisTridentSource as DefaultSource

__all__ = ["DefaultSource"]
