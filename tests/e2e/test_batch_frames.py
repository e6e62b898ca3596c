"""`spark.read`: a batch of what is in the streams, the same for every action, without ZooKeeper."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from stage import Stage

from kinesis_trident.spout.reader.rows import SCHEMA
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis


def texts(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.data).decode() for row in frame.select("data").collect())


def test_a_batch_reads_closed_shards_and_several_streams_and_is_the_same_for_each_action(
    spark: SparkSession,
) -> None:
    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:
        kinesis.create_stream("split")
        kinesis.create_stream("other")
        (parent,) = kinesis.shards("split")
        for text in (b"a", b"b"):
            kinesis.put("split", parent, text)
        _, child = kinesis.split("split", parent)
        kinesis.put("split", child, b"c")
        kinesis.put("other", kinesis.shards("other")[0], b"d")
        check_batches(
            spark,
            {
                "streamName": "split,other",
                "region": "us-east-1",
                "endpointUrl": kinesis.endpoint_url,
                "minFetchPeriod": "10ms",
            },
        )


def check_batches(spark: SparkSession, options: dict[str, str]) -> None:
    """Read what is there, some of it, and what cannot be read."""
    frame = spark.read.format("kinesis-trident").options(**options).load()
    assert frame.schema == SCHEMA
    assert texts(frame) == ["a", "b", "c", "d"]
    rows = frame.select("messageId", "attempt", "txid").collect()
    assert len({row.messageId for row in rows}) == 4
    assert {(row.attempt, row.txid) for row in rows} == {(1, 0)}

    sequence = rows[0].messageId
    stream, _, place = sequence.partition("/")
    shard, _, number = place.partition(":")
    after = f'{{"{stream}": {{"{shard}": "AFTER_SEQUENCE_NUMBER {number}"}}, "*": "TRIM_HORIZON"}}'
    rest = spark.read.format("kinesis-trident").options(**options, startingPosition=after).load()
    assert rest.filter(rest.messageId == sequence).count() == 0
    with pytest.raises(AnalysisException, match="Give an earlier one"):
        spark.read.format("kinesis-trident").options(**options, startingPosition="LATEST").load()


def test_the_options_of_an_application_do_for_a_batch_too(stage: Stage) -> None:
    stage.put(["a"])
    given = stage.options(startingPosition="TRIM_HORIZON")
    ended = given | {"endingPosition": "LATEST"}
    named = {key: value for key, value in given.items() if not key.startswith("zookeeper.")}
    for options in (given, ended, named):
        assert texts(stage.spark.read.format("kinesis-trident").options(**options).load()) == ["a"]


@pytest.mark.long
def test_what_arrives_after_a_frame_was_loaded_is_not_in_it(stage: Stage) -> None:
    """Without Spark this is in tests/spout/test_batch_read.py."""
    stage.put(["a"])
    options = {"streamName": stage.stream, "endpointUrl": stage.endpoint, "minFetchPeriod": "10ms"}
    frame = stage.spark.read.format("kinesis-trident").options(**options).load()
    # The first action waits until nothing that belongs to it can still arrive.
    assert texts(frame) == ["a"]
    stage.put(["late"])
    assert texts(frame) == ["a"]
    again = stage.spark.read.format("kinesis-trident").options(**options).load()
    assert texts(again) == ["a", "late"]
