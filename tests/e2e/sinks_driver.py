"""A job whose worker dies while it writes a batch into each sink: only the master's `local[2,4]` tries tasks again.

It dies when its task has written all of its rows, before the driver hears of it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from job_session import job_session
from pyspark import TaskContext

from kinesis_trident import Outcomes, merge_into, write_delta, write_iceberg
from kinesis_trident.bolt.sinks import delta, iceberg, merge

Batches = Iterator[pa.RecordBatch]


def fatal(sink: Callable[..., Callable[[Batches], Batches]]) -> Callable[..., Callable[[Batches], Batches]]:
    """Return the writer of a sink's tasks, with which the first attempt of the first task ends when it has written."""

    def make(*given: Any, **named: Any) -> Callable[[Batches], Batches]:
        writer = sink(*given, **named)

        def written(batches: Batches) -> Batches:
            said, context = [*writer(batches)], TaskContext.get()
            assert context is not None
            if (context.partitionId(), context.attemptNumber()) == (0, 0):
                os._exit(1)
            yield from said

        return written

    return make


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    delta.FileWriter, iceberg.FileWriter, merge._Loader = map(  # type: ignore[assignment, misc]
        fatal, (delta.FileWriter, iceberg.FileWriter, merge._Loader)
    )
    spark = job_session("local[2,4]", Path(asked["folder"]))
    rows = spark.range(0, 40, 1, 2).selectExpr("id", "id AS version")
    batch = Outcomes(1, "orders", 1)
    write_delta(rows, batch, asked["delta"])
    write_iceberg(rows, batch, "shop.orders", catalog=asked["catalog"])
    merge_into(rows, batch, asked["database"], "orders", key="id", order_by="version", bytes_by_driver=0)
    spark.stop()


if __name__ == "__main__":
    main()
