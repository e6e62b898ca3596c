"""The records that a published outcome leaves out of a batch."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings, strategies as st

from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.model.layout import Layout, ShardKey
from kinesis_trident.checkpoint.model.nodes import NotDone

SHARDS = ("shardId-000000000000", "shardId-000000000001")


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(SHARDS), st.integers(0, 40), st.integers(-1, 2)), max_size=60),
    st.lists(st.booleans(), min_size=41, max_size=41),
)
def test_a_record_is_left_out_if_a_run_holds_it(rows: list[tuple[str, int, int]], out: list[bool]) -> None:
    """Whole records of the first shard are left out, in runs; of the second one a single user record."""
    runs, at = [], 0
    while at < len(out):
        end = at
        while end + 1 < len(out) and out[end + 1] == out[at]:
            end += 1
        if out[at]:
            runs.append(NotDone(str(at), f"{end}:9", end - at + 1, "failed"))
        at = end + 1
    verdict = Verdict({SHARDS[0]: tuple(reversed(runs)), SHARDS[1]: (NotDone("7:1", "7:1", 1, "failed"),)})
    batch = pa.RecordBatch.from_pydict(
        {
            "shardId": [shard for shard, _, _ in rows],
            "sequenceNumber": [str(sequence) for _, sequence, _ in rows],
            "subSequenceNumber": [sub for _, _, sub in rows],
        },
        schema=pa.schema(
            [("shardId", pa.string()), ("sequenceNumber", pa.string()), ("subSequenceNumber", pa.int64())]
        ),
    )
    assert verdict.excluded_in(batch).tolist() == [
        out[sequence] if shard == SHARDS[0] else (sequence, sub) == (7, 1) for shard, sequence, sub in rows
    ]


def test_shards_of_several_streams_are_told_apart() -> None:
    """Their names are those of `checkpoint.model.layout`."""
    layout = Layout("/root", "app")
    names = [layout.name_of(ShardKey(stream, 1, SHARDS[0])) for stream in ("orders", "lines")]
    batch = pa.RecordBatch.from_pydict(
        {
            "stream": ["orders", "lines", "lines"],
            "shardId": [SHARDS[0]] * 3,
            "sequenceNumber": ["7", "7", "8"],
            "subSequenceNumber": [-1] * 3,
        }
    )
    verdict = Verdict({names[1]: (NotDone("7", "7", 1, "failed"),)})
    assert verdict.excluded_in(batch).tolist() == [False, True, False]
