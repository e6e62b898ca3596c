"""The calls that the installed Spark makes of a streaming source, which `spout.engines` counts on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from harness import PATIENCE, eventually
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery

from kinesis_trident.spout.engines import ENGINES, find_protocol

STATES_STARTS = find_protocol() == "4.2"


class _Reader(DataSourceStreamReader):
    """Notes each call in a file; its next offset is what another file says."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def _note(self, *call: object) -> None:
        with (self._folder / "calls").open("a") as file:
            file.write(json.dumps(call) + "\n")

    def initialOffset(self) -> dict[str, int]:
        self._note("initial")
        return {"n": 0}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        self._note("partitions", start["n"], end["n"])
        return [InputPartition(n) for n in range(start["n"], end["n"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": pa.array([partition.value], pa.int32())})


class _Plain(_Reader):
    def latestOffset(self) -> dict[str, int]:
        self._note("latest")
        return {"n": int((self._folder / "n").read_text())}


class _Stating(_Reader):
    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
        self._note("latest", start["n"])
        return {"n": int((self._folder / "n").read_text())}


class _Source(DataSource):
    @classmethod
    def name(cls) -> str:
        return "noting"

    def schema(self) -> str:
        return "n int"

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        return (_Stating if STATES_STARTS else _Plain)(self.options["folder"])


class Noted:
    """A query over the source that notes Spark's calls."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        cloudpickle.register_pickle_by_value(__import__(__name__))
        spark.dataSource.register(_Source)
        self._spark, self._folder = spark, folder

    def start(self, n: int, fails: bool = False, **trigger: bool) -> StreamingQuery:
        (self._folder / "n").write_text(str(n))
        (self._folder / "calls").write_text("")

        def write(rows: DataFrame, _: int) -> None:
            rows.count()
            if fails:
                raise ValueError

        rows = self._spark.readStream.format("noting").option("folder", str(self._folder)).load()
        out = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(self._folder / "spark"))
        return (out.trigger(**trigger) if trigger else out).start()

    def committed(self) -> int:
        """Return how many batches Spark has committed."""
        return len(list((self._folder / "spark" / "commits").glob("[0-9]*")))

    def calls(self) -> list[list[object]]:
        """Return the calls, each once where it comes again and again."""
        lines = (self._folder / "calls").read_text().splitlines()
        return list(map(json.loads, dict.fromkeys(lines)))


@pytest.fixture
def noted(spark: SparkSession, tmp_path: Path) -> Noted:
    return Noted(spark, tmp_path)


def latest(n: int) -> list[object]:
    return ["latest", n] if STATES_STARTS else ["latest"]


def test_the_calls_are_those_that_an_engine_expects(noted: Noted) -> None:
    """A new query, a batch that fails, its replay, and a restart where all is committed."""

    def begins(query: StreamingQuery, committed: int, *expected: list[object]) -> None:
        def seen() -> bool:
            if (error := query.exception()) is not None:
                raise error
            return len(noted.calls()) >= len(expected) and noted.committed() == committed

        try:
            eventually(seen, f"{expected}")
            assert noted.calls()[: len(expected)] == list(expected)
        finally:
            query.stop()

    first = noted.start(2, fails=True)
    with pytest.raises(StreamingQueryException):
        first.awaitTermination(PATIENCE)
    seen = noted.calls()
    if STATES_STARTS:
        assert seen == [["initial"], ["latest", 0], ["partitions", 0, 2]]
    else:
        assert seen == [["latest"], ["initial"], ["partitions", 0, 2]]
    said = [] if STATES_STARTS else [["partitions", 2, 2]]
    begins(noted.start(2), 1, *said, ["initial"], ["partitions", 0, 2], latest(2))
    begins(noted.start(5), 2, *said, latest(2), ["partitions", 2, 5])
    said = [] if STATES_STARTS else [["partitions", 5, 5]]
    begins(noted.start(5), 2, *said, latest(5))
    assert find_protocol() in ENGINES


@pytest.mark.skipif(STATES_STARTS, reason="Spark 4.2 and newer ask for the source's own AvailableNow")
def test_a_batch_in_hand_comes_first_with_available_now_too(noted: Noted) -> None:
    """And it is the last one: hence `stop_when_drained`."""
    first = noted.start(2, fails=True)
    with pytest.raises(StreamingQueryException):
        first.awaitTermination(PATIENCE)
    again = noted.start(5, availableNow=True)
    assert again.awaitTermination(PATIENCE)
    assert noted.calls() == [["partitions", 2, 2], ["initial"], ["partitions", 0, 2]]
