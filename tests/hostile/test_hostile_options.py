"""Options: parsed, or refused with an error that names the option; also in queries, writes, batches and the console."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hostility import hostile, read_bounded
from hypothesis import given, strategies as st

from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.options.sink import WriteOptions
from kinesis_trident.spout.options.source import TABLE, SourceOptions, zookeeper_options
from kinesis_trident.spout.options.starting_position import PositionSpec
from kinesis_trident.spout.options.table import options_of

LEAST = {"streamName": "orders", "applicationName": "app", "zookeeper.hosts": "zk:2181"}
PARSERS: dict[str, Callable[[Mapping[str, str]], object]] = {
    "stream": SourceOptions.parse,
    "batch": SourceOptions.parse_batch,
    "either": SourceOptions.parse_either,
    "write": WriteOptions.parse,
    "console": lambda given: zookeeper_options("app", given),
}
NAMES = [name for line in (*TABLE, *options_of(WriteOptions).values()) for name in (line.key, *line.aliases)]
PIECES = [
    "", "0", "-1", "1", "true", "9" * 30, "9" * 5000, "1e400", "nan", "inf", "-inf", "1.5", "\u0663", "\u00b2", "1_0",
    "1s", "1ms", "9e307d", "1h", "1s..60s x2", "1s..1e400s x9", "x1e400", "..", "KiB", "16MiB", "999999999999TiB",
    "LATEST", "TRIM_HORIZON", "AT_TIMESTAMP ", "AT_TIMESTAMP 1e400", "AT_TIMESTAMP 99999999999999999",
    "AT_TIMESTAMP -99999999999", "2026-01-02T03:04:05Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59",
    "AFTER_SEQUENCE_NUMBER 7:1", "SHARD_END", '{"shardId-0": "LATEST"}', '{"orders": {"*": "TRIM_HORIZON"}}',
    "[" * 3000, '{"a":' * 3000, "{}", "[]", "null", '"\\ud800"', "\ud800", "\0", "\n", "%", "%zz", "=", ",", ":", "/",
    "://", "@", "kinesis://", "kinesis://a/b", "file:///tmp/x", "s3://user:secret@b/c?x=%", "http://[::1", "http://x:y",
    "arn:aws:kinesis:us-east-1:123456789012:stream/orders", "arn:aws:kinesis:::", "polling", "efo", "explicit", "batch",
]  # fmt: skip
VALUES = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=4).map("".join) | st.text()


def read(parse: Callable[[Mapping[str, str]], object], given: Mapping[str, str]) -> object:
    size = sum(len(name) + len(value) for name, value in given.items())
    # The table of all options is walked for each, and a misspelt name is compared with all of them.
    return read_bounded(lambda: parse(given), size, OptionsError, "ption", steps=4000, memory=2000)


# What is read once a process: the tables of the options, and those of other connectors for a name that is not known.
read(SourceOptions.parse_either, LEAST)
with pytest.raises(OptionsError):
    SourceOptions.parse_either({**LEAST, "unknown": ""})


@hostile
@given(
    st.sampled_from(sorted(PARSERS)),
    st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=30), VALUES, max_size=5),
    st.booleans(),
)
def test_any_options(parser: str, given_: dict[str, str], least: bool) -> None:
    found: Any = read(PARSERS[parser], {**LEAST, **given_} if least else given_)
    if isinstance(found, SourceOptions):
        assert repr(found)
        assert hash(found) == hash(found)
        PositionSpec.parse(found.starting_position)
        for seconds in (found.max_fetch_time, found.min_fetch_period, found.describe_shard_interval):
            assert 0 <= seconds < float("inf")


@pytest.mark.parametrize("name", [line.key for line in TABLE])
def test_each_option_with_each_piece(name: str) -> None:
    for piece in PIECES:
        read(PARSERS["either"], {**LEAST, name: piece})


@pytest.mark.parametrize("name", [line.key for line in options_of(WriteOptions).values()])
def test_each_option_of_a_write_with_each_piece(name: str) -> None:
    for piece in PIECES:
        read(PARSERS["write"], {"streamName": "orders", name: piece})


@pytest.mark.parametrize(
    "name", ["startingPosition", "streamName", "streamARN", "zookeeper.hosts", "retryBackoff"]
)
def test_a_long_value_takes_operations_in_proportion(name: str) -> None:
    for piece in ("a,", "1", " ", '{"a":{"b":"LATEST"},', "s..", "[", "\\"):
        read(PARSERS["either"], {**LEAST, name: piece * 20_000})
