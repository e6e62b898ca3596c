from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import samples
from expired_sessions import expire
from harness import eventually
from kazoo.client import KazooClient
from model.session import Session
from model.zookeeper import MemoryZooKeeper

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import FencedError, StateMissingError, TakeoverRefusedError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import (
    DeadLettersNode,
    ExternalNode,
    PastNode,
    ShardsNode,
    StartNode,
)
from kinesis_trident.checkpoint.store import epochs as epochs_module
from kinesis_trident.checkpoint.store.epochs import TAKEOVER_WINDOW_MS, TAKEOVERS
from kinesis_trident.checkpoint.store.source_store import SourceStore

NOW = 1_700_000_000_000


def test_epochs_start_at_one_and_rise(store: SourceStore, older: SourceStore) -> None:
    assert store.epochs.newest_run() is None
    assert older.epochs.raise_epoch("alpha", 11, NOW) == 1
    assert store.epochs.raise_epoch("beta", 22, NOW + 1) == 2
    epoch, run = store.epochs.newest_run() or pytest.fail("no run")
    assert (epoch, run.host, run.pid, run.since) == (2, "beta", 22, NOW + 1)
    owner = older.epochs.owner()
    assert owner is not None
    assert (owner.epoch, owner.host, owner.pid) == (2, "beta", 22)


@pytest.mark.parametrize("lost", [7, epochs_module._AT_ONCE, 3 * epochs_module._AT_ONCE + 1])
def test_an_epoch_that_zookeeper_does_not_know_is_noted_and_raised_above(
    store: SourceStore, older: SourceStore, lost: int
) -> None:
    store.epochs.raise_epoch("alpha", 11, NOW)
    known = PastNode(epoch=lost, txid=9, plan="p", lost_upto=lost)
    assert store.epochs.raise_epoch("beta", 22, NOW, known=known) == lost + 1
    assert store.epochs.past() == known
    # Later ones are above it, too, and another copy of Spark's checkpoint says nothing new.
    before = PastNode(epoch=lost - 1, txid=10, plan="q", lost_upto=lost - 1)
    assert older.epochs.raise_epoch("gamma", 33, NOW, known=before) == lost + 2
    assert older.epochs.past() == known
    owner = older.epochs.owner()
    assert owner is not None
    assert owner.epoch == lost + 2
    with pytest.raises(FencedError):
        store.epochs.check_epoch(lost + 1)


def test_a_run_that_may_follow_one_alone_leaves_a_newer_one_to_itself(
    store: SourceStore, older: SourceStore
) -> None:
    assert older.epochs.raise_epoch("alpha", 11, NOW) == 1
    assert store.epochs.raise_epoch("alpha", 11, NOW, over=1) == 2
    with pytest.raises(
        FencedError, match=r"epoch 2 of .* has taken over from epoch 1, whose batch it settles"
    ):
        older.epochs.raise_epoch("alpha", 11, NOW, over=1)
    store.epochs.check_epoch(2)


def test_epochs_that_may_have_been_used_are_left_out_and_not_noted(store: SourceStore) -> None:
    before = PastNode(epoch=4, txid=3, lost_upto=0)
    assert store.epochs.raise_epoch("alpha", 11, NOW, before=before, above=6) == 7
    assert store.epochs.past() == before
    assert store.epochs.raise_epoch("alpha", 11, NOW, before=before, above=6) == 8


def test_a_note_is_merged_with_what_is_known_later(store: SourceStore) -> None:
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    store.epochs.note_past(PastNode(epoch=3, txid=9, plan="p", lost_upto=3), epoch)
    store.epochs.note_past(PastNode(epoch=5, txid=4, plan="q", lost_upto=5), epoch)
    assert store.epochs.past() == PastNode(epoch=5, txid=9, plan="p", lost_upto=5)
    assert store.epochs.raise_epoch("beta", 22, NOW) == 6
    with pytest.raises(FencedError):
        store.epochs.note_past(PastNode(epoch=9, txid=9, lost_upto=0), epoch)


def test_an_epoch_out_of_all_reach_is_refused(store: SourceStore) -> None:
    known = PastNode(epoch=10**12, txid=9, plan="p", lost_upto=10**12)
    with pytest.raises(StateMissingError, match="names epoch 1000000000000: they are not of one application"):
        store.epochs.raise_epoch("alpha", 11, NOW, known=known)


