"""Random shards: which are read, and that the console sees them stand as the planner does."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import get_args

import pytest
from looking import answers
from msgspec.structs import replace
from thorough import examples

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, ShardLineage
from kinesis_trident.checkpoint.model.standing import (
    BLOCKED,
    REFUSED,
    WAITS_FOR_PARENTS,
    InStep,
    Looks,
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
def test_a_shard_may_be_read_unless_something_keeps_it(seed: int) -> None:
    r = random.Random(seed)
    shards = draw_shards(r)
    most = r.choice([None, MOST])
    tip = draw_tips(r, shards).take(draw_looks(r, shards), {})
    drained = tip.find_drained(shards)
    for shard, standing in tip.standings(shards.active, shards, most=most).items():
        state = shards.states[shard]
        is_full = bool(state.blocked) or (most is not None and state.held >= most)
        waits = WAITS_FOR_PARENTS in shards.standing(shard).causes
        is_open = shard in shards.positions and shard not in drained
        assert standing.reads is (is_open and not is_full and not waits)
        # Others wait only for what may be read, and a drain for what it has not seen at its tip.
        assert standing.step is not InStep.YES or standing.reads
        assert shard not in drained or not standing.drain


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
def test_the_console_reads_a_standing_from_the_nodes_as_the_planner_does(seed: int) -> None:
    r = random.Random(seed)
    shards = draw_shards(r)
    nodes: Mapping[str, ShardState] = shards.states
    listed = {shard: node for shard, node in shards.lineage.items() if shard in nodes}
    snapshot = Snapshot(
        layout=Layout("/kinesis-trident", "billing", "orders", 1),
        streams=("orders",),
        active=("orders",),
        shards=listed,
        checkpoints={shard: one.checkpoint for shard, one in nodes.items() if one.checkpoint},
        inflight={shard: one.inflight for shard, one in nodes.items() if one.inflight},
    )
    for shard, facts in HomeFacts(snapshot, NOW).shards.items():
        planned = shards.standing(shard)
        if shard in listed and shard not in shards.parked:
            assert (facts.standing.share, facts.standing.expiry) == (planned.share, planned.expiry)
        assert (BLOCKED in facts.standing.causes) is bool(nodes[shard].blocked)
        assert facts.figures.held == nodes[shard].held
