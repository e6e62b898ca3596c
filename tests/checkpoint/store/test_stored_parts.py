"""Runs that wait are stored in parts that have the names of their content: a batch writes those that it touches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import samples
from hypothesis import HealthCheck, given, settings, strategies as st
from kazoo.client import KazooClient
from msgspec.structs import replace
from thorough import examples

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model import codec, split_nodes
from kinesis_trident.checkpoint.model.change_nodes import BackupNode
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import InflightNode
from kinesis_trident.checkpoint.model.split_nodes import PiecesHead, head_of, is_part
from kinesis_trident.checkpoint.store import fenced_nodes
from kinesis_trident.checkpoint.store.fenced_nodes import FencedNodes
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.operations import Op, Write
from kinesis_trident.tracker import packing
from kinesis_trident.tracker.packing import unpack
from kinesis_trident.tracker.records import Noted, Run

NOW = 1_700_000_000_000
SHARD, OTHER = samples.SHARD, samples.OTHER
MOST = 4
A_PIECE = 128
A_RUN = 40
"""Bytes of a run of a piece of so many, with the share of all that the piece has once."""


@pytest.fixture
def epoch(store: SourceStore) -> int:
    return store.epochs.raise_epoch("alpha", 11, NOW)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few runs are many."""
    monkeypatch.setattr(packing, "MOST_RUNS", MOST)
    monkeypatch.setattr(codec, "FEW", 2)
    monkeypatch.setattr(fenced_nodes, "WHOLE", 300)
    monkeypatch.setattr(split_nodes, "_WITHIN", 200)


def scattered(count: int, seed: int = 1) -> list[Run]:
    """Runs whose positions pack badly, as those of Kinesis do; many have failed together."""
    rng = random.Random(seed)
    failures = [(Noted(NOW, f"ValueError: {number}".ljust(100, ".")),) for number in range(8)]
    return [
        Run("", str(10**55 + at), due=NOW, failures=failures[number % 8])
        for number, at in enumerate(sorted(rng.randrange(10**30) for _ in range(count)))
    ]


def settle(
    store: SourceStore, epoch: int, txid: int, runs: Sequence[Run], shards: Sequence[str] = (SHARD,)
) -> None:
    node = InflightNode(txid=txid, waiting=tuple(runs))
    updates = {shard: (samples.checkpoint(txid, None), node) for shard in shards}
    assert store.shards.settle(updates, {}, None, samples.settled(txid), epoch) == list(shards)


def waiting(store: SourceStore, shard: str = SHARD) -> list[Run]:
    return list(store.shards.inflight()[shard].waiting)


def stored_parts(store: SourceStore) -> dict[str, bytes]:
    folder = store.layout.inflight
    names = [name for name in store.client.get_children(folder) if is_part(name)]
    return {name: store.client.get(f"{folder}/{name}")[0] for name in names}


def runs_in(parts: Sequence[bytes]) -> int:
    return sum(len(unpack(part.decode())) for part in parts)


CHANGES = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 59), st.sampled_from([0, 0, 1, 2, 3]), max_size=25),
        st.sampled_from(["", "", "fresh", "another", "crash", "crash, fresh"]),
    ),
    max_size=8,
)


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(changes=CHANGES)
@pytest.mark.usefixtures("small")
def test_whatever_changes_is_what_is_read_and_what_is_written(
    make_store: Callable[[], SourceStore], changes: list[tuple[dict[int, int], str]]
) -> None:
    """Runs come, go and fail again; now and then other processes go on, or this one dies before the head is written."""
    store = make_store()
    epoch = store.epochs.raise_epoch("alpha", 11, NOW)
    all_runs = scattered(60)
    state = dict.fromkeys(range(0, 60, 2), 1)

    def runs(state: dict[int, int]) -> list[Run]:
        return [Run("", all_runs[at].last, attempt=state[at], due=NOW) for at in sorted(state)]

    settle(store, epoch, 1, runs(state))
    for txid, (changed, how) in enumerate(changes, 2):
        before, parts = dict(state), stored_parts(store)
        state |= changed
        state = {at: attempt for at, attempt in state.items() if attempt}
        writer = SourceStore(store.client, store.layout) if how == "another" else store
        if "crash" in how and state != before:
            crash_before_the_head(writer, epoch, txid, runs(state))
            assert waiting(store) == runs(before)
        if "fresh" in how:
            epoch = store.epochs.raise_epoch("beta", 12, NOW)
            writer = store = SourceStore(store.client, store.layout)
        if how == "fresh":
            store.leftovers.sweep_parts(epoch)
        settle(writer, epoch, txid, runs(state))
        assert waiting(store) == waiting(SourceStore(store.client, store.layout)) == runs(state)
        after = stored_parts(store)
        touched = sum(before.get(at) != state.get(at) for at in {*before, *state})
        assert runs_in([after[name] for name in {*after} - {*parts}]) <= (touched + 1) * (2 * MOST + 1)
    store.leftovers.sweep_parts(epoch)
    assert waiting(store) == runs(state)
    found = head_of(store.client.get(store.layout.inflight_of(SHARD))[0])
    named = [name for name in found.pieces if isinstance(name, str)] if isinstance(found, PiecesHead) else []
    assert {name.partition("~")[2] for name in stored_parts(store)} == set(named)


@pytest.fixture
def make_store(client: KazooClient, app: str) -> Callable[[], SourceStore]:
    numbers: Iterator[int] = iter(range(10**6))
    return lambda: SourceStore(client, Layout(f"/{app}/{next(numbers)}", "app", "orders", 1))


