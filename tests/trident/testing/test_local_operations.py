"""Test that each operation on frames in this process gives what it gives in Spark, with columns in any order."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, cast

import pyarrow as pa
from drawn_topologies import plain
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from kinesis_trident.bolt.moves import Grouping, Move
from kinesis_trident.bolt.steps.schemas import parse_schema
from kinesis_trident.bolt.storm import frames as storm
from kinesis_trident.bolt.testing.local_frames import LocalFrame, LocalSession
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.testing import run_topology
from kinesis_trident.trident import CombinerAggregator, Count, Max, Min, Sum
from kinesis_trident.trident.build.merge_and_join import join_node
from kinesis_trident.trident.build.nodes import AggregateNode, SpoutNode
from kinesis_trident.trident.run import frames as trident
from kinesis_trident.trident.run.frames import aggregate_in_spark, join_frames

assert run_topology  # Registers what frames of this process do.

FIELDS = parse_schema(
    "k string, n int, x double, xs array<int>, at timestamp, inner struct<u:int,v:string>, __stream int"
)
OTHERS = parse_schema(
    "k string, n bigint, x double, xs array<int>, m map<string,int>, inner struct<u:int,v:string>"
)
NAN = float("nan")
NOON = dt.datetime(2024, 5, 6, 12, tzinfo=dt.UTC)
ROWS: list[tuple[Any, ...]] = [
    ("a", 1, 1.5, [1], NOON, (1, "x"), 0),
    ("a", 2, NAN, [1, None], NOON.replace(year=1960), (1, "x"), 1),
    ("b", None, -0.0, [], None, None, 0),
    (None, 3, 0.0, None, NOON, (None, "y"), 1),
    ("b", 1, NAN, [2], NOON, (2, None), 0),
    ("c", 1, None, [1], NOON, (1, "w"), 0),
]
RIGHT: list[tuple[Any, ...]] = [
    ("a", 1, 0.0, [1], {"p": 1}, (1, "x")),
    ("b", None, NAN, [1, None], {}, (None, "y")),
    (None, 3, 1.5, [], None, None),
    ("a", 7, -0.0, None, {"q": None}, (1, "x")),
]

Make = Callable[[Any, Any], Any]


def joined(on: str, how: str) -> Make:
    new = [f"f{number}" for number in range(len(FIELDS) + len(OTHERS) - len(on.split(",")))]
    return lambda left, right: join_frames(left, right, join_node(NODES[0], on, NODES[1], on, new, how))


def aggregated(aggregator: CombinerAggregator, read: str, *keys: str) -> Make:
    kind = aggregator.result(StructType([FIELDS[read]]))
    assert kind is not None
    added = StructType([StructField("value", kind)])
    node = AggregateNode("aggregate", added, (), Move.of_groups(keys), (read,), aggregator, added)
    return lambda frame, _: aggregate_in_spark(frame, node)


def of_tasks(change: Callable[[Any], Any]) -> Make:
    return lambda frame, _: change(frame)


NODES = [SpoutNode("table", fields, (), "table", None, None) for fields in (FIELDS, OTHERS)]

OPERATIONS: Mapping[str, Make] = {
    "add_scheme": of_tasks(lambda frame: storm.add_scheme(frame, {})),
    "add_no_anchors": of_tasks(storm.add_no_anchors),
    "add_component": of_tasks(lambda frame: storm.add_component(frame, "one")),
    "select_as": of_tasks(lambda frame: storm.select_as(frame, {"x": "y", "k": "z", "n": "k"})),
    "rows_of_stream": of_tasks(lambda frame: storm.rows_of_stream(frame, 1)),
    "add_hashes": of_tasks(lambda frame: storm.add_hashes(frame, {"one": None, "two": 7}, ["n", "k"], 5)),
    "add_hashes without keys": of_tasks(lambda frame: storm.add_hashes(frame, {"one": None}, [], 5)),
    "add_partitions": of_tasks(lambda frame: storm.add_partitions(frame.repartition(1), 3)),
    "add_tick_rows": of_tasks(lambda frame: storm.add_tick_rows(frame, 2, tracked=True)),
    "copy_to_all": of_tasks(lambda frame: storm.copy_to_all(frame, 3)),
    "without_columns": of_tasks(storm.without_columns),
    "broadcast": of_tasks(lambda frame: trident.repartition(frame, Move(Grouping.ALL), 3)),
    "repartition": of_tasks(lambda frame: trident.repartition(frame, Move(Grouping.FIELDS, ("x", "k")), 3)),
    "move_by_key": of_tasks(lambda frame: trident.move_by_key(frame, ["xs"], 4)),
    "union": lambda frame, other: frame.select("k", "x").union(other.select("k", "x")),
    "unionByName": lambda frame, other: frame.drop("n").unionByName(
        other.drop("n", "m"), allowMissingColumns=True
    ),
    "withColumnRenamed": of_tasks(lambda frame: frame.withColumnRenamed("x", "y")),
    **{f"join on k, {how}": joined("k", how) for how in ("inner", "left", "right", "full")},
    **{f"join on {on}": joined(on, "full") for on in ("x,k", "xs", "n", "inner")},
    **{
        f"aggregate {type(one).__name__} {read} by {','.join(keys)}": aggregated(one, read, *keys)
        for one, of in ((Count(), "k"), (Sum(), "n x"), (Min(), "n x k at inner"), (Max(), "n x k at inner"))
        for read in of.split()
        for keys in ((), ("k",), ("x", "xs"))
        if read not in keys
    },
}


def frames_of(session: Any, reverse: bool) -> tuple[Any, Any]:
    """Return both tables in a session of Spark, or of this process."""
    made = []
    for rows, fields in ((ROWS, FIELDS), (RIGHT, OTHERS)):
        names = sorted(fields.names, reverse=reverse)
        if isinstance(session, LocalSession):
            plain_rows = [
                {
                    name: dict(zip("uv", one, strict=True)) if name == "inner" and one else one
                    for name, one in zip(fields.names, row, strict=True)
                }
                for row in rows
            ]
            batch = pa.RecordBatch.from_pylist(plain_rows, arrow_schema(fields))
            frame: Any = session.frame(fields, [[batch.slice(0, 2)], [batch.slice(2)]])
        else:
            frame = session.createDataFrame(rows, fields).repartition(2)
        made.append(frame.select(*names))
    return made[0], made[1]


def test_operations_of_frames_give_what_they_give_in_spark(spark: SparkSession) -> None:
    there = frames_of(spark, reverse=False)
    for name, make in OPERATIONS.items():
        expected = make(*there)
        rows = rows_of(expected)
        for reverse in (False, True):
            found = make(*frames_of(LocalSession(), reverse))
            columns = make(*frames_of(spark, reverse=True)).columns if reverse else expected.columns
            assert found.columns == columns, name
            assert {one.name: one.dataType for one in found.schema} == {
                one.name: one.dataType for one in expected.schema
            }, name
            assert rows_of(found) == rows, name


def rows_of(frame: Any) -> Counter[str]:
    """Return the rows of a frame, each by the names of its columns."""
    return Counter(plain(dict(sorted(row.items()))) for row in frame.toArrow().to_pylist())


def test_moves_bring_rows_where_spark_brings_them(spark: SparkSession) -> None:
    here, there = (frames_of(session, False)[0] for session in (LocalSession(), spark))
    for keys in (["k"], ["x", "n"], ["at"], ["xs", "inner"]):
        found = trident.move_by_key(here, keys, 5).partitions()
        expected = cast(Any, trident.move_by_key(there, keys, 5)).rdd.glom().collect()
        assert [
            Counter(plain(row["k"]) for batch in part for row in batch.to_pylist()) for part in found
        ] == [Counter(plain(row["k"]) for row in part) for part in expected]


def test_each_operation_that_frames_of_this_process_do_is_compared() -> None:
    done = {
        one.__wrapped__.__name__
        for module in (storm, trident)
        for one in vars(module).values()
        if LocalFrame in getattr(one, "registry", {})
    }
    named = {name.partition(" ")[0] for name in OPERATIONS}
    assert done <= named | {"aggregate_in_spark", "join_frames"}
    assert {"copy_to_all", "add_tick_rows", "join_frames"} <= done
