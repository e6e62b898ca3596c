from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import samples
from hypothesis import HealthCheck, given, settings, strategies as st
from kazoo.client import KazooClient
from thorough import examples

from kinesis_trident.checkpoint.errors import CheckpointError, CheckpointMovedBackError, CorruptNodeError
from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLetterRecord,
    DeadLettersNode,
    ExternalNode,
    InflightNode,
    ShardLineage,
    ShardsNode,
)
from kinesis_trident.checkpoint.model.split_nodes import is_part
from kinesis_trident.checkpoint.store import atomic_writes
from kinesis_trident.checkpoint.store.atomic_writes import position_of
from kinesis_trident.checkpoint.store.fenced_nodes import FencedNodes
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.operations import PACK_SIZE
from kinesis_trident.tracker.records import RecordPosition

NOW = 1_700_000_000_000
SHARD, OTHER = samples.SHARD, samples.OTHER


@pytest.fixture
def epoch(store: SourceStore) -> int:
    return store.epochs.raise_epoch("alpha", 11, NOW)


def settle(
    store: SourceStore,
    epoch: int,
    txid: int,
    sequences: dict[str, int | None],
    inflight: InflightNode | None = None,
) -> list[str]:
    updates = {shard: (samples.checkpoint(txid, at), inflight) for shard, at in sequences.items()}
    return store.shards.settle(updates, {}, None, samples.settled(txid), epoch)


def test_a_batch_moves_every_shard_and_then_counts_as_settled(store: SourceStore, epoch: int) -> None:
    assert (store.shards.checkpoints(), store.shards.inflight(), store.shards.dead_letters()) == ({}, {}, {})
    assert (store.batches.settled(), store.shards.lineage()) == (None, None)
    waiting = samples.inflight(1, samples.run(12, 14))
    letters = DeadLettersNode(count=2, target="s3://x", last=(DeadLetterRecord("m", 4, "r", NOW, 1),))
    lineage = ShardsNode(shards={SHARD: ShardLineage(), OTHER: ShardLineage((SHARD,), "closed")})
    updates = {SHARD: (samples.checkpoint(1, 11, 2), waiting), OTHER: (samples.checkpoint(1, None), None)}
    moved = store.shards.settle(updates, {SHARD: letters}, lineage, samples.settled(1), epoch)
    assert moved == [SHARD, OTHER]
    assert store.shards.checkpoints() == {
        SHARD: samples.checkpoint(1, 11, 2),
        OTHER: samples.checkpoint(1, None),
    }
    assert store.shards.inflight() == {SHARD: waiting}
    assert store.shards.dead_letters() == {SHARD: letters}
    assert store.shards.lineage() == lineage
    assert store.batches.settled() == samples.settled(1)


def test_settling_again_skips_what_carries_the_stamp(
    store: SourceStore, client: KazooClient, layout: Layout, epoch: int
) -> None:
    settle(store, epoch, 5, {SHARD: 10})
    again = SourceStore(client, layout)
    waiting = samples.inflight(5, samples.run(11))
    assert settle(again, epoch, 5, {SHARD: 20, OTHER: 30}, waiting) == [OTHER]
    assert settle(again, epoch, 4, {SHARD: 1}) == []
    assert again.shards.checkpoints() == {SHARD: samples.checkpoint(5, 10), OTHER: samples.checkpoint(5, 30)}
    assert again.shards.inflight() == {OTHER: waiting}
    assert again.batches.settled() == samples.settled(5)


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize(
    ("first", "then"), [((10, -1), (9, -1)), ((10, 3), (10, 2)), ((10, 0), (10, -1)), ((0, -1), (None, -1))]
)
def test_a_checkpoint_never_moves_back(
    store: SourceStore,
    client: KazooClient,
    layout: Layout,
    epoch: int,
    fresh: bool,
    first: tuple[int, int],
    then: tuple[int | None, int],
) -> None:
    store.shards.settle({SHARD: (samples.checkpoint(1, *first), None)}, {}, None, samples.settled(1), epoch)
    writer = SourceStore(client, layout) if fresh else store
    updates = {OTHER: (samples.checkpoint(2, 7), None), SHARD: (samples.checkpoint(2, *then), None)}
    with pytest.raises(
        CheckpointMovedBackError, match=r"would move back from .* \(txid 1\) to .* \(txid 2\)"
    ) as caught:
        writer.shards.settle(updates, {}, None, samples.settled(2), epoch)
    assert layout.checkpoint_of(SHARD) in str(caught.value)
    assert store.shards.checkpoints() == {SHARD: samples.checkpoint(1, *first)}
    assert store.batches.settled() == samples.settled(1)


