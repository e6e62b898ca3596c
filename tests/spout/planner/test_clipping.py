"""Test what offsets name of failed records: within a bound, whatever fails; and what does not fit is not forgotten."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode
from kinesis_trident.spout.planner.offsets import offset_from_plan
from kinesis_trident.spout.planner.plan import (
    RUNS_A_SHARD,
    STORED_BYTES,
    ShardState,
    due_bytes,
    make_plan,
    make_starting_plan,
    waiting_bytes,
)
from kinesis_trident.spout.positions import TRIM_HORIZON, At, parse_position
from kinesis_trident.tracker import clipping
from kinesis_trident.tracker.clipping import clip, size_of
from kinesis_trident.tracker.packing import pack
from kinesis_trident.tracker.records import Noted, RecordPosition, Run
from kinesis_trident.tracker.runs import full, lean

NOW = 1_700_000_000_000
BEFORE = 49590338271490256608559692538361571095921575989136588898


def failed(count: int, seed: int = 1, due: int = NOW, every: int = 1) -> tuple[Run, ...]:
    """Runs of one record each, numbered as Kinesis does, with a reason each."""
    rng, sequence, runs = random.Random(seed), BEFORE, []
    for number in range(count):
        prev = sequence
        sequence += rng.randrange(1, 10**27)
        failures = (Noted(NOW - 1, f"ValueError: {number}".ljust(200, ".")),)
        runs.append(
            Run(
                str(sequence),
                str(sequence),
                1,
                str(prev),
                1,
                due if number % every == 0 else NOW + 1,
                failures,
            )
        )
    return tuple(runs)


def shard(*waiting: Run, dead: tuple[Run, ...] = ()) -> ShardState:
    return ShardState(
        TRIM_HORIZON,
        CheckpointNode(checkpoint=str(BEFORE), txid=3, position=f"AFTER_SEQUENCE_NUMBER {10**56}"),
        InflightNode(txid=3, waiting=waiting, dead=dead),
    )


def planned(states: dict[str, ShardState], txid: int = 4, max_turn: int = 0):  # type: ignore[no-untyped-def]
    plan = make_plan(
        txid=txid,
        plan="p" * 32,
        streams={"orders": 1},
        states=states,
        read=states,
        now=NOW,
        max_records=None,
        max_turn=max_turn,
    )
    assert plan is not None
    return plan


@pytest.mark.parametrize(("shards", "runs"), [(1, 50_000), (10, 1_000), (300, 200), (300, 1)])
@pytest.mark.parametrize("every", [1, 2])
def test_an_offset_is_bounded_whatever_fails(shards: int, runs: int, every: int) -> None:
    states = {f"shardId-{i:012d}": shard(*failed(runs, i, every=every)) for i in range(shards)}
    plan = planned(states)
    text = json.dumps(offset_from_plan(plan))
    # Positions, of which there is one a shard at least, are beside.
    assert len(text) <= due_bytes(shards) + waiting_bytes(shards) + 400 * shards + 1024
    assert len(text) <= 256 * 1024
    assert "ValueError" not in text
    # Something of every shard that has something due comes with it, as far as that fits at all.
    assert len(plan.retries) == shards
    assert len(json.dumps(offset_from_plan(make_starting_plan(3, {"orders": 1}, states)))) <= 256 * 1024


def test_what_is_not_named_is_read_again_from_its_first_record() -> None:
    runs = failed(5_000, due=NOW + 1)
    states = {
        "a": shard(*runs),
        "b": shard(*failed(3, 3, due=NOW + 1)),
        "c": shard(*runs[1:], dead=(runs[0],)),
    }
    plan = planned(states)
    assert set(plan.notDone) == {"b"}
    assert set(plan.resume) == {"a", "c"}
    for name in ("a", "c"):
        resume = parse_position(plan.resume[name])
        assert isinstance(resume, At)
        assert resume.record == runs[0].last_position


def test_a_shard_has_no_more_runs_than_its_bound_within_one_turn_either() -> None:
    room = 100_000
    assert planned({"a": shard()}, max_turn=room).room == {}
    some = shard(*failed(RUNS_A_SHARD - 10, due=NOW + 1))
    plan = planned({"a": some, "b": shard()}, max_turn=room)
    # Every second one can fail, and be a run of its own.
    assert plan.room == {"a": 20}
    full = shard(*failed(RUNS_A_SHARD, due=NOW + 1))
    assert planned({"a": full, "b": shard()}, max_turn=room).read == ("b",)


@given(
    st.dictionaries(st.integers(0, 30), st.integers(0, 40), max_size=30),
    st.integers(200, 20_000),
    st.integers(1, 10**6),
)
def test_what_fits_is_the_first_of_each_and_no_list_is_left_out_for_ever(
    lists: dict[int, int], most: int, turn: int
) -> None:
    runs = {key: failed(count, key) for key, count in lists.items()}
    for key, some in clip(runs, most, turn).items():
        assert [run.last for run in some] == [run.last for run in runs[key][: len(some)]]
        assert all(run.first and run.failures == () for run in some)
    wanted = {key for key, some in runs.items() if some}
    seen: set[int] = set()
    for number in range(2 * len(wanted)):
        seen |= clip(runs, most, turn + number).keys()
    assert seen == wanted


def test_few_of_thousands_of_runs_are_packed_to_learn_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []

    def pack_and_note(runs: tuple[Run, ...]) -> str:
        packed.append(len(runs))
        return pack(runs)

    monkeypatch.setattr(clipping, "pack", pack_and_note)
    runs = {key: failed(900, key) for key in range(10)}
    assert clip(runs, STORED_BYTES, 1) == {key: lean(some) for key, some in runs.items()}
    assert sum(packed) < 900
    packed.clear()
    kept = clip(runs, 32 * 1024, 1)
    assert 0.8 * 32 * 1024 < sum(map(size_of, kept.values())) <= 32 * 1024
    assert sum(packed) < 5 * sum(map(len, kept.values()))


def test_runs_that_grow_longer_behind_the_first_ones_are_bounded_too() -> None:
    long = tuple(
        Run(str(last), str(last), 10**9, attempt=4, due=NOW)
        for last in range(10**128, 10**128 + 10**7, 10**4)
    )
    some = failed(100)
    assert sum(map(size_of, clip({"a": (*some, *long)}, 16 * 1024, 1).values())) <= 17 * 1024


def test_exhausted_runs_are_given_their_reasons_back() -> None:
    dead = failed(3)
    plan = planned({"a": shard(dead=dead)})
    assert not any(run.failures for run in plan.dead["a"])
    again = full(plan.dead["a"], dead)
    assert [run.failures for run in again] == [run.failures for run in dead]
    assert full(plan.dead["a"], ()) == plan.dead["a"]
    assert RecordPosition.parse(again[0].last) == dead[0].last_position
