"""Frames in this process: computed anew for each action unless they are kept; they do all that Spark's are asked."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from kinesis_trident.bolt.steps.schemas import parse_schema
from kinesis_trident.bolt.storm import frames
from kinesis_trident.bolt.testing.by_reference import ByReference
from kinesis_trident.bolt.testing.local_frames import LocalFrame, LocalSession
from kinesis_trident.bolt.tracking.place import current_place
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.trident.run import frames as trident_frames
from kinesis_trident.trident.testing import run_trident  # noqa: F401

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = parse_schema("n bigint, text string")


class Calls(ByReference):
    """The work of a task, wherever its operator was copied to."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []


class Tag:
    """An operator that counts its calls in itself, too."""

    def __init__(self, calls: Calls) -> None:
        self.calls, self.own = calls, 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.own += 1
        place = current_place()
        self.calls.places.append((place.stage, place.partition))
        for batch in batches:
            texts = [f"{text}{self.own}" for text in batch.column("text").to_pylist()]
            yield pa.RecordBatch.from_pydict({"text": texts, "n": batch.column("n").cast(pa.int32())})


def frame(*parts: list[tuple[int, str]]) -> LocalFrame:
    kind = arrow_schema(SCHEMA)
    made = [
        [pa.RecordBatch.from_pylist([{"n": n, "text": text} for n, text in part], kind)] for part in parts
    ]
    return LocalSession().frame(SCHEMA, made)


def rows(found: LocalFrame) -> list[list[tuple[object, ...]]]:
    return [
        [tuple(row.values()) for batch in part for row in batch.to_pylist()] for part in found.partitions()
    ]


def test_an_operator_runs_in_each_partition_anew_for_each_action() -> None:
    calls = Calls()
    operator = Tag(calls)
    mapped = frame([(1, "a"), (2, "b")], [(3, "c")]).mapInArrow(operator, SCHEMA)
    assert rows(mapped) == [[(1, "a1"), (2, "b1")], [(3, "c1")]]
    # Every task has its own copy, columns are found by name, and types are those of the schema.
    assert (operator.own, calls.places) == (0, [(1, 0), (1, 1)])
    mapped.write.format("noop").mode("overwrite").save()
    assert calls.places[2:] == [(2, 0), (2, 1)]
    mapped.persist()
    assert [rows(mapped), rows(mapped)] == [rows(mapped)] * 2
    assert len(calls.places) == 6
    mapped.unpersist()
    held = mapped.localCheckpoint()
    assert rows(held) == rows(held)
    assert held.collect() == [(1, "a1"), (2, "b1"), (3, "c1")]
    assert (held.isEmpty(), frame([]).isEmpty()) == (False, True)
    assert len(calls.places) == 8
    assert current_place() == (0, 0, None)


def test_rows_move_and_unite() -> None:
    one, other = frame([(1, "a"), (2, "b")], [(3, "a")]), frame([(4, "b")])
    assert rows(one.union(other)) == [[(1, "a"), (2, "b")], [(3, "a")], [(4, "b")]]
    assert one.union(other).rdd.getNumPartitions() == 3
    assert rows(one.select("text").unionByName(other, allowMissingColumns=True)) == [
        [("a", None), ("b", None)],
        [("a", None)],
        [("b", 4)],
    ]
    moved = rows(one.union(other).repartition(5, "text"))
    assert sorted(part for part in moved if part) == [[(1, "a"), (3, "a")], [(2, "b"), (4, "b")]]
    assert rows(one.repartition(2)) == [[(1, "a"), (3, "a")], [(2, "b")]]
    assert rows(one.repartitionById(4, "n")) == [[], [(1, "a")], [(2, "b")], [(3, "a")]]
    assert rows(one.withColumnRenamed("n", "m").drop("text")) == [[(1,), (2,)], [(3,)]]


def test_rows_move_after_a_union_by_name_also_with_lists_whose_elements_are_never_null() -> None:
    schema = StructType([StructField("of", ArrayType(LongType(), containsNull=False))])
    batch = pa.RecordBatch.from_pylist([{"of": [1, 2]}, {"of": None}], arrow_schema(schema))
    lists = LocalSession().frame(schema, [[batch]])
    united = lists.unionByName(frame([(3, "c")]), allowMissingColumns=True).repartition(1)
    assert rows(united) == [[([1, 2], None, None), (None, None, None), (None, 3, "c")]]


@pytest.mark.parametrize("module", [frames, trident_frames], ids=["bolts", "trident"])
def test_all_that_needs_sparks_columns_is_registered_for_local_frames(module: ModuleType) -> None:
    """Else a topology that uses it could not be run without Spark."""
    dispatched = {
        name
        for name, value in vars(module).items()
        if hasattr(value, "registry") and value.__module__ == module.__name__
    }
    assert len(dispatched) >= 2
    assert {name for name in dispatched if LocalFrame not in getattr(module, name).registry} == set()


def test_nothing_else_of_topologies_computes_columns() -> None:
    found = []
    for path in [*(ROOT / "bolt").rglob("*.py"), *(ROOT / "trident").rglob("*.py")]:
        text = path.read_text()
        # Only what says so is parsed, which takes a hundred times as long as reading.
        for node in ast.walk(ast.parse(text)) if "from pyspark.sql import" in text else ():
            if isinstance(node, ast.ImportFrom) and node.module == "pyspark.sql":
                found += [str(path.relative_to(ROOT)) for one in node.names if one.name == "functions"]
    # `partitions` does so only with Spark 4.0. The others handle whole batches in the driver, or spouts that are
    # DataFrames. The shared aggregation splits what one pass made for several consumers: where tuples are recorded,
    # there is no such pass.
    assert sorted(found) == [
        "bolt/foreach_batch.py",
        "bolt/outcomes.py",
        "bolt/partitions.py",
        "bolt/reliable.py",
        "bolt/storm/frames.py",
        "bolt/storm/other_spouts.py",
        "trident/run/frames.py",
        "trident/run/shared_partials.py",
    ]
