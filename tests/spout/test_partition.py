"""How the turns of a batch are cut into tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kinesis_trident.spout.partition import ShardTurn, tasks_for

COUNTS = st.one_of(st.none(), st.integers(1, 50))


def turns(count: int) -> list[ShardTurn]:
    return [ShardTurn(f"shardId-{number:012}", number, "TRIM_HORIZON", read=True) for number in range(count)]


def test_forty_shards_keep_two_cores_busy_to_the_end() -> None:
    parts = tasks_for(turns(40), None, None)
    assert [len(part) for part in parts] == [5] * 8


def test_few_shards_have_a_task_each_and_thousands_five_a_task() -> None:
    assert [len(part) for part in tasks_for(turns(8), None, None)] == [1] * 8
    assert {len(part) for part in tasks_for(turns(10_000), None, None)} == {5}


@given(st.integers(0, 300), COUNTS, COUNTS)
def test_every_turn_is_in_one_task_and_tasks_are_even(
    count: int, shards_per_task: int | None, max_partitions: int | None
) -> None:
    every = turns(count)
    parts = tasks_for(every, shards_per_task, max_partitions)
    assert sorted((turn for part in parts for turn in part), key=lambda turn: turn.index) == every
    sizes = {len(part) for part in parts}
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert len(parts) <= (max_partitions or count)
    if shards_per_task is not None and max_partitions is None:
        assert max(sizes, default=0) <= shards_per_task
