"""Makes Spark find the format `kinesis-trident` by itself.

Spark registers the `DefaultSource` of every installed top-level module named `pyspark_*` when a session
first loads a source. One such module that fails on import disables the discovery of all of them, so this one never
fails: where the source cannot run, what is found says so when it is used.
"""

from pyspark import __version__ as _version

from kinesis_trident.spout.unsupported import unsupported_source

try:
    from kinesis_trident.spout.source import KinesisTridentSource as DefaultSource
except Exception as error:
    DefaultSource = unsupported_source(_version, error)

__all__ = ["DefaultSource"]
