"""Test how the turns of a batch are cut into tasks."""

from __future__ import annotations

import io
import pickle
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st
from pyspark.sql.datasource import InputPartition

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.spout.errors import ProtocolMismatchError
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.partition import (
    PROTOCOL,
    Amount,
    ShardTurn,
    TurnsPartition,
    count_enough_tasks,
    count_side_by_side,
    tasks_for,
    tasks_of,
)
from kinesis_trident.spout.reader.task import read_turns
from kinesis_trident.spout.source import KinesisTridentReader

COUNTS = st.one_of(st.none(), st.integers(1, 50))
AMOUNTS = st.one_of(st.none(), st.builds(Amount, st.integers(0, 10**6), st.integers(0, 10**9)))


def turns(count: int) -> list[ShardTurn]:
    return [ShardTurn(f"shardId-{number:012}", number, "TRIM_HORIZON", read=True) for number in range(count)]


def test_forty_shards_keep_two_cores_busy_to_the_end() -> None:
    parts = tasks_for(turns(40), None, None)
    assert [len(part) for part in parts] == [5] * 8


def test_few_shards_have_a_task_each_and_thousands_five_a_task() -> None:
    assert [len(part) for part in tasks_for(turns(8), None, None)] == [1] * 8
    assert {len(part) for part in tasks_for(turns(10_000), None, None)} == {5}


def test_few_records_have_one_task_and_many_a_task_a_shard() -> None:
    options = SourceOptions()
    for records, size, tasks in (
        (4_000, 800_000, 1),
        (0, 0, 1),
        (11_000, 0, 3),
        (10, 2**40, 4),
        (10**6, 0, 4),
    ):
        enough = count_enough_tasks(4, Amount(records, size), options)
        assert len(tasks_for(turns(4), None, None, enough)) == tasks


def test_a_task_of_few_records_reads_all_its_shards_at_once() -> None:
    enough = count_enough_tasks(20, Amount(20, 20), SourceOptions())
    assert [len(part) for part in tasks_for(turns(20), None, None, enough)] == [7, 7, 6]


def test_who_sets_the_number_of_shards_gets_it_however_few_the_records() -> None:
    assert count_enough_tasks(4, Amount(1, 1), SourceOptions(shards_per_task=1)) is None
    assert len(tasks_for(turns(4), 1, None, 1)) == 4
    assert len(tasks_for(turns(4), None, 2, 4)) == 2


@given(st.integers(0, 300), COUNTS, COUNTS, AMOUNTS)
def test_every_turn_is_in_one_task_and_tasks_are_even(
    count: int, shards_per_task: int | None, max_partitions: int | None, expected: Amount | None
) -> None:
    every = turns(count)
    options = SourceOptions(shards_per_task=shards_per_task)
    parts = tasks_for(every, shards_per_task, max_partitions, count_enough_tasks(count, expected, options))
    assert sorted((turn for part in parts for turn in part), key=lambda turn: turn.index) == every
    sizes = {len(part) for part in parts}
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert len(parts) <= (max_partitions or count)
    if shards_per_task is not None and max_partitions is None:
        assert max(sizes, default=0) <= shards_per_task
    # Never more tasks than without an expectation, and none that holds more shards than it can read at once.
    assert len(parts) <= len(tasks_for(every, shards_per_task, max_partitions))
    if shards_per_task is None and max_partitions is None:
        assert max(sizes, default=0) <= count_side_by_side(options)


class PartitionOf100(InputPartition):
    """What an executor with release 1.0.0 makes of a partition: it has no `__setstate__`."""


class UnpicklerOf100(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        assert (module, name) == (TurnsPartition.__module__, "TurnsPartition"), (
            f"1.0.0 may have no {module}.{name}"
        )
        return PartitionOf100


def test_an_executor_with_another_release_sees_the_version_and_needs_nothing_else_of_this_one() -> None:
    batch = TurnsPartition(
        options=SourceOptions(),
        layout=Layout("/", "app", "orders", 1),
        txid=7,
        plan="p",
        epoch=3,
        replay=False,
        deaggregate=True,
    )
    (part,) = tasks_of(batch, turns(1), None)
    again = pickle.loads(pickle.dumps(part))
    assert (again.protocol, again.txid, again.turns) == (PROTOCOL, 7, part.turns)
    assert cast(Any, UnpicklerOf100(io.BytesIO(pickle.dumps(part))).load()).protocol == PROTOCOL
    assert KinesisTridentReader(SourceOptions()).__getstate__() == {}
    for other in ({"protocol": 9, "turns": ()}, {"protocol": PROTOCOL + 1, "content": b"of another release"}):
        part.__setstate__(other)
        with pytest.raises(
            ProtocolMismatchError, match=f"version {PROTOCOL} of .* the driver version {other['protocol']}"
        ):
            next(read_turns(part, first_attempt=True))
