"""The embedded servers: real ones, restartable, and gone when their owner is, however it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed
from thorough import cases

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedServerError, EmbeddedZooKeeper

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

ROOT = Path(__file__).resolve().parents[3]

OWNER = """
import signal, sys, time
from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
# A shell has its commands in the background ignore it, and those that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
with {server}() as server:
    print(server.port, server._folder, flush=True)
    time.sleep(600)
"""


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@retry(retry=retry_if_result(lambda gone: not gone), stop=stop_after_delay(120), wait=wait_fixed(0.05))
def wait_until_gone(port: int, folder: Path) -> bool:
    return not listening(port) and not folder.exists()


def read(hosts: str, path: str) -> bytes:
    client = KazooClient(hosts)
    client.start()
    try:
        return client.get(path)[0]
    finally:
        client.stop()
        client.close()


def write(hosts: str, path: str, value: bytes) -> None:
    client = KazooClient(hosts)
    client.start()
    client.create(path, value)
    client.stop()
    client.close()


def test_zookeeper_keeps_port_and_data_over_a_restart() -> None:
    with EmbeddedZooKeeper() as zookeeper:
        port = zookeeper.port
        write(zookeeper.hosts, "/kept", b"over the restart")
        zookeeper.stop()
        assert not zookeeper.running
        assert not listening(port)
        zookeeper.start()
        assert zookeeper.port == port
        assert read(zookeeper.hosts, "/kept") == b"over the restart"


def test_a_given_folder_is_kept_and_read_again(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path / "data") as zookeeper:
        write(zookeeper.hosts, "/kept", b"in the folder")
    with EmbeddedZooKeeper(tmp_path / "data") as zookeeper:
        assert read(zookeeper.hosts, "/kept") == b"in the folder"


def test_starting_twice_and_stopping_twice_do_nothing(zookeeper: EmbeddedZooKeeper) -> None:
    port = zookeeper.port
    assert zookeeper.start().port == port
    never_started = EmbeddedZooKeeper()
    never_started.stop()
    never_started.stop()
    assert never_started.port == 0


def test_it_is_stopped_after_an_exception() -> None:
    def fail() -> None:
        with EmbeddedZooKeeper() as zookeeper:
            ports.append(zookeeper.port)
            assert listening(zookeeper.port)
            raise RuntimeError

    ports: list[int] = []
    with pytest.raises(RuntimeError):
        fail()
    assert not listening(ports[0])


def test_it_outlives_the_thread_that_started_it() -> None:
    zookeeper = EmbeddedZooKeeper()
    thread = threading.Thread(target=zookeeper.start)
    thread.start()
    thread.join()
    with zookeeper:
        write(zookeeper.hosts, "/still", b"here")
        assert read(zookeeper.hosts, "/still") == b"here"


@pytest.mark.parametrize(
    ("server", "end"),
    cases(
        ("EmbeddedZooKeeper", signal.SIGKILL),
        ("EmbeddedKinesis", signal.SIGKILL),
        ("EmbeddedZooKeeper", signal.SIGTERM),
        ("EmbeddedKinesis", signal.SIGINT),
        long=(("EmbeddedZooKeeper", signal.SIGINT), ("EmbeddedKinesis", signal.SIGTERM)),
    ),
)
def test_it_ends_with_its_owner(server: str, end: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(server=server)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert owner.stdout is not None
    with owner:
        port, folder = owner.stdout.readline().split()
        assert listening(int(port))
        owner.send_signal(end)
        try:
            owner.wait(120)
        finally:
            owner.kill()
    wait_until_gone(int(port), Path(folder))


@pytest.mark.parametrize("kind", [EmbeddedZooKeeper, EmbeddedKinesis])
def test_a_port_that_is_taken_is_a_clear_error(kind: type[EmbeddedZooKeeper | EmbeddedKinesis]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = kind(port=port)
        with pytest.raises(EmbeddedServerError, match=rf"127.0.0.1:{port}[\s\S]+in use"):
            server.start()
        assert not server.running


def test_kinesis_gives_back_what_was_put(kinesis: KinesisClient, make_stream: Callable[..., str]) -> None:
    stream = make_stream(2)
    shards = kinesis.list_shards(StreamName=stream)["Shards"]
    assert len(shards) == 2
    put = kinesis.put_record(StreamName=stream, Data=b"payload", PartitionKey="key")
    iterator = kinesis.get_shard_iterator(
        StreamName=stream, ShardId=put["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    (record,) = kinesis.get_records(ShardIterator=iterator)["Records"]
    assert (record["Data"], record["PartitionKey"]) == (b"payload", "key")


def test_without_moto_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moto", None)
    with pytest.raises(EmbeddedServerError, match=r"pip install 'kinesis-trident\[demo\]'"):
        EmbeddedKinesis().start()
