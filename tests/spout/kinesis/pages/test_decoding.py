from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache

import msgspec
import pytest
from botocore.model import ServiceModel
from botocore.parsers import ResponseParserError, ResponseParserFactory
from botocore.session import get_session
from hypothesis import given, settings
from hypothesis import strategies as st

from kinesis_trident.spout.kinesis import Page
from kinesis_trident.spout.kinesis.pages.decoding import PAGE_SCHEMA, page_from_response, page_of, parsed_page
from kinesis_trident.spout.kinesis.pages.parser import PAGE, PageParserFactory, server_time

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
)


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


@cache
def model() -> ServiceModel:
    return ServiceModel(get_session().get_component("data_loader").load_service_model("kinesis", "service-2"))


def parsed(body: bytes) -> Page:
    """The page of a GetRecords answer, as the client parses it."""
    response = {"status_code": 200, "headers": {}, "context": {"operation_name": "GetRecords"}}
    shape = model().operation_model("GetRecords").output_shape
    parser = PageParserFactory().create_parser("json")
    page: Page = parser.parse({**response, "body": parsed_page(memoryview(body))}, shape)[PAGE]
    return page


@settings(deadline=None)
@given(RECORDS, st.none() | st.text(min_size=1), st.integers(0, 10**9))
def test_a_body_becomes_a_page(records: list[dict[str, object]], following: str | None, behind: int) -> None:
    page = page_of(body_of(records, NextShardIterator=following, MillisBehindLatest=behind), 5)
    assert page.records.schema == PAGE_SCHEMA
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert page.records.to_pylist() == [
        {
            "partitionKey": record["PartitionKey"],
            "data": record["Data"],
            "sequenceNumber": record["SequenceNumber"],
            "approximateArrivalTimestamp": epoch
            + timedelta(milliseconds=record["ApproximateArrivalTimestamp"]),  # type: ignore[arg-type]
        }
        for record in records
    ]
    assert (page.next_iterator, page.behind_ms, page.server_time) == (following, behind, 5)
    assert page.size == sum(len(record["Data"]) for record in records)  # type: ignore[arg-type]


@settings(deadline=None)
@given(RECORDS)
def test_botocores_own_parser_gives_the_same_page(records: list[dict[str, object]]) -> None:
    body = body_of(records, NextShardIterator="x", MillisBehindLatest=7)
    response = {"body": body, "headers": {}, "status_code": 200, "context": {"operation_name": "GetRecords"}}
    shape = model().operation_model("GetRecords").output_shape
    plain = ResponseParserFactory().create_parser("json").parse(response, shape)
    slow, fast = (
        page_from_response(plain),
        PageParserFactory()
        .create_parser("json")
        .parse({**response, "body": parsed_page(memoryview(body))}, shape)[PAGE],
    )
    assert slow.records.equals(fast.records)
    assert (slow.next_iterator, slow.behind_ms, slow.size) == (fast.next_iterator, fast.behind_ms, fast.size)


def test_the_body_of_a_drained_shard() -> None:
    page = page_of(b'{"Records": [], "MillisBehindLatest": 0, "ChildShards": [{"ShardId": "s"}]}')
    assert (page.records.num_rows, page.next_iterator, page.server_time) == (0, None, None)
    assert page.closed
    assert not page_of(b'{"Records": [], "ChildShards": []}').closed


def test_a_lag_that_is_missing_is_not_known() -> None:
    assert page_of(b'{"Records": []}').behind_ms is None
    assert page_of(b'{"Records": [], "MillisBehindLatest": 0}').behind_ms == 0


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b'{"Records": null}', b'{"Records": [{"Data": "?"}]}', b"[]"]
)
def test_a_body_that_is_no_answer(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        page_of(body)
    with pytest.raises(ResponseParserError, match=f"GetRecords cannot be read .{len(body)} bytes"):
        parsed(body)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b'"AAE="', b'"AA\\nE="', id="base64 over two lines"),
        pytest.param(b"1.5", b'"1970-01-01T00:00:01.500Z"', id="a time as text"),
        pytest.param(b":7", b":7.0", id="a lag with a point"),
        pytest.param(b'"k"', b'"k\\ud800"', id="half a surrogate pair"),
    ],
)
def test_what_the_decoder_refuses_is_read_by_botocore(old: bytes, new: bytes) -> None:
    record = {
        "Data": b"\0\1",
        "PartitionKey": "k",
        "SequenceNumber": "9",
        "ApproximateArrivalTimestamp": 1500,
    }
    body = body_of([record], NextShardIterator="x", MillisBehindLatest=7)
    odd = body.replace(old, new).replace(b": 7", b": 7.0" if new == b":7.0" else b": 7")
    with pytest.raises(msgspec.MsgspecError):
        page_of(odd)
    found, plain = parsed(odd), parsed(body)
    key = found.records.column("partitionKey").to_pylist()
    assert key == (["k\ufffd"] if b"ud800" in new else ["k"])
    for column in ("data", "sequenceNumber", "approximateArrivalTimestamp"):
        assert found.records.column(column).equals(plain.records.column(column))
    assert (found.next_iterator, found.behind_ms, found.size) == ("x", 7, 2)


def test_all_but_getrecords_is_left_to_botocore() -> None:
    kinesis, parser = model(), PageParserFactory().create_parser("json")
    answer = {"status_code": 200, "headers": {"x-amzn-RequestId": "1"}, "context": {}}
    shards = parser.parse(
        {**answer, "body": b'{"Shards": []}'}, kinesis.operation_model("ListShards").output_shape
    )
    assert shards["Shards"] == []
    refused = parser.parse(
        {**answer, "status_code": 400, "body": b'{"__type": "ExpiredIteratorException", "message": "old"}'},
        kinesis.operation_model("GetRecords").output_shape,
    )
    assert refused["Error"] == {"Code": "ExpiredIteratorException", "Message": "old"}
    assert type(PageParserFactory().create_parser("query")).__name__ == "QueryParser"


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
    shape = model().operation_model("GetRecords").output_shape
    plain = ResponseParserFactory().create_parser("json")

    def cpu(parse: Callable[[], object]) -> float:
        best = 10.0
        for _ in range(3):
            start = time.process_time()
            parse()
            best = min(best, time.process_time() - start)
        return best

    assert cpu(lambda: plain.parse(response, shape)) > 5 * cpu(lambda: parsed_page(memoryview(body)))
