"""The sketches of docs/recipes.md: near the truth, in any order, and on top of those that are stored already."""

from __future__ import annotations

import random
import re
from base64 import b64decode
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from kinesis_trident.trident import CombinerAggregator, TridentTuple

datasketches: Any = pytest.importorskip("datasketches", reason="datasketches has no wheels for Python 3.14")

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    """The names that the page defines."""
    (code,) = re.findall(r"^```python\n(from base64 .*?)^customers = ", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "recipe", "CombinerAggregator": CombinerAggregator}
    exec(code, names)
    return names


def sketch(aggregator: CombinerAggregator, *values: Any) -> str:
    tuples = (TridentTuple(("value",), (value,)) for value in values)
    return str(reduce(aggregator.combine, map(aggregator.init, tuples), aggregator.zero()))


def count(text: str) -> float:
    return float(datasketches.hll_sketch.deserialize(b64decode(text)).get_estimate())


def quantile(text: str, rank: float) -> float:
    return float(datasketches.kll_doubles_sketch.deserialize(b64decode(text)).get_quantile(rank, True))


def test_distinct_values(recipe: dict[str, Any]) -> None:
    distinct = recipe["DistinctSketch"]()
    words = [f"word-{n}" for n in range(3_000)]
    parts = [sketch(distinct, *words[at : at + 2_000]) for at in (0, 500, 1_000)]
    for order in (parts, parts[::-1], parts * 2):
        assert count(reduce(distinct.combine, order)) == pytest.approx(3_000, rel=0.05)
    assert count(distinct.zero()) == 0


def test_quantiles(recipe: dict[str, Any]) -> None:
    quantiles = recipe["QuantileSketch"]()
    numbers = list(range(1, 4_001))
    random.Random(7).shuffle(numbers)
    parts = [sketch(quantiles, *numbers[at::4]) for at in range(4)]
    both = reduce(quantiles.combine, parts)
    assert quantile(both, 0.5) == pytest.approx(2_000, abs=4_000 * 0.03)
    assert quantile(both, 0.9) == pytest.approx(3_600, abs=4_000 * 0.03)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("AgEHDAMMAAg=", 0),
        ("AgEHDAMIAwjyXQ4EnnQRBI0x8gc=", 3),
        ("AwEHDAUIAAkJAAAAnnQRBMdXMwxLqLoFjTHyB/JdDgQ6JqwTOvB8Cf2/Qwnn7mIG", 9),
        ("CgEHBAAIAAo4zrn/cDZEQAAAAAAAABJAAAAAAAAAAAABAAAAAAAAAAEEAQEAAgIDBQEEAgUCBAM=", 40),
    ],
)
def test_stored_sketches_of_distinct_values_go_on(recipe: dict[str, Any], text: str, values: int) -> None:
    """Those of the former `ApproxDistinct`: nothing, a list, a set, registers."""
    distinct = recipe["DistinctSketch"]()
    more = distinct.combine(text, sketch(distinct, "another"))
    assert count(more) == pytest.approx(values + 1, rel=0.15)


@pytest.mark.parametrize(
    ("text", "median"),
    [
        ("AgEPAcgACAA=", 99),
        ("AgIPBMgACAAAAAAAAADwPw==", 1),
        (
            "BQEPAMgACAADAAAAAAAAAMgAAQDFAAAAAAAAAAAA8D8AAAAAAAAIQAAAAAAAAAhAAAAAAAAAAEAAAAAAAADwPw==",
            2,
        ),
    ],
)
def test_stored_sketches_of_quantiles_go_on(recipe: dict[str, Any], text: str, median: float) -> None:
    """Those of the former `ApproxQuantiles`: nothing, one item, one level."""
    quantiles = recipe["QuantileSketch"]()
    more = quantiles.combine(text, sketch(quantiles, 99))
    assert quantile(more, 0.5) == median
    assert quantile(more, 1) == 99
