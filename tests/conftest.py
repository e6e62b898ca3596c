"""Real servers and a real Spark for all tests: each is started once a session, and only when a test asks.

Each worker of pytest-xdist is a session of its own: nothing here has a fixed name, port or folder.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import fast_spark
import pytest
from by_hand import Lives
from ensemble import Ensemble
from hypothesis import HealthCheck, settings
from job_environment import REGION, WITHOUT_CHMOD, job_environment
from kazoo.client import KazooClient
from lossy_proxy import LossyProxy
from pieces import Pieces, piece_of
from spending import Spending, lines_of
from thorough import CHAOS, SEARCH, examples

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.embedded.java import ensure_java
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient
    from pyspark.sql import SparkSession
    from xdist.remote import Producer

pytest_plugins = ["server_fixtures"]

# The conformance kit's asserts show what they compare; here, because any test may be the first that imports it.
pytest.register_assert_rewrite("kinesis_trident.trident.testing.conformance")

# How long an example takes says more of the machine than of what is tested. The same examples each time: a failure is
# due to the change, and `make chaos` searches for others.
settings.register_profile(
    "tests",
    settings.default,
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not SEARCH,
    print_blob=True,
)
settings.load_profile("tests")
if not SEARCH:
    # Newer hypothesis also draws constants of the modules that are imported by then: the examples of a test would be
    # others after other tests.
    with suppress(ImportError):
        from hypothesis.internal.conjecture import providers

        providers._get_local_constants = lambda: providers._local_constants

DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds that each piece of the tests took the last time it was told to keep them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--store-durations`: write how long each piece took; a whole run in one process gives the fairest figures.

    `--spent`: print what the tests cost, by kind, by file and the dearest of them.
    """
    parser.addoption("--store-durations", action="store_true", help=f"write {DURATIONS.name}")
    parser.addoption("--spent", action="store_true", help="print what the tests cost")


