"""The metrics as a scrape sees them: of a query by hand, on the shared ZooKeeper, over HTTP."""

from __future__ import annotations

import gzip
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psutil
import pytest
from by_hand import Lives
from prometheus_client.parser import text_string_to_metric_families

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig
from kinesis_trident.console.metrics.exporter import ApplicationMetrics, text_of
from kinesis_trident.console.metrics.table import COMMAND, METRICS
from kinesis_trident.console.web.server import address_of
from kinesis_trident.spout.acks import Acks
from kinesis_trident.spout.testing import MemoryKinesis

A = "shardId-000000000000"

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def lives(make_lives: Callable[..., Lives]) -> Lives:
    return make_lives(ackMode="explicit", retryBackoff="1h..1h x1")


LABELS = {one.name: one.labels for one in METRICS}


def values(text: str) -> dict[tuple[str, ...], float]:
    """The values, by the name without `kinesis_trident_` and the labels in the order of the table."""
    return {
        (
            sample.name.removeprefix("kinesis_trident_"),
            *(sample.labels[label] for label in LABELS[sample.name]),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_query_is_seen_from_outside(
    lives: Lives, app: str, command: Command, zookeeper: EmbeddedZooKeeper, promtool: Path
) -> None:
    kinesis = MemoryKinesis()
    for number in range(5):
        kinesis.put(A, str(number).encode())
    query = lives.begin(kinesis)
    rows = query.batch()
    query.plan()
    acks = Acks(app, {"zookeeper.hosts": zookeeper.hosts})
    acks.ack([rows[0][1], rows[1][1]])
    acks.fail([rows[2][1]], "KeyError: 'id'")
    acks.close()
    found: dict[tuple[str, ...], float] = {}
    for _ in range(3000):
        # The status is written every few seconds by a clock that only moves on, and nothing waits for it.
        query.run._notes._due = 0
        query.plan()
        code, text, errors = command("metrics", app)
        assert (code, errors) == (0, "")
        found = values(text)
        acked = found.get(("acked_records_total", app, "orders"))
        failed = found.get(("failed_records_total", app, "orders", "ACKS_FAIL"))
        if (acked, failed) == (2, 1):
            break
    shard = (app, "orders", A)
    assert found["zookeeper_up",] == found["application_up", app] == found["connected", app, "orders"] == 1
    assert found["read_records_total", *shard] == 5
    assert (found["unacked_records", *shard], found["retrying_records", *shard]) == (2, 1)
    assert found["in_flight_records", *shard] == 3
    assert found["oldest_unacked_seconds", *shard] >= 0
    assert found["last_batch_zookeeper_bytes", app, "orders"] > 0
    known = {one.name.removeprefix("kinesis_trident_") for one in METRICS if COMMAND in one.places}
    assert {name for name, *_ in found} <= known
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@contextmanager
def listening(
    hosts: str, app: str, *more: str, begin: str = ""
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command that serves, and its port; `begin` is a program that its process runs first."""
    program = f"{begin}\nfrom kinesis_trident.console.cli import main; main()"
    arguments = ["metrics", app, "--zookeeper", hosts, "--listen", "127.0.0.1:0", *more]
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            found = re.fullmatch(r"metrics at http://127.0.0.1:(\d+)/metrics; Ctrl-C stops it\n", said)
            assert found, said
            yield server, int(found[1])
        finally:
            server.kill()


def ask(port: int, **headers: str) -> tuple[int, str, bytes]:
    """Ask for the metrics: the code, the kind and the body of the answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, "", error.read()


def test_it_serves_until_it_is_asked_to_end(
    command: Command, lives: Lives, app: str, zookeeper: EmbeddedZooKeeper
) -> None:
    lives.begin(MemoryKinesis()).plan()
    with listening(zookeeper.hosts, app) as (server, port):
        _, kind, text = ask(port)
        assert kind.startswith("text/plain; version=")
        assert values(text.decode())["application_up", app] == 1
        assert gzip.decompress(ask(port, **{"Accept-Encoding": "gzip"})[2]).startswith(b"# HELP")
        code, _, errors = command("metrics", app, "--listen", f"127.0.0.1:{port}")
        assert code == 1
        assert f"cannot listen at 127.0.0.1:{port}" in errors
        server.terminate()
        assert server.wait(60) == 0


def test_it_is_asked_by_its_own_names_alone(app: str, zookeeper: EmbeddedZooKeeper) -> None:
    with listening(zookeeper.hosts, app, "--allowed-host", "metrics.internal") as (_, port):
        asked = ("evil.example", f"localhost:{port}", f"metrics.internal:{port}", "[::1]:80", "")
        assert [ask(port, Host=host)[0] for host in asked] == [400, 200, 200, 200, 400]


def test_four_hundred_idle_connections_hold_no_thread_and_no_file_that_zookeeper_needs(
    lives: Lives, app: str, zookeeper: EmbeddedZooKeeper
) -> None:
    lives.begin(MemoryKinesis()).plan()
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))"
    with listening(zookeeper.hosts, app, begin=few) as (server, port), ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
        process = psutil.Process(server.pid)
        # The session with ZooKeeper is opened at the first scrape, which needs files.
        for _ in range(3):
            assert values(ask(port)[2].decode())["application_up", app] == 1
        assert process.num_threads() < 40
        assert process.num_fds() < 100


def test_a_client_of_zookeeper_that_has_ended_is_replaced(
    lives: Lives, app: str, zookeeper: EmbeddedZooKeeper
) -> None:
    lives.begin(MemoryKinesis()).plan()
    with closing(ApplicationMetrics(ZooKeeperConfig(zookeeper.hosts), "/kinesis-trident", [app])) as metrics:
        for _ in range(2):
            assert values(text_of(metrics))["application_up", app] == 1
            metrics._client.get().stop()


def test_an_application_that_cannot_be_read_hides_no_other(command: Command, lives: Lives, app: str) -> None:
    lives.begin(MemoryKinesis()).plan()
    code, text, _ = command("metrics", "no-such-app", app)
    assert code == 0
    found = values(text)
    assert (found["application_up", "no-such-app"], found["application_up", app]) == (0, 1)


def test_a_zookeeper_that_does_not_answer_is_a_value(command: Command) -> None:
    code, text, _ = command("--timeout", "0.5", "metrics", "orders", "--zookeeper", "127.0.0.1:1")
    assert code == 0
    assert values(text) == {("zookeeper_up",): 0, ("application_up", "orders"): 0}


@pytest.mark.parametrize("listen", ["9464", ":9464", "localhost", "localhost:http", "localhost:65536"])
def test_a_wrong_address_says_what_is_one(listen: str, command: Command) -> None:
    code, _, errors = command("metrics", "orders", "--listen", listen)
    assert code == 1
    assert "Give host:port, as 127.0.0.1:9464 or [::1]:9464" in errors


def test_an_address_may_be_of_ipv6() -> None:
    assert address_of("[::1]:9464") == ("::1", 9464)
