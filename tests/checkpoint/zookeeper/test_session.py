"""Test what a lost connection does to requests: a proxy loses single frames, a server stops and starts again."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import samples
from expired_sessions import expire
from kazoo.client import KazooClient
from lossy_proxy import LossyProxy
from thorough import cases

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import (
    CheckpointError,
    FencedError,
    NodeTooLargeError,
    ZooKeeperUnavailableError,
)
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import DeadLettersNode, ExternalNode, ShardsNode, StartNode
from kinesis_trident.checkpoint.store import atomic_writes
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.operations import (
    EXISTS,
    REQUEST_LIMIT,
    Create,
    Delete,
    Refused,
    Write,
)
from kinesis_trident.checkpoint.zookeeper.session import Session

NOW = 1_700_000_000_000
SHARD = samples.SHARD


@pytest.fixture
def behind(proxy: LossyProxy, make_client: Callable[..., KazooClient], layout: Layout) -> SourceStore:
    """A store whose connection goes through the proxy."""
    return SourceStore(make_client(proxy.hosts), layout)


WRITES: dict[str, Callable[[SourceStore, int], Any]] = {
    "put_start": lambda s, e: s.streams.put_start("orders", 1, StartNode(timestamp=1), e),
    "put_lineage": lambda s, e: s.shards.put_lineage(ShardsNode(shards={}), e),
    "put_batch": lambda s, e: s.batches.put(samples.plan(2), e),
    "create_pin": lambda s, e: s.batches.create_pin(SHARD, samples.pin(e), e)[1],
    "replace_pin": lambda s, e: s.batches.replace_pin(SHARD, samples.pin(e, count=9), e),
    "put_outcome": lambda s, e: s.batches.put_outcome(samples.acks(e), e)[1],
    "settle": lambda s, e: s.shards.settle(
        {SHARD: (samples.checkpoint(9, 99), samples.inflight(9, samples.run(100)))},
        {SHARD: DeadLettersNode(count=1, target="x")},
        ShardsNode(shards={}),
        samples.settled(9),
        e,
    ),
    "purge": lambda s, e: s.leftovers.purge(1, e),
    "add_external": lambda s, e: s.external.add("a", ExternalNode(op="replay", records=("1",))),
}


@pytest.mark.parametrize("times", cases(1, long=(2,)))
@pytest.mark.parametrize("lose", ["lose_answers", "lose_requests"])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_answer_is_lost_is_made_once(
    store: SourceStore,
    behind: SourceStore,
    proxy: LossyProxy,
    client: KazooClient,
    name: str,
    lose: str,
    times: int,
) -> None:
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    store.batches.put(samples.plan(1), epoch)
    store.external.add("a", ExternalNode(op="replay", records=("0",)))
    getattr(proxy, lose)(times)
    answer = WRITES[name](behind, epoch)
    # One lost answer is enough to learn that the write happened: no second one is asked for. But replacing a
    # pin that is not there takes two multis, of which the first is refused.
    repeated = lose == "lose_requests" or name == "replace_pin"
    assert proxy.cuts == (times if repeated else 1)
    proxy.lose_answers(0)
    if name in ("create_pin", "put_outcome"):
        # A node that is there although the answer was lost may be an equal one of another process.
        assert answer is (lose == "lose_requests")
    if name == "purge":
        assert answer == 1
    once = {
        store.layout.start: 0,
        store.layout.shards: 0,
        store.layout.settled: 0,
        store.layout.batch_of(2): 0,
        store.layout.pin_of(1, SHARD): 0,
        store.layout.acks_of(1): 0,
        store.layout.checkpoint_of(SHARD): 0,
        store.layout.inflight_of(SHARD): 0,
        store.layout.deadletters_of(SHARD): 0,
    }
    found = {path: stat.version for path in once if (stat := client.exists(path)) is not None}
    assert found == {path: version for path, version in once.items() if path in found}
    assert found or name in ("purge", "add_external")
    assert (client.exists(store.layout.batch_of(1)) is None) == (name == "purge")
    asked = [node.records for node in store.external.read().asked["a"].values()]
    assert asked == ([("0",), ("1",)] if name == "add_external" else [("0",)])


def test_an_equal_pin_of_another_task_is_not_taken_for_ones_own(
    store: SourceStore, behind: SourceStore, proxy: LossyProxy
) -> None:
    """The task would give rows of a batch that may be settled by now: `make model FAMILY=sessions SEED=198 COUNT=1`."""
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    store.batches.put(samples.plan(1), epoch)
    pin = samples.pin(epoch)
    assert store.batches.create_pin(SHARD, pin, epoch) == (pin, True)
    proxy.lose_answers(1)
    assert behind.batches.create_pin(SHARD, pin, epoch) == (pin, False)
    assert proxy.cuts == 1


@pytest.mark.parametrize("lose", ["lose_answers", "lose_requests"])
def test_an_epoch_whose_answer_is_lost_is_raised_once(
    behind: SourceStore, proxy: LossyProxy, lose: str
) -> None:
    assert behind.epochs.raise_epoch("alpha", 11, NOW) == 1
    getattr(proxy, lose)()
    assert behind.epochs.raise_epoch("beta", 22, NOW) == 2
    assert proxy.cuts == 1
    owner = behind.epochs.owner()
    assert owner is not None
    assert owner.epoch == 2
    behind.epochs.check_epoch(2)


def test_a_newer_run_while_the_answer_is_lost_still_fences(
    store: SourceStore, behind: SourceStore, proxy: LossyProxy
) -> None:
    epoch = behind.epochs.raise_epoch("alpha", 11, NOW)
    store.epochs.raise_epoch("beta", 22, NOW)
    proxy.lose_answers()
    with pytest.raises(FencedError):
        behind.batches.put(samples.plan(), epoch)
    assert store.batches.txids() == []


def test_replacing_a_node_loses_no_answer(store: SourceStore, behind: SourceStore, proxy: LossyProxy) -> None:
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    for txid in range(1, 6):
        proxy.lose_answers()
        updates = {SHARD: (samples.checkpoint(txid, txid), samples.inflight(txid, samples.run(txid + 1)))}
        assert behind.shards.settle(updates, {}, None, samples.settled(txid), epoch) == [SHARD]
    assert proxy.cuts == 5
    assert store.shards.checkpoints() == {SHARD: samples.checkpoint(5, 5)}
    # A set that is made twice would have left another version behind.
    assert behind.shards.settle(
        {SHARD: (samples.checkpoint(6, 6), None)}, {}, None, samples.settled(6), epoch
    ) == [SHARD]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("lose", ["lose_answers", "lose_requests"])
def test_multis_under_way_together_are_each_done_once(
    store: SourceStore,
    behind: SourceStore,
    proxy: LossyProxy,
    client: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
    lose: str,
    times: int,
) -> None:
    monkeypatch.setattr(atomic_writes, "PACK_SIZE", 1)
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    shards = [f"shardId-{number:012d}" for number in range(12)]
    for txid in (1, 2):
        updates = {shard: (samples.checkpoint(txid, txid), None) for shard in shards}
        assert behind.shards.settle(updates, {}, None, samples.settled(txid), epoch) == shards
        getattr(proxy, lose)(times if txid == 1 else 0)
    assert proxy.cuts
    paths = [store.layout.settled, *map(store.layout.checkpoint_of, shards)]
    assert [client.exists(path).version for path in paths] == [1] * len(paths)
    assert client.exists(paths[0]).mzxid > max(client.exists(path).mzxid for path in paths[1:])


def test_reads_are_repeated(store: SourceStore, behind: SourceStore, proxy: LossyProxy) -> None:
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    store.batches.put(samples.plan(), epoch)
    for _ in range(3):
        proxy.cut()
        assert behind.batches.txids() == [1]
    assert behind.epochs.newest_run() == store.epochs.newest_run()


def test_a_session_that_expired_is_replaced(store: SourceStore, client: KazooClient) -> None:
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    lost = client.client_id
    expire(client)
    store.batches.put(samples.plan(), epoch)
    assert store.batches.txids() == [1]
    assert client.client_id != lost


def test_an_operation_waits_for_a_server_that_comes_back(
    make_client: Callable[..., KazooClient], layout: Layout
) -> None:
    with EmbeddedZooKeeper() as server, ThreadPoolExecutor() as pool:
        store = SourceStore(make_client(server.hosts, session_timeout=60), layout)
        epoch = store.epochs.raise_epoch("alpha", 11, NOW)
        server.stop()
        write = pool.submit(store.batches.put, samples.plan(), epoch)
        read = pool.submit(store.batches.settled)
        server.start()
        assert write.result().plan == samples.plan()
        assert read.result() is None
        assert store.batches.txids() == [1]

        server.stop()
        impatient = SourceStore(store._session.client, layout, timeout=0.5)
        for act in (lambda: impatient.batches.put(samples.plan(2), epoch), impatient.shards.checkpoints):
            with pytest.raises(ZooKeeperUnavailableError, match=r"did not answer within 0.5 s") as caught:
                act()
            assert server.hosts in str(caught.value)
            assert layout.base in str(caught.value)
            assert "zookeeper.sessionTimeout" in str(caught.value)


def test_an_operation_outlives_a_server_that_accepts_a_connection_and_never_answers(
    make_client: Callable[..., KazooClient], proxy: LossyProxy, layout: Layout
) -> None:
    """So does one that is starting, now and then: it loses what it is sent first."""
    client = make_client(proxy.hosts, session_timeout=9)
    store = SourceStore(client, layout)
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    proxy.be_silent()
    proxy.cut()
    assert store.batches.put(samples.plan(), epoch).plan == samples.plan()


def test_a_closed_client_is_an_error_at_once(
    make_client: Callable[..., KazooClient], store: SourceStore
) -> None:
    store._session.client.stop()
    with pytest.raises(ZooKeeperUnavailableError, match="was closed"):
        store.batches.txids()


ENDS = """
import sys, threading
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect

