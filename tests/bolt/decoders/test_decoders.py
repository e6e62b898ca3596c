"""What services write, as rows: a record becomes one, several or none, and fails as a whole with its reason."""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from judged_texts import texts_of

from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.steps.columns import Record
from kinesis_trident.bolt.steps.functions import Judged
from kinesis_trident.bolt.steps.kinds import step_for
from kinesis_trident.decoders import CloudWatchLogsDecoder, DmsDecoder, DynamoDBDecoder, JsonDecoder
from kinesis_trident.spout.options.connection import ConnectionOptions


def decode(decoder: Any, columns: str, *records: Any) -> Judged:
    payloads = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in records]
    step = step_for(decoder, columns, ConnectionOptions())
    keys = [f"key-{row}" for row in range(len(records))]
    return step(pa.RecordBatch.from_pydict({"data": pa.array(payloads, pa.binary()), "partitionKey": keys}))


LOGS = {
    "messageType": "DATA_MESSAGE",
    "owner": "123456789012",
    "logGroup": "/aws/lambda/orders",
    "logStream": "2026/11/28/[$LATEST]0",
    "subscriptionFilters": ["all"],
    "logEvents": [
        {"id": "1", "timestamp": 1_782_900_000_123, "message": "START"},
        {"id": "2", "timestamp": 1_782_900_000_456, "message": "END"},
    ],
}


def test_log_events_are_rows_and_control_messages_none() -> None:
    control = {
        **LOGS,
        "messageType": "CONTROL_MESSAGE",
        "logEvents": [{"id": "", "timestamp": 0, "message": "?"}],
    }
    odd_time = {**LOGS, "logEvents": [*LOGS["logEvents"], {"id": "3", "timestamp": 10**18, "message": "?"}]}
    judged = decode(
        CloudWatchLogsDecoder(keep=["partitionKey"]),
        "timestamp timestamp, logGroup string, message string, subscriptionFilters array<string>, partitionKey string",
        gzip.compress(json.dumps(LOGS).encode()),
        gzip.compress(json.dumps(control).encode()),
        odd_time,
        {"message": "no subscription"},
        # One of several members, as a producer that joins records sends them.
        gzip.compress(json.dumps(LOGS).encode()) * 2,
    )
    assert judged.source.tolist() == [0, 0, 4, 4, 4, 4]
    assert judged.rows.to_pylist()[1] == {
        "timestamp": dt.datetime(2026, 7, 1, 10, 0, 0, 456_000, tzinfo=dt.UTC),
        "logGroup": "/aws/lambda/orders",
        "message": "END",
        "subscriptionFilters": ["all"],
        "partitionKey": "key-0",
    }
    assert sorted(judged.failed) == [2, 3]
    assert "'timestamp' is the time 1000000000000000000, which no calendar has" in texts_of(judged)[2]
    assert "it is not of a subscription of CloudWatch Logs" in texts_of(judged)[3]


def dms(kind: str, operation: str, table: str = "orders", **more: Any) -> dict[str, Any]:
    metadata = {
        "timestamp": "2026-07-01T10:00:00.000000Z",
        "record-type": kind,
        "operation": operation,
        "partition-key-type": "primary-key",
        "schema-name": "shop",
        "table-name": table,
        "transaction-id": 7,
    }
    return {"metadata": metadata, **more}


def test_changes_of_dms_are_rows_and_control_records_none() -> None:
    judged = decode(
        DmsDecoder(table="shop.orders", defaults={"note": None}),
        "order_id long, amount decimal(10,2), note string, metadata struct<operation string, `table-name` string>",
        dms("control", "create-table"),
        dms("data", "insert", data={"order_id": 1, "amount": 12.34}),
        dms("data", "delete", data={"order_id": 1, "amount": None}),
        dms("data", "insert", "customers", data={"id": 5}),
        {"order_id": 1},
        dms("data", "update", data={"order_id": 2}),
    )
    assert judged.source.tolist() == [1, 2]
    assert judged.rows.to_pylist() == [
        {
            "order_id": 1,
            "amount": amount,
            "note": None,
            "metadata": {"operation": operation, "table-name": "orders"},
        }
        for amount, operation in ((Decimal("12.34"), "insert"), (None, "delete"))
    ]
    assert "it is not of AWS DMS" in texts_of(judged)[4]
    assert (
        "it has no 'amount', only metadata, order_id. Give the column a value in defaults"
        in texts_of(judged)[5]
    )


