from __future__ import annotations

import random

import msgspec
import pytest
import samples
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.errors import (
    BatchMissingError,
    CorruptNodeError,
    FencedError,
    PlanConflictError,
)
from kinesis_trident.checkpoint.model.nodes import BatchOutcome, NotDone
from kinesis_trident.checkpoint.model.split_nodes import is_part
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.operations import Create, Op, pack_writes, size_of
from kinesis_trident.tracker.records import Run

NOW = 1_700_000_000_000
MIB = 1024 * 1024


@pytest.fixture
def epoch(store: SourceStore) -> int:
    return store.epochs.raise_epoch("alpha", 11, NOW)


def test_a_plan_is_stored_once(store: SourceStore, epoch: int) -> None:
    assert store.batches.newest() is None
    batch = store.batches.put(samples.plan(9), epoch)
    assert (batch.epoch, batch.plan) == (epoch, samples.plan(9))
    assert store.batches.put(samples.plan(9), epoch) == batch
    later = store.batches.put(samples.plan(10), epoch)
    assert store.batches.get(9) == batch
    assert store.batches.newest() == later
    assert store.batches.txids() == [9, 10]
    assert store.batches.get(11) is None


def test_a_new_plan_costs_one_operation_and_one_that_is_there_a_read_more(
    store: SourceStore, epoch: int
) -> None:
    before = store.requests
    store.batches.put(samples.plan(), epoch)
    assert store.requests - before == 1
    store.batches.put(samples.plan(), epoch)
    assert store.requests - before == 3


def test_a_newer_run_takes_a_plan_over(store: SourceStore, epoch: int) -> None:
    store.batches.put(samples.plan(), epoch)
    newer = store.epochs.raise_epoch("beta", 22, NOW)
    assert store.batches.put(samples.plan(), newer).epoch == newer
    found = store.batches.get(1)
    assert found is not None
    assert (found.epoch, found.plan) == (newer, samples.plan())


def test_another_plan_of_the_same_txid_is_a_conflict(store: SourceStore, epoch: int) -> None:
    store.batches.put(samples.plan(mark="p1"), epoch)
    with pytest.raises(PlanConflictError, match="holds plan p1 of epoch 1, not plan p2") as caught:
        store.batches.put(samples.plan(mark="p2"), epoch)
    assert "checkpointLocation" in str(caught.value)
    found = store.batches.get(1)
    assert found is not None
    assert found.plan.plan == "p1"


def test_a_pin_of_the_same_plan_is_adopted_whatever_its_epoch_and_shows_who_has_read_it(
    store: SourceStore, epoch: int
) -> None:
    store.batches.put(samples.plan(), epoch)
    assert store.batches.get_pin(1, samples.SHARD) is None
    first = samples.pin(epoch, last="9", digest="first")
    assert store.batches.create_pin(samples.SHARD, first, epoch) == (first, True)
    assert store.batches.adopt_pin(1, samples.SHARD, first.plan, epoch) == first
    newer = store.epochs.raise_epoch("beta", 22, NOW)
    settling = {samples.SHARD: samples.pin(newer, digest="empty")}
    assert store.batches.create_pins(settling, newer) == {samples.SHARD: first}
    adopted = msgspec.structs.replace(first, epoch=newer, maker=epoch)
    late = samples.pin(newer, digest="late")
    assert store.batches.create_pin(samples.SHARD, late, newer) == (adopted, False)
    assert store.batches.get_pin(1, samples.SHARD) == adopted
    newest = store.epochs.raise_epoch("gamma", 33, NOW)
    assert store.batches.adopt_pin(1, samples.SHARD, "other", newest) is None
    adopted = msgspec.structs.replace(first, epoch=newest, maker=epoch)
    assert store.batches.adopt_pin(1, samples.SHARD, first.plan, newest) == adopted
    with pytest.raises(FencedError):
        store.batches.adopt_pin(1, samples.SHARD, first.plan, newer)


def test_a_pin_of_an_older_plan_is_replaced(store: SourceStore, epoch: int) -> None:
    store.batches.put(samples.plan(), epoch)
    store.batches.create_pin(samples.SHARD, samples.pin(epoch, mark="old"), epoch)
    newer = store.epochs.raise_epoch("beta", 22, NOW)
    mine = samples.pin(newer, mark="new")
    assert store.batches.create_pin(samples.SHARD, mine, newer) == (mine, True)
    assert store.batches.get_pin(1, samples.SHARD) == mine


