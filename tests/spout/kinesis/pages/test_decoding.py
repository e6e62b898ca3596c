from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from botocore.model import ServiceModel
from botocore.parsers import ResponseParserError, ResponseParserFactory
from botocore.session import get_session
from hypothesis import given, settings, strategies as st

from kinesis_trident.spout.kinesis import Page
from kinesis_trident.spout.kinesis.answers import read_body, server_time
from kinesis_trident.spout.kinesis.pages.decoding import page_of, page_of_event, why_not_decoded
from kinesis_trident.spout.kinesis.record_batches import (
    RECORD_SCHEMA,
    UNREADABLE_SUB,
    count_from,
    position_at,
    select_from,
    select_readable,
    unreadable_in,
)
from kinesis_trident.spout.positions import After, AtTimestamp
from kinesis_trident.tracker.records import RecordPosition

RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "Data": st.binary(max_size=50),
            "PartitionKey": st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
            "SequenceNumber": st.integers(0, 10**128).map(str),
            "ApproximateArrivalTimestamp": st.integers(1_000_000_000_000, 3_000_000_000_000),
        }
    ),
    max_size=20,
    unique_by=lambda record: int(record["SequenceNumber"]),
).map(lambda records: sorted(records, key=lambda record: int(record["SequenceNumber"])))


def body_of(records: list[dict[str, object]], **more: object) -> bytes:
    entries = [
        {
            **record,
            "Data": base64.b64encode(record["Data"]).decode(),  # type: ignore[arg-type]
            "ApproximateArrivalTimestamp": record["ApproximateArrivalTimestamp"] / 1000,  # type: ignore[operator]
            "EncryptionType": "KMS",
        }
        for record in records
    ]
    return json.dumps({"Records": entries, **more}).encode()


BLANKS = b" " * 2**19
"""Make an answer a large one: its payloads are decoded many at a time."""

sizes = pytest.mark.parametrize("blanks", [b"", BLANKS], ids=["small", "large"])


def parsed(body: bytes) -> Page:
    """The page of a GetRecords answer, as the client parses it."""
    return read_body("GetRecords", lambda: page_of(body), body)


@sizes
@settings(deadline=None)
@given(RECORDS, st.none() | st.text(min_size=1), st.integers(0, 10**9))
def test_a_body_becomes_a_page(
    blanks: bytes, records: list[dict[str, object]], following: str | None, behind: int
) -> None:
    body = body_of(records, NextShardIterator=following, MillisBehindLatest=behind)
    page = page_of(body + blanks, 5)
    assert page.records.schema == RECORD_SCHEMA
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert page.records.to_pylist() == [
        {
            "partitionKey": record["PartitionKey"],
            "data": record["Data"],
            "sequenceNumber": record["SequenceNumber"],
            "subSequenceNumber": -1,
            "approximateArrivalTimestamp": epoch
            + timedelta(milliseconds=record["ApproximateArrivalTimestamp"]),  # type: ignore[arg-type]
        }
        for record in records
    ]
    assert (page.next_iterator, page.behind_ms, page.server_time) == (following, behind, 5)
    assert page.size == sum(len(record["Data"]) for record in records)  # type: ignore[arg-type]


def test_the_body_of_a_drained_shard() -> None:
    page = page_of(b'{"Records": [], "MillisBehindLatest": 0, "ChildShards": [{"ShardId": "s"}]}')
    assert (page.records.num_rows, page.next_iterator, page.server_time) == (0, None, None)
    assert page.closed
    assert not page_of(b'{"Records": [], "ChildShards": []}').closed


def test_a_lag_that_is_missing_is_not_known() -> None:
    assert page_of(b'{"Records": []}').behind_ms is None
    assert page_of(b'{"Records": [], "MillisBehindLatest": 0}').behind_ms == 0


@sizes
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"Records": null}',
        b'{"Records": [{"Data": "?"}]}',
        b'{"Records": [{"Data": "", "SequenceNumber": "7"}, {"Data": "", "SequenceNumber": 8}]}',
        b'{"Records": [{"Data": "", "SequenceNumber": "7"}, {"Data": "", "SequenceNumber": "7"}]}',
        b'{"Records": [{"Data": "", "SequenceNumber": "10"}, {"Data": "", "SequenceNumber": "9"}]}',
        b'{"Records": [{"Data": 0, "SequenceNumber": "10"}, {"Data": 0, "SequenceNumber": "9"}]}',
    ],
)
def test_a_body_that_is_no_answer(body: bytes, blanks: bytes) -> None:
    body += blanks
    with pytest.raises(msgspec.MsgspecError):
        page_of(body)
    with pytest.raises(ResponseParserError, match=f"GetRecords cannot be read .{len(body)} bytes"):
        parsed(body)


