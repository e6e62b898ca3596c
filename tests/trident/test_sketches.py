"""Sketches of distinct values and of quantiles: near the truth, in any order, in any state."""

from __future__ import annotations

import importlib.util
import random
from decimal import Decimal
from functools import reduce
from typing import Any

import pytest
from samples_topology import a_stream

from kinesis_trident.trident import (
    ApproxDistinct,
    ApproxQuantiles,
    CombinerAggregator,
    DistinctEstimate,
    Function,
    MissingExtraError,
    QuantileEstimates,
    TopologyError,
    TridentCollector,
    TridentTuple,
)
from kinesis_trident.trident.stores import MemoryMapState


def sketch(aggregator: CombinerAggregator, *values: Any) -> Any:
    """Of single values, or of tuples."""
    tuples = [value if isinstance(value, tuple) else (value,) for value in values]
    return reduce(
        aggregator.combine, (aggregator.init(TridentTuple("abc"[: len(one)], one)) for one in tuples)
    )


def estimates(function: Function, value: Any) -> tuple[Any, ...]:
    collector = TridentCollector("estimate", 2 if isinstance(function, QuantileEstimates) else 1)
    function.execute(TridentTuple(("sketch",), (value,)), collector)
    [row] = collector.rows
    return row


def test_distinct_values() -> None:
    distinct, estimate = ApproxDistinct(), DistinctEstimate()
    words = [f"word-{n}" for n in range(3_000)]
    parts = [sketch(distinct, *words[at : at + 2_000]) for at in (0, 500, 1_000)]
    for order in (parts, parts[::-1], parts * 2):
        assert estimates(estimate, reduce(distinct.combine, order))[0] == pytest.approx(3_000, rel=0.05)
    few = sketch(distinct, "a", "b", "a", None, 1, 1.5, True, b"a", Decimal("1.5"), 2**70)
    # Few are counted exactly.
    assert estimates(estimate, few)[0] == pytest.approx(8, abs=0.01)
    pairs = sketch(distinct, ("a", 1), ("a", 2), ("a", None), ("a", 1))
    assert estimates(estimate, pairs)[0] == pytest.approx(3, abs=0.01)
    assert estimates(estimate, distinct.zero()) == (0.0,)
    assert estimates(estimate, None) == (None,)


def test_quantiles() -> None:
    quantiles, estimate = ApproxQuantiles(), QuantileEstimates(0.5, 0.9)
    numbers = list(range(1, 4_001))
    random.Random(7).shuffle(numbers)
    parts = [sketch(quantiles, *numbers[at::4]) for at in range(4)]
    median, most = estimates(estimate, reduce(quantiles.combine, parts))
    assert median == pytest.approx(2_000, abs=4_000 * 0.03)
    assert most == pytest.approx(3_600, abs=4_000 * 0.03)
    assert estimates(estimate, sketch(quantiles, None, float("nan"), 3, Decimal("4.0"))) == (3.0, 4.0)
    assert estimates(estimate, sketch(quantiles, None)) == (None, None)
    assert estimates(estimate, None) == (None, None)


def test_a_sketch_in_a_state() -> None:
    """The default serializer stores it, and a bare name has its type."""
    stream = a_stream()
    kept = stream.group_by("shardId").persistent_aggregate(
        MemoryMapState.opaque(), ApproxDistinct(), "sketch", ["partitionKey"]
    )
    assert kept.new_values_stream().schema["sketch"].dataType.simpleString() == "string"
    stream.persistent_aggregate(MemoryMapState.opaque(), ApproxQuantiles(), "q", ["subSequenceNumber"])
    with pytest.raises(TopologyError, match=r"ApproxQuantiles: reads data binary\. Name one"):
        stream.persistent_aggregate(MemoryMapState.opaque(), ApproxQuantiles(), "q", ["data"])


@pytest.mark.parametrize(
    "make",
    [lambda: ApproxDistinct(3), lambda: ApproxQuantiles(7), QuantileEstimates, lambda: QuantileEstimates(2)],
)
def test_a_size_that_is_not_possible(make: Any) -> None:
    with pytest.raises(ValueError, match="Give "):
        make()


@pytest.mark.parametrize("aggregator", [ApproxDistinct, ApproxQuantiles])
def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, aggregator: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match=r"^Approx\w+ needs the package .*'kinesis-trident\[sketches\]'"
    ):
        aggregator()
