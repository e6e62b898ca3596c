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
from kinesis_trident.spout.options.table import Option, by_field, by_name, option, options_of, read_options

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
        "sink.maxConnections",
        "executor.maxConnections",
    )
    write_timeout: float = option(
        "writeTimeout",
        parsers.timeout,
        "2m",
        "How long a task retries while Kinesis accepts nothing; then it fails, and Spark retries the task. The time is "
        "looked at after each request, which is repeated `clientNumRetries` times where Kinesis does not answer.",
    )

    max_records_per_second: float | None = option(
        "maxRecordsPerSecond",
        parsers.rate,
        None,
        "The maximum of records that a task writes a second; an aggregate is one record.",
    )
    max_bytes_per_second: int | None = option(
        "maxBytesPerSecond",
        parsers.size,
        None,
        "The maximum of bytes that a task writes a second, payloads and partition keys together.",
    )
    aggregate: bool = option(
        "aggregate",
        parsers.boolean,
        "false",
        "Pack rows into aggregates, as the KPL does (docs/aggregates.md).",
        "sink.aggregationEnabled",
        "executor.aggregationEnabled",
    )
    max_aggregate_bytes: int = option(
        "maxAggregateBytes",
        parsers.aggregate_size,
        "50KiB",
        "The maximum size of an aggregate, up to 1 MiB; a larger row is written as it is.",
        "aggregationMaxSize",
    )

    @property
    def place(self) -> str:
        """Return the stream, for messages."""
        return f"stream {self.stream_name!r}" if self.stream_name else "the streams that the rows name"

    def resolve_name(self, stream: str) -> str:
        """Return the name under which a call reaches a stream; in another account only the ARN does."""
        if self.stream_arn is None or stream == self.stream_name:
            return stream
        return f"{self.stream_arn.rpartition('/')[0]}/{stream}"

    @classmethod
    def parse(cls, given: Mapping[str, str], *, rows_name_streams: bool = False) -> WriteOptions:
        """Parse a user's options; keys in any case, with or without the prefix `kinesis.`, or under an alias.

        Args:
            given: the options.
            rows_name_streams: the frame has a column with each row's stream, so no option needs to name one.

        Raises:
            OptionsError: an unknown option (with the nearest known one), one for reading only, a missing one, an
                invalid value, or options that conflict.
        """
        ours = {name: value for name, value in given.items() if name.lower() not in _SPARKS}
        for name in ours:
            _refuse_others(name)
        found = read_options(_BY_NAME, ours, "docs/writing.md")
        for line in _WITHOUT_EFFECT:
            found.pop(line.key, None)
        fold_stream(found)
        check_connection({"streamName": None, **found} if rows_name_streams else found)
        if "maxAggregateBytes" in found and not found.get("aggregate"):
            msg = "option maxAggregateBytes has no effect without aggregates. Set aggregate=true, or remove the option"
            raise OptionsError(msg)
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
        msg = f"option {line.spell(name)} is for reading only{state}. Remove it from the write (see docs/writing.md)"
        raise OptionsError(msg)


_WITHOUT_EFFECT = (
    Option(
        "recordMaxBufferedTime",
        parsers.milliseconds,
        None,
        "Accepted without effect: a row is sent when a request is full, or the task's rows are at their end.",
        (
            "recordMaxBufferedTimeMs",
            "sink.recordMaxBufferedTimeMs",
            "executor.recordMaxBufferedTime",
        ),
    ),
    Option(
        "flushWaitTime",
        parsers.milliseconds,
        None,
        "Accepted without effect: a task ends when Kinesis has acknowledged all of its rows.",
        (
            "flushWaitTimeMs",
            "sink.flushWaitTimeMs",
            "executor.flushWaitTimeMillis",
            # Qubole's spelling, in its code and its documentation.
            "kniesis.executor.flushWaitTimeMillis",
        ),
    ),
)
"""Options of other sinks that choose what the KPL keeps in memory, and for how long."""

TABLE = (*options_of(WriteOptions).values(), *_WITHOUT_EFFECT)
_BY_NAME = by_name(TABLE)
_READ_ONLY = {name: line for name, line in by_name(source.TABLE).items() if name not in _BY_NAME}
