"""Answers to PutRecords: a result for each record, or an error of botocore's parser, which is asked for again."""

from __future__ import annotations

import json
from typing import Any

from botocore.parsers import ResponseParserError
from hostility import hostile, mutated, mutated_json, read_bounded
from hypothesis import given

from kinesis_trident.spout.kinesis.answers import read_body
from kinesis_trident.spout.kinesis.put_bodies import results_of

ANSWERS: list[dict[str, Any]] = [
    {
        "FailedRecordCount": 1,
        "Records": [
            {"SequenceNumber": "7", "ShardId": "shardId-0"},
            {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "too fast"},
        ],
    },
    {"FailedRecordCount": 0, "Records": [{"SequenceNumber": "7", "ShardId": "s", "ErrorCode": None}] * 2},
]
BODIES = [json.dumps(answer).encode() for answer in ANSWERS]


def results(body: bytes) -> list[dict[str, Any]]:
    return read_body("PutRecords", lambda: results_of(memoryview(body), 2), body)


def read(body: bytes) -> None:
    found = read_bounded(lambda: results(body), len(body), ResponseParserError, "the answer to PutRecords")
    if found is not None:
        assert len(found) == 2
        assert all(isinstance(one.get("ErrorCode") or "", str) for one in found)


@hostile
@given(mutated(BODIES))
def test_damaged_bodies(body: bytes) -> None:
    read(body)


@hostile
@given(mutated_json(ANSWERS))
def test_wrong_answers(answer: Any) -> None:
    read(json.dumps(answer).encode())


def test_deep_bodies() -> None:
    for body in (b'{"Records":' + b"[" * 100_000, b'{"x":' * 100_000, b'{"Records":[],"x":' + b"[" * 100_000):
        read(body)


def test_the_samples_are_right() -> None:
    assert [[bool(one.get("ErrorCode")) for one in results(body)] for body in BODIES] == [
        [False, True],
        [False, False],
    ]
