"""Each change of the shards is written, then taken over, then told to who watches: on a real ZooKeeper."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from by_hand import Lives

from kinesis_trident.checkpoint.errors import ZooKeeperUnavailableError
from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.spout.planner.settling.shard_events import (
    Amended,
    BatchSettled,
    HomeUnit,
    ShardEvent,
)
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis
from kinesis_trident.tracker.position_keys import keys_of_texts, pack

A, B = (f"shardId-{number:012}" for number in range(2))


def test_who_watches_sees_each_change_go_on_from_the_one_before(lives: Lives) -> None:
    kinesis = MemoryKinesis()
    query = lives.begin(kinesis, retryLimit="0")
    state, seen = query.run._state, list[tuple[Shards, ShardEvent, Shards]]()
    state.watchers.append(lambda *change: seen.append(change))
    began = state.shards
    kinesis.put(A, b"1")
    query.batch(failing=[1])
    kinesis.split(A)
    query.drain()
    assert seen[0][0] is began
    assert seen[-1][2] is state.shards
    assert all(one[2] is other[0] for one, other in pairwise(seen))
    settled = [(before, event, after) for before, event, after in seen if isinstance(event, BatchSettled)]
    assert [(before.settled, after.settled) for before, _, after in settled] == [
        (txid, txid + 1) for txid in range(len(settled))
    ]
    assert any(len(after.lineage) == 3 for _, event, after in seen if isinstance(event, HomeUnit))
    # The value before is as it was: nobody changes it in place.
    assert began.states[A].checkpoint is None
    assert state.shards.lineage[A].state == "drained"
    assert state.shards.dead_letters[A].count == 1


def test_what_is_written_counts_though_the_next_shard_cannot_be_written(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives.clock = time = FakeTime()
    kinesis = MemoryKinesis(shards=2, clock=time.milliseconds)
    query = lives.begin(kinesis, ackMode="explicit", messageTimeout="10s")
    for shard in (A, B):
        kinesis.put(shard, b"1")
    state, read = query.run._state, 0
    while read < 2:
        read += len(query.batch())
    assert query.plan() is None
    assert state.shards.unacked == 2
    time.sleep(60)
    amend, told = query.run._store.shards.amend, list[Any]()
    state.watchers.append(lambda _, event, after: told.append(event))

    def fail_at_b(shard: str, *args: Any, **nodes: Any) -> None:
        if shard == B:
            raise ZooKeeperUnavailableError("away")
        amend(shard, *args, **nodes)

    with monkeypatch.context() as patch:
        patch.setattr(query.run._store.shards, "amend", fail_at_b)
        with pytest.raises(ZooKeeperUnavailableError):
            state.time_out(time.milliseconds())
    assert [
        (type(event), [(unit.shard, unit.tally.timed_out) for unit in event.units]) for event in told
    ] == [(Amended, [(A, 1)])]
    assert state.shards.states[A].inflight == query.store.shards.inflight()[A]
    state.time_out(time.milliseconds())
    assert state.shards.unacked == 0
    assert state.counter.tally.timed_out == 2


def test_what_is_taken_in_counts_once_though_a_request_of_the_next_shard_is_withdrawn(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first shard's transaction was answered; that of the next is refused, and read again without the request."""
    lives.clock = time = FakeTime()
    kinesis = MemoryKinesis(shards=2, clock=time.milliseconds)
    query = lives.begin(kinesis, ackMode="explicit", messageTimeout="1h")
    for shard in (A, B):
        for data in (b"1", b"2"):
            kinesis.put(shard, data)
    state = query.run._state
    rows: list[Any] = []
    while len(rows) < 4:
        rows += query.batch()
    assert query.plan() is None
    assert state.shards.unacked == 4
    add = query.store.external.add
    for _, message_id, *_ in rows:
        shard, _, position = message_id.rpartition("/")[2].partition(":")
        add(shard, ExternalNode(op="ack", positions=pack(keys_of_texts([position]))))
    asked = {shard: list(some) for shard, some in query.store.external.read().asked.items()}
    assert {shard: len(names) for shard, names in asked.items()} == {A: 2, B: 2}
    amend, told, tries = query.run._store.shards.amend, list[Any](), list[tuple[str, int]]()
    state.watchers.append(lambda _, event, after: told.append(event))

    def withdraw_before(shard: str, *args: Any, **nodes: Any) -> None:
        if shard == B and not any(other == B for other, _ in tries):
            query.store.client.delete(f"{query.run.layout.external_of(B)}/{asked[B][0]}")
        tries.append((shard, len(nodes["consumed"])))
        amend(shard, *args, **nodes)

    monkeypatch.setattr(query.run._store.shards, "amend", withdraw_before)
    state.take_in_requests(time.milliseconds())
    assert tries == [(A, 2), (B, 2), (B, 1)]
    assert [(type(event), [unit.shard for unit in event.units]) for event in told] == [
        (Amended, [A]),
        (Amended, [B]),
    ]
    assert state.shards.unacked == 1
    assert state.counter.tally.acked == 3
    for shard in (A, B):
        assert state.shards.states[shard].inflight == query.store.shards.inflight()[shard]
    assert not any(query.store.external.read().asked.values())
