"""A life over nodes that somebody has damaged, and requests that nobody can read; a real ZooKeeper, no Spark."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Callable

import pytest
from bomb import half_a_gibibyte
from by_hand import Lives, Query, SparkCheckpoint, numbers
from kazoo.client import KazooClient
from lives import eventually

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.zookeeper.multi import write_async
from kinesis_trident.checkpoint.zookeeper.operations import Create
from kinesis_trident.spout.testing import MemoryKinesis

A = "shardId-000000000000"
CREATED = 1_600_000_000_000


@pytest.fixture
def lives(make_lives: Callable[..., Lives]) -> Lives:
    return make_lives(ackMode="explicit", messageTimeout="1h")


@pytest.fixture
def kinesis() -> MemoryKinesis:
    kinesis = MemoryKinesis("orders", created=CREATED)
    for number in range(5):
        kinesis.put(A, str(number).encode())
    return kinesis


REQUESTS = {
    "garbage": b"\x00\xff",
    "empty": b"",
    "deep": b"[" * 100_000,
    "positions": b'{"v":1,"op":"ack","positions":"FOO"}',
    "records": b'{"v":1,"op":"replay","records":["abc"]}',
    "letters": b'{"v":1,"op":"fail","positions":"1x11:eJxLTEpOSU1LzwAAD0ADdQ==","reason":"no"}',
    "newer": b'{"v":2,"op":"ack"}',
    "bomb": b'{"v":1,"op":"ack","positions":"20000x66:' + half_a_gibibyte().encode() + b'"}',
}


def until_taken_in(query: Query, left: list[str]) -> None:
    """Plan until the requests are taken in but for those: kazoo's thread tells of them when it gets to it."""

    def taken_in() -> bool:
        assert query.plan() is None
        found: list[str] = query.store.client.get_children(query.run.layout.external_of(A))
        return found == left

    eventually(taken_in, "the requests are taken in")