def pytest_configure(config: pytest.Config) -> None:
    """Count what the tests cost, where that was asked for."""
    if config.getoption("--spent"):
        config.pluginmanager.register(Spending(), "spending")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what the tests cost."""
    spending = config.pluginmanager.get_plugin("spending")
    if spending is not None:
        for line in lines_of(spending.tests):
            terminalreporter.write_line(line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `long`, and put the longest pieces first.

    Where pytest-xdist shares them, one begun last would be waited for.
    """
    if not CHAOS:
        named = {(config.invocation_params.dir / one.partition("::")[0]).resolve() for one in config.args}
        left_out = {item for item in items if item.get_closest_marker("long") and item.path not in named}
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    if hasattr(config, "workerinput") and DURATIONS.exists():
        known = json.loads(DURATIONS.read_text())
        # A piece that is not known yet may be a long one.
        items.sort(key=lambda item: -known.get(piece_of(item.nodeid), 1000.0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Pieces | None:
    """Share the pieces of long files too where pytest-xdist shares files."""
    return Pieces(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests without garbage collections, which take a fifth of that and find nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep the modules and thousands of tests out of the garbage collections to come, which took seconds of some."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


_took: dict[str, float] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what each piece takes, fixtures included."""
    piece = piece_of(report.nodeid)
    _took[piece] = _took.get(piece, 0.0) + report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep the durations where that was asked for."""
    if session.config.getoption("--store-durations") and not hasattr(session.config, "workerinput"):
        DURATIONS.write_text(
            json.dumps({piece: round(_took[piece], 1) for piece in sorted(_took)}, indent=1) + "\n"
        )


@pytest.fixture(scope="session", autouse=True)
def _environment() -> Iterator[None]:
    """Dummy credentials, and nothing of the developer's own AWS set-up; children inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        wanted = job_environment(os.environ)
        for name in os.environ.keys() - wanted.keys():
            patch.delenv(name)
        for name, value in wanted.items():
            patch.setenv(name, value)
        fast_spark.speed_up(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def _dice_of_kazoo() -> Iterator[None]:
    """A generator of its own for the jitter in kazoo's threads.

    Hypothesis seeds the one of `random`, and takes a change of it while a strategy draws for the strategy's.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in ("kazoo.protocol.connection", "kazoo.retry"):
            patch.setattr(f"{module}.random", random.Random())
        yield


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """A real ZooKeeper, shared: take names from `app`; a test that stops a server starts one of its own."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def proxy(zookeeper: EmbeddedZooKeeper) -> Iterator[LossyProxy]:
    """Stands before ZooKeeper, and loses what it is told to."""
    proxy = LossyProxy(zookeeper.hosts)
    yield proxy
    proxy.close()


@pytest.fixture
def make_client() -> Iterator[Callable[..., KazooClient]]:
    """`make_client(hosts, **settings)`: a connected client, stopped after the test."""
    made: list[KazooClient] = []

    def make(hosts: str, **settings: object) -> KazooClient:
        made.append(connect(ZooKeeperConfig(hosts, **settings)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for client in made:
        client.stop()
        client.close()


@pytest.fixture
def client(zookeeper: EmbeddedZooKeeper, make_client: Callable[..., KazooClient]) -> KazooClient:
    """A client of the shared ZooKeeper, of this test alone."""
    return make_client(zookeeper.hosts)


@pytest.fixture(scope="session")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three real ZooKeeper servers, shared, of which one lags as a test wants."""
    with Ensemble(tmp_path_factory.mktemp("ensemble")) as servers:
        yield servers


@pytest.fixture(scope="session")
def kinesis_server() -> Iterator[EmbeddedKinesis]:
    """moto's Kinesis in a process of its own, shared; `endpoint_url` is what a query needs."""
    with EmbeddedKinesis() as server:
        yield server


@pytest.fixture(scope="session")
def kinesis(kinesis_server: EmbeddedKinesis) -> KinesisClient:
    """A boto3 client of the shared Kinesis."""
    return boto3.client("kinesis", endpoint_url=kinesis_server.endpoint_url, region_name=REGION)


@pytest.fixture
def make_stream(kinesis: KinesisClient) -> Iterator[Callable[..., str]]:
    """`make_stream(shards=1) -> name`: a new stream of a unique name, deleted after the test."""
    made: list[str] = []

    def make(shards: int = 1) -> str:
        name = f"stream-{uuid.uuid4().hex[:12]}"
        kinesis.create_stream(StreamName=name, ShardCount=shards)
        made.append(name)
        kinesis.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
        return name

    yield make
    for name in made:
        kinesis.delete_stream(StreamName=name, EnforceConsumerDeletion=True)


@pytest.fixture
def app() -> str:
    """An application name that no other test uses."""
    return f"app-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def make_lives(zookeeper: EmbeddedZooKeeper, app: str) -> Iterator[Callable[..., Lives]]:
    """`make_lives(**options)`: the lives of the test's application, without Spark, which end with the test."""
    with ExitStack() as ending:

        def make(**options: str) -> Lives:
            lives = Lives(zookeeper.hosts, app, **options)
            ending.callback(lives.end)
            return lives

        yield make


@pytest.fixture
def lives(make_lives: Callable[..., Lives]) -> Lives:
    """Lives without other options."""
    return make_lives()


INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Spark interprets the plans of `make test`: to compile one takes longer than the few rows of a test.

The plans of `make long` are compiled, and those of jobs in processes of their own, such as the demo.
"""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One `local[2]` session for all tests."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    with fast_spark.warm_python() as warm, pytest.MonkeyPatch.context() as patch:
        for name, value in warm.items():
            patch.setenv(name, value)
        patch.setenv("JAVA_HOME", str(ensure_java()))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            SparkSession.builder.master("local[2]")
            .appName("tests")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            # Tests wait for what an idle query says of itself; Spark's own default is ten seconds.
            .config("spark.sql.streaming.noDataProgressEventInterval", "500")
            .config(map=WITHOUT_CHMOD)
            # Spark keeps the code of a hundred plans; those of all tests are more, and many come again.
            .config("spark.sql.codegen.cache.maxEntries", "2000")
            .config(map={} if CHAOS else INTERPRETED)
            .getOrCreate()
        )
        session = _with_format(session)
        # Jobs in processes of their own start theirs as users do.
        for name in warm:
            patch.delenv(name)
        yield session
        session.stop()


def _with_format(session: SparkSession) -> SparkSession:
    """Return a session that finds the format: one whose Python starts too late for that does not look again."""
    for _ in range(3):
        with pytest.raises(Exception, match=r"OptionsError|DATA_SOURCE_NOT_FOUND") as refused:
            session.readStream.format("kinesis-trident").load()
        if "DATA_SOURCE_NOT_FOUND" not in str(refused.value):
            break
        session = session.newSession()
    return session
