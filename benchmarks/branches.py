"""Several states on one stream: what the second, third and fourth cost, when a batch is read and parsed once.

python -m benchmarks.branches
"""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.report import Section, publish, verdict
from benchmarks.word_count import Costs, Size, Start, measured, prepared, redis_program
from kinesis_trident.trident import ArrowFunction, Count, TridentTopology
from kinesis_trident.trident.stores.redis import RedisState
from tests.servers import RedisServer

SIZE = Size(pages=5, batches=3)
ROUNDS = 3
KEYS = 100
BOUND = 1.6
"""Four states take at most so many times as long as one."""


class Key(ArrowFunction):
    """A key of a sentence, one of a hundred: the last digits of its first word."""

    def execute(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        """One row each."""
        keys = pc.utf8_slice_codeunits(batch.column(0).cast(pa.string()), 9, 11)
        return pa.RecordBatch.from_arrays([keys], names=["key"]), np.arange(batch.num_rows)


def counting(spark: SparkSession, url: str, states: int) -> Start:
    """So many counts of the same keys, in a state each."""

    def start(stream: DataFrame, checkpoint: str) -> StreamingQuery:
        topology = TridentTopology(spark)
        keyed = topology.new_stream("lines", stream).each(["data"], Key(), ["key"])
        for state in range(states):
            factory = RedisState.opaque(url, keyPrefix=f"state-{state}:")
            keyed.group_by(["key"]).persistent_aggregate(factory, Count(), ["count"]).parallelism_hint(2)
        return topology.start(
            checkpointLocation=checkpoint, trigger={"availableNow": True}, strict=True
        ).queries["lines"]

    return start


def run(spark: SparkSession, folder: Path, hosts: str) -> list[list[str]]:
    """The table's rows."""
    program = redis_program()
    took: dict[int, list[Costs]] = {1: [], 2: [], 4: []}
    for round_ in range(ROUNDS + 1):
        for states, costs in took.items():
            with RedisServer(program) as server:
                one = measured(spark, folder, hosts, counting(spark, server.url, states), SIZE)
            # Who comes first pays for the JVM's warming up.
            if round_:
                costs.append(one)
    batch = {states: statistics.fmean(one.batch for one in costs) for states, costs in took.items()}
    return [
        [
            f"{states} state{'s' * (states > 1)}",
            f"{one * 1000:,.0f} ms",
            f"{one / batch[1]:.2f} x",
            verdict(f"{BOUND} x", one <= BOUND * batch[1]) if states == max(batch) else "",
        ]
        for states, one in batch.items()
    ]


def main() -> None:
    """Measure, print, and write the section."""
    with prepared() as given:
        rows = run(*given)
        publish(
            Section(
                "branches",
                "Several states on one stream",
                "python -m benchmarks.branches",
                [
                    f"batches of {SIZE.records:,.0f} records, {KEYS} keys, local[2]",
                    "a batch",
                    "of one state",
                    "at most",
                ],
                rows,
                note=(
                    f"A count by key in Redis, once or several times over the same parsed stream; {ROUNDS} rounds in "
                    f"turns of {SIZE.batches} batches after {SIZE.warm}. tests/trident/run/test_one_read.py counts "
                    "the rows read and the calls of the function: they are the same for all."
                ),
            )
        )


if __name__ == "__main__":
    main()
