"""The programs of examples/ in the shared Spark session, on servers as their own; test_demo.py runs the demo."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import fast_spark
import pytest
import redis
from harness import digest
from notebook import Notebook
from older_spark import needs_reports
from pyspark import cloudpickle
from servers import RedisServer
from stage import Stage
from thorough import cases

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.trident.stores.redis import RedisState

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))

import backfill  # noqa: E402
import clickstream  # noqa: E402
import join  # noqa: E402
import orders  # noqa: E402
import playground  # noqa: E402
import safe_checkpoint  # noqa: E402
import trident_word_count  # noqa: E402
import word_count  # noqa: E402
from playground import Place  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's workers cannot import the examples.
for module in (backfill, clickstream, join, orders, trident_word_count, word_count):
    cloudpickle.register_pickle_by_value(module)


@pytest.fixture
def place(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path
) -> Iterator[Callable[..., Place]]:
    """`place("clicks", shards=2)`: where an example runs, on a Kinesis of its own and the shared ZooKeeper."""
    ending = ExitStack()

    def make(streams: str, shards: int = 2) -> Place:
        kinesis = ending.enter_context(playground.own_kinesis(streams.split(","), shards))
        options = {"applicationName": app, "startingPosition": "TRIM_HORIZON"}
        options |= playground.own_options(kinesis, streams, zookeeper.hosts)
        return Place(spark, options, tmp_path, kinesis)

    with ending:
        yield make


@pytest.fixture(params=cases("in the session", long=("as a user",)))
def printed(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> Callable[..., list[str]]:
    """`printed(example, "--option", "value")`: what a program prints, here or in a process of its own."""

    def in_the_session(example: ModuleType, *arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [str(example.__file__), *arguments])
        monkeypatch.setattr(playground, "start_spark", lambda *_: spark)
        ours = logging.getLogger("kinesis_trident")
        level = ours.level
        with monkeypatch.context() as patch:
            patch.setattr(spark, "stop", lambda: None)
            example.main()
        ours.setLevel(level)
        return capsys.readouterr().out.splitlines()

    def as_a_user(example: ModuleType, *arguments: str) -> list[str]:
        command = [sys.executable, str(example.__file__), *arguments]
        with fast_spark.warm_python() as warm:
            environment = os.environ | warm | {"SPARK_LOCAL_IP": "127.0.0.1"}
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=300, check=False, env=environment
            )
        assert done.returncode == 0, digest(done.stderr)
        return done.stdout.splitlines()

    return as_a_user if request.param == "as a user" else in_the_session


def test_word_count(stage: Stage, printed: Callable[..., list[str]], tmp_path: Path) -> None:
    stage.put(word_count.SENTENCES)
    arguments = {
        "--stream": stage.stream,
        "--application": stage.app,
        "--zookeeper": stage.hosts,
        "--endpoint": stage.endpoint,
        "--output": str(tmp_path / "counts"),
    }
    lines = printed(word_count, *(one for pair in arguments.items() for one in pair))
    counts = Counter(" ".join(word_count.SENTENCES).split())
    assert {word: int(count) for count, word in map(str.split, lines)} == counts


@pytest.mark.long
def test_trident_word_count(printed: Callable[..., list[str]], redis_server: RedisServer) -> None:
    """On servers of its own, and a Redis; one of the sentences fails at first.

    test_trident_document.py counts words in a Redis too.
    """
    truth = Counter(" ".join(trident_word_count.SENTENCES).split())
    most = [f"{count} {word}" for word, count in sorted(truth.items(), key=lambda pair: (-pair[1], pair[0]))]
    # A database of its own: without a prefix its keys would be among those of other tests.
    database = f"{redis_server.url}/6"
    redis.Redis.from_url(database).flushdb()
    assert printed(trident_word_count, "--redis", database) == most[:20]
    state = RedisState.opaque(database).make_state({}, 0, 1)
    assert state.multi_get([(word,) for word in truth]) == list(truth.values())


@pytest.mark.long
def test_orders(place: Callable[..., Place]) -> None:
    """The demo runs it too."""
    here = place("orders")
    here.put((str(number), text) for number, text in enumerate(orders.ORDERS))
    orders.start(
        here, playground.AVAILABLE_NOW, retryLimit="2", retryBackoff="1ms..1ms x1"
    ).awaitTermination()
    assert orders.read(here) == [("a", 10.0), ("b", 20.5), ("c", 30.0), ("d", 40.0)]
    ((data, attempts, reason),) = orders.refused(here)
    assert (data, attempts, reason.partition(":")[0]) == (orders.ORDERS[4], 3, "JSONDecodeError")


@pytest.mark.long
def test_clickstream(place: Callable[..., Place]) -> None:
    """test_trident_document.py has a topology of states too, tests/spout/test_scripted_source.py the reshards."""
    here = place("clicks")
    clickstream.count_through_a_reshard(here)
    assert here.kinesis is not None
    assert len(here.kinesis.shards("clicks")) == 4
    top, visitors, longest = clickstream.numbers(here)
    assert top == {"/home": 5, "/shoes": 3, "/cart": 1}
    assert visitors == 4
    assert longest == {"ann": 45 * 60, "bob": 19 * 60, "cid": 0}
    sessions = clickstream.states(here)("sessions").make_state({}, 0, 1).multi_get([("ann",), ("bob",)])
    minutes = [[(first - clickstream.NINE) // 60 for first, _, _ in one] for one in sessions]
    assert minutes == [[0], [2, 90]]
    assert [[clicks for _, _, clicks in one] for one in sessions] == [[4], [2, 1]]


@pytest.mark.long
def test_backfill(place: Callable[..., Place]) -> None:
    """tests/guides/test_guides.py does a backfill too."""
    here = place("orders")
    times = backfill.write_three_hours(here)
    wrong = backfill.totals(here)
    assert list(wrong.values()) == [10.0, 8.0, 10.0]
    backfill.write_hours(here, times[1], times[2], backfill.RIGHT)
    assert backfill.totals(here) == dict(zip(wrong, [10.0, 10.0, 10.0], strict=True))


@needs_reports
@pytest.mark.long
def test_join(place: Callable[..., Place]) -> None:
    """test_joins.py runs the joins of the documentation."""
    here = place("orders,payments", shards=1)
    join.join_in_turns(here)
    assert join.pairs(here) == [["1", "a pen", "5 euros"], ["2", "two pads", "9 euros"]]
    assert join.unpaid(here) == [("ink", "TIMEOUT (bolt join)")]


def test_safe_checkpoint(zookeeper: EmbeddedZooKeeper, app: str) -> None:
    looks = safe_checkpoint.run(zookeeper.hosts, app)
    first, then = ([(name.decode(), 1) for name in sorted(names)] for names in safe_checkpoint.ORDERS)
    again = [([("three", 2)], "two", 1), ([("three", 3)], "five", 0)]
    assert looks == [(first, "two", 0), (then, "two", 1), *again]


def test_the_notebook_shows_what_its_cells_give(spark: SparkSession) -> None:
    notebook = Notebook(EXAMPLES / "first_look.ipynb")
    outputs = notebook.run()
    if os.environ.get("UPDATE_GUIDE"):
        notebook.write(outputs)
    assert [cell["outputs"] for cell in notebook.code] == outputs
    # Of no machine.
    assert not re.findall(r"/(?:tmp|home|work|root)\b|127\.0\.0\.1", str(outputs))


def test_the_page_has_every_example() -> None:
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\]\(\.\./examples/([\w.]+)\)", page))
    assert named == {path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".ipynb"}}


def test_examples_on_servers_of_a_user_say_that_they_need_a_folder() -> None:
    asked = playground.arguments("", "orders", "orders").parse_args(["--zookeeper", "zk1:2181"])
    with pytest.raises(SystemExit, match="--output"), playground.place_of(asked):
        pass


def test_a_stream_of_a_user_is_only_read(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="only read"):
        Place(spark, {}, tmp_path).put([("a", "b")])
