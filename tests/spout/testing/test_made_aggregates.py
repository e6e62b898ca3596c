from __future__ import annotations

import base64

import pytest
from aws_kinesis_agg.deaggregator import deaggregate_records
from hypothesis import given, settings, strategies as st

from kinesis_trident.spout.testing import aggregate

RECORDS = st.lists(
    st.tuples(st.binary(max_size=20), st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(RECORDS)
def test_a_published_reader_reads_them(records: list[tuple[bytes, str]]) -> None:
    record = {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "sequenceNumber": "1",
            "approximateArrivalTimestamp": 1.0,
            "partitionKey": "a",
            "data": base64.b64encode(aggregate(records)),
        }
    }
    found = [one["kinesis"] for one in deaggregate_records([record])]
    assert [(base64.b64decode(one["data"]), one["partitionKey"]) for one in found] == records
    assert [one["subSequenceNumber"] for one in found] == list(range(len(records)))


def test_a_key_is_stored_once() -> None:
    assert aggregate([(b"1", "a key"), (b"2", "a key")]).count(b"a key") == 1


def test_no_record_is_left_out() -> None:
    assert aggregate([(b"", "k")] * 50_000)
    with pytest.raises(ValueError, match="at most 50,000 records"):
        aggregate([(b"", "k")] * 50_001)