@sizes
@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b'"AAE="', b'"AA\\nE="', id="base64 over two lines"),
        pytest.param(b"1.5", b'"1970-01-01T00:00:01.500Z"', id="a time as text"),
        pytest.param(b":7", b":7.0", id="a lag with a point"),
        pytest.param(b'"k"', b'"k\\ud800"', id="half a surrogate pair"),
        pytest.param(b'"AAE="', b'"\\u0041AE="', id="base64 with an escape"),
        pytest.param(b'"AAE="', b'  "AAE="\n', id="blanks"),
    ],
)
def test_other_notations_of_a_record(old: bytes, new: bytes, blanks: bytes) -> None:
    record = {
        "Data": b"\0\1",
        "PartitionKey": "k",
        "SequenceNumber": "9",
        "ApproximateArrivalTimestamp": 1500,
    }
    body = body_of([record], NextShardIterator="x", MillisBehindLatest=7)
    odd = body.replace(old, new).replace(b": 7", b": 7.0" if new == b":7.0" else b": 7")
    found, plain = parsed(odd + blanks), parsed(body)
    key = found.records.column("partitionKey").to_pylist()
    assert key == (["k\ufffd"] if b"ud800" in new else ["k"])
    for column in ("data", "sequenceNumber", "approximateArrivalTimestamp"):
        assert found.records.column(column).equals(plain.records.column(column))
    assert (found.next_iterator, found.behind_ms, found.size) == ("x", 7, 2)


ODD = {
    "no data": {"Data": None},
    "data of another type": {"Data": {"S3": "s3://bucket/key"}},
    "no base64": {"Data": "a?"},
    "other characters": {"Data": "AA\u00e9="},
    "padding too early": {"Data": "AA=E"},
    "padding alone": {"Data": "===="},
    "padding in the middle": {"Data": "AA==AA=="},
    "a group cut off": {"Data": "AAAAA"},
    "a group of others": {"Data": "????AAE="},
    "a number of as many digits": {"Data": 123456},
    "a key of another type": {"PartitionKey": 7},
    "a time that is none": {"ApproximateArrivalTimestamp": "soon"},
    "a time of the far future": {"ApproximateArrivalTimestamp": 1e15},
    "a time before 1970": {"ApproximateArrivalTimestamp": -1},
}


@sizes
@pytest.mark.parametrize("members", ODD.values(), ids=ODD)
@pytest.mark.parametrize("read", [page_of, page_of_event])
def test_a_record_that_cannot_be_decoded_stays_json_in_its_place(
    read: Callable[[bytes], Page], members: dict[str, object], blanks: bytes
) -> None:
    records = [
        {"Data": "AAE=", "PartitionKey": "k", "SequenceNumber": str(n), "ApproximateArrivalTimestamp": 1.5}
        for n in range(9, 13)
    ]
    records[2] |= members
    body = json.dumps({"Records": records, "MillisBehindLatest": 7, "ChildShards": []}).encode()
    page = read(body + blanks)
    rows = page.records.to_pylist()
    assert [row["sequenceNumber"] for row in rows] == ["9", "10", "11", "12"]
    assert [row["subSequenceNumber"] for row in rows] == [-1, -1, UNREADABLE_SUB, -1]
    assert json.loads(rows[2]["data"]) == records[2]
    assert rows[2]["partitionKey"] is None
    assert why_not_decoded(rows[2]["data"]).startswith("UNREADABLE: ")
    assert [row["data"] for row in rows if row["subSequenceNumber"] == -1] == [b"\0\1"] * 3
    assert position_at(page.records, 2) == RecordPosition(11)
    assert [int(one) for one in unreadable_in(page.records)] == [2]
    assert select_readable(page.records).column("sequenceNumber").to_pylist() == ["9", "10", "12"]
    # The position is what counts for whoever continues after it, or looks for it.
    assert select_from(page.records, After(RecordPosition(10))).num_rows == 2
    assert count_from(page.records, RecordPosition(11)) == 2


def test_records_without_a_key_or_a_time() -> None:
    """A stream that distributes by itself leaves the key out; the time of a record was never required."""
    body = {
        "Records": [
            {"Data": "", "SequenceNumber": "7"},
            {"Data": "", "SequenceNumber": "8", "PartitionKey": "k"},
        ]
    }
    page = page_of(json.dumps(body).encode())
    assert page.records.column("partitionKey").to_pylist() == [None, "k"]
    assert page.records.schema == RECORD_SCHEMA
    assert select_from(page.records, AtTimestamp(1_700_000_000_000)).num_rows == 2


def test_the_servers_time() -> None:
    assert server_time({"date": "Sun, 06 Nov 1994 08:49:37 GMT"}) == 784111777000
    assert server_time({"date": "yesterday"}) is None
    assert server_time({}) is None


def test_it_is_far_faster_than_botocores_parser() -> None:
    records = [
        {
            "Data": bytes(200),
            "PartitionKey": "k",
            "SequenceNumber": str(10**55 + n),
            "ApproximateArrivalTimestamp": n,
        }
        for n in range(2000)
    ]
    body = body_of(records)
    response = {"body": body, "headers": {}, "status_code": 200, "context": {}}
    loader = get_session().get_component("data_loader")
    model = ServiceModel(loader.load_service_model("kinesis", "service-2"))
    shape = model.operation_model("GetRecords").output_shape
    plain = ResponseParserFactory().create_parser("json")

    def cpu(parse: Callable[[], object]) -> float:
        best = 10.0
        for _ in range(3):
            start = time.process_time()
            parse()
            best = min(best, time.process_time() - start)
        return best

    assert cpu(lambda: plain.parse(response, shape)) > 5 * cpu(lambda: page_of(body))
