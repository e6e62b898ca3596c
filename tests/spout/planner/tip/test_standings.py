"""Random shards, asked as they were before they had a standing: each answer is a flag of it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import get_args

import pytest
from looking import answers
from msgspec.structs import replace
from thorough import examples
from twins import old_standing as old

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, ShardLineage
from kinesis_trident.checkpoint.model.standing import (
    BLOCKED,
    REFUSED,
    WAITS_FOR_PARENTS,
    InStep,
    Looks,
    Share,
)
from kinesis_trident.console.figures import HomeFacts
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.options.modes import ShardOrdering
from kinesis_trident.spout.planner.pace import LookTimes
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.planner.tip.looks import Look
from kinesis_trident.spout.positions import TRIM_HORIZON, ShardEnd
from kinesis_trident.tracker.records import Run

NOW = 1_700_000_000_000
MOST = 4


def draw_shards(r: random.Random) -> Shards:
    """Draw shards of two streams, split and merged, of which some have failed records, and one may not be read."""
    lineage: dict[str, ShardLineage] = {}
    states: dict[str, ShardState] = {}
    for number in range(r.randrange(1, 9)):
        shard = f"{r.choice('ab')}{number}"
        parents = tuple(r.sample([*lineage, "gone"], r.choice([0, 0, 1, min(2, len(lineage))])))
        ended = r.random() < 0.3
        state = "drained" if ended else r.choice(["open", "closed"])
        if r.random() < 0.9:
            lineage[shard] = ShardLineage(parents=parents, state=state)  # type: ignore[arg-type]
        waiting = () if r.random() < 0.6 else (Run(f"1{number}", f"1{number + 3}", r.randrange(1, 7)),)
        inflight = InflightNode(txid=1, waiting=waiting, blocked="full" if r.random() < 0.3 else "")
        at = str(ShardEnd() if ended else TRIM_HORIZON)
        node = CheckpointNode(checkpoint=None, txid=r.randrange(2), position=at)
        states[shard] = ShardState(
            TRIM_HORIZON, node if r.random() < 0.8 else None, inflight if r.random() < 0.8 else None
        )
    parked = (
        frozenset(shard for shard in states if shard.startswith("b")) if r.random() < 0.3 else frozenset()
    )
    ordering = r.choice(get_args(ShardOrdering))
    return Shards(ordering, states, lineage, parked=parked)


def draw_tips(r: random.Random, shards: Shards) -> Sights:
    """Draw what is known of the tips; it may drain, and then some shards are read as far as it asks."""
    sights, found = Sights(LookTimes.of()), {shard: r.choice([None, False, True]) for shard in shards.states}
    drains = r.random() < 0.5
    if drains:
        sights = sights.stop_at_tip(NOW)
    sights = sights.take(answers({shard: more for shard, more in found.items() if r.random() < 0.8}), {}, 0)
    beyond = {shard for shard in shards.positions if drains and r.random() < 0.3}
    known = {shard: replace(sights.of(shard), look=None, beyond=shard in beyond) for shard in shards.states}
    return sights.put(known)


def draw_looks(r: random.Random, shards: Shards) -> dict[str, Look]:
    return {
        shard: Look(ShardCursor(state.position), more=r.choice([None, False, True]))
        for shard, state in shards.states.items()
        if r.random() < 0.8
    }


@pytest.mark.parametrize("seed", range(examples(200)))
def test_each_old_question_is_a_flag(seed: int) -> None:
    r = random.Random(seed)
    shards = draw_shards(r)
    tip, looks, most = draw_tips(r, shards), draw_looks(r, shards), r.choice([None, MOST])
    tip = tip.take(looks, {})
    standings = tip.standings(shards.active, shards, most=most)
    active, positions = set(shards.active), set(shards.positions)
    assert {shard for shard in active if standings[shard].looks > Looks.SELDOM} == {
        shard for shard in positions if not old.has_ended(tip, shards, shard)
    }
    # What a drain has read was never looked at: an empty one was taken for a loss after the retention.
    rarely = {shard for shard in active if standings[shard].looks in (Looks.SELDOM, Looks.UNTIL_KNOWN)}
    drained = {shard for shard in positions if old.has_ended(tip, shards, shard)}
    full = {shard for shard in positions if most and shards.states[shard].held >= most}
    assert rarely - full == (old.choose_blocked(shards) | drained) - full
    if tip.until is not None:
        assert any(one.drain for one in standings.values()) is not old.have_all_ended(tip, shards)
    closed_to, can_be_read, counted = old.find_closed_to(tip, shards, looks, most)
    wanted = old.find_to_read(tip, shards)
    assert [shard for shard in wanted if standings[shard].reads] == can_be_read
    assert {shard for shard in active if standings[shard].step is not InStep.NO} == counted
    assert {shard for shard in active if standings[shard].step is InStep.A_WHILE} == closed_to & counted
    assert {shard for shard in positions if standings[shard].reads} == old.find_prefetched(tip, shards, full)
    assert {shard for shard in active if standings[shard].looks is not Looks.PACE} - full <= tip.find_rare(
        shards
    )
    for shard in shards.states:
        is_read, standing = shard in active, shards.standing(shard)
        assert standing.expiry is (is_read and old.is_to_be_read(shards, shard))
        assert (BLOCKED in standing.causes) is bool(shards.states[shard].blocked)
        if is_read:
            assert (WAITS_FOR_PARENTS in standing.causes) is old.is_waiting(shards, shard)
            assert (standing.share is Share.ZERO) is not old.is_to_be_read(shards, shard)


def test_a_refused_shard_is_tried_and_holds_the_others_for_a_while() -> None:
    shards = Shards("parentFirst", {"a": ShardState(TRIM_HORIZON)}, {"a": ShardLineage()})
    tip = Sights(LookTimes.of()).take(answers({"a": True}), {}, 0)
    look = Look(ShardCursor(TRIM_HORIZON), more=True, refused=NOW, why="throttled")
    standing = tip.take({"a": look}, {}).standings("a", shards)["a"]
    assert REFUSED in standing.causes
    assert (standing.reads, standing.step) == (True, InStep.A_WHILE)
    moved = Look(ShardCursor(ShardEnd()), more=True, refused=NOW, why="throttled")
    tip = tip.take({"a": moved}, {})
    assert REFUSED not in tip.standings("a", shards)["a"].causes
    ahead = tip.standings("a", shards, ahead="a")["a"]
    assert (ahead.held_by, ahead.step, ahead.looks) == ("ahead", InStep.YES, Looks.PACE)


@pytest.mark.parametrize("seed", range(examples(100)))
def test_the_console_reads_the_same_from_the_nodes(seed: int) -> None:
    r = random.Random(seed)
    shards = draw_shards(r)
    nodes: Mapping[str, ShardState] = shards.states
    listed = {shard: node for shard, node in shards.lineage.items() if shard in nodes}
    snapshot = Snapshot(
        layout=Layout("/kinesis-trident", "billing", "orders", 1),
        streams=("orders",),
        active=("orders",) if r.random() < 0.7 else (),
        shards=listed,
        checkpoints={shard: one.checkpoint for shard, one in nodes.items() if one.checkpoint},
        inflight={shard: one.inflight for shard, one in nodes.items() if one.inflight},
    )
    for shard, facts in HomeFacts(snapshot, NOW).shards.items():
        # One that retention has removed was taken for one that is read.
        if shard in listed or not listed:
            assert (facts.standing.share is Share.COUNTED) is old.is_read(snapshot, shard)
            assert facts.standing.expiry is old.is_read(snapshot, shard)
        assert (BLOCKED in facts.standing.causes) is bool(nodes[shard].blocked)
        assert facts.figures.held == nodes[shard].held
