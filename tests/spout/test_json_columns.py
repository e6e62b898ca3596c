"""The regular bodies of GetRecords without a parser: the same records as botocore's parser finds, or none at all."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from botocore.parsers import ResponseParserFactory
from botocore.session import get_session
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spout.json_columns import columns_of
from spout.pages import page_from_response, page_of

SHAPE = get_session().get_service_model("kinesis").operation_model("GetRecords").output_shape
PLAIN = ResponseParserFactory().create_parser("json")

NAMES = ["Data", "PartitionKey", "SequenceNumber", "ApproximateArrivalTimestamp"]
# Without what JSON escapes: a body with an escape is not regular.
PLAIN_TEXT = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), min_size=1, max_size=20
)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
TIMES = {
    "decimal": lambda ms: f"{ms // 1000}.{ms % 1000:03}",
    "exponent": lambda ms: f"{ms // 10**12}.{ms % 10**12:012}E9",
    "integer": lambda ms: f"{ms // 1000}",
}


@st.composite
def bodies(draw: st.DrawFn, text: st.SearchStrategy[str] = PLAIN_TEXT, least: int = 1) -> bytes:
    """Bodies as servers write them: all records alike, in an order and notation of the server's own."""
    names = draw(st.permutations([*NAMES, "EncryptionType"]).filter(lambda found: found[-1] != NAMES[-1]))
    encryption = draw(st.sampled_from(['"NONE"', '"KMS"', "null"]))
    time = TIMES[draw(st.sampled_from(sorted(TIMES)))]
    ascii_only = draw(st.booleans()) if text is ANY_TEXT else False
    records = []
    for data, key, sequence, arrival in draw(
        st.lists(
            st.tuples(
                st.binary(max_size=8),
                text,
                st.integers(0, 10**56),
                st.integers(10**12, 3 * 10**12),
            ),
            min_size=least,
            max_size=8,
        )
    ):
        values = {
            "Data": f'"{base64.b64encode(data).decode()}"',
            "PartitionKey": json.dumps(key, ensure_ascii=ascii_only),
            "SequenceNumber": f'"{sequence:056}"',
            "ApproximateArrivalTimestamp": time(arrival),
            "EncryptionType": encryption,
        }
        records.append("{" + ",".join(f'"{name}":{values[name]}' for name in names) + "}")
    tail = {
        "NextShardIterator": json.dumps(draw(PLAIN_TEXT), ensure_ascii=False),
        "MillisBehindLatest": str(draw(st.integers(0, 10**9))),
        "ChildShards": json.dumps(
            [
                {"ShardId": f"s{n}", "ParentShards": ["a"], "HashKeyRange": {"x": "y", "z": "w"}}
                for n in range(draw(st.integers(0, 3)))
            ],
            separators=(",", ":"),
        ),
    }
    parts = draw(st.permutations([*tail.items(), ("Records", f"[{','.join(records)}]")]))
    return ("{" + ",".join(f'"{name}":{value}' for name, value in parts) + "}").encode()


def by_botocore(body: bytes) -> Any:
    response = {"body": body, "headers": {}, "status_code": 200, "context": {"operation_name": "GetRecords"}}
    return page_from_response(PLAIN.parse(response, SHAPE))


@settings(deadline=None)
@given(bodies())
def test_a_regular_body_needs_no_parser(body: bytes) -> None:
    assert columns_of(body) is not None
    assert page_of(body) == by_botocore(body)


@settings(deadline=None)
@given(bodies(ANY_TEXT, least=0))
def test_any_body_gives_the_records_that_botocore_finds(body: bytes) -> None:
    assert page_of(body) == by_botocore(body)


@settings(deadline=None, max_examples=300)
@given(bodies(), st.randoms(use_true_random=False))
def test_what_is_still_json_after_damage_is_read_as_json(body: bytes, rng: random.Random) -> None:
    """Records of unlike shape, names missing or twice, numbers that are none: whatever a changed byte makes of them."""
    damaged = bytearray(body)
    at = rng.randrange(len(damaged))
    damaged[at : at + rng.randrange(3)] = rng.choice(
        [b"", b'"', b",", b":", b"}", b"\\", b"=", b"1", b"A", b"\xff"]
    )
    try:
        json.loads(damaged)
        expected = page_of_msgspec(bytes(damaged))
    except (ValueError, msgspec.MsgspecError):
        # No JSON, or not an answer: it may be refused.
        return
    assert page_of(bytes(damaged)) == expected


def page_of_msgspec(body: bytes) -> Any:
    """The page by the parser for irregular bodies: white space makes any body one."""
    spaced = body.replace(b'"Records":', b'"Records": ')
    assert columns_of(spaced) is None
    return page_of(spaced)


def record(data: bytes, more: str = "") -> str:
    encoded = base64.b64encode(data).decode()
    head = f'"SequenceNumber":"{7:056}","ApproximateArrivalTimestamp":1.5'
    return f'{{{head},"Data":"{encoded}","PartitionKey":"k"{more}}}'


@pytest.mark.parametrize(
    "records",
    [
        [record(b"one"), record(b"two", ',"EncryptionType":"KMS"')],
        [record(b"one", ',"EncryptionType":null'), record(b"two", ',"EncryptionType":"KMS"')],
        [record(b"one", ',"Nested":{"a":"b"}')],
        [record(b"one").replace("1.5", '"1.5"')],
        [record(b"one").replace(',"PartitionKey":"k"', "").replace("Data", "PartitionKey")],
        [record(b"one").replace('"1', '"1'), record(b"two").replace(",", ", ")],
        [record(b"one"), record(b"two").replace("k", '\\"')],
        [record(b"one").replace("=", ""), record(b"fours").replace("=", "")],
        [record(b"four").replace("=", "A=")],
        [record(b"one"), record(b"two").replace("1.5", "null")],
    ],
    ids=[
        "a member more",
        "a string for null",
        "an object inside",
        "a time that is a text",
        "no data",
        "white space",
        "an escaped quote",
        "no padding",
        "padding in the middle",
        "no time",
    ],
)
def test_an_irregular_body_is_left_to_the_parser(records: list[str]) -> None:
    assert columns_of(f'{{"Records":[{",".join(records)}]}}'.encode()) is None


def test_records_larger_and_smaller_than_a_block() -> None:
    rng = random.Random(1)
    sizes = [0, 3 * 2**20, 1, 2, 2**20 + 1, *(rng.randrange(3000) for _ in range(2000)), 2**20]
    payloads = [rng.randbytes(size) for size in sizes]
    body = f'{{"Records":[{",".join(map(record, payloads))}],"NextShardIterator":"x"}}'.encode()

    page = page_of(body)

    assert columns_of(body) is not None
    assert page.records.column("data").to_pylist() == payloads
    assert page.size == sum(sizes)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=10), min_size=1, max_size=40))
@example([b""])
def test_data_of_any_length_beside_any_other(payloads: list[bytes]) -> None:
    found = columns_of(f'{{"Records":[{",".join(map(record, payloads))}]}}'.encode())

    assert found is not None
    assert found.data.equals(pa.array(payloads, pa.binary()))
    assert json.loads(found.rest) == {"Records": []}
