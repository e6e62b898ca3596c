"""Plans and offsets against those that were made before `Runs`: `tests/twins/old_runs`."""

from __future__ import annotations

import random

from hypothesis import given, settings, strategies as st
from thorough import examples
from twins.old_runs import named_runs, plan as old

from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, PendingRun
from kinesis_trident.spout.planner import plan as new
from kinesis_trident.spout.planner.offsets import offset_from_plan, plan_from_offset
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.tracker.clipping import clip, clip_whole
from kinesis_trident.tracker.position_keys import keys_of_texts
from kinesis_trident.tracker.records import Noted, Run
from kinesis_trident.tracker.runs import full

NOW = 1_700_000_000_000
KINESIS = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898


def runs_of(r: random.Random, count: int) -> list[Run]:
    """Runs in shard order: neighbours or not, of one record or many, some in aggregates, some without a first one."""
    at, found, width = r.choice([5, 10**20, KINESIS]), list[Run](), r.choice([0, 0, 60])
    before = str(at).zfill(width)
    for _ in range(count):
        at += r.choice([1, 2, r.randrange(1, 10**27)])
        first = last = str(at).zfill(width) + r.choice(["", "", "", ":0"])
        size = r.choice([1, 1, 1, 3])
        if size > 1:
            at += 5
            last = str(at).zfill(width)
        is_beginning_known = r.random() < 0.8
        failures = r.choice([(), (Noted(NOW - 5, r.choice(["E: a", "HELD (bolt j)"])),)])
        prev = before if not is_beginning_known or r.random() < 0.7 else None
        due = r.choice([0, NOW, NOW + 1_000])
        found.append(
            Run(first if is_beginning_known else "", last, size, prev, r.randint(0, 3), due, failures)
        )
        before = last
    return found


def state_of(r: random.Random, most: int) -> ShardState:
    runs = runs_of(r, r.choice([0, 1, 2, r.randint(0, most)]))
    is_dead = [r.random() < 0.2 for _ in runs]
    waiting, dead = (
        tuple(run for run, one in zip(runs, is_dead, strict=True) if one is kind) for kind in (False, True)
    )
    texts = sorted({str(KINESIS + r.randrange(10**6)) for _ in range(6)})
    pending = (PendingRun(3, (1, 4)),) if r.random() < 0.2 and len(texts) > 4 else ()
    node = CheckpointNode(
        checkpoint=str(KINESIS), txid=3, position=f"AFTER_SEQUENCE_NUMBER {KINESIS + 10**30}"
    )
    inflight = InflightNode(txid=3, waiting=waiting, dead=dead, pending=pending)
    return ShardState(TRIM_HORIZON, node, inflight, {3: keys_of_texts(texts)})


@settings(max_examples=examples(300))
@given(st.integers(0, 2**32))
def test_the_same_runs_are_chosen(seed: int) -> None:
    r = random.Random(seed)
    lists = {f"shard-{at}": tuple(runs_of(r, r.choice([0, 1, 3, 40, 150]))) for at in range(r.randint(0, 8))}
    most, turn = r.choice([100, 500, 2_000, 8_000, 10**6]), r.randint(0, 50)
    assert clip(lists, most, turn) == named_runs.take_fitting(lists, most, turn)
    assert clip_whole(lists, most) == named_runs.take_fitting_shards(lists, most)


@settings(max_examples=examples(200))
@given(st.integers(0, 2**32))
def test_plans_and_offsets_are_equal_to_the_byte(seed: int) -> None:
    r = random.Random(seed)
    states = {f"shard-{at}": state_of(r, r.choice([5, 300])) for at in range(r.randint(1, 6))}
    known = {"txid": r.randint(4, 99), "streams": {"orders": 1}, "states": states}
    assert encode(new.make_starting_plan(**known)) == encode(old.make_starting_plan(**known))
    of_batch = {
        "plan": "p" * 32,
        "read": [shard for shard in states if r.random() < 0.8],
        "now": NOW,
        "max_records": r.choice([None, 2, 1_000]),
        "max_inflight": r.choice([None, 100]),
        "max_turn": r.choice([0, 10_000]),
    }
    made, twin = new.make_plan(**known, **of_batch), old.make_plan(**known, **of_batch)
    assert (made is None) == (twin is None)
    if made is None or twin is None:
        return
    assert encode(made) == encode(twin)
    logged = plan_from_offset(offset_from_plan(made))
    stored = new.add_all_due(logged, states, NOW)
    assert encode(stored) == encode(old.add_all_due(logged, states, NOW))
    dead = {shard: state.dead for shard, state in states.items() if r.random() < 0.8}
    whole = named_runs.add_reasons(stored, dead).dead
    assert {shard: full(some, dead.get(shard, ())) for shard, some in stored.dead.items()} == whole
    # Some of these shards have settled another batch meanwhile, or are gone.
    later = {
        shard: state_of(r, 300) if r.random() < 0.2 else state
        for shard, state in states.items()
        if r.random() < 0.9
    }
    assert encode(new.keep_still_due(logged, later)) == encode(old.keep_still_due(logged, later))
