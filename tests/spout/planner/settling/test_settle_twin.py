"""Drawn batches: what `step` makes of them is what settled them before it."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import msgspec
import shard_life
from hypothesis import given, settings, strategies as st
from shard_life import SHARD, ShardLife
from thorough import examples
from twins.old_requests.shadow import check_positions
from twins.old_settle import batches as old

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import DeadLetterRecord, DeadLettersNode, Plan, ShardLineage
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.external_requests import step
from kinesis_trident.spout.planner.settling.finished_batch import Committed, CommittedBatch
from kinesis_trident.spout.planner.settling.settlement import CommittedTurn, InflightRules, settle_shard
from kinesis_trident.spout.planner.settling.shard_events import BatchSettled
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.tracker.retry import RetryPolicy

LAYOUT, TXID, NOW = Layout("/k", "app", "orders", 1), 1_000, 1_700_000_000_000
LETTER = DeadLetterRecord("orders/x:1", 2, "no", NOW, 7, 3)
LETTERS = st.sampled_from([None, DeadLettersNode(count=3, target="old", last=(LETTER,))])


def last_turn(seed: int, batches: int) -> tuple[ShardState, CommittedTurn]:
    """Return the last turn of a shard's life, and the shard before it."""
    r = random.Random(seed)
    life = ShardLife(r, RetryPolicy(r.choice([0, 1, 3])), expires=r.random() < 0.3)
    seen = list[tuple[ShardState, CommittedTurn]]()

    def note(state: ShardState, turn: CommittedTurn, rules: InflightRules) -> Any:
        seen.append((state, turn))
        return settle_shard(state, turn, rules)

    with mock.patch.object(shard_life, "settle_shard", note):
        while len(seen) < batches or not seen:
            life.batch()
    return seen[-1]


@settings(max_examples=examples(150), deadline=None)
@given(
    turns=st.lists(
        st.tuples(
            st.integers(0, 2**32),
            st.integers(1, 6),
            st.sampled_from(["pinned", "pinned", "pinned", "unpinned", "stamped", "gone"]),
            LETTERS,
        ),
        min_size=1,
        max_size=4,
    ),
    limit=st.sampled_from([0, 1, 5]),
    bound=st.sampled_from([1, 5, 1_000]),
    judged=st.booleans(),
    seed=st.integers(0, 9),
)
def test_a_batch_is_settled_as_it_was(
    turns: list[tuple[int, int, str, DeadLettersNode | None]], limit: int, bound: int, judged: bool, seed: int
) -> None:
    plan = Plan(txid=TXID, plan="mark", streams={}, positions={})
    states, pins, not_done, letters = dict[str, ShardState](), {}, {}, {}
    for at, (life, batches, kind, node) in enumerate(turns):
        name = f"shardId-{at:012}"
        state, turn = last_turn(life, batches)
        mine = turn.plan
        plan = msgspec.structs.replace(
            plan,
            positions={**plan.positions, name: mine.positions[SHARD]},
            read=(*plan.read, *([name] if mine.read else [])),
            retries={**plan.retries, **({name: mine.retries[SHARD]} if SHARD in mine.retries else {})},
            dead={**plan.dead, **({name: mine.dead[SHARD]} if SHARD in mine.dead else {})},
        )
        if kind == "stamped" and state.checkpoint is not None:
            stamped = msgspec.structs.replace(state.checkpoint, txid=TXID)
            state = ShardState(state.start, stamped, state.inflight)
        if kind != "gone" or state != ShardState(TRIM_HORIZON):
            states[name] = state
        if kind != "unpinned" and turn.pin is not None:
            pins[name] = msgspec.structs.replace(turn.pin, txid=TXID)
            not_done[name] = tuple(turn.not_done)
        if node is not None:
            letters[name] = node
    lineage = {name: ShardLineage() for name in states}
    shards = Shards("none", states=states, lineage=lineage, dead_letters=letters, settled=TXID - 1)
    dice = [random.Random(seed), random.Random(seed)]
    rules = [InflightRules(RetryPolicy(limit), one, bound, buries=bound > 1, target="new") for one in dice]
    verdict = Committed(not_done)
    before = old.CommittedBatch(plan, pins, not_done, verdict, judged, tuple(pins), {})
    was = old.settle_batch(shards, before, rules[0], LAYOUT, NOW)
    now = CommittedBatch(plan, pins, verdict, judged, {}, {})
    (event,) = step(shards, now, rules[1], LAYOUT, NOW)
    assert isinstance(event, BatchSettled)
    after = event.after(shards)
    assert after == was.after(shards)
    for name, one in was.after(shards).states.items():
        check_positions(after.states[name], one)
        assert after.states[name].kept == one.kept
    written = list[tuple[Any, ...]]()
    writes = SimpleNamespace(settle=lambda *args, **more: written.append((*args, more["leftover"])))
    store = cast("SourceStore", SimpleNamespace(layout=LAYOUT, shards=writes))
    old.settle_in(store, shards, before, was, 1)
    ((nodes, changed, _, settled, _, leftover),) = written
    assert [*event.nodes(shards).items()] == [*nodes.items()]
    assert {unit.shard: unit.dead_letters for unit in event.units if unit.dead_letters} == changed
    assert (event.settled, event.leftover, event.ended) == (settled, leftover, was.ended)
    assert [unit.buried for unit in event.units] == [one.dead_lettered for one in was.done.values()]
    assert dice[0].getstate() == dice[1].getstate()
