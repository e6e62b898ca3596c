"""A settling that ends at any of its multis leaves in memory what ZooKeeper has, and goes on as it began."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from by_hand import Lives, Query

from kinesis_trident.checkpoint.errors import ZooKeeperUnavailableError
from kinesis_trident.checkpoint.store import atomic_writes
from kinesis_trident.checkpoint.store.fenced_nodes import FencedNodes
from kinesis_trident.checkpoint.zookeeper.operations import Op
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis

SHARDS = 7


class Cut:
    """Ends what writes at one of its multis: before it is sent, or with its answer lost."""

    def __init__(self, nodes: FencedNodes, at: int, *, sent: bool) -> None:
        self._begin, self._at, self._sent = nodes.begin, at, sent
        self.multis = 0

    def begin(self, ops: Sequence[Op], epoch: int) -> Callable[[], bool]:
        """See `FencedNodes.begin`."""
        self.multis += 1
        if self.multis != self._at:
            return self._begin(ops, epoch)
        if not self._sent:
            raise ZooKeeperUnavailableError("away")
        finish = self._begin(ops, epoch)

        def lose() -> bool:
            finish()
            raise ZooKeeperUnavailableError("away")

        return lose


def stored(query: Query) -> dict[str, ShardState]:
    """Return the shards as ZooKeeper has them."""
    checkpoints, inflight = query.store.shards.checkpoints(), query.store.shards.inflight()
    return {
        shard: ShardState(one.start, checkpoints.get(shard), inflight.get(shard))
        for shard, one in query.run._state.shards.states.items()
    }


@pytest.mark.parametrize("sent", [False, True])
def test_a_settling_that_is_repeated_draws_no_due_time_anew(
    lives: Lives, monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    """After each of its multis: of those under way, nobody knows whether ZooKeeper has done them."""
    lives.clock = time = FakeTime()
    monkeypatch.setattr(atomic_writes, "PACK_SIZE", 1)
    kinesis = MemoryKinesis(shards=SHARDS, clock=time.milliseconds)
    query = lives.begin(kinesis, retryBackoff="1h..100h x2", retryLimit="100")
    state, answered = query.run._state, set[int]()
    nodes = state._store.shards._writer._nodes
    for at in range(1, SHARDS + 2):
        for shard in kinesis.open_shards:
            kinesis.put(shard, b"1")
        plan = query.planned()
        rows = query.rows()
        query.publish(rows)
        query.commit()
        before, cut, told = state.shards, Cut(nodes, at, sent=sent), state.counter.total()
        with monkeypatch.context() as patch:
            patch.setattr(nodes, "begin", cut.begin)
            with pytest.raises(ZooKeeperUnavailableError):
                query.run.settle_finished(query.committed)
        half, there = state.shards, stored(query)
        done = {shard for shard, one in half.states.items() if one is not before.states[shard]}
        assert {shard: half.states[shard] for shard in done} == {shard: there[shard] for shard in done}
        assert half.settled == before.settled
        answered.add(len(done))
        time.sleep(3)
        query.run.settle_finished(query.committed)
        after = state.shards
        assert after.settled == plan.txid
        assert after.states == stored(query)
        for shard, one in there.items():
            if one.checkpoint is not None and one.checkpoint.txid == plan.txid:
                assert after.states[shard] == one
        counts = state.counter.total()
        assert counts.batches == told.batches + 1
        assert counts.failed["ValueError"] == told.failed.get("ValueError", 0) + len(rows)
    assert len(answered) > 2