def test_positions_compare_as_numbers(store: SourceStore, epoch: int) -> None:
    settle(store, epoch, 1, {SHARD: 9})
    settle(store, epoch, 2, {SHARD: 10**55})
    assert position_of(store.shards.checkpoints()[SHARD]) == RecordPosition(10**55)
    assert position_of(samples.checkpoint(1, None)) is None


def test_an_amendment_keeps_the_stamp_and_never_moves_back(store: SourceStore, epoch: int) -> None:
    settle(store, epoch, 1, {SHARD: 9}, samples.inflight(1, samples.run(12)))
    store.shards.amend(SHARD, epoch, checkpoint=samples.checkpoint(1, 12), inflight=samples.inflight(1))
    assert store.shards.checkpoints() == {SHARD: samples.checkpoint(1, 12)}
    with pytest.raises(CheckpointMovedBackError):
        store.shards.amend(SHARD, epoch, checkpoint=samples.checkpoint(1, 11))
    assert settle(store, epoch, 2, {SHARD: 13}) == [SHARD]


def test_a_settled_batch_costs_one_request(store: SourceStore, epoch: int) -> None:
    shards = [f"shardId-{i:012d}" for i in range(20)]
    settle(store, epoch, 1, dict.fromkeys(shards, 1), samples.inflight(1, samples.run(5)))
    before = store.requests
    for txid in (2, 3, 4):
        dead = (samples.run(3, attempt=txid),)
        settle(
            store, epoch, txid, dict.fromkeys(shards, txid), samples.inflight(txid, samples.run(5), dead=dead)
        )
    assert store.requests - before == 3


def test_what_is_in_flight_is_written_only_when_it_changes(
    store: SourceStore, client: KazooClient, layout: Layout, epoch: int
) -> None:
    def version() -> int:
        stat = client.exists(layout.inflight_of(SHARD))
        return -1 if stat is None else stat.version

    settle(store, epoch, 1, {SHARD: 1}, samples.inflight(1))
    assert version() == -1
    settle(store, epoch, 2, {SHARD: 2}, samples.inflight(2, samples.run(5)))
    assert version() == 0
    settle(store, epoch, 3, {SHARD: 3}, samples.inflight(3, samples.run(5)))
    settle(store, epoch, 4, {SHARD: 4}, None)
    assert version() == 0
    assert store.shards.inflight()[SHARD] == samples.inflight(2, samples.run(5))
    settle(store, epoch, 5, {SHARD: 5}, samples.inflight(5))
    assert version() == 1
    assert store.shards.inflight()[SHARD] == samples.inflight(5)


def test_another_store_of_the_same_run_may_write_in_between(
    store: SourceStore, client: KazooClient, layout: Layout, epoch: int
) -> None:
    other = SourceStore(client, layout)
    settle(store, epoch, 1, {SHARD: 1}, samples.inflight(1, samples.run(3)))
    settle(other, epoch, 2, {SHARD: 2, OTHER: 1}, samples.inflight(2, samples.run(4)))
    assert settle(store, epoch, 2, {SHARD: 2, OTHER: 1}) == []
    assert settle(store, epoch, 3, {SHARD: 3, OTHER: 2}, samples.inflight(3, samples.run(4))) == [
        SHARD,
        OTHER,
    ]
    assert store.shards.inflight()[SHARD] == samples.inflight(2, samples.run(4))


def test_a_request_is_removed_with_the_change_that_includes_it(store: SourceStore, epoch: int) -> None:
    settle(store, epoch, 1, {SHARD: 1})
    for record in ("5", "6", "7"):
        store.external.add(SHARD, ExternalNode(op="replay", records=(record,)))
    asked = store.external.read().asked
    assert [node.records for node in asked[SHARD].values()] == [("5",), ("6",), ("7",)]
    waiting = samples.inflight(1, samples.run(5, 6))
    store.shards.amend(SHARD, epoch, inflight=waiting, consumed=list(asked[SHARD])[:2])
    assert store.shards.inflight() == {SHARD: waiting}
    assert [node.records for node in store.external.read().asked[SHARD].values()] == [("7",)]


