"""Several states that are updated from one node's groups: one plan, but one state after the other, each complete."""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from batch_in_hand import batch_in_hand
from pyspark import cloudpickle
from pyspark.errors.exceptions.captured import PythonException
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import StructType
from samples_topology import a_stream, graph_of
from thorough import cases

from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.trident import (
    CombinerAggregator,
    Count,
    FailedException,
    MapState,
    SqlState,
    StateFactory,
    StateType,
    ValueUpdater,
)
from kinesis_trident.trident.build.nodes import SpoutNode
from kinesis_trident.trident.run.arrow_aggregation import Partials
from kinesis_trident.trident.run.attempt import SharedUpdates
from kinesis_trident.trident.run.batches import TopologyAttempts
from kinesis_trident.trident.run.frames import move_by_key
from kinesis_trident.trident.run.shared_partials import SharedPartials
from kinesis_trident.trident.state import Key
from kinesis_trident.trident.stream import Stream

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Logged(StateFactory):
    """A state that writes to a log, common to several, when it begins and ends in a partition."""

    kind = StateType.OPAQUE

    def __init__(self, log: Path, name: str, *, fails: bool = False) -> None:
        self.log, self.name, self.fails = log, name, fails

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> LoggedState:
        return LoggedState(self, f"{partition_index}/{num_partitions}")


class LoggedState(MapState[int]):
    def __init__(self, factory: Logged, place: str) -> None:
        self.factory, self.place = factory, place

    def note(self, what: str) -> None:
        with self.factory.log.open("a") as log:
            log.write(f"{self.factory.name} {what} {self.place}\n")

    def begin_commit(self, txid: int | None) -> None:
        self.note("begins")

    def commit(self, txid: int | None) -> None:
        if self.factory.fails:
            raise FailedException("not now")
        self.note("ends")

    def multi_get(self, keys: Sequence[Key]) -> list[int | None]:
        raise NotImplementedError

    def multi_put(self, keys: Sequence[Key], values: Sequence[int | None]) -> None:
        raise NotImplementedError

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[int]]) -> list[int | None]:
        return [one.update(None) for one in updaters]


class Longest(CombinerAggregator):
    """A combiner that Spark does not have."""

    def init(self, tup: Any) -> str:
        return str(tup[0])

    def combine(self, left: str, right: str) -> str:
        return max(left, right, key=len)

    def zero(self) -> str:
        return ""


def attempted(rows: DataFrame, batch: CurrentBatch, log: Path, failing: str = "") -> None:
    """Three counts by number over two partitions; between them, and in the middle, states of other kinds."""

    def state(name: str) -> Logged:
        return Logged(log, name, fails=name == failing)

    stream = a_stream(rows=rows)
    spout = stream.node
    assert isinstance(spout, SpoutNode)
    parsed = stream.map(lambda tup: bytes(tup["data"]).decode().split()[::2], "number string, rest string")

    def counted(name: str, of: Stream = parsed, partitions: int = 2) -> Stream:
        made = of.group_by(["number"]).persistent_aggregate(state(name), Count(), ["n"])
        return made.parallelism_hint(partitions).new_values_stream()

    counted("a")
    counted("b", stream.map(lambda tup: [bytes(tup["data"]).decode()], "number string"))
    counted("c", partitions=3)
    counted("d").project(["n"])
    counted("e")
    assert spout.options is not None
    handler = BatchHandler(spout.options, lambda *_: None, 0)
    TopologyAttempts(spout, graph_of(stream), 2)(rows, batch, handler)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


def test_states_are_updated_one_after_the_other(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, log: Path
) -> None:
    with batch_in_hand(spark, zookeeper.hosts, app) as (rows, batch):
        attempted(rows, batch, log)
    lines = [line.split() for line in log.read_text().splitlines()]
    # In the order of their declaration, a state in all of its partitions before the next in any.
    assert [name for name, what, _ in lines if what == "begins"] == [*"aabbcccddee"]
    assert [name for name, *_ in lines] == sorted(name for name, *_ in lines)
    ended = Counter((name, place) for name, what, place in lines if what == "ends")
    counts = {"a": 2, "b": 2, "c": 3, "d": 2, "e": 2}
    assert ended == Counter((name, f"{i}/{n}") for name, n in counts.items() for i in range(n))


def test_after_a_state_that_fails_no_other_is_touched(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, log: Path
) -> None:
    with (
        batch_in_hand(spark, zookeeper.hosts, app) as (rows, batch),
        pytest.raises(PythonException, match=r"BatchFailedError: .*not now"),
    ):
        attempted(rows, batch, log, failing="c")
    lines = [line.split() for line in log.read_text().splitlines()]
    assert {name for name, *_ in lines} == {*"abc"}
    assert {name for name, what, _ in lines if what == "ends"} == {*"ab"}


