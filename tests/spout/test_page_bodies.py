"""GetRecords bodies in all the notations that servers have: the same records as botocore's parser finds."""

from __future__ import annotations

import base64
import json

from found_records import as_botocore_reads
from hypothesis import given, settings, strategies as st

from kinesis_trident.spout.kinesis.pages.decoding import page_of

NAMES = ["Data", "PartitionKey", "SequenceNumber", "ApproximateArrivalTimestamp"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
TIMES = {
    "decimal": lambda ms: f"{ms // 1000}.{ms % 1000:03}",
    "exponent": lambda ms: f"{ms // 10**12}.{ms % 10**12:012}E9",
    "integer": lambda ms: f"{ms // 1000}",
}


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Bodies as servers write them: in an order and notation of the server's own."""
    names = draw(st.permutations([*NAMES, "EncryptionType"]))
    encryption = draw(st.sampled_from(['"NONE"', '"KMS"', "null"]))
    time = TIMES[draw(st.sampled_from(sorted(TIMES)))]
    ascii_only = draw(st.booleans())
    records = []
    rows = st.lists(
        st.tuples(
            st.binary(max_size=8),
            TEXT | st.none(),
            st.integers(0, 10**56),
            st.integers(10**12, 3 * 10**12),
        ),
        max_size=8,
        unique_by=lambda row: row[2],
    )
    for data, key, sequence, arrival in sorted(draw(rows), key=lambda row: row[2]):
        values = {
            "Data": f'"{base64.b64encode(data).decode()}"',
            "PartitionKey": json.dumps(key, ensure_ascii=ascii_only),
            "SequenceNumber": f'"{sequence:056}"',
            "ApproximateArrivalTimestamp": time(arrival),
            "EncryptionType": encryption,
        }
        if key is None and draw(st.booleans()):
            del values["PartitionKey"]
        records.append("{" + ",".join(f'"{name}":{values[name]}' for name in names if name in values) + "}")
    tail = {
        "NextShardIterator": json.dumps(draw(TEXT), ensure_ascii=ascii_only),
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


@settings(deadline=None)
@given(bodies())
def test_any_body_gives_the_records_that_botocore_finds(body: bytes) -> None:
    for answer in (body, body + b" " * 2**19):
        assert page_of(answer).records.to_pylist() == as_botocore_reads(body)
