"""Settings of Spark that a source meets, each over two starts of a query; docs/spark.md lists them.

Each is played alone by `make long`. `make test` plays all those that a session may change at once: they are of other
parts of Spark, so one that breaks the source breaks it there, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from doc_tables import SETTINGS_TABLE
from harness import Job, kind, options, put
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from spark_settings import AT_START, IN_SESSION, RECORDS, STATE, Setting
from stage import AVAILABLE_NOW, Stage, ended, start_available_now

from kinesis_trident import reliable
from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

Configure = Callable[[Mapping[str, str]], None]


@pytest.fixture
def configure(spark: SparkSession) -> Iterator[Configure]:
    """`configure(settings)` of the shared session; they are as before after the test."""
    before: dict[str, str | None] = {}

    def configure(settings: Mapping[str, str]) -> None:
        for name, value in settings.items():
            before.setdefault(name, spark.conf.get(name, None))
            spark.conf.set(name, value)

    yield configure
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def fails_once(record):  # type: ignore[no-untyped-def]
    """Each fourth number fails at its first delivery."""
    text = record.data.decode()
    if record.attempt == 1 and int(text) % 4 == 3:
        raise ValueError(text)
    return text, record.attempt, record.approximateArrivalTimestamp, record.data


def play_records(stage: Stage) -> None:
    found: Counter[tuple[str, int]] = Counter()
    stream = reliable(stage.load()).map(fails_once, "text string, attempt int, at timestamp, data binary")
    double = udf(lambda text, data: bytes(data).decode() + text, "string")

    def write(rows: DataFrame, _txid: int) -> None:
        # Behind a shuffle, and through a function of Spark's own.
        said = rows.where("at > '2020-01-01'").repartition("text")
        said = said.select(double("text", "data").alias("twice"), "attempt")
        found.update((row.twice, row.attempt) for row in said.collect())

    for life in range(2):
        stage.put(range(8 * life, 8 * life + 8))
        ended(stage.start(stream, write, trigger=AVAILABLE_NOW))
    assert found == Counter((f"{number}{number}", 1 + (number % 4 == 3)) for number in range(16))


def play_state(stage: Stage) -> None:
    found: dict[str, int] = {}
    stream = stage.load()
    counts = stream.selectExpr("CAST(data AS STRING) AS text").groupBy("text").count()

    def write(rows: DataFrame, _txid: int) -> None:
        found.update((row.text, row["count"]) for row in rows.collect())

    for life in range(2):
        stage.put(range(4 - life))
        out = counts.writeStream.outputMode("update").foreachBatch(write)
        query = start_available_now(out.option("checkpointLocation", stage.at("spark")), stream)
        stage.queries.append(query)
        ended(query)
    assert found == {"0": 2, "1": 2, "2": 2, "3": 1}


PLAYS = {RECORDS: play_records, STATE: play_state}


@pytest.mark.parametrize("plays", PLAYS)
def test_all_of_a_session_at_once(make_stage: Callable[..., Stage], configure: Configure, plays: str) -> None:
    for one in IN_SESSION:
        if one.plays == plays:
            configure(one.values)
    PLAYS[plays](make_stage(2))


@pytest.mark.long
@pytest.mark.parametrize("setting", IN_SESSION, ids=lambda setting: setting.name)
def test_one_of_a_session(make_stage: Callable[..., Stage], configure: Configure, setting: Setting) -> None:
    configure(setting.values)
    PLAYS[setting.plays](make_stage(2))


@pytest.mark.long
@pytest.mark.parametrize("setting", AT_START, ids=lambda setting: setting.name)
def test_one_of_a_spark_that_starts(
    setting: Setting,
    make_stream: Callable[..., str],
    kinesis: KinesisClient,
    kinesis_server: EmbeddedKinesis,
    zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = [f"--conf {name}={value}" for name, value in setting.values.items()]
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", " ".join([*given, "pyspark-shell"]))
    stream = make_stream(2)
    job = Job(tmp_path, options(stream, zookeeper, kinesis_server) | {"onExhausted": "skip"})
    numbers: dict[int, str] = {}
    for life in range(2):
        numbers |= put(kinesis, stream, range(20 * life, 20 * life + 20))
        job.start()
        assert job.finish() == 0, job.tail()
    rows = Counter(number for batch in job.output().values() for number, _, _ in batch)
    assert rows == Counter(number for number in numbers if kind(number) != "bad")


def test_the_page_lists_them() -> None:
    assert SETTINGS_TABLE.read() == SETTINGS_TABLE.render()
