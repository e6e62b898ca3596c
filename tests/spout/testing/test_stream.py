from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.spout.kinesis import KinesisError, ShardMissingError
from kinesis_trident.spout.kinesis.packing import hash_key
from kinesis_trident.spout.testing.shard import Cursor, HeldShard
from kinesis_trident.spout.testing.stream import HASH_KEYS, HOUR_MS, HeldStream

NOW = 1_700_000_000_000


def everything(shard: HeldShard, limit: int, now: int) -> list[bytes]:
    """All records of a shard, page by page."""
    found, cursor = [], Cursor(shard.first)
    while True:
        answer = shard.read(cursor, limit, now)
        found += [record.data for record in answer.records]
        if answer.following is None or (not answer.records and answer.behind == 0):
            return found
        cursor = answer.following


@given(st.data())
def test_any_history_keeps_every_record_once_and_the_hash_keys_whole(data: st.DataObject) -> None:
    stream = HeldStream("orders", data.draw(st.integers(1, 4)), NOW)
    written: dict[str, list[bytes]] = {}
    for n in range(data.draw(st.integers(0, 40))):
        now = NOW + n
        shards = stream.open_shards
        what = data.draw(st.sampled_from(["put", "put", "put", "split", "merge", "resize", "gap"]))
        at = data.draw(st.integers(0, len(shards) - 1))
        if what == "put":
            key = data.draw(st.sampled_from("abcdefgh"))
            home = stream.find_home(hash_key(key))
            assert home.hashes[0] <= hash_key(key) <= home.hashes[1]
            written.setdefault(home.name, []).append(stream.put(home, b"%d" % n, key, now).data)
        elif what == "split":
            stream.split(shards[at].name, now)
        elif what == "merge" and len(shards) > 1:
            pair = shards[max(at - 1, 0) : max(at - 1, 0) + 2]
            stream.merge(pair[1].name, pair[0].name, now)
        elif what == "resize":
            count = data.draw(st.integers(1, 6))
            stream.resize(count, now)
            assert len(stream.open_shards) == count
        elif what == "gap":
            stream.gap(shards[at].name, data.draw(st.integers(1, 3)))
        ranges = [shard.hashes for shard in stream.open_shards]
        assert (ranges[0][0], ranges[-1][1]) == (0, HASH_KEYS - 1)
        assert all(before[1] + 1 == after[0] for before, after in pairwise(ranges))
    for name, shard in stream.shards.items():
        assert everything(shard, data.draw(st.integers(1, 5)), NOW + 99) == written.get(name, [])
        for parent in shard.parents:
            ended = stream.shards[parent].last
            assert ended is not None
            assert ended < shard.first


def test_records_and_closed_shards_leave_with_the_retention() -> None:
    stream = HeldStream("orders", 1, NOW)
    [parent] = stream.open_shards
    stream.put(parent, b"a", "k", NOW)
    stream.put(parent, b"b", "k", NOW + HOUR_MS)
    left, _ = stream.split(parent.name, NOW + 2 * HOUR_MS)
    stream.expire(NOW + 24 * HOUR_MS + 1)
    assert [record.data for record in parent.records] == [b"b"]
    stream.expire(NOW + 26 * HOUR_MS)
    assert parent.name in stream.shards
    assert parent.records == []
    stream.expire(NOW + 26 * HOUR_MS + 1)
    assert parent.name not in stream.shards
    assert left in stream.shards
    with pytest.raises(ShardMissingError, match=f"Shard {parent.name} in stream orders .* does not exist"):
        stream.shard(parent.name)
    stream.put(stream.shard(left), b"c", "k", NOW + 27 * HOUR_MS)
    stream.expire(NOW + 51 * HOUR_MS)
    assert [record.data for record in stream.shard(left).records] == [b"c"]
    stream.expire(NOW + 51 * HOUR_MS + 1)
    assert stream.shard(left).records == []


def test_a_stream_made_later_does_not_know_the_numbers_of_the_one_before() -> None:
    before, after = HeldStream("orders", 1, NOW), HeldStream("orders", 1, NOW + 1)
    record = before.put(before.open_shards[0], b"x", "k", NOW)
    with pytest.raises(KinesisError, match="did not come from this stream"):
        after.cursor_at(after.open_shards[0], record.sequence)


def test_what_cannot_be_resharded() -> None:
    stream = HeldStream("orders", 3, NOW)
    one, two, three = [shard.name for shard in stream.open_shards]
    with pytest.raises(KinesisError, match="not an adjacent pair"):
        stream.merge(one, three, NOW)
    with pytest.raises(KinesisError, match="not inside"):
        stream.split(one, NOW, 0)
    stream.merge(one, two, NOW)
    for again in (lambda: stream.split(one, NOW), lambda: stream.merge(two, three, NOW)):
        with pytest.raises(KinesisError, match="is closed"):
            again()


def test_a_time_is_before_the_first_record_that_came_at_it_or_later() -> None:
    stream = HeldStream("orders", 1, NOW)
    [shard] = stream.open_shards
    numbers = [stream.put(shard, b"x", "k", NOW + at).sequence for at in (0, 5, 5, 9)]
    tip = stream.tip(shard).start
    assert [shard.cursor_since(NOW + at, tip).start for at in (0, 1, 5, 6, 10)] == [
        numbers[0],
        numbers[1],
        numbers[1],
        numbers[3],
        tip,
    ]
    assert tip > numbers[-1]


def test_the_number_of_another_shard_is_refused_as_aws_does() -> None:
    stream = HeldStream("orders", 2, 0)
    one, other = stream.open_shards
    record = stream.put(one, b"x", "k", 0)
    stream.put(other, b"y", "k", 0)
    assert stream.cursor_at(one, record.sequence).start == record.sequence
    with pytest.raises(
        KinesisError, match=f"It encodes {one.name}, while it was used in a call to a shard with"
    ):
        stream.cursor_at(other, record.sequence)
    # No record has the next one, but it is of the same shard.
    with pytest.raises(KinesisError, match="is invalid because it did not come from this stream"):
        stream.cursor_at(other, record.sequence + 1)
