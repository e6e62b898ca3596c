"""Rows of several streams in one frame: each stream gets back what it gave, in as few columns as there can be."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, strategies as st
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType

from kinesis_trident.bolt.tagged import STREAM, Tagged
from kinesis_trident.common.arrow_schemas import arrow_schema

VALUES: dict[DataType, st.SearchStrategy[Any]] = {
    IntegerType(): st.integers(-9, 9),
    LongType(): st.integers(-9, 9),
    StringType(): st.text(max_size=3),
    StructType([StructField("a", LongType())]): st.fixed_dictionaries({"a": st.integers(0, 9)}),
}
NAMES = st.sampled_from(["word", "Word", "a b", "`", "1", "stream", "é"])
FIELDS = st.lists(st.tuples(NAMES, st.sampled_from([*VALUES])), max_size=4, unique_by=lambda one: one[0])


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[StructType, pa.RecordBatch]]:
    """Streams of any fields, each with rows."""
    made = []
    for fields in draw(st.lists(FIELDS, min_size=1, max_size=4)):
        kinds = StructType([StructField(name, kind) for name, kind in fields])
        count = draw(st.integers(0, 3))
        columns = {
            name: draw(st.lists(st.none() | VALUES[kind], min_size=count, max_size=count))
            for name, kind in fields
        }
        made.append((kinds, pa.RecordBatch.from_pydict(columns, arrow_schema(kinds))))
    return made


@given(streams())
def test_each_stream_gets_its_rows_back(given_: list[tuple[StructType, pa.RecordBatch]]) -> None:
    tagged = Tagged.of(fields for fields, _ in given_)
    whole = pa.Table.from_batches(
        [tagged.tag(at, rows.num_rows, rows.columns) for at, (_, rows) in enumerate(given_)],
        arrow_schema(tagged.schema),
    )
    assert whole.num_rows == sum(rows.num_rows for _, rows in given_)
    for at, (fields, rows) in enumerate(given_):
        ours = whole.filter(pc.equal(whole.column(STREAM), at))
        assert ours.num_rows == rows.num_rows
        by_name = ours.select(tagged.columns_of(at)).rename_columns(fields.names)
        assert by_name.to_pylist() == rows.to_pylist()
        for batch in ours.to_batches():
            assert tagged.untag(batch, at).to_pylist() == rows.to_pylist()
        for row in zip(*(one.to_pylist() for one in ours.columns), strict=True):
            assert len(tagged.values_of(at, row)) == len(fields)


@given(streams())
def test_columns_are_as_few_as_there_can_be_and_none_bears_a_users_name(
    given_: list[tuple[StructType, pa.RecordBatch]],
) -> None:
    tagged = Tagged.of(fields for fields, _ in given_)
    most: Counter[str] = Counter()
    for fields, _ in given_:
        most |= Counter(one.dataType.simpleString() for one in fields)
    assert len(tagged.schema) == 1 + most.total()
    assert all(name.startswith("__") for name in tagged.schema.names)
    for at in range(len(given_)):
        assert len({*tagged.columns_of(at)}) == len(given_[at][0])