def test_requests_that_cannot_be_read_are_put_aside_and_named(
    lives: Lives, kinesis: MemoryKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    query = lives.begin(kinesis)
    ids = [row[1] for row in query.batch()]
    assert query.plan() is None
    layout, client = query.run.layout, query.store.client
    for name, data in REQUESTS.items():
        client.create(f"{layout.external_of(A)}/{name}", data, makepath=True)
    client.create(f"{layout.external}/%FF/odd", b"{}", makepath=True)
    client.create(f"{layout.external_of(A)}/parent/child", b"", makepath=True)
    from kinesis_trident.spout.acks import Acks

    options = {"zookeeper.hosts": f"{client.hosts[0][0]}:{client.hosts[0][1]}"}
    with Acks(layout.application, options) as acks:
        acks.ack(ids[:2])
    kinesis.put(A, b"5")
    tracemalloc.start()
    try:
        with caplog.at_level(logging.ERROR):
            assert numbers(query.batch()) == [5]
            until_taken_in(query, ["parent"])
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()
    # What could be read was done, and the rest is there to be looked at.
    assert query.store.shards.inflight()[A].pending[0].count == 3
    assert sorted(client.get_children(layout.rejected)) == sorted(
        [*(f"{A}:{name}" for name in REQUESTS), "%FF:odd"]
    )
    for name, data in REQUESTS.items():
        assert client.get(f"{layout.rejected}/{A}:{name}")[0] == data[: 512 * 1024]
    said = caplog.text
    for path in (
        *(f"{layout.external_of(A)}/{name}" for name in (*REQUESTS, "parent")),
        f"{layout.external}/%FF/odd",
    ):
        assert (
            said.count(f"cannot be read, and was not applied: {path} ")
            + said.count(f"cannot be read, and was not applied: {path}: ")
            + said.count(f"cannot be read, and stays at {path} ")
            == 1
        ), path


def test_only_so_many_are_kept(lives: Lives, kinesis: MemoryKinesis) -> None:
    query = lives.begin(kinesis)
    query.batch()
    assert query.plan() is None
    layout, client = query.run.layout, query.store.client
    for number in range(103):
        client.create(f"{layout.external_of(A)}/{number}", b"x", makepath=True)
    kinesis.put(A, b"5")
    query.batch()
    assert query.plan() is None
    client.set(layout.external, b"")
    until_taken_in(query, [])
    assert len(client.get_children(layout.rejected)) == 100


def test_very_many_are_put_aside_in_few_requests_and_lines(
    lives: Lives, kinesis: MemoryKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    query = lives.begin(kinesis)
    query.batch()
    assert query.plan() is None
    layout, client = query.run.layout, query.store.client
    folder = layout.external_of(A)
    client.create(folder, makepath=True)
    for start in range(0, 2_000, 500):
        write_async(client, [Create(f"{folder}/{start + one}", b"x") for one in range(500)]).get()
    before = query.run._store.requests
    with caplog.at_level(logging.ERROR):
        client.set(layout.external, b"")
        until_taken_in(query, [])
    assert query.run._store.requests - before < 200
    assert len(client.get_children(layout.rejected)) == 100
    # A slow machine may warn of its own.
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) <= 21
    assert "1980 more such requests were not applied" in caplog.text


DAMAGE = {
    "checkpoint": b'{"v":1,"checkpoint":"abc","txid":1,"position":"TRIM_HORIZON"}',
    "position": b'{"v":1,"checkpoint":null,"txid":1,"position":"FOO"}',
    "time": b'{"v":1,"checkpoint":null,"txid":1,"position":"TRIM_HORIZON","arrival":1000000000000000000}',
    "deep": b'{"v":1,"checkpoint":' + b"[" * 100_000,
    "nothing": b"",
    "another node's": b'{"v":1,"txid":5,"plan":"p"}',
}


@pytest.mark.parametrize("node", ["checkpoints", "inflight", "shards", "settled", "batches", "pin", "epoch"])
def test_a_damaged_node_stops_the_start_with_its_path(
    lives: Lives, kinesis: MemoryKinesis, client: KazooClient, node: str
) -> None:
    spark = SparkCheckpoint()
    first = lives.begin(kinesis, spark)
    kinesis.put(A, b"9")
    first.planned()
    first.rows()
    layout = first.run.layout
    path = {
        "checkpoints": layout.checkpoint_of(A),
        "inflight": layout.inflight_of(A),
        "shards": layout.shards,
        "settled": layout.settled,
        "batches": layout.batch_of(1),
        "pin": layout.pin_of(1, A),
        "epoch": layout.epoch,
    }[node]
    if client.exists(path) is None:
        client.create(path, b"")
    version = client.exists(layout.epoch).version
    good, _ = client.get(path)
    for what, data in DAMAGE.items():
        if node == "settled" and what == "another node's":
            continue
        client.set(path, data)
        with pytest.raises(CorruptNodeError, match=path) as caught:
            again(lives, kinesis, spark)
        assert "Nothing was changed" in str(caught.value)
        assert client.get(path)[0] == data
    if node == "epoch":
        # Its version is the epoch: each write of ours above has raised it.
        assert client.exists(layout.epoch).version > version
        return
    client.set(path, good) if good else client.delete(path)
    again(lives, kinesis, spark)


def again(lives: Lives, kinesis: MemoryKinesis, spark: SparkCheckpoint) -> None:
    query = lives.begin(kinesis, spark.copy())
    try:
        query.batch()
        query.plan()
        query.store.leftovers.purge(1, query.run.epoch)
    finally:
        query.end()


@pytest.mark.parametrize(
    "stray",
    ["batches/foo", "batches/01", "checkpoints/%FF", "checkpoints/%2f", "acks/foo", "reports/x"],
)
def test_a_stray_child_is_named(lives: Lives, kinesis: MemoryKinesis, stray: str) -> None:
    spark = SparkCheckpoint()
    first: Query = lives.begin(kinesis, spark)
    path = f"{first.run.layout.base}/{stray}"
    first.store.client.create(path, b"")
    first.end()
    with pytest.raises(CorruptNodeError, match=f"{path} is not a node of kinesis-trident"):
        again(lives, kinesis, SparkCheckpoint())