def test_many_starts_at_once_get_different_epochs(
    zookeeper: EmbeddedZooKeeper, make_client: Callable[..., KazooClient], layout: Layout
) -> None:
    stores = [SourceStore(make_client(zookeeper.hosts), layout) for _ in range(5)]
    epochs: list[int] = []
    threads = [
        threading.Thread(target=lambda s=store, i=i: epochs.append(s.epochs.raise_epoch("h", i, NOW)))
        for i, store in enumerate(stores)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(epochs) == [1, 2, 3, 4, 5]


WRITES: dict[str, Callable[[SourceStore, int], Any]] = {
    "check_epoch": lambda s, e: s.epochs.check_epoch(e),
    "put_start": lambda s, e: s.streams.put_start("orders", 1, StartNode(timestamp=1), e),
    "put_lineage": lambda s, e: s.shards.put_lineage(ShardsNode(shards={}), e),
    "put_batch": lambda s, e: s.batches.put(samples.plan(2), e),
    "adopt_batch": lambda s, e: s.batches.put(samples.plan(1), e),
    "create_pin": lambda s, e: s.batches.create_pin(samples.OTHER, samples.pin(e), e),
    "create_pin_again": lambda s, e: s.batches.create_pin(samples.SHARD, samples.pin(e), e),
    "create_pin_of_another_plan": lambda s, e: s.batches.create_pin(
        samples.SHARD, samples.pin(e, mark="p2"), e
    ),
    "replace_pin": lambda s, e: s.batches.replace_pin(samples.SHARD, samples.pin(e, count=9), e),
    "put_outcome": lambda s, e: s.batches.put_outcome(samples.acks(e), e),
    "put_large_acks": lambda s, e: s.batches.put_outcome(samples.acks(e, failed=20_000), e),
    "settle": lambda s, e: s.shards.settle(
        {samples.SHARD: (samples.checkpoint(9, 99), samples.inflight(9, samples.run(100)))},
        {samples.SHARD: DeadLettersNode(count=1, target="x")},
        None,
        samples.settled(9),
        e,
    ),
    "purge": lambda s, e: s.leftovers.purge(1, e),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_paused_older_run_can_write_nothing(
    store: SourceStore, older: SourceStore, client: KazooClient, write: Callable[[SourceStore, int], Any]
) -> None:
    epoch = older.epochs.raise_epoch("alpha", 11, NOW)
    older.batches.put(samples.plan(1), epoch)
    older.batches.create_pin(samples.SHARD, samples.pin(epoch), epoch)
    older.shards.settle(
        {samples.SHARD: (samples.checkpoint(1, 5), samples.inflight(1, samples.run(6)))},
        {},
        None,
        samples.settled(1),
        epoch,
    )
    newer = store.epochs.raise_epoch("beta", 22, NOW)
    before = tree(client, store.layout.base)
    with pytest.raises(FencedError) as caught:
        write(older, epoch)
    assert tree(client, store.layout.base) == before
    assert (caught.value.epoch, caught.value.by_epoch) == (epoch, newer)
    for word in (
        "epoch 2 on beta, pid 22",
        "since 2023-11-14T22:13:20",
        "this run has epoch 1",
        "applicationName",
    ):
        assert word in str(caught.value)
    write(store, newer)


def tree(client: KazooClient, path: str) -> dict[str, bytes]:
    found = {path: client.get(path)[0]}
    for child in client.get_children(path):
        found |= tree(client, f"{path}/{child}")
    return found


def test_anyone_may_ask_the_running_query(store: SourceStore, older: SourceStore) -> None:
    older.epochs.raise_epoch("alpha", 11, NOW)
    store.epochs.raise_epoch("beta", 22, NOW)
    older.external.add(samples.SHARD, ExternalNode(op="replay", records=("5",)))
    assert list(store.external.read().asked) == [samples.SHARD]


def test_an_older_or_wiped_zookeeper_is_not_taken_for_a_newer_run(
    store: SourceStore, client: KazooClient
) -> None:
    store.epochs.raise_epoch("alpha", 11, NOW)
    with pytest.raises(
        StateMissingError, match=r"epoch is 1, but this run has epoch 7.*onCheckpointMismatch"
    ):
        store.epochs.check_epoch(7)
    client.delete(store.layout.base, recursive=True)
    with pytest.raises(StateMissingError, match="epoch is gone"):
        store.epochs.check_epoch(1)


def test_the_watch_calls_once_when_a_newer_run_starts(store: SourceStore, older: SourceStore) -> None:
    epoch = older.epochs.raise_epoch("alpha", 11, NOW)
    calls: list[int] = []
    called = threading.Event()

    def callback() -> None:
        calls.append(1)
        # A callback may use the connection.
        assert older.epochs.newest_run() is not None
        called.set()

    older.epochs.watch_epoch(lambda: epoch, callback)
    assert not calls
    store.epochs.raise_epoch("beta", 22, NOW)
    assert called.wait(120)
    store.epochs.raise_epoch("gamma", 33, NOW)
    store.epochs.check_epoch(3)
    assert calls == [1]


def test_the_watch_calls_for_what_has_happened_already(store: SourceStore, older: SourceStore) -> None:
    epoch = older.epochs.raise_epoch("alpha", 11, NOW)
    store.epochs.raise_epoch("beta", 22, NOW)
    called = threading.Event()
    older.epochs.watch_epoch(lambda: epoch, called.set)
    assert called.wait(120)


def test_a_run_that_was_not_replaced_reports_nothing(store: SourceStore, client: KazooClient) -> None:
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    store.epochs.report_fenced(epoch)
    assert client.get_children(store.layout.fenced) == []


def replaced(store: SourceStore, times: int) -> int:
    """Start runs that take over from each other while they run."""
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    for _ in range(times):
        older, epoch = epoch, store.epochs.raise_epoch("beta", 22, NOW)
        store.epochs.report_fenced(older)
        store.epochs.report_fenced(older)
    return epoch


def test_runs_that_keep_taking_over_are_refused(store: SourceStore, client: KazooClient) -> None:
    epoch = replaced(store, TAKEOVERS)
    with pytest.raises(TakeoverRefusedError, match="3 times in the last 5 minutes") as caught:
        store.epochs.raise_epoch("gamma", 33, NOW)
    for word in ("applicationName", "fence each other", "epoch 4 on beta, pid 22", store.layout.fenced):
        assert word in str(caught.value)
    store.epochs.check_epoch(epoch)
    assert all(name.isdigit() for name in client.get_children(store.layout.fenced))


def test_a_home_that_lacks_a_part_is_no_race(store: SourceStore, client: KazooClient) -> None:
    store.epochs.raise_epoch("alpha", 11, NOW)
    client.delete(store.layout.epoch)
    with pytest.raises(StateMissingError, match=f"{store.layout.base} exists, but .*/epoch is gone"):
        store.epochs.raise_epoch("beta", 22, NOW)
    # Both ways out that it names.
    client.delete(store.layout.base, recursive=True)
    assert store.epochs.raise_epoch("beta", 22, NOW) == 1


def test_restarts_are_no_takeovers(store: SourceStore) -> None:
    replaced(store, TAKEOVERS - 1)
    for _ in range(TAKEOVERS + 1):
        store.epochs.raise_epoch("gamma", 33, NOW)


def test_old_takeovers_do_not_count_and_are_cleaned_up(
    store: SourceStore, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(store, TAKEOVERS)
    # By ZooKeeper's clock nothing is younger than a window that ends in the past.
    monkeypatch.setattr(epochs_module, "TAKEOVER_WINDOW_MS", -1)
    store.epochs.raise_epoch("gamma", 33, NOW)
    assert client.get_children(store.layout.fenced) == []
    assert TAKEOVER_WINDOW_MS == 300_000


@pytest.mark.parametrize("ahead", [86_400_000, -86_400_000])
def test_takeovers_under_a_clock_of_zookeeper_that_was_wrong_refuse_nothing_for_longer(
    store: SourceStore, ahead: int
) -> None:
    now = [NOW + ahead]
    store = SourceStore(Session(MemoryZooKeeper(lambda: now[0])), store.layout)  # type: ignore[arg-type]
    replaced(store, TAKEOVERS)
    with pytest.raises(TakeoverRefusedError):
        store.epochs.raise_epoch("gamma", 33, NOW)
    now[0] = NOW
    for _ in range(2):
        store.epochs.raise_epoch("gamma", 33, NOW)
    assert store.epochs.takeovers() == []


def test_the_owner_comes_back_with_a_new_session(
    store: SourceStore, client: KazooClient, older: SourceStore
) -> None:
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    lost = client.client_id
    expire(client)
    # With the session, the node of the owner has ended on the server.
    owner = eventually(older.epochs.owner, "the owner")
    assert owner is not None
    assert owner.epoch == epoch
    assert client.client_id != lost
