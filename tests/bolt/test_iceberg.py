"""`write_iceberg`: what it refuses, what others do to the table meanwhile, and the values that readers find.

tests/test_sinks.py pauses and kills its drivers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from heard import told
from local_rows import local_rows
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import EqualTo, IsNull
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, HourTransform, IdentityTransform
from pyiceberg.types import DoubleType, NestedField, StringType, StructType, TimestamptzType
from pyspark.sql import DataFrame, SparkSession
from test_private_names import absent

from kinesis_trident import Outcomes, write_iceberg
from kinesis_trident.bolt.errors import SinkError, StaleBatchError, TableChangedError
from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.common import private_names
from kinesis_trident.testing import EmbeddedKinesis

ORDERS = "order_id string, amount double"
TABLE = "shop.orders"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return make_catalog(tmp_path, tmp_path)


def make_catalog(tmp_path: Path, warehouse: Path) -> Catalog:
    made = load_catalog(type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{warehouse}")
    made.create_namespace("shop")
    return made


def orders(spark: SparkSession, *names: str) -> DataFrame:
    return spark.createDataFrame([(name, 1.0) for name in names], ORDERS).coalesce(1)


def batch(txid: int, epoch: int = 1) -> Outcomes:
    return Outcomes(epoch, "orders-job", txid)


def write(df: DataFrame, outcomes: Outcomes, catalog: Catalog, **more: Any) -> None:
    write_iceberg(df, outcomes, TABLE, catalog=catalog, **more)


def names_in(catalog: Catalog) -> list[str]:
    return sorted(catalog.load_table(TABLE).scan().to_arrow()["order_id"].to_pylist())


def test_a_batch_that_comes_again_replaces_what_it_wrote(spark: SparkSession, catalog: Catalog) -> None:
    for txid, epoch, names in ((1, 1, "ab"), (2, 1, "cd"), (2, 1, "c"), (2, 2, ""), (2, 3, "d"), (3, 3, "e")):
        write(orders(spark, *names), batch(txid, epoch), catalog)
    assert names_in(catalog) == ["a", "b", "d", "e"]
    # Another application's batches are its own.
    write(orders(spark, "z"), Outcomes(1, "other", 3), catalog)
    assert names_in(catalog) == ["a", "b", "d", "e", "z"]
    with pytest.raises(FencedError, match="its epoch is 3, this run has epoch 2"):
        write(orders(spark, "y"), batch(3, epoch=2), catalog)
    with pytest.raises(StaleBatchError, match="has written batch 3"):
        write(orders(spark, "y"), batch(2, epoch=3), catalog)
    summary = catalog.load_table(TABLE).snapshots()[-2].summary
    assert summary is not None
    assert summary["kinesis-trident.txid"] == "3"


def test_a_second_call_in_one_batch_does_not_replace_the_first(spark: SparkSession, catalog: Catalog) -> None:
    outcomes = batch(1)
    write(orders(spark, "a"), outcomes, catalog)
    with pytest.raises(SinkError, match=r"twice for the Iceberg table shop\.orders in batch 1"):
        write(orders(spark, "b"), outcomes, catalog)
    assert names_in(catalog) == ["a"]


def test_the_fence_outlasts_the_snapshots(spark: SparkSession, catalog: Catalog) -> None:
    write(orders(spark, "a"), batch(2, epoch=2), catalog)
    table = catalog.load_table(TABLE)
    table.append(pa.table({"order_id": ["o"], "amount": [2.0]}))
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    with pytest.raises(FencedError):
        write(orders(spark, "b"), batch(2), catalog)
    write(orders(spark, "b"), batch(2, epoch=3), catalog)
    assert names_in(catalog) == ["b", "o"]


def test_readers_find_each_value(spark: SparkSession, catalog: Catalog) -> None:
    """Also by the statistics and the partitions, by which they skip files."""
    columns = (
        "kind string, n bigint, small int, day date, at timestamp, local timestamp_ntz, price decimal(9,2), "
    )
    columns += (
        "x double, raw binary, many array<string>, deep struct<a int, b map<string, int>>, nothing string"
    )
    at = datetime(2026, 3, 29, 1, 30, 0, 999_999, tzinfo=UTC)
    rows = [
        (
            ["a", "", None, "é/ü %", "x" * 99][number % 5],
            [-(2**63), 0, 2**63 - 1][number % 3],
            number - 9,
            [None, date(1, 1, 1), date(9999, 12, 31)][number % 3],
            at if number % 2 else None,
            at.replace(tzinfo=None, microsecond=number),
            Decimal(number) / 4,
            [float("-inf"), float("inf"), 0.5][number % 3],
            bytes([number]),
            ["a", None],
            (number, {"k": number}),
            None,
        )
        for number in range(18)
    ]
    frame = spark.createDataFrame(rows, columns).repartition(2)
    write(frame, batch(1), catalog, partition_by=["kind", "day"])
    table = catalog.load_table(TABLE)
    found = table.scan().to_arrow()
    read = {row["small"]: row for row in found.to_pylist()}
    for row in rows:
        expected = dict(zip(found.column_names, row, strict=True))
        a, b = expected.pop("deep")
        deep = read[row[2]].pop("deep")
        assert read[row[2]] == expected
        assert (deep["a"], dict(deep["b"])) == (a, b)
        for name in ("n", "small", "kind", "day"):
            value = expected[name]
            is_it = IsNull(name) if value is None else EqualTo(name, str(value) if name == "day" else value)
            assert row[2] in table.scan(is_it).to_arrow()["small"].to_pylist(), (name, value)
    assert [field.name for field in table.spec().fields] == ["kind", "day"]


def test_a_table_partitioned_by_days_and_hours(spark: SparkSession, catalog: Catalog) -> None:
    schema = Schema(
        NestedField(1, "order_id", StringType(), required=True),
        NestedField(2, "at", TimestamptzType(), required=False),
    )
    spec = PartitionSpec(
        PartitionField(2, 1000, DayTransform(), "at_day"), PartitionField(2, 1001, HourTransform(), "at_hour")
    )
    catalog.create_table(TABLE, schema, partition_spec=spec)
    times = [
        datetime(1969, 12, 31, 23, 59, tzinfo=UTC),
        datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
        datetime(2026, 3, 29, 2, 30, tzinfo=UTC),
        None,
    ]
    rows = [(f"{number}", time) for number, time in enumerate([*times, *times])]
    write(spark.createDataFrame(rows, "order_id string, at timestamp").coalesce(1), batch(1), catalog)
    table = catalog.load_table(TABLE)
    files = table.inspect.files().to_pylist()
    assert sorted(file["record_count"] for file in files) == [2, 2, 2, 2]
    by_file = {tuple(task.file.partition) for task in table.scan().plan_files()}  # type: ignore[call-overload]
    assert by_file == {(-1, -1), (20541, 492985), (20541, 492986), (None, None)}
    for time in times:
        is_it = IsNull("at") if time is None else EqualTo("at", time.isoformat())
        assert len(table.scan(is_it).to_arrow()) == 2


@pytest.mark.parametrize("folder", ["my warehouse", "a%20b"])
def test_the_characters_of_a_location_stand_for_themselves(
    spark: SparkSession, tmp_path: Path, folder: str
) -> None:
    catalog = make_catalog(tmp_path, tmp_path / folder)
    write(orders(spark, "a"), batch(1), catalog)
    assert names_in(catalog) == ["a"]


def test_a_record_that_readers_cannot_read_fails_alone(spark: SparkSession, catalog: Catalog) -> None:
    """Milliseconds taken for seconds, and what no text is: also within a column."""
    rows = spark.sql(
        """SELECT * FROM VALUES ('m0', 'a', timestamp_seconds(0), 'x'),
        ('m1', 'b', timestamp_seconds(1767225600000), 'x'),
        ('m2', 'c', timestamp_seconds(0), CAST(x'ff' AS STRING)) AS t(messageId, order_id, at, deep)"""
    ).selectExpr("messageId", "order_id", "at", "struct(deep AS city) AS deep")
    outcomes = batch(1)
    write(rows, outcomes, catalog)
    assert told(outcomes) == {
        "m1": "column 'at' is no time of the years 1 to 9999",
        "m2": "column 'deep.city' is no valid UTF-8",
    }
    found = catalog.load_table(TABLE)
    assert found.scan().to_arrow().to_pylist() == [
        {"order_id": "a", "at": datetime(1970, 1, 1, tzinfo=UTC), "deep": {"city": "x"}}
    ]
    with pytest.raises(SinkError, match=r"'at' is no time of .* Keep the column 'messageId' in the rows"):
        write(rows.drop("messageId").where("order_id = 'b'"), batch(2), catalog)


def test_a_nan_fails_alone_where_the_table_is_partitioned_by_the_number(catalog: Catalog) -> None:
    inside = StructType(NestedField(3, "deep", DoubleType()))
    schema = Schema(NestedField(1, "amount", DoubleType()), NestedField(2, "inside", inside))
    parts = [
        PartitionField(1, 1000, IdentityTransform(), "a"),
        PartitionField(3, 1001, IdentityTransform(), "b"),
    ]
    catalog.create_table(TABLE, schema, partition_spec=PartitionSpec(*parts))
    nan, deep = float("nan"), pa.struct([("deep", pa.float64())])
    columns = {
        "messageId": ["m-0", "m-1", "m-2", "m-3"],
        "amount": pa.array([nan, 1.0, -0.0, None], pa.float64()),
        "inside": pa.array([{"deep": 1.0}, {"deep": nan}, {"deep": float("inf")}, None], deep),
    }
    for epoch in (1, 2):
        outcomes = batch(1, epoch)
        write(local_rows(pa.table(columns)), outcomes, catalog)
        assert told(outcomes) == {
            "m-0": "column 'amount' is no number",
            "m-1": "column 'inside.deep' is no number",
        }
        assert set(catalog.load_table(TABLE).scan().to_arrow()["amount"].to_pylist()) == {None, 0.0}
    write(local_rows(pa.table(columns).drop_columns(["inside"])), batch(2, 2), catalog)
    assert catalog.load_table(TABLE).scan().to_arrow().num_rows == 5


def test_the_least_whole_number_of_iceberg_takes_lesser_ones(spark: SparkSession, catalog: Catalog) -> None:
    rows = spark.sql("SELECT 'a' order_id, 1Y tiny, 2S small, struct(3Y AS byte) deep")
    for txid in (1, 2):
        write(rows, batch(txid), catalog)
    read = catalog.load_table(TABLE).scan().to_arrow().to_pylist()
    assert read == [{"order_id": "a", "tiny": 1, "small": 2, "deep": {"byte": 3}}] * 2


def test_the_properties_of_a_table_say_how_its_files_are_written(
    spark: SparkSession, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"compression-codec": "gzip", "row-group-limit": "2", "dict-size-bytes": "1"}
    schema = Schema(
        NestedField(1, "order_id", StringType(), required=False),
        NestedField(2, "amount", DoubleType(), required=False),
    )
    catalog.create_table(
        TABLE, schema, properties={f"write.parquet.{key}": value for key, value in given.items()}
    )

    def footer() -> pq.FileMetaData:
        (task,) = catalog.load_table(TABLE).scan().plan_files()
        return pq.read_metadata(task.file.file_path.removeprefix("file://"))

    write(orders(spark, "a", "b", "c"), batch(1), catalog)
    assert [footer().row_group(at).num_rows for at in range(footer().num_row_groups)] == [2, 1]
    assert footer().row_group(0).column(0).compression == "GZIP"
    # Without the private name of pyiceberg the files are as good.
    monkeypatch.setattr(private_names, "using", absent)
    write(orders(spark, "d"), batch(1, epoch=2), catalog)
    assert footer().row_group(0).column(0).compression == "SNAPPY"
    assert names_in(catalog) == ["d"]


def test_columns_that_the_rows_lack_are_null(spark: SparkSession, catalog: Catalog) -> None:
    write(orders(spark, "a"), batch(1), catalog)
    write(orders(spark, "b").select("order_id"), batch(2), catalog)
    found = catalog.load_table(TABLE).scan().to_arrow()
    assert found.sort_by("order_id")["amount"].to_pylist() == [1.0, None]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["order_id", "cast(amount AS int) amount"], r"column 'amount' is int, in the table double"),
        (["*", "1 AS more"], r"column 'more' is int, in the table missing"),
    ],
)
def test_other_columns_are_refused(
    spark: SparkSession, catalog: Catalog, change: list[str], said: str
) -> None:
    write(orders(spark, "a"), batch(1), catalog)
    with pytest.raises(SinkError, match=said):
        write(orders(spark, "b").selectExpr(*change), batch(2), catalog)
    assert names_in(catalog) == ["a"]


def test_what_a_table_cannot_be_is_refused(spark: SparkSession, catalog: Catalog) -> None:
    with pytest.raises(SinkError, match="cannot be partitioned by 'amount', which has the type double"):
        write(orders(spark, "a"), batch(1), catalog, partition_by=["amount"])
    write(orders(spark, "a"), batch(1), catalog)
    with pytest.raises(SinkError, match=r"is partitioned by nothing, not by \['order_id'\]"):
        write(orders(spark, "a"), batch(2), catalog, partition_by=["order_id"])
    with catalog.load_table(TABLE).update_spec() as spec:
        spec.add_field("order_id", BucketTransform(4), "bucket")
    with pytest.raises(
        SinkError, match=r"partitioned by bucket\[4\] of a column. Partition it by columns, or"
    ):
        write(orders(spark, "a"), batch(2), catalog)


def test_a_null_in_a_column_that_has_none_adds_nothing(spark: SparkSession, catalog: Catalog) -> None:
    name = NestedField(1, "order_id", StringType(), required=True)
    catalog.create_table(TABLE, Schema(name, NestedField(2, "amount", DoubleType(), required=False)))
    with pytest.raises(SinkError, match=r"column 'order_id' is null\. Keep the column 'messageId'"):
        write(spark.createDataFrame([(None, 1.0)], ORDERS), batch(1), catalog)
    with pytest.raises(SinkError, match="'order_id' of the table must not be null, and the rows do not have"):
        write(orders(spark, "a").select("amount"), batch(1), catalog)
    write(orders(spark, "a"), batch(1), catalog)
    assert names_in(catalog) == ["a"]


def test_the_files_of_the_last_batch_were_changed_by_another_operation(
    spark: SparkSession, catalog: Catalog
) -> None:
    """The remedy of the error is played to its end."""
    write(orders(spark, "a", "b"), batch(1), catalog)
    write(orders(spark, "c", "d"), batch(2), catalog)
    table = catalog.load_table(TABLE)
    before = table.current_snapshot()
    assert before is not None
    table.delete("order_id = 'd'")
    with pytest.raises(SinkError, match=rf"Set the table back to snapshot {before.snapshot_id}, with which"):
        write(orders(spark, "e"), batch(2, epoch=2), catalog)
    assert names_in(catalog) == ["a", "b", "c"]
    table.manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    write(orders(spark, "e"), batch(2, epoch=2), catalog)
    # Older batches may be changed.
    catalog.load_table(TABLE).delete("order_id = 'a'")
    write(orders(spark, "f"), batch(3, epoch=2), catalog)
    assert names_in(catalog) == ["b", "e", "f"]


@pytest.fixture
def before_commit(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], object]]]:
    """Functions to call, one before each commit."""
    calls: list[Callable[[], object]] = []
    commit = SqlCatalog.commit_table

    def committed(catalog: SqlCatalog, *given: Any, **named: Any) -> Any:
        if calls:
            calls.pop(0)()
        return commit(catalog, *given, **named)

    monkeypatch.setattr(SqlCatalog, "commit_table", committed)
    yield calls
    assert not calls


@pytest.mark.parametrize("again", [False, True])
def test_others_write_to_the_table_meanwhile(
    spark: SparkSession, catalog: Catalog, before_commit: list[Callable[[], object]], *, again: bool
) -> None:
    write(orders(spark, "a"), batch(1), catalog)
    write(orders(spark, "b"), batch(2), catalog)
    others = pa.table({"order_id": ["o"], "amount": [2.0]})
    before_commit += [lambda: catalog.load_table(TABLE).append(others)]
    write(orders(spark, "c"), batch(2 if again else 3, epoch=2), catalog)
    assert names_in(catalog) == (["a", "c", "o"] if again else ["a", "b", "c", "o"])


def test_a_table_that_is_partitioned_anew_while_a_batch_is_written_to_it(
    spark: SparkSession, catalog: Catalog
) -> None:
    """Readers look for rows by the partitions of their files."""
    write(orders(spark, "a"), batch(1), catalog, partition_by=["order_id"])
    properties = dict(catalog.properties)

    def alter(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for one in rows:
            table = load_catalog(**properties).load_table(TABLE)
            with table.update_spec() as spec:
                spec.remove_field("order_id")
            with table.update_spec() as spec:
                spec.add_field("amount", IdentityTransform(), "amount")
            yield one

    with pytest.raises(
        TableChangedError,
        match=r"was changed while batch 2 was written to it.*: it is partitioned by .*, and was by .*order_id",
    ):
        write(orders(spark, "b").mapInArrow(alter, ORDERS), batch(2), catalog)
    write(orders(spark, "b"), batch(2, epoch=2), catalog)
    table = catalog.load_table(TABLE)
    assert [len(table.scan(EqualTo("order_id", name)).to_arrow()) for name in "ab"] == [1, 1]
    assert len(table.scan(EqualTo("amount", 1.0)).to_arrow()) == 2


def test_a_newer_run_commits_right_before_the_commit(
    spark: SparkSession, catalog: Catalog, before_commit: list[Callable[[], object]]
) -> None:
    """pyiceberg would commit once more, on top of it."""
    write(orders(spark, "a"), batch(1), catalog)
    before_commit += [lambda: write(orders(spark, "b"), batch(2, epoch=2), catalog)]
    with pytest.raises(FencedError):
        write(orders(spark, "c"), batch(2), catalog)
    assert names_in(catalog) == ["a", "b"]


@pytest.mark.parametrize("error", [CommitFailedException, ConnectionError])
def test_a_commit_whose_answer_is_lost_is_not_made_twice(
    spark: SparkSession, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    write(orders(spark, "a"), batch(1), catalog)
    commit = SqlCatalog.commit_table
    lost = [True]

    def committed(catalog: SqlCatalog, *given: Any, **named: Any) -> Any:
        answer = commit(catalog, *given, **named)
        if lost.pop() if lost else False:
            raise error("no answer")
        return answer

    monkeypatch.setattr(SqlCatalog, "commit_table", committed)
    if error is ConnectionError:
        with pytest.raises(SinkError, match="no answer"):
            write(orders(spark, "b"), batch(2), catalog)
    write(orders(spark, "b"), batch(2), catalog)
    assert not lost
    assert names_in(catalog) == ["a", "b"]


def test_a_table_of_glue_in_an_object_store(
    spark: SparkSession, kinesis_server: EmbeddedKinesis, app: str
) -> None:
    """moto's server speaks Glue and S3 too. The executors write through an address of their own."""
    url = kinesis_server.endpoint_url
    boto3.client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket=app)
    keys = {"access-key-id": "test", "secret-access-key": "test", "region": "us-east-1", "endpoint": url}
    properties = {f"{kind}.{name}": value for kind in ("s3", "glue") for name, value in keys.items()}
    catalog = {"type": "glue", "warehouse": f"s3://{app}/warehouse", **properties}
    load_catalog(**catalog).create_namespace("shop")
    host = url.removeprefix("http://")
    files = (
        f"s3://test:test@{app}/warehouse/shop.db/orders?endpoint_override={host}&scheme=http&region=us-east-1"
    )
    for txid, name in ((1, "a"), (2, "b"), (2, "c")):
        write_iceberg(orders(spark, name), batch(txid), TABLE, catalog=catalog, files_at=files)
    assert names_in(load_catalog(**catalog)) == ["a", "c"]


def test_what_is_missing_is_named(
    spark: SparkSession, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SinkError, match=r"the Iceberg table none\.orders cannot be written to: NoSuchNamesp"):
        write_iceberg(orders(spark, "a"), batch(1), "none.orders", catalog=catalog)
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(SinkError, match=r"pip install 'kinesis-trident\[iceberg\]'"):
        write(orders(spark, "a"), batch(1), catalog)
