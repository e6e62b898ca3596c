"""A batch up to a time and a query from it: each record in one of both (docs/backfill.md)."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings, strategies as st
from stepped import SteppedQuery
from thorough import examples

from kinesis_trident.spout.batch.pushed_filters import ShardRange
from kinesis_trident.spout.batch.range_read import read_range
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import TRIM_HORIZON, AtTimestamp
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis

OPTIONS = SourceOptions.parse_batch({"streamName": "orders", "minFetchPeriod": "0ms"})


@settings(max_examples=examples(30))
@given(
    st.lists(
        st.sampled_from(["put", "put", "put", "pass", "split", "merge", "cut"]), min_size=3, max_size=40
    ),
    st.randoms(use_true_random=False),
)
def test_each_record_is_in_the_batch_or_in_the_stream(steps: list[str], rng: Random) -> None:
    time = FakeTime()
    kinesis = MemoryKinesis(shards=2, clock=time.milliseconds)
    cut, count = time.milliseconds(), 0
    for step in steps:
        shards = kinesis.open_shards
        if step == "put":
            kinesis.put(rng.choice(shards), str(count).encode())
            count += 1
        elif step == "pass":
            time.sleep(0.4)
        elif step == "split" and len(shards) < 4:
            kinesis.split(shards[0])
        elif step == "merge" and len(shards) > 1:
            kinesis.merge(*shards[:2])
        elif step == "cut":
            cut = time.milliseconds()
    time.sleep(2)
    past = [
        int(data)
        for shard in kinesis.list_shards("orders")
        for batch in read_range(
            kinesis, OPTIONS, ShardRange("orders", shard.id, TRIM_HORIZON, AtTimestamp(cut))
        )
        for data in batch.column("data").to_pylist()
    ]
    query = SteppedQuery(kinesis, time, startingPosition=f"AT_TIMESTAMP {cut}", minFetchPeriod="0ms")
    follow = [row[0] for row in query.drain()]
    query.end()
    assert sorted(past + follow) == list(range(count))
