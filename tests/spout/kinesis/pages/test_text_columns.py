"""Columns that are cut out of text are those that a decoder of JSON reads, or none."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinesis_trident.spout.kinesis.pages import decoding
from kinesis_trident.spout.kinesis.pages.decoding import page_of, page_of_event
from kinesis_trident.spout.kinesis.pages.text_columns import columns_of

NAMES = ("Data", "PartitionKey", "SequenceNumber", "ApproximateArrivalTimestamp")
PLAIN = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters='"\\', min_codepoint=32), max_size=20
)
RECORDS = st.lists(
    st.tuples(
        st.binary(max_size=50),
        PLAIN,
        st.integers(0, 10**128),
        st.integers(1_000_000_000_000, 3_000_000_000_000),
    ),
    min_size=2,
    max_size=20,
)


def seconds(arrival: int, style: str) -> str:
    if style == "E":
        digits = f"{arrival:013}".rstrip("0")
        return f"{digits[0]}.{digits[1:] or '0'}E9"
    return f"{arrival / 1000:.3f}" if style == "." else f"{arrival // 1000}"


@st.composite
def bodies(draw: st.DrawFn, name_of_next: str = "NextShardIterator") -> bytes:
    """An answer as some server may write it."""
    order = draw(st.permutations(NAMES))
    space = draw(st.sampled_from(["", " ", "\n  "]))
    style = draw(st.sampled_from(".E0"))
    encryption = draw(st.sampled_from([None, "NONE", "KMS"]))
    records = []
    for data, key, sequence, arrival in draw(RECORDS):
        values = {
            "Data": f'"{base64.b64encode(data).decode()}"',
            "PartitionKey": f'"{key}"',
            "SequenceNumber": f'"{sequence}"',
            "ApproximateArrivalTimestamp": seconds(arrival, style),
        }
        fields = [f'"{name}":{space}{values[name]}' for name in order]
        if encryption is not None:
            fields.insert(1, f'"EncryptionType":{space}"{encryption}"')
        records.append("{" + f",{space}".join(fields) + space + "}")
    parts = [f'"{name_of_next}":"abc="', '"MillisBehindLatest":7']
    parts.insert(
        draw(st.integers(0, 2)), f'"Records":{space}[{space}' + f",{space}".join(records) + f"{space}]"
    )
    if draw(st.booleans()):
        parts.append('"ChildShards":[{"ShardId":"shardId-1","ParentShards":["shardId-0"]}]')
    return ("{" + ",".join(parts) + "}").encode()


@settings(deadline=None)
@given(bodies())
def test_it_is_what_json_says(body: bytes) -> None:
    slow = page_of(body)
    found = columns_of(body)
    assert found is not None
    columns, rest = found
    for column in (columns.keys, columns.data, columns.sequences):
        column.validate(full=True)
    assert columns.keys.equals(slow.records.column("partitionKey"))
    assert columns.data.equals(slow.records.column("data"))
    assert columns.data.buffers()[2].size == slow.size
    assert columns.sequences.equals(slow.records.column("sequenceNumber"))
    whole = json.loads(body)
    assert columns.arrivals.tolist() == [one["ApproximateArrivalTimestamp"] for one in whole["Records"]]
    assert json.loads(rest) == {**whole, "Records": []}


@settings(deadline=None)
@given(bodies(), st.data())
def test_damage_is_left_to_json(body: bytes, data: st.DataObject) -> None:
    """What is read of a damaged answer is what JSON says of it; where that is nothing, nothing is read."""
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        kind = data.draw(st.sampled_from(["change", "insert", "remove", "copy"]))
        some = data.draw(
            st.sampled_from([b'"', b"\\", b"=", b"0", b".", b"\xff", b"\0", b",", b"{", b"}", b"A", b"e"])
        )
        if kind == "change":
            damaged[at : at + 1] = some
        elif kind == "insert":
            damaged[at:at] = some
        elif kind == "remove":
            del damaged[at : at + data.draw(st.integers(1, 5))]
        else:
            other = data.draw(st.integers(0, len(body) - 1))
            damaged[at:at] = body[other : other + data.draw(st.integers(1, 200))]
    with at_every_size():
        cut = page_or_none(bytes(damaged))
    assert cut == page_or_none(bytes(damaged))


@settings(deadline=None)
@given(bodies("ContinuationSequenceNumber"))
def test_events_are_read_as_answers_are(body: bytes) -> None:
    slow = page_of_event(body)
    with at_every_size():
        cut = page_of_event(body)
    assert cut.records.equals(slow.records)
    assert replace(cut, records=None) == replace(slow, records=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b'"k1"', b'"k\\u0031"', id="an escape in a key"),
        pytest.param(b'"k1"', b'"k\x011"', id="a control character in a key"),
        pytest.param(b'"k1"', b'"k\xff1"', id="a key that is not UTF-8"),
        pytest.param(b'"AAE="', b'"AAE"', id="base64 without its padding"),
        pytest.param(b'"AAE="', b'"AA=E"', id="padding in the middle"),
        pytest.param(b'"AAE="', b'"A==="', id="too much padding"),
        pytest.param(b'"AAE="', b'"AA E"', id="no base64"),
        pytest.param(b"1.5", b"01.5", id="a leading zero"),
        pytest.param(b"1.5", b"1.", id="a point at the end"),
        pytest.param(b"1.5", b"1.e1", id="a point before the exponent"),
        pytest.param(b"1.5", b"-1.5", id="a time before 1970"),
        pytest.param(b"1.5", b"NaN", id="no number"),
        pytest.param(b'"Data"', b'"data"', id="another name"),
        pytest.param(b'"Data"', b'"D\\u0061ta"', id="an escape in a name"),
        pytest.param(b'"K": "M"', b'"K": "M", "L": 1', id="another number"),
        pytest.param(b'"K": "M"', b'"K": null', id="a null"),
        pytest.param(b'"K": "M"', b'"Data": ""', id="a name twice"),
        pytest.param(b'{"Records"', b'{"Records": [], "Records"', id="the records twice"),
        pytest.param(b"]}", b'], "Records": []}', id="the records twice, the last time empty"),
        pytest.param(b"]}", b'], "Rec\\u006frds": []}', id="the same with an escape"),
        pytest.param(b"]}", b"]} x", id="more after the end"),
        pytest.param(b"]}", b"]", id="no end"),
    ],
)
@pytest.mark.parametrize("everywhere", [False, True])
def test_it_is_left_to_json(old: bytes, new: bytes, everywhere: bool) -> None:
    record = {
        "Data": "AAE=",
        "PartitionKey": "k1",
        "SequenceNumber": "9",
        "ApproximateArrivalTimestamp": 1.5,
        "K": "M",
    }
    body = json.dumps({"Records": [record] * 4}).encode()
    assert columns_of(body) is not None
    odd = body.replace(old, new) if everywhere else new.join(body.rsplit(old, 1))
    assert odd != body
    with at_every_size():
        cut = page_or_none(odd)
    assert cut == page_or_none(odd)


def test_a_page_that_is_large_enough_is_cut() -> None:
    """As `page_of` does it: with parts that are scanned and decoded one after the other."""
    records = [
        {
            "SequenceNumber": str(10**55 + number),
            "ApproximateArrivalTimestamp": 1.7e9 + number,
            "Data": base64.b64encode(random.Random(number).randbytes(number % 3000)).decode(),
            "PartitionKey": f"key {number}",
        }
        for number in range(2500)
    ]
    body = json.dumps({"Records": records, "NextShardIterator": "i"}).encode()
    assert len(body) > 4 * 2**20
    found = columns_of(body)
    assert found is not None
    assert page_of(body).records.column("data").equals(found[0].data)
    assert found[0].data.to_pylist() == [base64.b64decode(one["Data"]) for one in records]  # type: ignore[arg-type]
    assert found[0].keys.to_pylist() == [one["PartitionKey"] for one in records]


@contextmanager
def at_every_size() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "_LARGE", 0)
        yield


def page_or_none(body: bytes) -> tuple[Any, ...] | None:
    try:
        page = page_of(body)
    except msgspec.ValidationError:
        return None
    page.records.validate(full=True)
    return page.records.to_pydict(), page.next_iterator, page.behind_ms, page.size, page.closed