def test_dead_letters_need_their_shards_checkpoint(store: SourceStore, epoch: int) -> None:
    letters = DeadLettersNode(count=1, target="skip")
    with pytest.raises(CheckpointError, match="there is no checkpoint for odd/shard"):
        store.shards.settle({}, {"odd/shard": letters}, None, samples.settled(2), epoch)
    assert store.shards.dead_letters() == {}


def test_hundreds_of_shards_settle_in_few_packs_the_end_last(
    store: SourceStore, client: KazooClient, layout: Layout, epoch: int
) -> None:
    # As many as are not packed.
    runs = tuple(samples.run(10**55 + i * 10, reason="R" * 800) for i in range(16))
    updates = {
        f"shardId-{i:012d}": (samples.checkpoint(1, 10**55), samples.inflight(1, *runs)) for i in range(60)
    }
    before = store.requests
    assert len(store.shards.settle(updates, {}, None, samples.settled(1), epoch)) == 60
    packs = store.requests - before - 2 - 1
    stats = [client.exists(layout.checkpoint_of(shard)) for shard in updates]
    assert packs == len({stat.mzxid for stat in stats}) > 3
    assert client.exists(layout.settled).mzxid == max(stat.mzxid for stat in stats)
    size = sum(
        len(client.get(path)[0])
        for shard in updates
        for path in (layout.checkpoint_of(shard), layout.inflight_of(shard))
    )
    assert packs <= 2 * size / PACK_SIZE + 1
    for shard in updates:
        assert (
            client.exists(layout.checkpoint_of(shard)).mzxid == client.exists(layout.inflight_of(shard)).mzxid
        )
    assert store.shards.inflight() == {shard: inflight for shard, (_, inflight) in updates.items()}


