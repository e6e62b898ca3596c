"""The files of a task, and the partitions of Iceberg, without Spark."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from heard import told
from hypothesis import given, strategies as st
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import EqualTo, IsNull
from pyiceberg.io.pyarrow import _determine_partitions
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)
from pyspark.sql.pandas.types import from_arrow_schema

from kinesis_trident import Outcomes, write_delta, write_iceberg
from kinesis_trident.bolt.errors import SinkError
from kinesis_trident.bolt.sinks.fitting import Fitting
from kinesis_trident.bolt.sinks.table_files import FileWriter, Partition, partition_values
from kinesis_trident.bolt.testing.local_frames import LocalSession

TABLE = "shop.orders"
AT = datetime(2026, 3, 29, 1, 30, 0, 999_999, tzinfo=UTC)
VALUES: list[tuple[IcebergType, list[Any]]] = [
    (StringType(), ["a", "", "é/ü %", "2026-01-01"]),
    (BooleanType(), [True, False]),
    (IntegerType(), [-1, 0, 7]),
    (LongType(), [-(2**63), 2**63 - 1]),
    (FloatType(), [0.5, -1.0]),
    (DoubleType(), [0.5, float("inf")]),
    (DecimalType(9, 2), [Decimal("1.10"), Decimal("-2.25")]),
    (DateType(), [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    (TimestampType(), [AT.replace(tzinfo=None), datetime(1, 1, 1, tzinfo=UTC).replace(tzinfo=None)]),
    (TimestamptzType(), [AT, datetime(1, 1, 1, tzinfo=UTC)]),
    (BinaryType(), [b"a", b"\xff\x00"]),
]
"""The types by whose values a table can be partitioned."""

DAYS = (YearTransform(), MonthTransform(), DayTransform())
CASES = [
    (kind, values, transform)
    for kind, values in VALUES
    for transform in (
        IdentityTransform(),
        VoidTransform(),
        *(DAYS if isinstance(kind, DateType) else ()),
        *((*DAYS, HourTransform()) if isinstance(kind, TimestampType | TimestamptzType) else ()),
    )
]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    made = load_catalog(type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    made.create_namespace("shop")
    return made


def write(rows: pa.Table, outcomes: Outcomes, catalog: Catalog) -> None:
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    frame: Any = LocalSession().frame(schema, [rows.to_batches(max_chunksize=3), rows.to_batches()])
    write_iceberg(frame, outcomes, TABLE, catalog=catalog)


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize(("kind", "values", "transform"), CASES, ids=lambda one: str(one)[:16])
def test_the_partitions_of_iceberg_are_those_of_pyiceberg(
    catalog: Catalog, kind: IcebergType, values: list[Any], transform: Transform[Any, Any], *, is_nested: bool
) -> None:
    """Another column of the same name, with other values, stands beside a nested one."""
    schema = Schema(
        NestedField(1, "n", IntegerType(), required=False),
        NestedField(2, "city", StringType() if is_nested else kind, required=False),
        NestedField(
            3,
            "address",
            StructType(
                NestedField(4, "zip", IntegerType(), required=False),
                NestedField(5, "city", kind, required=False),
            ),
            required=False,
        ),
    )
    spec = PartitionSpec(PartitionField(5 if is_nested else 2, 1000, transform, "part"))
    catalog.create_table(TABLE, schema, partition_spec=spec)
    given = [*values, None, *values]
    rows = pa.table(
        {
            "n": pa.array(range(len(given) + 1), pa.int32()),
            "city": pa.array([*(f"{i}" for i in range(len(given))), None]) if is_nested else [*given, None],
            "address": [*({"zip": 1, "city": value if is_nested else None} for value in given), None],
        },
        schema=schema.as_arrow(),
    )
    write(rows, Outcomes(1, "job", 1), catalog)
    found = catalog.load_table(TABLE)
    apply = transform.transform(kind)
    to_stored = {
        row["n"]: apply(row["address"] and row["address"]["city"] if is_nested else row["city"])
        for row in rows.to_pylist()
    }
    written: dict[int, Any] = {}
    for task in found.scan().plan_files():
        for n in pq.read_table(task.file.file_path.removeprefix("file://"))["n"].to_pylist():
            written[n] = task.file.partition[0]
    if isinstance(transform, IdentityTransform | VoidTransform):
        # The others of pyiceberg need a package more.
        theirs = {}
        for one in _determine_partitions(found.spec(), found.schema(), rows):
            record = one.partition_key.partition
            theirs.update(dict.fromkeys(one.arrow_table_partition["n"].to_pylist(), record[0]))
        assert written == theirs
    else:
        assert written == to_stored
    name = "address.city" if is_nested else "city"
    for value in [*values, None]:
        literal = value.isoformat() if isinstance(value, date) else value
        is_it = IsNull(name) if value is None else EqualTo(name, literal)
        # Two tasks have each of them twice.
        assert len(found.scan(is_it).to_arrow()) == 4, value


def test_a_null_where_the_table_has_none_within_a_column_fails_alone(catalog: Catalog) -> None:
    city = NestedField(3, "city", StringType(), required=True)
    schema = Schema(
        NestedField(1, "messageId", StringType(), required=False),
        NestedField(2, "address", StructType(city), required=False),
        NestedField(4, "tags", ListType(5, StringType(), element_required=True), required=False),
    )
    catalog.create_table(TABLE, schema)
    rows = pa.Table.from_pylist(
        [
            {"messageId": "m0", "address": {"city": "Bern"}, "tags": ["a"]},
            {"messageId": "m1", "address": {"city": None}, "tags": ["a"]},
            {"messageId": "m2", "address": None, "tags": ["a", None]},
            {"messageId": "m3", "address": None, "tags": None},
        ]
    )
    outcomes = Outcomes(1, "job", 1)
    frame: Any = LocalSession().frame(from_arrow_schema(rows.schema), [rows.to_batches()])
    write_iceberg(frame, outcomes, TABLE, catalog=catalog)
    assert told(outcomes) == {"m1": "column 'address.city' is null", "m2": "column 'tags' is null"}
    assert catalog.load_table(TABLE).scan().to_arrow()["messageId"].to_pylist() == ["m0", "m3"]


def test_a_partition_that_was_taken_back_and_its_column(catalog: Catalog) -> None:
    """Of a table of the first format something of it stays."""
    schema = Schema(
        NestedField(1, "n", LongType(), required=False), NestedField(2, "city", StringType(), required=False)
    )
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "city"))
    catalog.create_table(TABLE, schema, partition_spec=spec, properties={"format-version": "1"})
    write(pa.table({"n": [1], "city": ["Bern"]}), Outcomes(1, "job", 1), catalog)
    with catalog.load_table(TABLE).update_spec() as update:
        update.remove_field("city")
    assert [str(field.transform) for field in catalog.load_table(TABLE).spec().fields] == ["void"]
    write(pa.table({"n": [2], "city": ["Rome"]}), Outcomes(1, "job", 2), catalog)
    assert sorted(catalog.load_table(TABLE).scan().to_arrow()["n"].to_pylist()) == [1, 1, 2, 2]


# Files that are open.


@contextmanager
def open_files(most: int) -> Iterator[None]:
    """Let this process have few files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_task_has_more_partitions_than_it_may_have_files(tmp_path: Path) -> None:
    table = str(tmp_path / "orders")
    rows = pa.table({"n": range(600), "name": [f"{n}" for n in range(600)]})
    schema = from_arrow_schema(rows.schema)
    frame: Any = LocalSession().frame(schema, [rows.to_batches()])
    with open_files(256):
        write_delta(frame, Outcomes(1, "job", 1), table, partition_by=["name"])
    read = DeltaTable(table).to_pyarrow_table()
    assert sorted(read["n"].to_pylist()) == list(range(600))
    assert read["name"].to_pylist() == [f"{n}" for n in read["n"].to_pylist()]


