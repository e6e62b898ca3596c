"""Streams that were read alone are put together: what a sink holds in the end."""

from __future__ import annotations

from random import Random

import pytest

from kinesis_trident.checkpoint.errors import HomeError
from kinesis_trident.spout.query_by_hand import SparkCheckpoint
from model.joined import Joined


def test_a_start_that_is_refused_takes_over_no_stream() -> None:
    """The streams go on alone, and are put together later."""
    joined = Joined(Random(1), ("4.2",))
    logs = {"a": SparkCheckpoint(), "b": SparkCheckpoint()}

    def read(stream: str, upto: str) -> None:
        joined.kinesis.put(stream, joined.count)
        joined.count += 1
        joined.now += 2_000
        life = joined.start(logs[stream], streamName=stream)
        joined.batch(life, upto)
        life.end()

    read("a", "settled")
    read("b", "committed")
    with pytest.raises(HomeError, match="stream 'b' was read alone until now, and its txid 1 is not settled"):
        joined.start(logs["a"].copy(), streamName="a,b")
    read("a", "settled")
    read("b", "settled")
    joined.drain(joined.start(SparkCheckpoint(), streamName="a,b"))
    assert joined.misses() == {}
