"""docs/recipes.md, as its reader would run it: its recipes on one stream, over two runs of the query."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from servers import RedisServer
from stage import Stage

from kinesis_trident.trident import KinesisSpout, RedisState

TEXT = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
SKETCHES = [block for block in BLOCKS if "sketch" in block]

# (customer, product, minute) of the first run, and of the second.
FIRST = [("ann", "pen", 0), ("ann", "ink", 10), ("bob", "pen", 5), ("ann", "pen", 50), ("bob", "cup", 120)]
SECOND = [("ann", "ink", 60), ("cid", "pen", 0), ("bob", "cup", 200), ("ann", "pad", 200), ("cid", "ink", 1)]


def run_twice(stage: Stage, database: str, blocks: list[str]) -> dict[str, Any]:
    """Run blocks of the page over the orders, in two runs of the query; return the names of the second one."""
    names: dict[str, Any] = {}
    given = {
        "redis://localhost": database,
        's3a://bucket/checkpoint"': stage.at("spark") + '", trigger={"availableNow": True}',
    }
    code = "\n".join(blocks)
    for written, ours in given.items():
        assert code.count(written) == 1
        code = code.replace(written, ours)
    for orders in (FIRST, SECOND):
        stage.put(
            json.dumps(
                {"customer": who, "product": what, "at": f"2026-01-01T{at // 60:02}:{at % 60:02}:00+00:00"}
            )
            for who, what, at in orders
        )
        names = {"__name__": "recipes", "spark": stage.spark, "spout": KinesisSpout(**stage.options())}
        exec(code, names)
    return names


def kept(database: str, name: str) -> Any:
    return RedisState.opaque(database, keyPrefix=f"{name}:").make_state({}, 0, 1)


def test_sketches_are_kept_and_estimated(stage: Stage, redis_server: RedisServer) -> None:
    pytest.importorskip("datasketches", reason="datasketches has no wheels for Python 3.14")
    head, *_, end = BLOCKS
    classes, query = SKETCHES
    names = run_twice(stage, f"{redis_server.url}/9", [head, classes, end, query])
    # Few values are counted exactly.
    assert {row.product: row.customers for row in names["about"].collect()} == {"cup": 1, "ink": 2}
    assert {row.product: row.hour for row in names["medians"].collect()} == {"cup": 2, "ink": 0}


@pytest.mark.long
def test_the_recipes_run(stage: Stage, redis_server: RedisServer) -> None:
    """The other pages about Trident are run by test_trident_document.py, in each run."""
    assert len(BLOCKS) == TEXT.count("```python")
    database = f"{redis_server.url}/8"
    run_twice(stage, database, [block for block in BLOCKS if block not in SKETCHES])
    every = FIRST + SECOND
    counts = Counter(what for _, what, _ in every)
    assert kept(database, "top").get() == dict(sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:3])
    hourly = [(f"2026-01-01T{hour:02}:00:00Z", what) for hour in range(4) for what in ("pen", "ink", "cup")]
    found = dict(zip(hourly, kept(database, "hourly").multi_get(hourly), strict=True))
    # What the second run brings of the first two hours is late; the fourth is open.
    assert {(at[11:13], what): n for (at, what), n in found.items() if n is not None} == {
        ("00", "pen"): 3,
        ("00", "ink"): 1,
        ("02", "cup"): 1,
    }
    products = sorted(counts)
    assert kept(database, "distinct").multi_get([(what,) for what in products]) == [
        len({who for who, of, _ in every if of == what}) for what in products
    ]
    # ann: 0 to 10, 50 to 60, 200 open; bob: 5, 120, 200 open; cid: 0 to 1 open.
    assert kept(database, "ended").multi_get([("ann",), ("bob",), ("cid",)]) == [2, 2, None]
    open_ones = [value["open"] for value in kept(database, "sessions").multi_get([("ann",), ("cid",)])]
    assert [(one["last"] - one["first"], one["orders"]) for one in open_ones] == [(0, 1), (60, 2)]
