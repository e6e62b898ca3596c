"""The servers beyond the embedded ones: each answers a real request, and a missing one is never passed over."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import boto3
import psycopg
import pytest
from servers import Kinesalite, KinesisLocal, MemcachedServer, PostgresServer, RedisServer
from thorough import cases

TESTS = Path(__file__).parent

NEEDY = """
def test_needs_redis(redis_server):
    assert redis_server.running

def test_needs_redis_too(redis_server):
    assert redis_server.running

def test_needs_none():
    pass
"""


def exchange(address: tuple[str, int], *lines: str) -> list[str]:
    """Send each line and return the first line of each answer."""
    with socket.create_connection(address, timeout=60) as connection, connection.makefile("rb") as answers:
        said = []
        for line in lines:
            connection.sendall(line.encode() + b"\r\n")
            said.append(answers.readline().decode().strip())
        return said


def test_redis_keeps_a_value(redis_server: RedisServer) -> None:
    key = uuid.uuid4().hex
    address = ("127.0.0.1", redis_server.port)

    assert redis_server.url == f"redis://127.0.0.1:{redis_server.port}"
    assert exchange(address, f"SET {key} here", f"EXISTS {key}") == ["+OK", ":1"]


def test_memcached_keeps_a_value(memcached_server: MemcachedServer) -> None:
    key = uuid.uuid4().hex

    assert exchange(memcached_server.address, f"set {key} 0 0 4\r\nhere", f"get {key}") == [
        "STORED",
        f"VALUE {key} 0 4",
    ]


def test_postgres_keeps_a_row_and_is_reached_by_its_url(postgres_server: PostgresServer) -> None:
    table = f"t{uuid.uuid4().hex}"
    statement = f"CREATE TABLE {table} (v int); INSERT INTO {table} VALUES (7); SELECT v FROM {table}"
    psql = [postgres_server.program.with_name("psql"), postgres_server.url, "-qAt", "-c", statement]

    answer = subprocess.run(psql, check=True, capture_output=True, text=True)

    assert answer.stdout.split() == ["7"]


def test_postgres_stops_cleanly_while_a_client_is_connected(postgres_server: PostgresServer) -> None:
    with (
        PostgresServer(postgres_server.program) as server,
        psycopg.connect(server.url),
    ):
        running = server.data / "postmaster.pid"
        assert running.exists()

        server.stop()

        # A server that had to be killed leaves it behind.
        assert not running.exists()


def test_kinesis_local_splits_a_shard_and_names_the_children(kinesis_local: KinesisLocal) -> None:
    client = boto3.client("kinesis", endpoint_url=kinesis_local.endpoint_url)
    stream = f"stream-{uuid.uuid4().hex[:12]}"
    client.create_stream(StreamName=stream, ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    (shard,) = client.list_shards(StreamName=stream)["Shards"]

    client.split_shard(StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(2**127))
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})

    children = client.list_shards(StreamName=stream)["Shards"][1:]
    assert [child["ParentShardId"] for child in children] == [shard["ShardId"]] * 2


def test_kinesalite_ends_a_closed_shard_only_after_an_empty_answer(kinesalite: Kinesalite) -> None:
    client = boto3.client("kinesis", endpoint_url=kinesalite.endpoint_url)
    stream = f"stream-{uuid.uuid4().hex[:12]}"
    client.create_stream(StreamName=stream, ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    (shard,) = client.list_shards(StreamName=stream)["Shards"]
    client.put_record(StreamName=stream, Data=b"x", PartitionKey="k")
    put = int(time.time())
    # It counts seconds: what is put in the one before the split is followed by the end at once.
    while (left := put + 2 - time.time()) > 0:
        time.sleep(left)
    client.split_shard(StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(2**127))
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})

    iterator = client.get_shard_iterator(
        StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    answers = []
    while iterator:
        page = client.get_records(ShardIterator=iterator)
        iterator = page.get("NextShardIterator", "")
        answers.append((len(page["Records"]), bool(iterator)))

    assert answers == [(1, True), (0, True), (0, False)]


def test_chromium_renders_a_page(chromium: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<script>document.write('made ' + 'by script')</script>", encoding="utf-8")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/profile",
        "--dump-dom",
    ]

    rendered = subprocess.run([chromium, *flags, page.as_uri()], check=True, capture_output=True, text=True)

    assert "made by script" in rendered.stdout


SKIPPED = ["2 passed, 4 skipped", "redis-server (make servers, or apt-get install redis-server): 4 tests"]
FAILED = ["2 passed, 4 errors", "missing server: redis-server"]


@pytest.mark.parametrize(
    ("ci", "code", "said", "workers"),
    cases(
        *(("", 0, SKIPPED, "2"), ("true", 1, FAILED, "0")),
        long=(("", 0, SKIPPED, "0"), ("true", 1, FAILED, "2")),
    ),
)
def test_what_needs_a_missing_server_is_listed_once_and_fails_in_ci(
    tmp_path: Path, ci: str, code: int, said: list[str], workers: str
) -> None:
    for name in ("test_needy.py", "test_needy_too.py"):
        (tmp_path / name).write_text(NEEDY, encoding="utf-8")
    without = {
        "PATH": str(tmp_path),
        "CI": ci,
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
        # Those that are not named here take longer to import than all else.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    plugins = ["-p", "server_fixtures", "-p", "xdist", "-p", "no:cacheprovider"]
    options = [*plugins, "-n", workers, "--dist", "loadfile"]

    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, tmp_path],
        env=os.environ | without,
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )

    assert run.returncode == code, run.stdout
    assert all(words in run.stdout for words in said), run.stdout
    assert run.stdout.count("missing servers") == (0 if ci else 1), run.stdout
