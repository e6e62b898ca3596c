"""The options of the sink: the connection to the stream, and a few for writing.

The table is the fields of `WriteOptions`; the one in `docs/writing.md` is rendered from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.options import parsers, source
from kinesis_trident.spout.options.connection import ConnectionOptions
from kinesis_trident.spout.options.rules import check_connection, fold_stream
from kinesis_trident.spout.options.table import by_field, by_name, option, options_of, read_options

__all__ = ["WriteOptions"]

_SPARKS = {"checkpointlocation", "queryname"}
"""Spark's own options of a streaming write; Spark passes them to the sink too."""


@dataclass(frozen=True, kw_only=True, repr=False)
class WriteOptions(ConnectionOptions):
    """The options of a write. Times are in seconds; picklable and hashable."""

    max_requests_in_flight: int = option(
        "maxRequestsInFlight",
        parsers.count(1, 64),
        "4",
        "The maximum of concurrent PutRecords requests of a task; a partition key is never in two of them.",
    )
    write_timeout: float = option(
        "writeTimeout",
        parsers.timeout,
        "2m",
        "How long a task retries while Kinesis accepts nothing; then it fails, and Spark retries the task.",
    )

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """Parse a user's options; keys in any case, with or without the prefix `kinesis.`, or under an alias.

        Raises:
            OptionsError: an unknown option (with the nearest known one), one for reading only, a missing one, an
                invalid value, or options that conflict.
        """
        ours = {name: value for name, value in given.items() if name.lower() not in _SPARKS}
        for name in ours:
            _refuse_others(name)
        found = read_options(_BY_NAME, ours, "docs/writing.md")
        fold_stream(found)
        check_connection(found)
        return cls(**by_field(cls, found))


def _refuse_others(name: str) -> None:
    key = name.lower().removeprefix("kinesis.")
    if key in _BY_NAME:
        return
    if key in ("path", "paths"):
        msg = f"unknown option {name}: a write takes no path. Name the stream with the option streamName"
        raise OptionsError(msg)
    if line := _READ_ONLY.get(key):
        of_state = line.key.startswith("zookeeper.") or line.key == "applicationName"
        state = " (a write keeps no state in ZooKeeper)" if of_state else ""
        msg = f"option {line.spelled(name)} is for reading only{state}. Remove it from the write (see docs/writing.md)"
        raise OptionsError(msg)


_TABLE = tuple(options_of(WriteOptions).values())
_BY_NAME = by_name(_TABLE)
_READ_ONLY = {name: line for name, line in by_name(source.TABLE).items() if name not in _BY_NAME}
