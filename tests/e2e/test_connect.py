"""`reliable()` and topologies under Spark Connect: reports travel through ZooKeeper, batches run beside the server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import fast_spark
import pyspark
import pytest
from harness import HERE, PATIENCE, digest, eventually, kind, layout_of, options, put
from kazoo.client import KazooClient
from packaging.version import Version

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient


@pytest.fixture
def thin_client(tmp_path: Path) -> Iterator[tuple[dict[str, str], str]]:
    """The settings under which Python has Spark's thin client, and the URL of a server that runs beside."""
    place = tmp_path / "thin"
    release = "==4.2.*" if Version(pyspark.__version__) >= Version("4.2") else f"=={pyspark.__version__}"
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
    subprocess.run([*command, "--target", place, f"pyspark-client{release}"], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "server").mkdir()
    server = subprocess.Popen(
        [sys.executable, str(HERE / "connect_server.py"), str(tmp_path / "server"), str(port)],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        before = os.environ.get("PYTHONPATH", "")
        yield {"PYTHONPATH": f"{place}{os.pathsep}{before}"}, f"sc://127.0.0.1:{port}"
        server.stdin.close()


@pytest.mark.long
def test_the_thin_client_does_the_same(
    thin_client: tuple[dict[str, str], str], request: pytest.FixtureRequest
) -> None:
    environment, remote = thin_client
    code = "from pyspark.util import is_remote_only; print(is_remote_only())"
    checked = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    assert checked.stdout == "True\n"
    places = [request.getfixturevalue(name) for name in FIXTURES]
    records_fail_and_come_back_and_the_query_stops(*places, environment=environment, remote=remote)


FIXTURES = ("make_stream", "kinesis", "kinesis_server", "zookeeper", "keeper", "tmp_path")


def test_records_fail_one_by_one_and_come_back_and_the_query_stops_when_asked(
    request: pytest.FixtureRequest,
) -> None:
    records_fail_and_come_back_and_the_query_stops(*[request.getfixturevalue(name) for name in FIXTURES])


def records_fail_and_come_back_and_the_query_stops(
    make_stream: Callable[..., str],
    kinesis: KinesisClient,
    kinesis_server: EmbeddedKinesis,
    zookeeper: EmbeddedZooKeeper,
    keeper: KazooClient,
    tmp_path: Path,
    environment: Mapping[str, str] = {},
    remote: str = "",
) -> None:
    stream = make_stream(2)
    put(kinesis, stream, range(40))
    letters = tmp_path / "letters"
    asked = tmp_path / "asked.json"
    given = {**options(stream, zookeeper, kinesis_server), "deadLetter": str(letters)}
    asked.write_text(json.dumps({"folder": str(tmp_path), "options": given, "remote": remote}))
    with fast_spark.warm_python() as warm:
        ended = subprocess.run(
            [sys.executable, str(HERE / "connect_driver.py"), str(asked)],
            env=os.environ
            | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
            | warm
            | environment,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
    assert ended.returncode == 0, digest(ended.stderr)
    written = [
        tuple(row) for path in (tmp_path / "out").glob("*.json") for row in json.loads(path.read_text())
    ]
    again = {i for i in range(40) if kind(i) == "flaky"} | {3}
    bad = {i for i in range(40) if kind(i) == "bad"}
    assert sorted(written) == sorted((i, 2 if i in again else 1) for i in range(40) if i not in bad)
    assert {json.loads(letter.data or b"")["i"] for letter in read_dead_letters(str(letters))} == bad

    # Then a topology ran, in which one record failed, and came again as a whole.
    files = list((tmp_path / "taken").glob("*.json"))
    kept = sorted(tuple(row) for path in files for row in json.loads(path.read_text()))
    assert kept == [("flaky", 2), ("four", 1), ("one", 1), ("three", 1), ("three", 2), ("two", 1)]
    # It was asked to stop: its last batch is settled, and nobody plans on.
    store = SourceStore(keeper, layout_of(kinesis, stream))
    settled = store.batches.settled()
    assert settled is not None
    assert settled.txid >= max(int(path.stem.partition("-")[0]) for path in files)
    assert not any(node.waiting for node in store.shards.inflight().values())
    eventually(lambda: store.epochs.owner() is None, "the end of the planning process")
    (said,) = json.loads((tmp_path / "stopped.json").read_text())
    assert "stop(query, stream=stream)" in said
