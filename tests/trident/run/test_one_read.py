"""However many branches and states a stream has: its batch is read once, and a function is called once a tuple."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from batch_in_hand import EACH, SHARDS, batch_in_hand
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from samples_topology import a_stream, graph_of
from thorough import cases

from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.trident import (
    Count,
    MapState,
    Snapshottable,
    StateFactory,
    StateType,
    Sum,
    TridentTuple,
    ValueUpdater,
)
from kinesis_trident.trident.build.nodes import SpoutNode
from kinesis_trident.trident.run.batches import TopologyAttempts
from kinesis_trident.trident.state import Key
from kinesis_trident.trident.stores import MemoryMapState
from kinesis_trident.trident.stream import Stream

cloudpickle.register_pickle_by_value(sys.modules[__name__])

RECORDS = EACH * len(SHARDS)


class Tally:
    """Counts over all processes: a byte is added to a file for each call or row."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, count: int = 1) -> None:
        with self.path.open("ab") as file:
            file.write(b"." * count)

    @property
    def count(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


class Reads:
    """Counts the rows that are read of the source."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.tally(batch.num_rows)
            yield batch


class Parse:
    """Gives the number of a record, and its rest; fails the numbers that are bad."""

    def __init__(self, calls: Tally, *bad: int) -> None:
        self.calls, self.bad = calls, bad

    def __call__(self, tup: TridentTuple) -> list[Any]:
        self.calls()
        number, _, rest = bytes(tup["data"]).decode().split()
        if int(number) in self.bad:
            raise ValueError(number)
        return [int(number), rest]


class InFolder(StateFactory):
    """A state in the executors: each partition writes what it gets to a file."""

    kind = StateType.OPAQUE

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> InFile:
        assert partition_index < num_partitions
        return InFile(self.folder / str(partition_index))

    @property
    def found(self) -> list[tuple[Any, int]]:
        """All keys, each as often as it was updated, with what was added."""
        texts = [path.read_text() for path in self.folder.iterdir()]
        return sorted(
            (tuple(key), added) for text in texts for key, added in map(json.loads, text.splitlines())
        )


class InFile(MapState[int], Snapshottable[int]):
    def __init__(self, path: Path) -> None:
        self.path = path

    def begin_commit(self, txid: int | None) -> None:
        assert not self.path.exists()

    def commit(self, txid: int | None) -> None:
        return

    def multi_get(self, keys: Sequence[Key]) -> list[int | None]:
        raise NotImplementedError

    def multi_put(self, keys: Sequence[Key], values: Sequence[int | None]) -> None:
        raise NotImplementedError

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[int]]) -> list[int | None]:
        added = [one.update(None) for one in updaters]
        with self.path.open("a") as file:
            file.writelines(json.dumps([list(key), one]) + "\n" for key, one in zip(keys, added, strict=True))
        return list(added)

    def get(self) -> int | None:
        raise NotImplementedError

    def set(self, value: int | None) -> None:
        raise NotImplementedError

    def update(self, updater: ValueUpdater[int]) -> int | None:
        return self.multi_update([()], [updater])[0]


class Counted(NamedTuple):
    """A state that counts the records of each value of a field; those of some numbers."""

    key: str
    state: MemoryMapState
    of: Callable[[int], bool]


def counted(
    stream: Stream, key: str, states: list[Counted], of: Callable[[int], bool] = lambda number: True
) -> None:
    states.append(Counted(key, MemoryMapState.opaque(f"{key} {len(states)}"), of))
    stream.group_by([key]).persistent_aggregate(states[-1].state, Count(), ["n"])


def four_states(stream: Stream, parse: Parse, states: list[Counted]) -> None:
    parsed = stream.map(parse, "number long, rest string")
    for key in ("number", "rest", "rest", "number"):
        counted(parsed, key, states)


def branches(stream: Stream, parse: Parse, states: list[Counted]) -> None:
    """Two branches that come together again, and a state beside them."""
    parsed = stream.map(parse, "number long, rest string")
    odd = parsed.filter(lambda tup: tup["number"] % 2 == 1)
    even = parsed.filter(lambda tup: tup["number"] % 2 == 0)
    both = odd.merge(even)
    counted(both, "number", states)
    counted(both, "rest", states)
    counted(odd, "number", states, lambda number: number % 2 == 1)


def moved(stream: Stream, parse: Parse, states: list[Counted]) -> None:
    """A grouping before several consumers, and a state on the spout itself."""
    spread = stream.map(parse, "number long, rest string").partition_by(["rest"])
    counted(spread, "rest", states)
    counted(spread.filter(lambda tup: tup["number"] > 0), "number", states)
    counted(stream, "shardId", states)


def after_transform(stream: Stream, parse: Parse, states: list[Counted]) -> None:
    """Several consumers of what plain DataFrame code made."""
    made = stream.transform(lambda rows: rows.select("data"))
    parsed = made.map(parse, "number long, rest string")
    counted(parsed, "number", states)
    counted(parsed, "rest", states)


def values(state: MemoryMapState, keys: list[Any]) -> dict[Any, Any]:
    found = state.make_state({}, 0, 1).multi_get([[key] for key in keys])
    return {key: value for key, value in zip(keys, found, strict=True) if value is not None}


NUMBERS, RESTS = list(range(1, EACH + 1)), ["0", "1", "2", "3"]


@pytest.mark.parametrize("tracking", cases(True, long=(False,)), ids=["tracked", "untracked"])
@pytest.mark.parametrize("shape", [four_states, branches, moved, after_transform])
def test_a_batch_is_read_once_and_a_function_called_once_a_tuple(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    app: str,
    tmp_path: Path,
    shape: Callable[[Stream, Parse, list[Counted]], None],
    *,
    tracking: bool,
) -> None:
    reads, calls = Tally(tmp_path / "reads"), Tally(tmp_path / "calls")
    with batch_in_hand(spark, zookeeper.hosts, app) as (rows, batch):
        states = run(rows, batch, shape, Reads(reads), Parse(calls), tracking=tracking)
    assert (reads.count, calls.count) == (RECORDS, RECORDS)
    check(states, Counter(NUMBERS * len(SHARDS)))


@pytest.mark.parametrize("shape", cases(branches, long=(four_states, moved)))
def test_what_fails_is_in_no_state(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    app: str,
    tmp_path: Path,
    shape: Callable[[Stream, Parse, list[Counted]], None],
) -> None:
    reads, parse = Reads(Tally(tmp_path / "reads")), Parse(Tally(tmp_path / "calls"), 3, 8)
    with batch_in_hand(spark, zookeeper.hosts, app) as (rows, batch):
        states = run(rows, batch, shape, reads, parse, tracking=True)
    check(states, Counter([n for n in NUMBERS if n not in (3, 8)] * len(SHARDS)))
    assert batch.verdict is not None
    assert {shard: [piece.first for piece in pieces] for shard, pieces in batch.verdict.not_done.items()} == {
        key: ["3", "8"] for key in SHARDS
    }


def test_one_pass_for_states_of_different_partitions(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path
) -> None:
    """A count over three partitions, a sum over one, one of all tuples, and an aggregation whose result is counted."""
    calls = Tally(tmp_path / "calls")
    states = [InFolder(tmp_path / str(i)) for i in range(4)]

    def shape(stream: Stream, parse: Parse, _: list[Counted]) -> None:
        parsed = stream.map(parse, "number long, rest string")
        by_number, by_rest = parsed.group_by(["number"]), parsed.group_by(["rest"])
        by_number.persistent_aggregate(states[0], Count(), ["n"]).parallelism_hint(3)
        by_rest.persistent_aggregate(states[1], Sum(), ["n"], inputs=["number"]).parallelism_hint(1)
        parsed.persistent_aggregate(states[2], Count(), ["n"])
        sums = by_rest.aggregate(Sum(), ["sum"], inputs=["number"])
        sums.group_by(["rest", "sum"]).persistent_aggregate(states[3], Count(), ["n"])

    with batch_in_hand(spark, zookeeper.hosts, app) as (rows, batch):
        run(rows, batch, shape, Reads(Tally(tmp_path / "reads")), Parse(calls), tracking=True)
        noted = batch.applied_to_states()
    assert calls.count == RECORDS
    sums = {rest: sum(n for n in NUMBERS if n % 4 == int(rest)) * len(SHARDS) for rest in RESTS}
    assert states[0].found == [((number,), len(SHARDS)) for number in NUMBERS]
    assert states[1].found == [((rest,), sums[rest]) for rest in RESTS]
    assert states[2].found == [((), RECORDS)]
    assert states[3].found == [((rest, sums[rest]), 1) for rest in RESTS]
    assert noted == {
        "persistent_aggregate(Count) by number": 7,
        "persistent_aggregate(Sum) by rest": 7,
        "persistent_aggregate(Count)": 7,
        "persistent_aggregate(Count) by rest,sum": 7,
    }


def run(
    rows: DataFrame,
    batch: CurrentBatch,
    shape: Callable[[Stream, Parse, list[Counted]], None],
    reads: Reads,
    parse: Parse,
    *,
    tracking: bool,
) -> list[Counted]:
    states: list[Counted] = []
    stream = a_stream(rows=rows, tracking=tracking)
    spout = stream.node
    assert isinstance(spout, SpoutNode)
    shape(stream, parse, states)
    assert spout.options is not None
    handler = BatchHandler(spout.options, lambda *_: None, 0)
    TopologyAttempts(spout, graph_of(stream), 2)(rows.mapInArrow(reads, rows.schema), batch, handler)
    return states


def check(states: list[Counted], numbers: Counter[int]) -> None:
    assert states
    for key, state, of in states:
        here = {number: count for number, count in numbers.items() if of(number)}
        if key == "number":
            assert values(state, NUMBERS) == here
        elif key == "rest":
            found = {rest: sum(n for k, n in here.items() if k % 4 == int(rest)) for rest in RESTS}
            assert values(state, RESTS) == found
        else:
            assert sum(values(state, list(SHARDS)).values()) == sum(here.values())