@given(names=st.lists(st.lists(st.sampled_from("abcd"), max_size=6), max_size=4), most=st.integers(1, 4))
def test_each_row_is_in_one_file_of_its_partition(
    tmp_path_factory: pytest.TempPathFactory, names: list[list[str]], most: int
) -> None:
    folder = tmp_path_factory.mktemp("table")
    schema = pa.schema([("name", pa.string()), ("n", pa.int64())])
    writer = FileWriter(
        table=str(folder),
        folder="batch",
        schema=schema,
        fitting=Fitting((), (), has_ids=False),
        partition_by=[Partition((0,))],
        leaves_out=False,
        options={},
    )
    numbers = iter(range(99))
    batches = [
        pa.record_batch([pa.array(one, pa.string()), [next(numbers) for _ in one]], schema=schema)
        for one in names
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kinesis_trident.bolt.sinks.table_files._MOST_OPEN", most)
        files = [row for batch in writer(iter(batches)) for row in batch.to_pylist()]
    read = []
    for file in files:
        found = pq.read_table(folder / file["path"])
        assert set(found["name"].to_pylist()) == set(partition_values(file))
        assert file["size"] == (folder / file["path"]).stat().st_size
        read += found.to_pylist()
    expected = [row for batch in batches for row in batch.to_pylist()]
    assert sorted(read, key=lambda row: row["n"]) == expected
    assert len(list(folder.glob("batch/*"))) == len(files)


@pytest.mark.parametrize(
    ("table", "place", "said"),
    [
        ("nosuch://lake/orders", "nosuch://lake/orders", "is not a folder that pyarrow.fs supports"),
        ("orders/2026", "orders/2026", "must be absolute"),
        ("s3://KEY:SECRET@lake/orders?nosuch=1", r"s3://\S*lake/orders\S*", "is not a folder"),
    ],
)
def test_a_folder_that_an_executor_cannot_open_is_an_error_of_the_sink(
    table: str, place: str, said: str
) -> None:
    schema = pa.schema([("n", pa.int64())])
    writer = FileWriter(
        table=table,
        folder="batch",
        schema=schema,
        fitting=Fitting((), (), has_ids=False),
        partition_by=[],
        leaves_out=False,
        options={},
    )
    with pytest.raises(SinkError) as caught:
        list(writer(iter([])))
    assert re.match(f"an executor cannot open the folder of the table {place}: .*{said}", str(caught.value))
    assert "SECRET" not in str(caught.value)
