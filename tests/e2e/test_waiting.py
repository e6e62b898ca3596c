"""Queries that begin with nothing to read: whatever the reason and the sink, they wait, and read what comes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import PATIENCE, eventually
from pyspark.sql import SparkSession
from sinks import AVAILABLE_NOW, SINKS, Application, making_applications
from thorough import CHAOS, cases

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.testing import Refuse

pytestmark = pytest.mark.chaos

ALIVE = 20.0 if CHAOS else 3.0
"""Seconds that a query with nothing to read lives: the worst of them died within two."""


def latest_of_an_idle_stream(app: Application) -> None:
    app.position = "LATEST"


def oldest_of_an_empty_stream(_app: Application) -> None:
    pass


def new_checkpoint_at_the_end(app: Application) -> None:
    app.put("before")
    app.read_everything()
    assert app.done() is not None


def throttled_at_the_first_look(app: Application) -> None:
    app.kinesis.script("GetRecords", Refuse.throttled(), stream=app.name, times=2)


def made(
    make: Callable[..., Application], sink: str, situation: Callable[[Application], None]
) -> Application:
    one = make(sink)
    situation(one)
    return one


SITUATIONS = (
    latest_of_an_idle_stream,
    oldest_of_an_empty_stream,
    new_checkpoint_at_the_end,
    throttled_at_the_first_look,
)


ENDING = SINKS if CHAOS else ("reliable",)
"""The sinks that meet each situation with `availableNow`."""


@pytest.fixture
def make(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, tmp_path: Path, app: str
) -> Iterator[Callable[..., Application]]:
    with making_applications(spark, zookeeper.hosts, tmp_path, app) as one:
        yield one


@pytest.mark.parametrize("situation", cases(SITUATIONS[0], long=SITUATIONS[1:]))
def test_a_query_with_nothing_to_read_waits_for_what_comes(
    make: Callable[..., Application],
    caplog: pytest.LogCaptureFixture,
    situation: Callable[[Application], None],
) -> None:
    waiting = [made(make, sink, situation) for sink in SINKS]
    with caplog.at_level(logging.WARNING):
        for one in waiting:
            # One after the other: Spark gives up on a Python worker that does not connect within 10 s.
            one.start()
            eventually(
                lambda one=one: one.committed() or one.queries[0].exception(), f"batch 0 of {one.name}"
            )
        since = time.monotonic()
        eventually(
            lambda: time.monotonic() > since + ALIVE or any(one.queries[0].exception() for one in waiting),
            "a while of waiting",
        )
        for one in waiting:
            assert one.queries[0].exception() is None, f"{one.name}: {one.queries[0].exception()}"
            assert one.committed() == ["0"], one.name
    assert [
        record.getMessage() for record in caplog.records if record.name.startswith("kinesis_trident.bolt")
    ] == []
    for one, sequence in [(one, one.put("news")) for one in waiting]:
        eventually(lambda one=one, sequence=sequence: one.has_settled(sequence), f"the news of {one.name}")


@pytest.mark.parametrize("situation", cases(SITUATIONS[2], long=(*SITUATIONS[:2], SITUATIONS[3])))
def test_available_now_with_nothing_to_read_ends_and_reads_what_came_later(
    make: Callable[..., Application],
    situation: Callable[[Application], None],
) -> None:
    for sink in ENDING:
        one = made(make, sink, situation)
        assert one.start(AVAILABLE_NOW).awaitTermination(PATIENCE), one.name
        news = one.put("news")
        assert one.start(AVAILABLE_NOW).awaitTermination(PATIENCE), one.name
        assert one.has_settled(news), one.name
