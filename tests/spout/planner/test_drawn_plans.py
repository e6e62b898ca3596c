"""Plans of drawn shards: what is not done is named, or read again if ZooKeeper's data is lost."""

from __future__ import annotations

import random

from hypothesis import given, settings, strategies as st
from thorough import examples

from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, PendingRun
from kinesis_trident.spout.planner.offsets import offset_from_plan, plan_from_offset
from kinesis_trident.spout.planner.plan import (
    MAX_DUE_RUNS,
    ShardState,
    add_all_due,
    keep_still_due,
    make_plan,
)
from kinesis_trident.spout.positions import TRIM_HORIZON, At, parse_position
from kinesis_trident.tracker.clipping import clip_whole, size_of
from kinesis_trident.tracker.position_keys import keys_of_texts
from kinesis_trident.tracker.records import Noted, Run, begin_of
from kinesis_trident.tracker.runs import full, lean

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


def due(state: ShardState) -> tuple[Run, ...]:
    """Held by a bolt, or at its time: these come with the next batch."""
    return tuple(run for run in state.waiting if run.due <= NOW or run.is_held)


@settings(max_examples=examples(300))
@given(st.integers(0, 2**32))
def test_the_shortest_lists_are_named_whole(seed: int) -> None:
    r = random.Random(seed)
    lists = {f"shard-{at}": tuple(runs_of(r, r.choice([0, 1, 3, 40, 150]))) for at in range(r.randint(0, 8))}
    most = r.choice([100, 500, 2_000, 8_000, 10**6])
    named = clip_whole(lists, most)
    assert sum(map(size_of, named.values())) <= most
    assert named == {shard: lean(lists[shard]) for shard in named}
    left = [len(some) for shard, some in lists.items() if shard not in named]
    assert max((len(some) for some in named.values()), default=0) <= min(left, default=most)


@settings(max_examples=examples(200))
@given(st.integers(0, 2**32))
def test_each_run_that_is_not_done_is_in_a_plan_once_or_behind_the_position_to_resume_from(seed: int) -> None:
    r = random.Random(seed)
    states = {f"shard-{at}": state_of(r, r.choice([5, 300, 1_200])) for at in range(r.randint(1, 6))}
    plan = make_plan(
        txid=r.randint(4, 99),
        streams={"orders": 1},
        states=states,
        plan="p" * 32,
        read=[shard for shard in states if r.random() < 0.8],
        now=NOW,
        max_records=r.choice([None, 2, 1_000]),
        max_inflight=r.choice([None, 100]),
        max_turn=r.choice([0, 10_000]),
    )
    if plan is None:
        assert not any(due(state) or state.dead for state in states.values())
        return
    logged = plan_from_offset(offset_from_plan(plan))
    stored = add_all_due(logged, states, NOW)
    for shard, state in states.items():
        retries, dead = logged.retries.get(shard, ()), logged.dead.get(shard, ())
        # An offset has the first of them, and what is stored as many as are due.
        for some, every in ((retries, due(state)), (dead, state.dead)):
            assert some == lean(every[: len(some)])
        assert stored.retries.get(shard, ()) == lean(due(state)[:MAX_DUE_RUNS])
        assert stored.dead.get(shard, ()) == lean(state.dead[:MAX_DUE_RUNS])
        again = full(stored.dead.get(shard, ()), state.dead)
        assert [run.failures for run in again] == [run.failures for run in state.dead]
        others = logged.notDone.get(shard, ())
        named = sorted(run.last_position for run in (*retries, *dead, *others))
        every = sorted(run.last_position for run in (*state.waiting, *state.dead))
        if named != every:
            assert not others
            begin = parse_position(logged.resume[shard])
            assert isinstance(begin, At)
            assert begin.record <= min(map(begin_of, (*state.waiting, *state.dead)))
    assert keep_still_due(logged, states) == logged
    # Some of these shards have settled another batch meanwhile, or are gone.
    later = {
        shard: state_of(r, 300) if r.random() < 0.2 else state
        for shard, state in states.items()
        if r.random() < 0.9
    }
    kept = keep_still_due(logged, later)
    for shard in states:
        after = later.get(shard)
        for some, before, known in (
            (kept.retries, logged.retries, after.waiting if after else ()),
            (kept.dead, logged.dead, after.dead if after else ()),
        ):
            still = {(run.last_position, run.attempt, run.count) for run in known}
            assert some.get(shard, ()) == tuple(
                run for run in before.get(shard, ()) if (run.last_position, run.attempt, run.count) in still
            )
    assert keep_still_due(kept, later) == kept
