"""Answers to GetRecords: a page whose records can be used, or botocore's error with the size of the body."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from botocore.parsers import ResponseParserError
from hostility import hostile, mutated, mutated_json, read_bounded
from hypothesis import given

from kinesis_trident.spout.kinesis import Page
from kinesis_trident.spout.kinesis.aggregation import deaggregate_page
from kinesis_trident.spout.kinesis.answers import read_body
from kinesis_trident.spout.kinesis.pages.decoding import page_of
from kinesis_trident.spout.kinesis.record_batches import (
    arrival_at,
    count_from,
    digest_of,
    position_at,
    select_from,
)
from kinesis_trident.spout.positions import After, AtTimestamp
from kinesis_trident.tracker.records import RecordPosition


def record(number: int) -> dict[str, Any]:
    return {
        "Data": base64.b64encode(b"payload %d" % number).decode(),
        "PartitionKey": f"key {number}",
        "SequenceNumber": str(10**55 + number),
        "ApproximateArrivalTimestamp": 1_700_000_000.123 + number,
        "EncryptionType": "NONE",
    }


CHILD = {"ShardId": "shardId-1", "ParentShards": ["shardId-0"], "HashKeyRange": {"StartingHashKey": "0"}}
ANSWERS: list[dict[str, Any]] = [
    {
        "Records": [record(1), record(2)],
        "NextShardIterator": "AAAA",
        "MillisBehindLatest": 7,
        "ChildShards": [],
    },
    {"Records": [record(3)], "MillisBehindLatest": 0, "ChildShards": [CHILD, CHILD]},
    {"Records": [], "NextShardIterator": "AAAA"},
]
BODIES = [json.dumps(answer).encode() for answer in ANSWERS]


def parsed(body: bytes) -> Page:
    """The page as the client gets it."""
    return read_body("GetRecords", lambda: page_of(memoryview(body)), body)


def use(page: Page) -> None:
    """Do with a page what a reader does with it."""
    assert page.next_iterator is None or isinstance(page.next_iterator, str)
    assert page.behind_ms is None or -(2**63) <= page.behind_ms < 2**63
    records = deaggregate_page(page.records)
    records.validate(full=True)
    for index in range(records.num_rows):
        assert 0 <= position_at(records, index).number < 10**129
        assert arrival_at(records, index) is not None
    assert records.num_rows >= page.records.num_rows == len(page.records.to_pylist())
    select_from(records, After(RecordPosition(10**55 + 1)))
    select_from(records, AtTimestamp(1_700_000_000_000))
    count_from(records, RecordPosition(10**55 + 2))
    digest_of([records])


def read(body: bytes) -> None:
    # Payloads of a large answer are decoded in another way.
    for answer in (body, body + b" " * 2**19):

        def call(answer: bytes = answer) -> None:
            use(parsed(answer))

        read_bounded(
            call, len(answer), ResponseParserError, "the answer to GetRecords cannot be read", "bytes"
        )


use(parsed(BODIES[0]))


@hostile
@given(mutated(BODIES))
def test_damaged_bodies(body: bytes) -> None:
    read(body)


@hostile
@given(mutated_json(ANSWERS))
def test_wrong_answers(answer: Any) -> None:
    read(json.dumps(answer).encode())


@pytest.mark.parametrize(
    "body",
    [
        b'{"Records":' + b"[" * 100_000,
        b'{"Records":[],"ChildShards":[' + b"[" * 100_000 + b"]" * 100_000 + b"]}",
        b'{"Records":[],"x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b'{"Records":[' + b"{}," * 5_000 + b"{}]}",
        b'{"Records":[' + b'{"Data":"","PartitionKey":"","SequenceNumber":"1"},' * 3_000 + b"0]}",
    ],
    ids=["open", "deep children", "deep", "empty records", "small records"],
)
def test_large_bodies(body: bytes) -> None:
    read(body)


def test_the_samples_are_right() -> None:
    for body in BODIES:
        assert isinstance(page_of(body), Page)
        assert msgspec.json.decode(body)
