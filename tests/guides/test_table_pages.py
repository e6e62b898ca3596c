"""docs/sums-per-day.md and docs/new-column.md: sums in a database count each order once, a column comes to a table."""

from __future__ import annotations

import json
import re
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from doc_blocks import PAGES, blocks_of
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import StringType
from server_fixtures import empty_database

from kinesis_trident import Outcomes, errors, merge_into, write_delta, write_iceberg

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = [("a", date(2026, 1, 1), "10.50"), ("b", date(2026, 1, 1), "1.25"), ("c", date(2026, 1, 2), "4")]


def orders(spark: SparkSession, rows: list[tuple[str, date, str]]) -> DataFrame:
    decimals = [(name, day, Decimal(amount)) for name, day, amount in rows]
    return spark.createDataFrame(decimals, "order_id string, day date, amount decimal(18,2)")


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_sums_per_day(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    database = empty_database(kind, request, tmp_path)
    first, view, fold = (block.text for block in blocks_of(PAGES["sums-per-day.md"]))
    names: dict[str, Any] = {}
    for code in (first, fold):
        assert code == fold or "postgresql+psycopg://user:password@host/shop" in code
        exec(code.replace("postgresql+psycopg://user:password@host/shop", database), names)
    engine = names["engine"]
    with engine.begin() as connection:
        connection.execute(sa.text(view))

    def per_day() -> list[tuple[str, int, float]]:
        with engine.begin() as connection:
            found = connection.execute(sa.text("SELECT day, orders, amount FROM orders_per_day ORDER BY day"))
            return [(str(day), int(count), float(amount)) for day, count, amount in found]

    def write(rows: list[tuple[str, date, str]], epoch: int, txid: int) -> None:
        names["write"](orders(spark, rows), txid, Outcomes(epoch, "orders-job", txid))

    write(ORDERS[:2], 1, 1)
    # It comes again in a newer run, in which a record fails; that comes with the next batch.
    write(ORDERS[:1], 2, 1)
    write(ORDERS[1:], 2, 2)
    expected = [("2026-01-01", 2, 11.75), ("2026-01-02", 1, 4.0)]
    assert per_day() == expected
    with pytest.raises(errors.FencedError):
        write(ORDERS, 1, 1)
    with engine.begin() as connection:
        names["fold"](connection, "orders-job", 2)
    assert per_day() == expected
    with engine.begin() as connection:
        assert connection.execute(
            sa.text("SELECT DISTINCT txid FROM order_sums ORDER BY txid")
        ).scalars().all() == [0, 2]
    engine.dispose()


class Tables:
    """A table of each kind, as the job and an administrator of the page meet it."""

    def __init__(self, folder: Path, statements: dict[str, str]) -> None:
        self.statements = statements
        self.delta = str(folder / "orders")
        properties = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder / "iceberg")}
        self.catalog = SqlCatalog("shop", **properties)
        self.catalog.create_namespace("shop")
        self.database = f"sqlite:///{folder}/shop.db"
        self.engine = sa.create_engine(self.database)

    def write(self, kind: str, frame: DataFrame, txid: int) -> None:
        outcomes = Outcomes(1, "orders-job", txid)
        if kind == "Delta":
            write_delta(frame, outcomes, self.delta)
        elif kind == "Iceberg":
            write_iceberg(frame, outcomes, "shop.orders", catalog=self.catalog)
        else:
            merge_into(frame, outcomes, self.database, "orders", key="order_id", order_by="amount")

    def alter(self, kind: str) -> None:
        said = self.statements[kind]
        if kind == "Delta":
            assert "s3://my-bucket/orders" in said
            names = {"DeltaTable": DeltaTable, "Field": Field, "PrimitiveType": PrimitiveType}
            exec(said.replace("s3://my-bucket/orders", self.delta), names)
        elif kind == "Iceberg":
            exec(said, {"table": self.catalog.load_table("shop.orders"), "StringType": StringType})
        else:
            with self.engine.begin() as connection:
                connection.execute(sa.text(said))

    def channels(self, kind: str) -> list[tuple[str, str | None]]:
        if kind == "Delta":
            rows = DeltaTable(self.delta).to_pyarrow_table().to_pylist()
        elif kind == "Iceberg":
            rows = self.catalog.load_table("shop.orders").scan().to_arrow().to_pylist()
        else:
            with self.engine.begin() as connection:
                rows = [dict(row) for row in connection.execute(sa.text("SELECT * FROM orders")).mappings()]
        return sorted((row["order_id"], row["channel"]) for row in rows)


def test_a_new_column(spark: SparkSession, tmp_path: Path) -> None:
    page = PAGES["new-column.md"].read_text(encoding="utf-8")
    tables = Tables(tmp_path, dict(re.findall(r"^\| (\w+).*? \| `(.*?)`", page, re.MULTILINE)))
    (code,) = (block.text for block in blocks_of(PAGES["new-column.md"]))
    (schema,) = re.findall(r'map\(parse, "(.*)"\)', code)
    names: dict[str, Any] = {"json": json}
    exec(code[: code.index("rows = ")], names)
    texts = (b'{"order_id": "b", "amount": 2}', b'{"order_id": "c", "amount": 3, "channel": "web"}')
    before = spark.createDataFrame([("a", 1.0)], "order_id string, amount double")
    after = spark.createDataFrame([names["parse"](SimpleNamespace(data=text)) for text in texts], schema)
    for kind in ("Delta", "Iceberg", "PostgreSQL"):
        tables.write(kind, before, 1)
        with pytest.raises(errors.SinkError, match="channel"):
            tables.write(kind, after, 2)
        tables.alter(kind)
        tables.write(kind, after, 2)
        assert tables.channels(kind) == [("a", None), ("b", None), ("c", "web")], kind
    tables.engine.dispose()
