"""With asyncProgressTrackingEnabled Spark logs only some batches: the next start says so, and how to go on."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from stage import Stage, error_of

from kinesis_trident import stop

ASYNC = {"asyncProgressTrackingEnabled": "true", "asyncProgressTrackingCheckpointIntervalMs": "600000"}


def rows_of(query: StreamingQuery) -> int:
    return sum(one["numInputRows"] for one in query.recentProgress)


def test_a_query_that_had_it_names_it_and_goes_on_without_it(stage: Stage) -> None:
    def start(*, how: dict[str, str], **options: str) -> StreamingQuery:
        out = stage.load(**options).writeStream.format("noop").options(**how)
        stage.queries.append(out.option("checkpointLocation", stage.at("spark")).start())
        return stage.queries[-1]

    query = start(how=ASYNC)
    for number in range(1, 4):
        stage.put([f"record {number}"])
        stage.until(lambda number=number: rows_of(query) == number, f"record {number}")  # type: ignore[misc]
    stop(query)
    stage.put(["record 4"])
    said = error_of(start(how=ASYNC))
    assert "Spark's checkpoint stands at txid 1, but in ZooKeeper" in said
    assert "If its writeStream has asyncProgressTrackingEnabled, leave that out" in said
    stage.queries.clear()
    query = start(how={}, onCheckpointMismatch="continue")
    stage.until(lambda: rows_of(query) == 1, "record 4")
    assert stage.settled >= 3


def test_spark_refuses_it_where_records_are_judged(stage: Stage) -> None:
    def write(_rows: DataFrame, _txid: int) -> None:
        pass

    process = stage.parsed().for_each_batch(write).process()
    out = stage.load().writeStream.foreachBatch(process).options(**ASYNC)
    with pytest.raises(Exception, match="does not support async progress tracking"):
        out.option("checkpointLocation", stage.at("spark")).start()