def crash_before_the_head(store: SourceStore, epoch: int, txid: int, runs: Sequence[Run]) -> None:
    """The process dies once the parts are written."""
    begin, head = FencedNodes.begin, store.layout.inflight_of(SHARD)

    def crashing(nodes: FencedNodes, ops: Sequence[Op], under: int) -> Any:
        if any(isinstance(op, Write) and op.path == head for op in ops):
            raise KeyboardInterrupt
        return begin(nodes, ops, under)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FencedNodes, "begin", crashing)
        with pytest.raises(KeyboardInterrupt):
            settle(store, epoch, txid, runs)


def test_parts_that_another_store_of_the_run_has_removed_are_written_again(
    store: SourceStore, client: KazooClient, layout: Layout, epoch: int
) -> None:
    one, two = scattered(3000, 1), scattered(3000, 2)
    settle(store, epoch, 1, one)
    first = set(stored_parts(store))
    settle(SourceStore(client, layout), epoch, 2, two)
    assert not first & set(stored_parts(store))
    settle(store, epoch, 3, one)
    assert set(stored_parts(store)) == first
    assert waiting(SourceStore(client, layout)) == one


@pytest.fixture
def work_off(
    make_store: Callable[[], SourceStore], monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, Sequence[Sequence[int]]], int]:
    """Settle so many runs, then without those of each batch: the bytes of all writes."""
    monkeypatch.setattr(packing, "MOST_RUNS", A_PIECE)
    monkeypatch.setattr(fenced_nodes, "WHOLE", 1000)

    def written(count: int, batches: Sequence[Sequence[int]]) -> int:
        store = make_store()
        epoch = store.epochs.raise_epoch("alpha", 11, NOW)
        began, left = store.written, dict(enumerate(scattered(count)))
        settle(store, epoch, 1, list(left.values()))
        for txid, batch in enumerate(batches, 2):
            for number in batch:
                del left[number]
            settle(store, epoch, txid, list(left.values()))
        assert waiting(store) == list(left.values())
        return store.written - began

    return written


def test_what_is_written_grows_with_the_runs_that_are_worked_off(
    work_off: Callable[[int, Sequence[Sequence[int]]], int],
) -> None:
    small, large = (
        work_off(count, [range(start, start + 2 * A_PIECE) for start in range(0, count, 2 * A_PIECE)])
        for count in (16 * A_PIECE, 64 * A_PIECE)
    )
    assert large <= 4.6 * small


def test_runs_that_come_due_in_any_order_cost_at_most_two_pieces_each(
    work_off: Callable[[int, Sequence[Sequence[int]]], int],
) -> None:
    for pieces in (16, 64):
        # So few come due at a time that they are apart.
        order = random.Random(1).sample(range(pieces * A_PIECE), 128)
        size = work_off(pieces * A_PIECE, [order[at : at + 4] for at in range(0, 128, 4)])
        names = 32 * 2 * pieces * 50
        assert size <= A_RUN * (pieces * A_PIECE + 128 * 2 * A_PIECE) + names


def copy_of(store: SourceStore) -> BackupNode:
    checkpoints, inflight = store.shards.read_together()
    return BackupNode(
        application="a", home="orders@1", time=NOW, settled=1, checkpoints=checkpoints, inflight=inflight
    )


def test_shards_are_forgotten_and_overwritten_with_their_parts(store: SourceStore, epoch: int) -> None:
    runs, others = scattered(3000), scattered(3000, 2)
    settle(store, epoch, 1, runs, (SHARD, OTHER))
    copy = copy_of(store)
    node = InflightNode(txid=1, waiting=tuple(others))
    kept = store.changes.overwrite(copy, {SHARD: samples.checkpoint(1, None)}, {SHARD: node}, epoch)
    assert store.changes.backup(kept) == copy
    assert waiting(store) == others
    assert waiting(store, OTHER) == runs
    store.shards.forget([SHARD, OTHER], {}, epoch)
    assert stored_parts(store) == {}


def test_a_part_that_is_gone_or_another_names_the_node(
    store: SourceStore, client: KazooClient, layout: Layout, epoch: int
) -> None:
    settle(store, epoch, 1, scattered(3000))
    first = min(stored_parts(store))
    client.set(f"{layout.inflight}/{first}", b"x")
    with pytest.raises(
        CorruptNodeError, match=f"{SHARD} is stored in parts, of which .* has another content"
    ):
        store.shards.inflight()
    client.delete(f"{layout.inflight}/{first}")
    with pytest.raises(CorruptNodeError, match=f"{SHARD} is stored in parts, and .*{first} is missing"):
        store.shards.inflight()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("by", ["a batch", "a person"])
def test_thousands_of_parts_are_left_behind_at_once(store: SourceStore, epoch: int, by: str) -> None:
    settle(store, epoch, 1, scattered(14_000))
    assert sum(len(name) + len(store.layout.inflight) for name in stored_parts(store)) > 2**19
    if by == "a batch":
        settle(store, epoch, 2, [])
    else:
        copy = replace(copy_of(store), inflight={})
        store.changes.overwrite(copy, copy.checkpoints, {SHARD: InflightNode(txid=1, waiting=())}, epoch)
    assert waiting(store) == []
    assert stored_parts(store) == {}


def test_what_a_person_writes_back_repairs_a_damaged_part(
    store: SourceStore, client: KazooClient, layout: Layout, epoch: int
) -> None:
    runs = scattered(3000)
    settle(store, epoch, 1, runs)
    copy = copy_of(store)
    client.set(f"{layout.inflight}/{min(stored_parts(store))}", b"x")
    store.changes.overwrite(copy, copy.checkpoints, copy.inflight, epoch)
    assert waiting(store) == runs