def test_changes_of_dynamodb_are_rows_of_plain_values() -> None:
    item = {
        "order_id": {"S": "o-1"},
        "amount": {"N": "12345678901234567890.123456789"},
        "count": {"N": "7"},
        "share": {"N": "0.5"},
        "paid": {"BOOL": True},
        "note": {"NULL": True},
        "raw": {"B": base64.b64encode(b"\0\1").decode()},
        "tags": {"SS": ["a", "b"]},
        "sizes": {"NS": ["1", "2"]},
        "lines": {"L": [{"M": {"sku": {"S": "x"}, "net": {"N": "1.5"}}}, {"M": {"sku": {"S": "y"}}}]},
    }
    change = {
        "eventID": "1",
        "eventName": "INSERT",
        "tableName": "orders",
        "dynamodb": {
            "ApproximateCreationDateTime": 1_782_900_000_123,
            "Keys": {"order_id": {"S": "o-1"}},
            "NewImage": item,
            "SizeBytes": 99,
        },
    }
    precise = json.loads(json.dumps(change))
    precise["dynamodb"] |= {
        "ApproximateCreationDateTime": 1_782_900_000_123_456,
        "ApproximateCreationDateTimePrecision": "MICROSECOND",
    }
    columns = (
        "eventName string, ApproximateCreationDateTime timestamp, Keys struct<order_id string>, "
        "OldImage struct<count int>, NewImage struct<amount decimal(38,9), count int, share double, paid boolean, "
        "note string, raw binary, tags array<string>, sizes array<long>, "
        "lines array<struct<sku string, net decimal(4,2)>>, absent string>"
    )
    odd = {**change, "dynamodb": {"NewImage": {"count": {"N": "seven"}}, "Keys": {}}}
    unknown = {**change, "dynamodb": {"NewImage": {"count": {"X": 1}}, "Keys": {}}}
    judged = decode(DynamoDBDecoder(), columns, change, precise, odd, unknown, {"eventName": "INSERT"})
    first, second = judged.rows.to_pylist()
    assert first == {
        "eventName": "INSERT",
        "ApproximateCreationDateTime": dt.datetime(2026, 7, 1, 10, 0, 0, 123_000, tzinfo=dt.UTC),
        "Keys": {"order_id": "o-1"},
        "OldImage": None,
        "NewImage": {
            "amount": Decimal("12345678901234567890.123456789"),
            "count": 7,
            "share": 0.5,
            "paid": True,
            "note": None,
            "raw": b"\0\1",
            "tags": ["a", "b"],
            "sizes": [1, 2],
            "lines": [{"sku": "x", "net": Decimal("1.50")}, {"sku": "y", "net": None}],
            "absent": None,
        },
    }
    assert second["ApproximateCreationDateTime"].microsecond == 123_456
    assert "the attribute {'N': 'seven'} is not of its type" in texts_of(judged)[2]
    assert "an attribute has the type 'X', which DynamoDB does not have" in texts_of(judged)[3]
    assert "it is not of a table's stream to Kinesis" in texts_of(judged)[4]


@pytest.mark.parametrize("defaults", [{}, {"gone": True}])
def test_a_named_column_tells_deletions(defaults: dict[str, Any]) -> None:
    of_dms = [
        dms("data", operation, data={"id": 1, "gone": "?"}) for operation in ("load", "update", "delete")
    ]
    columns = "gone boolean, metadata struct<operation string>"
    rows = decode(DmsDecoder(deleted="gone", defaults=defaults), columns, *of_dms).rows.to_pylist()
    assert [row["gone"] for row in rows] == [False, False, True]
    items = [{"eventName": name, "dynamodb": {"Keys": {}}} for name in ("INSERT", "MODIFY", "REMOVE")]
    decoder = DynamoDBDecoder(deleted="gone", defaults=defaults)
    assert decode(decoder, "gone boolean", *items).rows["gone"].to_pylist() == [False, False, True]
    for other in ("eventName string", "gone string"):
        with pytest.raises(
            OperatorError, match=r"DynamoDBDecoder names 'gone' in deleted, which is no boolean"
        ):
            decode(DynamoDBDecoder(deleted="gone"), other)