def test_a_pin_of_a_newer_run_stops_the_older(store: SourceStore, epoch: int) -> None:
    store.batches.put(samples.plan(), epoch)
    newer = store.epochs.raise_epoch("beta", 22, NOW)
    theirs = samples.pin(newer, mark="new")
    store.batches.create_pin(samples.SHARD, theirs, newer)
    with pytest.raises(FencedError):
        store.batches.create_pin(samples.SHARD, samples.pin(epoch, mark="old"), epoch)
    assert store.batches.get_pin(1, samples.SHARD) == theirs


def test_one_run_does_not_pin_a_turn_under_two_plans(store: SourceStore, epoch: int) -> None:
    store.batches.put(samples.plan(), epoch)
    store.batches.create_pin(samples.SHARD, samples.pin(epoch, mark="p1"), epoch)
    with pytest.raises(PlanConflictError, match="planned txid 1 twice"):
        store.batches.create_pin(samples.SHARD, samples.pin(epoch, mark="p2"), epoch)


def test_the_last_writer_of_a_replaced_pin_wins(store: SourceStore, epoch: int) -> None:
    store.batches.put(samples.plan(), epoch)
    for count in (1, 2):
        store.batches.replace_pin(samples.SHARD, samples.pin(epoch, count=count), epoch)
        found = store.batches.get_pin(1, samples.SHARD)
        assert found is not None
        assert found.count == count


def test_nothing_is_pinned_or_published_without_a_plan(store: SourceStore, epoch: int) -> None:
    for write in (
        lambda: store.batches.create_pin(samples.SHARD, samples.pin(epoch), epoch),
        lambda: store.batches.replace_pin(samples.SHARD, samples.pin(epoch), epoch),
        lambda: store.batches.put_outcome(samples.acks(epoch), epoch),
    ):
        with pytest.raises(BatchMissingError, match="batches/1 does not exist"):
            write()
    assert store.batches.get_outcome(1) is None


def test_pins_of_many_shards_come_together(store: SourceStore, epoch: int) -> None:
    store.batches.put(samples.plan(), epoch)
    shards = [f"shardId-{i:012d}" for i in range(50)]
    pins = {shard: samples.pin(epoch, count=i) for i, shard in enumerate(shards)}
    for shard in shards[:40]:
        store.batches.create_pin(shard, pins[shard], epoch)
    before = store.requests
    assert store.batches.get_pins(1, shards) == {shard: pins[shard] for shard in shards[:40]}
    assert store.requests - before == 1
    assert store.batches.get_pins(2, shards) == {}
    assert store.batches.get_pins(1, []) == {}


def test_the_first_verdict_holds(store: SourceStore, epoch: int) -> None:
    store.batches.put(samples.plan(), epoch)
    verdict = samples.acks(epoch, failed=2)
    assert store.batches.put_outcome(verdict, epoch) == (verdict, True)
    newer = store.epochs.raise_epoch("beta", 22, NOW)
    assert store.batches.put_outcome(samples.acks(newer, failed=5), newer) == (verdict, False)
    assert store.batches.get_outcome(1) == verdict


def large_plan(txid: int) -> object:
    # Digits without any order do not pack.
    rng = random.Random(1)
    runs = tuple(Run(at, at, 1) for at in (str(rng.randrange(10**55)) for _ in range(60_000)))
    return samples.plan(txid, retries={samples.SHARD: runs})


def test_large_plans_and_verdicts_survive(store: SourceStore, client: KazooClient, epoch: int) -> None:
    plan = large_plan(1)
    batch = store.batches.put(plan, epoch)  # type: ignore[arg-type]
    assert store.batches.get(1) == batch
    names = client.get_children(store.layout.batches)
    assert sum(map(is_part, names)) > 3
    assert store.batches.txids() == [1]
    verdict = samples.acks(epoch, failed=60_000)
    assert store.batches.put_outcome(verdict, epoch) == (verdict, True)
    assert store.batches.put_outcome(samples.acks(epoch, failed=59_000), epoch) == (verdict, False)
    assert store.batches.get_outcome(1) == verdict

    newer = store.epochs.raise_epoch("beta", 22, NOW)
    adopted = store.batches.put(plan, newer)  # type: ignore[arg-type]
    assert adopted.epoch == newer
    assert store.batches.get(1) == adopted
    # The parts of the plan under the older epoch are gone: a plan has one head and its own parts.
    assert len(client.get_children(store.layout.batches)) == len(names)

    store.leftovers.purge(1, newer)
    assert client.get_children(store.layout.batches) == []
    assert client.get_children(store.layout.acks) == []


