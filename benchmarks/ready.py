"""A source of ready-made Arrow batches: the most that Spark can take from a Python source. For measuring only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
except ImportError:
    # Spark 4.0 and 4.1 measure nothing here; what else stands beside it is tested there too.
    SupportsTriggerAvailableNow = object  # type: ignore[assignment, misc]

from benchmarks.endpoint import Records, pages
from kinesis_trident.spout.kinesis.pages.decoding import page_of
from kinesis_trident.spout.reader.rows import SCHEMA, Segment, TurnRows

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

__all__ = ["ReadySource", "write_batches"]

_FILE = "batches.arrow"


def write_batches(folder: Path, held: Records, most: int = 10) -> dict[str, str]:
    """Write some of the rows that the source makes of an endpoint's records: the options to read all as many as those.

    Returns:
        The options of the format `ready-batches`: it yields what was written as often as that takes.
    """
    turn = [page_of(body).records for body in pages(held, min(held.pages, most))]
    rows = TurnRows("s", "shardId-000000000000", 0, 1, 1, [Segment(turn, attempt=1)])
    batches = list(rows.record_batches())
    with pa.OSFile(str(folder / _FILE), "wb") as file, pa.ipc.new_file(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return {"folder": str(folder), "tasks": str(held.shards), "times": str(held.pages // len(batches))}


class ReadySource(DataSource):
    """`batches` micro-batches, by default one: in each of `tasks` tasks the rows of `folder`, `times` times."""

    @classmethod
    def name(cls) -> str:
        return "ready-batches"

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        given = self.options
        return _Reader(
            Path(given["folder"]), int(given["tasks"]), int(given["times"]), int(given.get("batches", "1"))
        )


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, folder: Path, tasks: int, times: int, batches: int) -> None:
        self._file = folder / _FILE
        self._tasks = tasks
        self._times = times
        self._batches = batches

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def initialOffset(self) -> dict[str, Any]:
        return {"batches": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"batches": min(start["batches"] + 1, self._batches)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Mapped: nothing is read or copied but by Spark.
        with pa.memory_map(str(self._file)) as file:
            reader = pa.ipc.open_file(file)
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
            for _ in range(self._times):
                yield from batches

    def commit(self, end: dict[str, Any]) -> None:
        pass
