"""The JSON objects of a record: as they were written, however they were joined and compressed; or an error of ours."""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.bolt.decoders.documents import objects_of
from kinesis_trident.bolt.steps import compressed

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
OBJECTS = st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), min_size=1, max_size=4)
JOINS = {
    "nothing between": "".join,
    "lines": lambda texts: "\n".join(texts) + "\n",
    "spaces": lambda texts: " \t" + "\r\n ".join(texts),
    "an array": lambda texts: f"[{','.join(texts)}]",
    "arrays": lambda texts: "".join(f"[{text}]" for text in texts),
}
FORMS = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "gzip members": lambda data: b"".join(gzip.compress(data[at : at + 7]) for at in range(0, len(data), 7)),
    "zlib": zlib.compress,
    "zlib, fast": lambda data: zlib.compress(data, 1),
}


@given(OBJECTS, st.sampled_from(sorted(JOINS)), st.sampled_from(sorted(FORMS)))
def test_objects_are_read_as_they_were_written(objects: list[dict[str, Any]], join: str, form: str) -> None:
    payload = FORMS[form](JOINS[join]([json.dumps(one) for one in objects]).encode())
    assert list(objects_of(payload)) == objects


@given(OBJECTS, st.sampled_from(sorted(FORMS)), st.data())
def test_a_cut_payload_gives_its_first_objects_or_an_error(
    objects: list[dict[str, Any]], form: str, data: st.DataObject
) -> None:
    payload = FORMS[form]("\n".join(map(json.dumps, objects)).encode())
    cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
    found = []
    with suppress(ValueError):
        found = list(objects_of(cut))
    assert found == objects[: len(found)]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "it has no JSON document"),
        (b" \n", "it has no JSON document"),
        (b"plain text", "it is no JSON: Expecting value at character 0"),
        (b'{"a": 1} and more', "it is no JSON: Expecting value at character 9"),
        (b'{"a": NaN}', "it holds NaN, which is not JSON"),
        (b"5", "its JSON is int, expected an object"),
        (b'[{"a": 1}, "b"]', "its JSON is str, expected an object"),
        (b"\xff\xfe", "codec can't decode"),
        (b"[" * 100_000, "nested too deeply"),
        (gzip.compress(b"{}", mtime=0) + b"more", "4 bytes follow its compressed payload"),
        (gzip.compress(b'{"a": 1}', mtime=0)[:-3], "its compressed data ends too early"),
        (zlib.compress(b'{"a": 1}') + b"?", "1 bytes follow its compressed payload"),
        (b"\x1f\x8bno gzip", "zlib cannot read it"),
    ],
)
def test_what_is_no_object_is_an_error(payload: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        list(objects_of(payload))


def test_a_record_that_swells_beyond_the_bound_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "MOST_BYTES", 1 << 20)
    member = gzip.compress(bytes(700_000))
    for payload in (gzip.compress(bytes(2 << 20)), member * 2):
        with pytest.raises(ValueError, match="more than 1 MiB"):
            list(objects_of(payload))


def test_numbers_keep_their_digits_where_they_are_asked_for() -> None:
    payload = b'{"a": 1234567890123456.789}{"a": 1}'
    assert [one["a"] for one in objects_of(payload, exact=True)] == [Decimal("1234567890123456.789"), 1]
