"""The code of docs/aws-records.md through Spark: rows of each service's records; other records fail alone."""

from __future__ import annotations

import gzip
import json
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

from doc_blocks import blocks_of
from pyspark.sql import DataFrame
from stage import AVAILABLE_NOW, Stage, ended

from kinesis_trident import Reliable

PAGE = Path(__file__).resolve().parents[2] / "docs" / "aws-records.md"
NAMES = ("logs", "dms", "dynamodb", "agent", "texts")


def change(operation: str, at: str, **data: Any) -> dict[str, Any]:
    metadata = {
        "record-type": "data",
        "operation": operation,
        "timestamp": at,
        "schema-name": "shop",
        "table-name": "orders",
    }
    return {"data": data, "metadata": metadata}


def records() -> list[bytes]:
    logs = {
        "messageType": "DATA_MESSAGE",
        "logGroup": "g",
        "logStream": "s",
        "logEvents": [
            {"id": str(n), "timestamp": 1_782_900_000_000 + n, "message": f"m{n}"} for n in range(3)
        ],
    }
    item = {
        "eventName": "INSERT",
        "dynamodb": {
            "ApproximateCreationDateTime": 1_782_900_000_000,
            "Keys": {"order_id": {"S": "o"}},
            "NewImage": {"amount": {"N": "1.5"}},
        },
    }
    changes = [
        change("insert", "2026-07-01T10:00:00Z", order_id=1, amount=5.25),
        change("insert", "2026-07-01T10:00:01Z", order_id=2, amount=6),
        change("delete", "2026-07-01T10:00:03Z", order_id=1),
        # It comes after the delete, and is older.
        change("update", "2026-07-01T10:00:02Z", order_id=1, amount=7),
        {"metadata": {"record-type": "control", "operation": "create-table"}},
    ]
    return [
        gzip.compress(json.dumps(logs).encode()),
        *(json.dumps(one).encode() for one in [*changes, item]),
        b'{"level": "info", "message": "a"}{"message": "b"}',
    ]


def test_the_page_makes_rows_of_each(stage: Stage) -> None:
    given = records()
    stage.client.put_records(
        StreamName=stage.stream, Records=[{"Data": data, "PartitionKey": "k"} for data in given]
    )
    database = stage.folder / "orders.db"
    names: dict[str, Any] = {"DATABASE": f"sqlite:///{database}"}
    for name in NAMES:
        names[name] = stage.load(
            applicationName=f"{stage.app}-{name}", retryLimit=0, deadLetter=stage.at(f"letters-{name}")
        )
    for block in blocks_of(PAGE):
        exec(compile(block.text, PAGE.name, "exec"), names)

    def rows_of(chain: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []

        def write(df: DataFrame, _txid: int) -> None:
            found.extend(row.asDict(recursive=True) for row in df.collect())

        stream: Reliable = names[chain]
        ended(stage.start(stream, write, checkpoint=f"checkpoint-{chain}", trigger=AVAILABLE_NOW))
        return found

    assert [row["message"] for row in rows_of("events")] == ["m0", "m1", "m2"]
    assert len(stage.letters("letters-logs")) == len(given) - 1
    ended(
        stage.start(
            names["changes"], names["write_changes"], checkpoint="checkpoint-changes", trigger=AVAILABLE_NOW
        )
    )
    with sqlite3.connect(database) as connection:
        kept = connection.execute(
            "SELECT order_id, gone, changed_at FROM orders ORDER BY order_id"
        ).fetchall()
    connection.close()
    assert kept == [(1, 1, "2026-07-01T10:00:03Z"), (2, 0, "2026-07-01T10:00:01Z")]
    (item,) = rows_of("items")
    assert not item["gone"]
    assert item["NewImage"] == {"amount": Decimal("1.5000000000"), "tags": None}
    assert [(row["level"], row["message"]) for row in rows_of("lines")] == [("info", "a"), (None, "b")]
    # The texts of the others have words, too; the compressed one is no text, and fails alone.
    assert len(rows_of("parts")) > len(given)
    assert len(stage.letters("letters-texts")) == 1
