"""The folder as a sink in docs/guarantees.md: what a paused run writes late does not count."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinesis_trident import Outcomes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT = (Path(__file__).parents[1] / "docs" / "guarantees.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_of_each_txid_the_rows_of_the_newest_run_count(spark: SparkSession, tmp_path: Path) -> None:
    names: dict[str, Any] = {"folder": str(tmp_path / "orders")}
    exec(CODE, names)

    def write(txid: int, epoch: int, *orders: str) -> None:
        names["write"](
            spark.createDataFrame([(order,) for order in orders], "id string"), txid, Outcomes(epoch)
        )

    write(1, 3, "a", "b")
    write(2, 4, "c")
    write(2, 4, "c", "d")
    # The run of epoch 3 wakes.
    write(2, 3, "c")
    assert sorted(row.id for row in names["read"](spark).collect()) == ["a", "b", "c", "d"]
