"""The session's time zone may have any name that Spark takes; what a task lacks ends the batch, not its records."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from harness import PATIENCE
from pyspark.sql import SparkSession
from stage import AVAILABLE_NOW, Stage, Taken, ended, error_of
from thorough import cases

from kinesis_trident import (
    BasicBolt,
    KinesisSpout,
    TopologyBuilder,
    Tuple,
    reliable,
    string_scheme,
)
from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.steps.time_zones import SETTING, known_zone
from kinesis_trident.trident import Count, Function, MemoryMapState, TridentTopology

TEXTS = ["one", "two", "three"]


@pytest.fixture
def session(stage: Stage) -> Iterator[SparkSession]:
    """The shared session; its time zone is restored."""
    before = stage.spark.conf.get(SETTING)
    yield stage.spark
    stage.spark.conf.set(SETTING, str(before))


def spout(stage: Stage) -> KinesisSpout:
    options = {name.replace(".", "__"): value for name, value in stage.options(retryLimit=0).items()}
    return KinesisSpout(**options, scheme=string_scheme("text"))


def ahead(time: Any) -> int:
    """Return the minutes of a time's offset."""
    return int(time.utcoffset() / timedelta(minutes=1))


class Keep(BasicBolt):
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def execute(self, tup: Tuple, collector: Any) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / f"{tup['text']} {ahead(tup['approximateArrivalTimestamp'])}").touch()


class Ahead(Function):
    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        collector.emit([ahead(tup[0])])


@pytest.mark.parametrize(
    ("zone", "minutes"), cases(("UTC+05:45", 345), ("PST", None), long=(("GMT+3", 180), ("Z", 0)))
)
def test_a_function_of_reliable(stage: Stage, session: SparkSession, zone: str, minutes: int | None) -> None:
    session.conf.set(SETTING, zone)
    stage.put(TEXTS)

    def parse(record):  # type: ignore[no-untyped-def]
        return f"{record.data.decode()}", ahead(record.approximateArrivalTimestamp)

    def local(frame: pd.DataFrame) -> pd.DataFrame:
        frame["hour"] = frame["approximateArrivalTimestamp"].dt.hour
        return frame.assign(attempt=frame["hour"])

    # A record that fails stops the query.
    taken = stage.drained(stage.parsed(parse, retryLimit=0))
    found = {offset for rows in taken.batches.values() for _, offset in rows}
    assert taken.texts == sorted(TEXTS)
    assert found == {minutes} if minutes is not None else found <= {-480, -420}
    stream = reliable(stage.load(retryLimit=0, applicationName=f"{stage.app}-2"))
    mapped = stream.map(local, "data binary, attempt int")
    rows: list[int] = []
    ended(
        mapped.for_each_batch(lambda df, _: rows.extend(row.attempt for row in df.collect())).start(
            checkpointLocation=stage.at("other"), trigger=AVAILABLE_NOW
        )
    )
    assert len(rows) == len(TEXTS)


@pytest.mark.long
def test_a_bolt(stage: Stage, session: SparkSession) -> None:
    session.conf.set(SETTING, "GMT+3")
    stage.put(TEXTS)
    builder = TopologyBuilder(session)
    builder.set_spout("texts", spout(stage))
    builder.set_bolt("keep", Keep(stage.at("kept")), 2).shuffle_grouping("texts")
    ended(builder.start(checkpointLocation=stage.at("spark"), trigger=AVAILABLE_NOW))
    assert {path.name for path in Path(stage.at("kept")).iterdir()} == {f"{text} 180" for text in TEXTS}


@pytest.mark.long
def test_a_function_of_trident(stage: Stage, session: SparkSession) -> None:
    session.conf.set(SETTING, "UTC+05:45")
    stage.put(TEXTS)
    topology, counts = TridentTopology(session), MemoryMapState.opaque(f"zones-{stage.app}")
    stream = topology.new_stream("texts", spout(stage)).each(
        ["approximateArrivalTimestamp"], Ahead(), ["ahead int"]
    )
    stream.group_by(["ahead"]).persistent_aggregate(counts, Count(), ["count"])
    running = topology.start(checkpointLocation=stage.at("spark"), trigger=AVAILABLE_NOW)
    stage.queries += running.queries.values()
    assert running.await_termination(PATIENCE)
    assert counts.make_state({}, 0, 1).multi_get([(345,)]) == [3]


def test_python_knows_what_java_calls_its_short_names(session: SparkSession) -> None:
    jvm = session.sparkContext._jvm
    assert jvm is not None
    names = jvm.java.time.ZoneId.SHORT_IDS
    of = {str(name): str(names[name]) for name in names}
    # These three are offsets in older releases of Java.
    same = {name: known_zone(zone) for name, zone in of.items() if name not in ("EST", "MST", "HST")}
    assert {name: known_zone(name) for name in same} == same
    assert len(same) > 20


def test_a_zone_that_python_does_not_know_is_refused_at_the_start(
    stage: Stage, session: SparkSession
) -> None:
    session.conf.set(SETTING, "SystemV/PST8PDT")
    with pytest.raises(OperatorError, match=r"spark\.sql\.session\.timeZone is SystemV/PST8PDT"):
        stage.start(stage.parsed(), Taken())


def test_a_module_that_tasks_lack_fails_no_record(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is pickled by its name, and comes to its end before the first record."""
    (tmp_path / "only_here.py").write_text(
        "def parse(record):\n    return record.data.decode(), record.attempt\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    stage.put(TEXTS)
    try:
        stream = stage.parsed(only_here.parse, retryLimit=0, deadLetter=stage.at("letters"))
        assert "No module named 'only_here'" in error_of(stage.start(stream, Taken()))
    finally:
        del sys.modules["only_here"]
    assert stage.letters() == []
    assert not stage.settled