def test_a_missing_part_names_the_node(store: SourceStore, client: KazooClient, epoch: int) -> None:
    store.batches.put(samples.plan(), epoch)
    rng = random.Random(1)
    failed = tuple(NotDone(at, at, 1, "") for at in (str(rng.randrange(10**55)) for _ in range(30_000)))
    store.batches.put_outcome(
        BatchOutcome(txid=1, plan="p1", epoch=epoch, not_done={samples.SHARD: failed}), epoch
    )
    part = next(name for name in client.get_children(store.layout.acks) if is_part(name))
    client.delete(f"{store.layout.acks}/{part}")
    with pytest.raises(
        CorruptNodeError, match=rf"{store.layout.acks_of(1)} is stored in parts, and .*{part}"
    ):
        store.batches.get_outcome(1)


def test_purging_leaves_what_is_newer_and_takes_few_requests(
    store: SourceStore, client: KazooClient, epoch: int
) -> None:
    shards = [f"shardId-{i:012d}" for i in range(20)]
    for txid in (1, 2, 3):
        store.batches.put(samples.plan(txid), epoch)
        for shard in shards:
            store.batches.create_pin(shard, samples.pin(epoch, txid), epoch)
        store.batches.put_outcome(samples.acks(epoch, txid), epoch)
    # Parts whose head was never written.
    client.create(f"{store.layout.acks_of(2)}~00~0", b"x")
    client.create(f"{store.layout.acks_of(3)}~00~0", b"x")
    assert store.leftovers.purge(0, epoch) == 0
    before = store.requests
    assert store.leftovers.purge(2, epoch) == 2 * 20 + 2 + 2 + 1
    assert store.requests - before == 3 + 2 + 1
    assert store.batches.txids() == [3]
    assert len(store.batches.get_pins(3, shards)) == 20
    assert sorted(client.get_children(store.layout.acks)) == ["3", "3~00~0"]
    assert store.leftovers.purge(2, epoch) == 0


def test_a_bad_batch_names_its_path(store: SourceStore, client: KazooClient, epoch: int) -> None:
    store.batches.put(samples.plan(4), epoch)
    for data, says in ((b"{", "does not hold"), (b'{"v":99}', r"newer release .*version 99")):
        client.set(store.layout.batch_of(4), data)
        with pytest.raises(CorruptNodeError, match=says) as caught:
            store.batches.newest()
        assert store.layout.batch_of(4) in str(caught.value)
        with pytest.raises(CorruptNodeError):
            store.batches.put(samples.plan(4), epoch)


def test_packs_keep_order_and_groups_whole() -> None:
    groups: list[list[Op]] = [
        [Create(f"/{i}", b"x" * size), Create(f"/{i}b")] for i, size in enumerate((10, 700, 50, 900, 10))
    ]
    packs = list(pack_writes(groups, 1000))
    assert [op for pack in packs for op in pack] == [op for group in groups for op in group]
    assert [len(pack) for pack in packs] == [2, 2, 2, 2, 2]
    assert [len(pack) for pack in pack_writes(groups, 10_000)] == [10]
    assert size_of(Create("/a", b"12")) > 4
    assert list(pack_writes([], 10)) == []


def test_a_batch_of_very_many_shards_can_be_made_empty(store: SourceStore, epoch: int) -> None:
    """Its pins go in several requests: one for all of them would exceed what ZooKeeper takes."""
    shards = [f"{'orders' * 20}@1795952661203/shardId-{number:012}" for number in range(8_000)]
    batch = store.batches.put(samples.plan(), epoch)
    pins = {shard: samples.pin(epoch) for shard in shards}
    store.batches.create_pins(pins, epoch)
    store.batches.make_empty(batch, shards, epoch)
    found = store.batches.get(1)
    assert found is not None
    assert found.plan.is_empty
    assert store.batches.get_pins(1, shards, fresh=True) == {}
