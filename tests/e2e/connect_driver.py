"""A job under Spark Connect: a script of its own, because a process is either classic or a client of Connect.

In `folder`: `out/<txid>.json` is the sink, a file a batch that a replay replaces.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import boto3
from job_session import job_session
from lives import PATIENCE, eventually
from pyspark.sql import DataFrame, SparkSession

from kinesis_trident import (
    BasicBolt,
    FailedException,
    KinesisSpout,
    Outcomes,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    reliable,
    stop,
    string_scheme,
)
from kinesis_trident.spout.errors import NotOurSourceError


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(asked["folder"])
    (folder / "out").mkdir()
    # The thin client has no Spark that it could start.
    remote = asked.get("remote")
    spark = (
        SparkSession.builder.remote(remote).getOrCreate()
        if remote
        else job_session("local[2]", folder, connect=True)
    )
    stream = spark.readStream.format("kinesis-trident").options(**asked["options"]).load()

    def parse(record):  # type: ignore[no-untyped-def]
        order = json.loads(record.data)
        if order["kind"] == "bad" or (order["kind"] == "flaky" and record.attempt == 1):
            raise ValueError(order["kind"])
        return order["i"], record.attempt

    def write(rows: DataFrame, txid: int, outcomes: Outcomes) -> None:
        outcomes.fail(rows.where("i = 3 and attempt = 1"), "not yet")
        # A lookup of the batch's own session: Spark 4.3 gives it another one than the query's.
        known = rows.sparkSession.range(100).selectExpr("cast(id AS int) AS i", "id * 2 AS twice")
        joined = rows.where("i != 3 or attempt > 1").join(known, "i")
        found = [[row.i, row.attempt] for row in joined.collect() if row.twice == 2 * row.i]
        (folder / "out" / f"{txid}.json").write_text(json.dumps(found))

    query = (
        reliable(stream)
        .map(parse, "i int, attempt int")
        .for_each_batch(write)
        .start(checkpointLocation=str(folder / "spark"), trigger={"availableNow": True})
    )
    query.awaitTermination()
    error = query.exception()
    if error is None:
        run_topology(spark, stream, folder, asked["options"])
    spark.stop()
    if error is not None:
        raise error


class Split(BasicBolt):
    """The words of a record."""

    fields = "word string, attempt int"

    def execute(self, tup: Tuple, collector: Any) -> None:
        for word in tup["text"].split():
            collector.emit([word, tup["attempt"]])


class Keep(BasicBolt):
    """A file for each task and batch; some words fail at their first delivery."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, context: TopologyContext) -> None:
        self.path = self.folder / f"{context.txid}-{context.task}.json"
        self.rows: list[list[Any]] = []

    def execute(self, tup: Tuple, collector: Any) -> None:
        if tup["word"].startswith("flaky") and tup["attempt"] == 1:
            raise FailedException(tup["word"])
        self.rows.append([tup["word"], tup["attempt"]])

    def cleanup(self) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.rows))
        part.replace(self.path)


def run_topology(spark: SparkSession, stream: DataFrame, folder: Path, options: dict[str, str]) -> None:
    """A topology that would run on: it is asked to stop once all has come."""
    taken = folder / "taken"
    taken.mkdir()
    client = boto3.client("kinesis", endpoint_url=options["endpointUrl"])
    for text in ("one two", "flaky three", "four"):
        client.put_record(StreamName=options["streamName"], Data=text.encode(), PartitionKey=text)
    builder = TopologyBuilder(spark)
    builder.set_spout("records", KinesisSpout(scheme=string_scheme("text"), **options))
    builder.set_bolt("split", Split()).shuffle_grouping("records")
    builder.set_bolt("keep", Keep(taken), 2).fields_grouping("split", "word")
    query = builder.start(
        checkpointLocation=str(folder / "spark"), trigger={"processingTime": "200 milliseconds"}
    )
    said = []
    try:
        stop(query)
    except NotOurSourceError as error:
        said.append(str(error))

    def came_again() -> bool:
        assert query.isActive, query.exception()
        return ["flaky", 2] in [row for path in taken.glob("*.json") for row in json.loads(path.read_text())]

    eventually(came_again, "the failed record comes again")
    stop(query, PATIENCE, stream=stream)
    assert not query.isActive
    (folder / "stopped.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
