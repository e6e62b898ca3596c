"""`write_delta`: what it refuses, what others do to the table meanwhile, and the values that readers find.

tests/test_sinks.py pauses and kills its drivers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType
from heard import told
from local_rows import local_rows, order_rows
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from kinesis_trident import Outcomes, write_delta
from kinesis_trident.bolt.errors import SinkError, TableChangedError, TwiceError
from kinesis_trident.testing import EmbeddedKinesis

ORDERS = "order_id string, amount double"
LAST = "timestamp'9999-12-31 23:59:59.999999Z'"


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "orders")


def orders(spark: SparkSession, *names: str) -> DataFrame:
    return spark.createDataFrame([(name, 1.0) for name in names], ORDERS)


def batch(txid: int, epoch: int = 1) -> Outcomes:
    return Outcomes(epoch, "orders-job", txid)


def names_in(table: str, **options: Any) -> list[str]:
    return sorted(DeltaTable(table, **options).to_pyarrow_table()["order_id"].to_pylist())


def test_a_batch_that_comes_again_replaces_what_it_wrote(spark: SparkSession, table: str) -> None:
    for txid, epoch, names in ((1, 1, "ab"), (2, 1, "cd"), (2, 1, "c"), (2, 2, ""), (2, 3, "d"), (3, 3, "e")):
        write_delta(orders(spark, *names), batch(txid, epoch), table)
    assert names_in(table) == ["a", "b", "d", "e"]
    # Another application's batches are its own.
    write_delta(orders(spark, "z"), Outcomes(1, "other", 3), table)
    assert names_in(table) == ["a", "b", "d", "e", "z"]


def test_a_second_call_in_one_batch_does_not_replace_the_first(spark: SparkSession, table: str) -> None:
    outcomes = batch(1)
    with pytest.raises(SinkError, match="cannot be partitioned"):
        write_delta(orders(spark, "a"), outcomes, table, partition_by=["amount"])
    write_delta(orders(spark, "a"), outcomes, table)
    folder, _, name = table.rpartition("/")
    for spelling in (table, f"{table}/", f"{folder}/./{name}", f"{folder}//{name}", f"file://{table}"):
        with pytest.raises(TwiceError, match=r"twice for the Delta table .*/orders in batch 1"):
            write_delta(orders(spark, "b"), outcomes, spelling)
    write_delta(orders(spark, "b"), outcomes, f"{table}-2")
    assert (names_in(table), names_in(f"{table}-2")) == (["a"], ["b"])


def test_readers_find_each_value(spark: SparkSession, table: str) -> None:
    """Also by the statistics, by which they skip files."""
    columns = "kind string, n bigint, small tinyint, day date, at timestamp, local timestamp_ntz, price decimal(9,2), "
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
    write_delta(
        spark.createDataFrame(rows, columns).repartition(4), batch(1), table, partition_by=["kind", "day"]
    )
    found = DeltaTable(table).to_pyarrow_table()
    read = {row["small"]: row for row in found.to_pylist()}
    for row in rows:
        # An empty text is null as the value of a partition.
        expected = dict(zip(found.column_names, (row[0] or None, *row[1:]), strict=True))
        a, b = expected.pop("deep")
        deep = read[row[2]].pop("deep")
        assert read[row[2]] == expected
        assert (deep["a"], dict(deep["b"])) == (a, b)
        for name in ("n", "small", "at", "kind"):
            field, value = pc.field(name), expected[name]
            is_it = (
                field.is_null() if value is None else field == pa.scalar(value, found.schema.field(name).type)
            )
            alike = DeltaTable(table).to_pyarrow_dataset().to_table(filter=is_it)
            assert row[2] in alike["small"].to_pylist(), name
    assert DeltaTable(table).metadata().partition_columns == ["kind", "day"]


def test_statistics_of_a_column_are_not_those_of_a_field_of_its_name(table: str) -> None:
    kind = pa.struct(
        [
            ("b", pa.int64()),
            ("c", pa.list_(pa.struct([("d", pa.int64())]))),
            ("e", pa.map_(pa.string(), pa.int64())),
        ]
    )
    fields = pa.array([{"b": 7, "c": [{"d": 8}], "e": [("f", 9)]}], kind)
    write_delta(local_rows(pa.table([[1], fields, [2]], ["a.b", "a", "last"])), batch(1), table)
    [file] = pa.table(DeltaTable(table).get_add_actions()).to_pylist()
    assert {name: (file["min"][name], file["max"][name]) for name in ("a.b", "last")} == {
        "a.b": (1, 1),
        "last": (2, 2),
    }


def test_the_last_time_of_the_calendar_is_written(spark: SparkSession, table: str) -> None:
    """Of its milliseconds there is none that is not less."""
    write_delta(orders(spark, "a").selectExpr("*", f"{LAST} AS at"), batch(1), table)
    assert DeltaTable(table).to_pyarrow_table()["at"].cast(pa.int64()).to_pylist() == [253402300799999999]


def test_a_record_that_readers_cannot_read_fails_alone(spark: SparkSession, table: str) -> None:
    """Milliseconds taken for seconds, also as a partition; what no text is; and a null where there is none."""
    rows = spark.sql(
        f"""SELECT * FROM VALUES ('m0', 'a', {LAST}, date'2026-01-01', array('x')),
        ('m1', 'b', timestamp_seconds(1767225600000), date'2026-01-01', array('x')),
        ('m2', 'c', {LAST}, date_add(date'2026-01-01', 10000000), array('x')),
        ('m3', 'd', {LAST}, date'2026-01-01', array('x', CAST(x'ff' AS STRING))),
        ('m4', CAST(x'c3' AS STRING), {LAST}, date'2026-01-01', array('x')),
        ('m5', 'f', {LAST}, CAST(null AS date), null) AS t(messageId, order_id, at, day, many)"""
    )
    outcomes = batch(1)
    write_delta(rows, outcomes, table, partition_by=["day", "order_id"])
    assert told(outcomes) == {
        "m1": "column 'at' is no time of the years 1 to 9999",
        "m2": "column 'day' is no time of the years 1 to 9999",
        "m3": "column 'many' is no valid UTF-8",
        "m4": "column 'order_id' is no valid UTF-8",
    }
    assert sorted(row["order_id"] for row in DeltaTable(table).to_pyarrow_table().to_pylist()) == ["a", "f"]
    with pytest.raises(SinkError, match=r"'at' is no time of .* Keep the column 'messageId' in the rows"):
        write_delta(rows.drop("messageId").where("order_id = 'b'"), batch(2), table)
    with pytest.raises(SinkError, match=r"'at' is no time of .* Its messageId is null, as outer joins make"):
        write_delta(
            rows.where("order_id = 'b'").withColumn("messageId", lit(None).cast("string")), batch(2), table
        )
    assert names_in(table) == ["a", "f"]


def test_the_message_id_is_written_only_into_a_table_that_has_it(spark: SparkSession, table: str) -> None:
    rows = orders(spark, "a").selectExpr("'m0' messageId", "*")
    write_delta(rows, batch(1), table)
    assert DeltaTable(table).to_pyarrow_table().column_names == ["order_id", "amount"]
    fields = [Field("messageId", "string"), NAME, AMOUNT]
    DeltaTable.create(f"{table}-2", Schema(fields))
    write_delta(rows, batch(1), f"{table}-2")
    assert DeltaTable(f"{table}-2").to_pyarrow_table()["messageId"].to_pylist() == ["m0"]


def test_columns_that_the_rows_lack_are_null(spark: SparkSession, table: str) -> None:
    write_delta(orders(spark, "a"), batch(1), table)
    write_delta(orders(spark, "b").select("order_id"), batch(2), table)
    assert DeltaTable(table).to_pyarrow_table().sort_by("order_id")["amount"].to_pylist() == [1.0, None]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["order_id", "cast(amount AS int) amount"], r"column 'amount' is int, in the table double"),
        (["*", "1 AS more"], r"column 'more' is int, in the table missing"),
        (["upper(order_id) AS Order_Id"], r"column 'Order_Id' is string, in the table missing"),
    ],
)
def test_other_columns_are_refused(spark: SparkSession, table: str, change: list[str], said: str) -> None:
    write_delta(orders(spark, "a"), batch(1), table)
    with pytest.raises(SinkError, match=said):
        write_delta(orders(spark, "b").selectExpr(*change), batch(2), table)
    assert names_in(table) == ["a"]


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (["amount"], "cannot be partitioned by 'amount', which has the type double"),
        (["day"], "cannot be partitioned by 'day', which is not among the columns"),
    ],
)
def test_a_table_is_partitioned_by_what_its_log_can_hold(
    spark: SparkSession, table: str, by: list[str], said: str
) -> None:
    with pytest.raises(SinkError, match=said):
        write_delta(orders(spark, "a"), batch(1), table, partition_by=by)
    assert not Path(table).exists()


def test_a_table_whose_files_would_have_no_columns_is_refused(table: str) -> None:
    days = pa.table([["m-1", "m-2"], ["monday", "friday"]], ["messageId", "day"])
    said = r"has no columns but those by which it is partitioned: .* Give it one more column, or partition it by fewer"
    for rows, partition_by in ((days, ["day"]), (days.select(["messageId"]), [])):
        with pytest.raises(SinkError, match=said):
            write_delta(local_rows(rows), batch(1), table, partition_by=partition_by)
    DeltaTable.create(table, Schema([Field("day", PrimitiveType("string"))]), partition_by=["day"])
    with pytest.raises(SinkError, match=said):
        write_delta(local_rows(days), batch(1), table)
    DeltaTable(table).alter.add_columns([Field("amount", PrimitiveType("double"))])
    write_delta(local_rows(days), batch(1), table)
    assert sorted(DeltaTable(table).to_pyarrow_table()["day"].to_pylist()) == ["friday", "monday"]


def test_another_partitioning_than_the_table_s_is_refused(spark: SparkSession, table: str) -> None:
    write_delta(orders(spark, "a"), batch(1), table)
    with pytest.raises(SinkError, match=r"is partitioned by nothing, not by \['order_id'\]"):
        write_delta(orders(spark, "a"), batch(2), table, partition_by=["order_id"])


NAME, AMOUNT = Field("order_id", "string"), Field("amount", "double")


@pytest.mark.parametrize(
    ("fields", "configuration", "said"),
    [
        ([NAME, AMOUNT], {"delta.appendOnly": "true"}, "delta.appendOnly is true"),
        (
            [NAME, Field("amount", "double", metadata={"delta.generationExpression": "1.0"})],
            {},
            "column 'amount' has delta.generationExpression",
        ),
    ],
)
def test_a_table_that_takes_no_files_is_refused(
    spark: SparkSession, table: str, fields: list[Field], configuration: dict[str, str], said: str
) -> None:
    DeltaTable.create(table, Schema(fields), configuration=configuration)
    with pytest.raises(SinkError, match=said):
        write_delta(orders(spark, "a"), batch(1), table)


def test_a_table_with_a_constraint_is_refused(spark: SparkSession, table: str) -> None:
    write_delta(orders(spark, "a"), batch(1), table)
    DeltaTable(table).alter.add_constraint({"cheap": "amount < 5"})
    with pytest.raises(SinkError, match=r"delta.constraints.cheap is set"):
        write_delta(orders(spark, "b"), batch(2), table)


def test_an_empty_text_in_a_partition_that_must_not_be_null_fails_alone(table: str) -> None:
    text, whole = PrimitiveType("string"), PrimitiveType("integer")
    fields = [Field("order_id", text, nullable=False), Field("version", whole)]
    DeltaTable.create(table, Schema(fields), partition_by=["order_id"])
    outcomes = batch(1)
    write_delta(local_rows(order_rows(["", "a"])), outcomes, table)
    assert names_in(table) == ["a"]
    assert told(outcomes) == {"m-": "column 'order_id' is an empty text, which is null there"}


def test_a_null_in_a_column_that_has_none_adds_nothing(spark: SparkSession, table: str) -> None:
    DeltaTable.create(table, Schema([Field("order_id", "string", nullable=False), AMOUNT]))
    with pytest.raises(SinkError, match=r"column 'order_id' is null\. Keep the column 'messageId'"):
        write_delta(spark.createDataFrame([(None, 1.0)], ORDERS), batch(1), table)
    with pytest.raises(
        SinkError, match="column 'order_id' of the table must not be null, and the rows do not have it"
    ):
        write_delta(orders(spark, "a").select("amount"), batch(1), table)
    write_delta(orders(spark, "a"), batch(1), table)
    assert names_in(table) == ["a"]


def test_the_files_of_the_last_batch_were_changed_by_another_operation(
    spark: SparkSession, table: str
) -> None:
    """The remedy of the error is played to its end."""
    write_delta(orders(spark, "a", "b"), batch(1), table)
    write_delta(orders(spark, "c").repartition(1), batch(2), table)
    version = DeltaTable(table).version()
    DeltaTable(table).optimize.compact()
    with pytest.raises(
        SinkError, match=rf"Restore the table to version {version}, with which they were added"
    ):
        write_delta(orders(spark, "d"), batch(2, epoch=2), table)
    assert names_in(table) == ["a", "b", "c"]
    DeltaTable(table).restore(version)
    write_delta(orders(spark, "d"), batch(2, epoch=2), table)
    # Older batches may have been compacted.
    DeltaTable(table).optimize.compact()
    write_delta(orders(spark, "e"), batch(3, epoch=2), table)
    assert names_in(table) == ["a", "b", "d", "e"]


@pytest.fixture
def before_commit(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Functions to call, one before each commit of files."""
    calls: list[Any] = []
    commit = DeltaTable.create_write_transaction

    def committed(found: DeltaTable, *given: Any, **named: Any) -> None:
        if calls:
            calls.pop(0)()
        commit(found, *given, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", committed)
    yield calls
    assert not calls


def test_others_write_to_the_table_meanwhile(
    spark: SparkSession, table: str, before_commit: list[Any]
) -> None:
    write_delta(orders(spark, "a"), batch(1), table)
    others = pa.table({"order_id": ["o"], "amount": [2.0]})
    before_commit += [
        lambda: write_deltalake(table, others, mode="append"),
        lambda: DeltaTable(table).delete("order_id = 'o'"),
    ]
    write_delta(orders(spark, "b"), batch(2), table)
    write_delta(orders(spark, "c"), batch(3), table)
    assert names_in(table) == ["a", "b", "c"]


def test_a_table_that_is_partitioned_anew_while_a_batch_is_written_to_it(
    spark: SparkSession, table: str
) -> None:
    """The values of the columns by which it is partitioned are not in the files."""
    rows = orders(spark, "a").selectExpr("order_id", "'Bern' city").coalesce(1)
    write_delta(rows, batch(1), table, partition_by=["order_id"])

    def alter(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for one in batches:
            others = pa.table({"order_id": ["o"], "city": ["Rome"]})
            write_deltalake(table, others, mode="overwrite", schema_mode="overwrite", partition_by=["city"])
            yield one

    with pytest.raises(TableChangedError, match=r"was changed while batch 2 was written to it"):
        write_delta(rows.mapInArrow(alter, "order_id string, city string"), batch(2), table)
    write_delta(rows, batch(2, epoch=2), table)
    found = DeltaTable(table).to_pyarrow_table().select(["order_id", "city"])
    assert found.sort_by("order_id").to_pylist() == [
        {"order_id": "a", "city": "Bern"},
        {"order_id": "o", "city": "Rome"},
    ]


def test_a_commit_whose_answer_is_lost_is_not_made_twice(
    spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = DeltaTable.create_write_transaction
    lost = [True]

    def committed(found: DeltaTable, *given: Any, **named: Any) -> None:
        commit(found, *given, **named)
        if lost.pop() if lost else False:
            raise CommitFailedError("no answer")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", committed)
    write_delta(orders(spark, "a"), batch(1), table)
    assert not lost
    assert (names_in(table), DeltaTable(table).version()) == (["a"], 1)


def test_a_table_in_an_object_store(spark: SparkSession, kinesis_server: EmbeddedKinesis, app: str) -> None:
    """moto's server speaks S3 too. The driver commits through one address, the executors write through another."""
    url = kinesis_server.endpoint_url
    boto3.client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket=app)
    options = {
        "aws_endpoint": url,
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
    }
    table, host = f"s3://{app}/orders", url.removeprefix("http://")
    files = f"s3://test:test@{app}/orders?endpoint_override={host}&scheme=http&region=us-east-1"
    for txid, name in ((1, "a"), (2, "b"), (2, "c")):
        write_delta(orders(spark, name), batch(txid), table, storage_options=options, files_at=files)
    assert names_in(table, storage_options=options) == ["a", "c"]


def test_a_relative_path_is_refused_before_a_table_is_made(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SinkError, match=r"is 'orders'\. Expected: an absolute path"):
        write_delta(orders(spark, "a"), batch(1), "orders")
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_cannot_be_reached_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match=f"the Delta table {tmp_path}/file/orders cannot be written to"):
        write_delta(orders(spark, "a"), batch(1), str(tmp_path / "file" / "orders"))


def test_a_driver_without_deltalake_is_told_what_to_install(
    spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(SinkError, match=r"pip install 'kinesis-trident\[delta\]'"):
        write_delta(orders(spark, "a"), batch(1), table)
