"""Fixtures of the servers that no wheel brings, and what becomes of a test whose server is missing.

Such a test is skipped, and listed at the end of the run. Where `CI` is `true` it fails: there nothing may be left out.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from server_programs import find
from servers import (
    Kinesalite,
    KinesisLocal,
    MariaDBServer,
    MemcachedServer,
    MiniStack,
    PostgresServer,
    RedisServer,
)

_MISSING = "missing server: "


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A real Redis, shared: take keys that no other test uses; `url` is what a client needs."""
    with RedisServer(_program("redis-server")) as server:
        yield server


@pytest.fixture(scope="session")
def memcached_server() -> Iterator[MemcachedServer]:
    """A real memcached, shared: take keys that no other test uses; `address` is what a client needs."""
    with MemcachedServer(_program("memcached")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real PostgreSQL, shared: take tables that no other test uses; `url` is what a client needs."""
    with PostgresServer(_program("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    """A real MariaDB, shared: take tables that no other test uses; `url` is what a client needs."""
    with MariaDBServer(_program("mariadbd")) as server:
        yield server


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of this test's own, of each kind: the URL for SQLAlchemy."""
    return empty_database(request.param, request, tmp_path)


def empty_database(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Create a database of one kind; `request` starts its server."""
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/sink.db"
    name = f"test_{uuid.uuid4().hex}"
    url = request.getfixturevalue(f"{kind}_server").url
    url = url.replace("postgresql:", "postgresql+psycopg:").replace("mysql:", "mysql+pymysql:")
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
    engine.dispose()
    if kind == "postgres":
        return f"{url}?options=-csearch_path%3D{name}"
    return f"{url.rpartition('/')[0]}/{name}"


@pytest.fixture(scope="session")
def kinesis_local() -> Iterator[KinesisLocal]:
    """kinesis-local, a Kinesis that reshards as AWS does, shared; `endpoint_url` is what a client needs."""
    with KinesisLocal(_program("node"), _program("kinesis-local")) as server:
        yield server


@pytest.fixture(scope="session")
def kinesalite() -> Iterator[Kinesalite]:
    """kinesalite, a Kinesis whose closed shards end late, shared; `endpoint_url` is what a client needs."""
    with Kinesalite(_program("node"), _program("kinesalite")) as server:
        yield server


@pytest.fixture(scope="session")
def ministack() -> Iterator[MiniStack]:
    """MiniStack, a Kinesis that fills its numbers up with zeros, shared; `endpoint_url` is what a client needs."""
    with MiniStack(_program("ministack")) as server:
        yield server


@pytest.fixture(scope="session")
def chromium() -> Path:
    """The Chromium program; it needs `--headless`, and as root `--no-sandbox`."""
    return _program("chromium")


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The program of Prometheus that checks metrics, rules and queries."""
    return _program("promtool")


@pytest.fixture(scope="session")
def program_of() -> Callable[[str], Path]:
    """`program_of(name)`: the program of a server that a test starts itself."""
    return _program


def _program(name: str) -> Path:
    program = find(name)
    if program.path is None:
        message = f"{_MISSING}{name} (make servers, or {program.how})"
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    return program.path


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the missing servers last, with how many tests each of them cost."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [str(report.longrepr[2]) for report in skipped if isinstance(report.longrepr, tuple)]
    missing = Counter(reason.partition(_MISSING)[2] for reason in reasons if _MISSING in reason)
    if missing:
        terminalreporter.section("missing servers", yellow=True)
        for server, tests in sorted(missing.items()):
            terminalreporter.line(f"{server}: {tests} tests skipped", yellow=True)