def test_states_of_the_same_groups_are_planned_together(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[SharedUpdates] = []
    planned = SharedUpdates.planned

    def noted(updates: SharedUpdates, frame: DataFrame) -> DataFrame:
        plans.append(updates)
        return planned(updates, frame)

    monkeypatch.setattr(SharedUpdates, "planned", noted)
    with batch_in_hand(spark, zookeeper.hosts, app) as (rows, batch):
        attempted(rows, batch, log)
    [plan] = plans
    # Not that whose new values are read, nor that of other tuples.
    assert [update.factory.name for update in plan.updates.values()] == [*"ace"]  # type: ignore[attr-defined]


FIELDS = StructType().add("k", "string").add("number", "long")
OWN = (
    Partials(("k",), None, "count", StructType().add("k", "string").add("n", "long")),
    Partials(
        ("number", "k"),
        "number",
        "sum",
        StructType().add("number", "long").add("k", "string").add("a `sum`", "long"),
    ),
    Partials((), "number", "sum", StructType().add("total", "long")),
)


@pytest.mark.parametrize("partitions", cases((3, 4, 1), (3, 0, 1), long=(((0, 5, 0),),)))
def test_groups_go_where_spark_moves_them_by_their_keys(
    spark: SparkSession, partitions: tuple[int, ...]
) -> None:
    shared = SharedPartials(OWN, partitions)
    assert len(shared.fields) == 4, "consumers share columns: a number, a text, and one more number"
    rows = spark.createDataFrame([(f"k{n % 7}" if n % 5 else None, n) for n in range(50)], FIELDS)
    groups = rows.mapInArrow(shared, shared.fields).localCheckpoint()
    moved = shared.move(groups)
    assert moved.rdd.getNumPartitions() == sum(partitions)
    assert [shared.consumer_of(n) for n in range(sum(partitions))] == [
        (i, n) for i, count in enumerate(partitions) for n in range(count)
    ]
    for i, (one, count) in enumerate(zip(OWN, partitions, strict=True)):
        alone = move_by_key(shared.of(groups, i), one.keys, count or 1)
        assert alone.columns == one.fields.names
        place = F.spark_partition_id()
        wanted = sorted(map(str, alone.withColumn("place", place).collect()))
        first = shared.partitions_of(i).start
        found = sorted(map(str, shared.of(moved, i).withColumn("place", place - first).collect()))
        assert wanted
        assert found == (wanted if count else [])


def test_a_replay_with_other_keys_writes_nothing(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path
) -> None:
    """Two states of the same groups, and one of its own; the numbers that the records hold change between two runs."""
    changed = tmp_path / "changed"
    counts, odd, others = (SqlState.opaque(f"sqlite:///{tmp_path}/{name}.db") for name in "abc")

    def attempts(rows: DataFrame) -> tuple[TopologyAttempts, BatchHandler]:
        stream = a_stream(rows=rows)
        spout = stream.node
        assert isinstance(spout, SpoutNode)

        def looked_up(tup: Any) -> list[str]:
            number = bytes(tup["data"]).decode().split()[0]
            return [f"x{number}" if changed.exists() else number]

        named = stream.map(looked_up, "number string")
        named.group_by(["number"]).persistent_aggregate(counts, Count(), ["n"])
        named.persistent_aggregate(odd, Count(), ["n"])
        stream.map(looked_up, "number string").group_by(["number"]).persistent_aggregate(
            others, Longest(), ["n string"]
        )
        assert spout.options is not None
        return TopologyAttempts(spout, graph_of(stream), 3), BatchHandler(spout.options, lambda *_: None, 0)

    def stored() -> list[list[tuple[Any, ...]]]:
        rows = "select key, value from kinesis_trident_state where key not like '[%' order by key"
        found = []
        for name in "abc":
            with closing(sqlite3.connect(tmp_path / f"{name}.db")) as file:
                found.append(file.execute(rows).fetchall())
        return found

    with batch_in_hand(spark, zookeeper.hosts, app) as (rows, batch):
        for _ in range(2):
            # The second is another run of the query.
            run, handler = attempts(rows)
            run(rows, batch, handler)
        before = stored()
        assert all(before)
        changed.touch()
        run, handler = attempts(rows)
        with pytest.raises(PythonException, match=r"ReplayDiffersError: .*the replay of batch"):
            run(rows, batch, handler)
    assert stored() == before