def test_one_multi_under_way_that_is_refused_stops_none_of_the_others(
    store: SourceStore, client: KazooClient, layout: Layout, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another store of the run has settled a shard in the middle: that one stays, all others move, then it ends."""
    monkeypatch.setattr(atomic_writes, "PACK_SIZE", 1)
    shards = [f"shardId-{i:012d}" for i in range(12)]
    assert settle(store, epoch, 1, dict.fromkeys(shards, 1)) == shards
    settle(SourceStore(client, layout), epoch, 3, {shards[5]: 9})
    client.set(layout.settled, encode(samples.settled(1)))
    moved = settle(store, epoch, 2, dict.fromkeys(shards, 2))
    assert sorted(moved) == [shard for shard in shards if shard != shards[5]]
    held = store.shards.checkpoints()
    assert {shard: node.txid for shard, node in held.items()} == {**dict.fromkeys(shards, 2), shards[5]: 3}
    assert store.batches.settled() == samples.settled(2)
    stats = [client.exists(layout.checkpoint_of(shard)).mzxid for shard in shards]
    assert client.exists(layout.settled).mzxid > max(stats)


def test_a_crash_between_two_packs_is_taken_up(
    store: SourceStore, client: KazooClient, layout: Layout, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As many as are not packed.
    runs = tuple(samples.run(10**55 + i * 10, reason="R" * 800) for i in range(16))
    updates = {
        f"shardId-{i:012d}": (samples.checkpoint(1, 10**55), samples.inflight(1, *runs)) for i in range(30)
    }
    begin, left = FencedNodes.begin, [1]

    def crashing(nodes: FencedNodes, ops: Any, under: int) -> Callable[[], None]:
        if not left.pop():
            raise KeyboardInterrupt
        left.append(0)
        begin(nodes, ops, under)()
        return lambda: None

    with monkeypatch.context() as patch:
        patch.setattr(FencedNodes, "begin", crashing)
        with pytest.raises(KeyboardInterrupt):
            store.shards.settle(updates, {}, None, samples.settled(1), epoch)
    stamped = set(store.shards.checkpoints())
    assert 0 < len(stamped) < 30
    assert store.batches.settled() is None
    again = SourceStore(client, layout)
    assert set(again.shards.settle(updates, {}, None, samples.settled(1), epoch)) == set(updates) - stamped
    assert set(again.shards.checkpoints()) == set(updates)
    assert again.batches.settled() == samples.settled(1)


def test_megabytes_in_flight_survive_and_leave_no_parts(
    store: SourceStore, client: KazooClient, layout: Layout, epoch: int
) -> None:
    def parts() -> list[str]:
        return [name for name in client.get_children(layout.inflight) if is_part(name)]

    # Digits without any order do not pack.
    rng = random.Random(1)
    runs = tuple(samples.run(rng.randrange(10**55), reason="R" * 250) for i in range(60_000))
    settle(store, epoch, 1, {SHARD: 1}, samples.inflight(1, *runs))
    assert store.shards.inflight() == {SHARD: samples.inflight(1, *runs)}
    assert len(parts()) > 3
    settle(store, epoch, 2, {SHARD: 2}, samples.inflight(2, *runs[:-1]))
    assert store.shards.inflight() == {SHARD: samples.inflight(2, *runs[:-1])}
    held = parts()
    client.create(f"{layout.inflight_of(SHARD)}~dead~0", b"x")
    client.create(f"{layout.inflight_of(OTHER)}~dead~0", b"x")
    assert store.leftovers.purge(2, epoch) == 2
    assert parts() == held
    settle(store, epoch, 3, {SHARD: 3}, samples.inflight(3, *runs[:3]))
    assert parts() == []
    assert store.shards.inflight() == {SHARD: samples.inflight(3, *runs[:3])}


def test_the_lineage_of_many_shards_survives(store: SourceStore, epoch: int) -> None:
    shards = {
        f"shardId-{i:012d}": ShardLineage((f"shardId-{i // 2:012d}",), "drained") for i in range(15_000)
    }
    store.shards.put_lineage(ShardsNode(shards=shards), epoch)
    assert store.shards.lineage() == ShardsNode(shards=shards)
    store.shards.put_lineage(ShardsNode(shards={}), epoch)
    assert store.shards.lineage() == ShardsNode(shards={})


@pytest.mark.parametrize("folder", ["checkpoints", "inflight", "deadletters"])
def test_a_bad_node_stops_reading_and_settling(
    store: SourceStore, client: KazooClient, layout: Layout, epoch: int, folder: str
) -> None:
    path = f"{layout.base}/{folder}/{SHARD}"
    client.create(path, b'{"v":1,"checkpoint":')
    letters = {SHARD: DeadLettersNode(count=1, target="x")}
    update = {SHARD: (samples.checkpoint(2, 1), samples.inflight(2, samples.run(5)))}
    for act in (
        lambda: store.shards.settle(update, letters, None, samples.settled(2), epoch),
        lambda: (store.shards.checkpoints(), store.shards.inflight(), store.shards.dead_letters()),
    ):
        with pytest.raises(CorruptNodeError, match="Nothing was changed") as caught:
            act()
        assert path in str(caught.value)
    assert client.get(path)[0] == b'{"v":1,"checkpoint":'


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_order_of_settling_ends_at_the_highest_stamp(
    store: SourceStore, client: KazooClient, layout: Layout, data: st.DataObject
) -> None:
    """Batches settled by several stores of a run, some of them twice and late, never take a shard back."""
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    shards = [f"{uuid.uuid4().hex}-{i}" for i in range(3)]
    stores = [store, SourceStore(client, layout)]
    newest: dict[str, int] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        txid = data.draw(st.integers(1, 6))
        chosen = data.draw(st.lists(st.sampled_from(shards), unique=True))
        moved = settle(data.draw(st.sampled_from(stores)), epoch, txid, dict.fromkeys(chosen, txid * 10))
        assert sorted(moved) == sorted(shard for shard in chosen if txid > newest.get(shard, 0))
        newest |= dict.fromkeys(moved, txid)
    held: dict[str, CheckpointNode] = store.shards.checkpoints()
    assert {s: held[s].checkpoint for s in newest} == {s: str(txid * 10) for s, txid in newest.items()}