def test_objects_one_after_another_are_rows_and_one_wrong_one_fails_its_record() -> None:
    judged = decode(
        JsonDecoder(defaults={"level": None}),
        "level string, message string",
        b'{"level": "info", "message": "a"}{"message": "b"}',
        b'{"message": "c"}\n{"level": "info"}\n',
        b'{"message": "d"}{"message": 5}',
        b"[]",
        b'{"message": "e"}',
    )
    assert judged.source.tolist() == [0, 0, 4]
    assert [row["message"] for row in judged.rows.to_pylist()] == ["a", "b", "e"]
    assert sorted(judged.failed) == [1, 2]
    assert "it has no 'message', only level" in texts_of(judged)[1]
    assert "the field 'message' is string, but a value is 5" in texts_of(judged)[2]


def test_a_number_whose_unit_nobody_says_is_no_time() -> None:
    judged = decode(JsonDecoder(), "at timestamp", {"at": 1_782_900_000})
    assert "'at' is the number 1782900000, whose unit nobody says" in texts_of(judged)[0]
    assert "Give the column the type bigint" in texts_of(judged)[0]
    with pytest.raises(OperatorError, match="JsonDecoder names 'levl' in defaults or keep"):
        decode(JsonDecoder(defaults={"levl": None}), "level string")


# One record to many rows, in functions of one's own.


def words(record: Record) -> list[tuple[str, int]]:
    return [(word, int(at)) for at, word in enumerate(record.data.decode().split(" "))]


def yielded(record: Record) -> Iterator[dict[str, Any]]:
    for at, word in enumerate(record.data.decode().split(" ")):
        if word == "bad":
            raise ValueError(word)
        yield {"word": word, "at": at}


@pytest.mark.parametrize("function", [words, yielded])
def test_a_function_may_give_several_rows(function: Any) -> None:
    step = step_for(function, "word string, at int", ConnectionOptions())
    data = pa.array([b"a b", b"c", b"", b"x bad"], pa.binary())
    judged = step(pa.RecordBatch.from_pydict({"data": data}))
    rows = [(row["word"], row["at"]) for row in judged.rows.to_pylist()]
    assert rows[:4] == [("a", 0), ("b", 1), ("c", 0), ("", 0)]
    if function is yielded:
        assert judged.source.tolist() == [0, 0, 1, 2]
        assert "ValueError: bad" in texts_of(judged)[3]
    else:
        assert judged.source.tolist() == [0, 0, 1, 2, 3, 3]


def test_a_record_without_rows_is_done_and_one_of_which_a_row_does_not_fit_fails() -> None:
    def several(record: Record) -> list[tuple[Any]]:
        return [(int(one) if one.isdigit() else one,) for one in record.data.decode().split()]

    step = step_for(several, "number int", ConnectionOptions())
    judged = step(pa.RecordBatch.from_pydict({"data": pa.array([b"1 2", b"", b"3 x 4", b"5"], pa.binary())}))
    assert judged.rows.to_pylist() == [{"number": 1}, {"number": 2}, {"number": 5}]
    assert judged.source.tolist() == [0, 0, 3]
    assert sorted(judged.failed) == [2]


def test_a_list_that_holds_no_rows_is_a_row() -> None:
    step = step_for(lambda record: [1, "a"], "number int, text string", ConnectionOptions())
    judged = step(pa.RecordBatch.from_pydict({"data": pa.array([b""], pa.binary())}))
    assert judged.rows.to_pylist() == [{"number": 1, "text": "a"}]