client, begun, lost = connect(ZooKeeperConfig(sys.argv[1])), threading.Event(), threading.Event()
client.add_listener(lambda state: lost.set())

def ask(_):
    begun.set()
    lost.wait()
    client.get("/")

client.get_async("/").rawlink(ask)
begun.wait()
print("begun", flush=True)
lost.wait()
"""


def test_a_process_ends_though_a_thread_of_kazoo_waits_for_a_server_that_is_gone(proxy: LossyProxy) -> None:
    command = [sys.executable, "-c", ENDS, proxy.hosts]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            proxy.close()
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_a_store_does_not_survive_a_fork(store: SourceStore) -> None:
    store.epochs.raise_epoch("alpha", 11, NOW)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            store.batches.txids()
        except CheckpointError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert b"shared_client" in pipe.read()


def test_what_is_too_large_is_not_sent(client: KazooClient, app: str) -> None:
    session = Session(client, 60)
    with pytest.raises(NodeTooLargeError, match=rf"/{app}/large"):
        session.commit([Create(f"/{app}"), Create(f"/{app}/large", b"x" * REQUEST_LIMIT)])
    assert session.requests == 0
    session.commit([Create(f"/{app}"), Create(f"/{app}/large", b"x" * (REQUEST_LIMIT - 1000))])


def test_a_refused_multi_names_the_operation_and_does_nothing(client: KazooClient, app: str) -> None:
    session = Session(client, 60)
    session.commit([Create(f"/{app}")])
    with pytest.raises(Refused) as caught:
        session.commit([Write(f"/{app}", b"1"), Create(f"/{app}"), Delete(f"/{app}")])
    assert (caught.value.index, caught.value.op, caught.value.kind) == (1, Create(f"/{app}"), EXISTS)
    assert client.get(f"/{app}")[0] == b""


def test_many_threads_share_a_store(store: SourceStore) -> None:
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    store.batches.put(samples.plan(), epoch)
    before = store.requests
    start = threading.Barrier(8)

    def pin(worker: int) -> int:
        start.wait()
        shards = [f"shardId-{i}" for i in range(20)]
        return sum(
            store.batches.create_pin(shard, samples.pin(epoch, count=worker), epoch)[1] for shard in shards
        )

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(pin, range(8))) == 20
    # Who was not first reads the pin, and takes it over under the epoch.
    assert store.requests - before == 8 * 20 + 2 * 7 * 20
