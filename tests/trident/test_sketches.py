"""Sketches of distinct values and of quantiles: near the truth, in any order, in any state."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
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
    ForeignValueError,
    Function,
    MissingExtraError,
    QuantileEstimates,
    TopologyError,
    TridentCollector,
    TridentTuple,
)
from kinesis_trident.trident.stores import MemoryMapState

pytest.importorskip("datasketches", reason="datasketches has no wheels for Python 3.14")


def sketch(aggregator: CombinerAggregator, *values: Any) -> Any:
    """Of single values, or of tuples."""
    tuples = [value if isinstance(value, tuple) else (value,) for value in values]
    return reduce(
        aggregator.combine, (aggregator.init(TridentTuple("abc"[: len(one)], one)) for one in tuples)
    )


def estimates(function: Function, value: Any) -> tuple[Any, ...]:
    collector = TridentCollector("estimate", "ab" if isinstance(function, QuantileEstimates) else "a")
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
    ("text", "values"),
    [
        ("AgEHDAMMAAg=", 0),
        ("AgEHDAMIAwjyXQ4EnnQRBI0x8gc=", 3),
        ("AwEHDAUIAAkJAAAAnnQRBMdXMwxLqLoFjTHyB/JdDgQ6JqwTOvB8Cf2/Qwnn7mIG", 9),
        ("CgEHBAAIAAo4zrn/cDZEQAAAAAAAABJAAAAAAAAAAAABAAAAAAAAAAEEAQEAAgIDBQEEAgUCBAM=", 40),
        # Registers of four and six bits, which other programs write.
        ("CgEHBAAAAQLGWlZT9b5AQAAAAAAA8A5AAAAAAAAAAAAFAAAAAAAAAAMAAlIiFBEGAAAAAAAAAAAAAAAAAAAAAA==", 33),
        ("CgEHBAAIAAbGWlZT9b5AQAAAAAAA8A5AAAAAAAAAAAAAAAAAAAAAAEQQBEMwGMNQCIJwBAA=", 33),
    ],
)
def test_stored_sketches_of_distinct_values_are_read(text: str, values: int) -> None:
    """As version 1.0.0 has stored them: nothing, a list, a set, registers."""
    assert estimates(DistinctEstimate(), text)[0] == pytest.approx(values, rel=0.03)
    more = ApproxDistinct().combine(text, sketch(ApproxDistinct(), "another"))
    assert estimates(DistinctEstimate(), more)[0] == pytest.approx(values + 1, rel=0.15)


@pytest.mark.parametrize(
    ("text", "found", "with_another"),
    [
        ("AgEPAcgACAA=", (None, None), (99.0, 99.0)),
        ("AgIPBMgACAAAAAAAAADwPw==", (1.0, 1.0), (1.0, 99.0)),
        (
            "BQEPAMgACAADAAAAAAAAAMgAAQDFAAAAAAAAAAAA8D8AAAAAAAAIQAAAAAAAAAhAAAAAAAAAAEAAAAAAAADwPw==",
            (2.0, 3.0),
            (2.0, 99.0),
        ),
        (
            "BQEPAAgACAAUAAAAAAAAAAgAAgAAAAAADAAAAAAAAAAAAPA/AAAAAAAANEAAAAAAAAA0QAAAAAAAADNAAAAAAAAAMkAAAAAA"
            "AAAxQAAAAAAAADBAAAAAAAAALkAAAAAAAAAsQAAAAAAAACpAAAAAAAAAKEAAAAAAAAAmQAAAAAAAACRAAAAAAAAAIkAAAAAA"
            "AADwPwAAAAAAAAhAAAAAAAAAFEAAAAAAAAAcQA==",
            (10.0, 20.0),
            (10.0, 99.0),
        ),
    ],
)
def test_stored_sketches_of_quantiles_are_read(
    text: str, found: tuple[float | None, ...], with_another: tuple[float, ...]
) -> None:
    """As version 1.0.0 has stored them: nothing, one item, one level, two levels."""
    estimate = QuantileEstimates(0.5, 1)
    assert estimates(estimate, text) == found
    more = ApproxQuantiles().combine(text, sketch(ApproxQuantiles(), 99))
    assert estimates(estimate, more) == pytest.approx(with_another, abs=3)


DAMAGE = """
import sys
from base64 import b64decode, b64encode
from itertools import chain
from kinesis_trident.trident import ApproxDistinct, ApproxQuantiles, ForeignValueError

for aggregator, text in zip([ApproxDistinct()] * 3 + [ApproxQuantiles()] * 3, sys.argv[1:]):
    data = b64decode(text)
    cut = (data[:length] for length in range(len(data)))
    head = range(min(len(data), 60))
    wrong = (data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for at in head for bit in range(8))
    refused = 0
    for one in chain(cut, wrong):
        try:
            aggregator.combine(b64encode(one).decode(), text)
        except ForeignValueError:
            refused += 1
    assert refused > len(data) // 2, (aggregator, refused)
"""


def test_no_damage_of_a_stored_sketch_ends_the_process() -> None:
    """Each cut, and each bit of the counts: in a process of its own, which the library would end."""
    sketches = [sketch(ApproxDistinct(lg_k), *range(n)) for lg_k, n in ((12, 3), (12, 30), (4, 50))]
    sketches += [sketch(ApproxQuantiles(k), *range(n)) for k, n in ((200, 1), (200, 30), (8, 90))]
    command = [sys.executable, "-c", DAMAGE, *sketches]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_sketch_of_the_other_kind_is_refused() -> None:
    distinct, quantiles = sketch(ApproxDistinct(), *range(30)), sketch(ApproxQuantiles(), *range(30))
    with pytest.raises(ForeignValueError, match="is not a hll_sketch of Apache DataSketches in base64"):
        estimates(DistinctEstimate(), quantiles)
    with pytest.raises(
        ForeignValueError, match="is not a kll_doubles_sketch of Apache DataSketches in base64"
    ):
        estimates(QuantileEstimates(0.5, 1), distinct)


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
