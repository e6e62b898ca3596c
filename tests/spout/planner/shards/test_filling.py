"""Sequence numbers that were stored without the zeros of the service get them back."""

from __future__ import annotations

import logging
import re

import msgspec
import pytest
from by_hand import Lives, Query, numbers
from hypothesis import given, strategies as st

from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode
from kinesis_trident.spout.kinesis import Shard
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.filling import fill_state, find_digits
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.spout.testing import MemoryKinesis
from kinesis_trident.tracker.position_keys import keys_of_texts
from kinesis_trident.tracker.records import PendingRun, RecordPosition, Run


def without_zeros(query: Query) -> None:
    """Store what the query has stored as a release did that kept sequence numbers as integers."""
    shards = query.store.shards
    for shard, node in shards.checkpoints().items():
        held = shards.inflight()[shard]
        stored = [re.sub(rb"\b0+(?=[1-9])", b"", msgspec.json.encode(one)) for one in (node, held)]
        shards.amend(
            shard,
            query.run.epoch,
            checkpoint=msgspec.json.decode(stored[0], type=CheckpointNode),
            inflight=msgspec.json.decode(stored[1], type=InflightNode),
        )


def test_a_query_goes_on_where_an_older_release_has_lost_the_zeros(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    kinesis = MemoryKinesis(shards=2)
    kinesis.pad(60)
    for number in range(1, 9):
        kinesis.put(kinesis.open_shards[number % 2], str(number).encode())
    query = lives.begin(kinesis, retryBackoff="1h..1h x1")
    query.batch()
    for number in range(9, 17):
        kinesis.put(kinesis.open_shards[number % 2], str(number).encode())
    assert numbers(query.batch(failing=[11, 12])) == list(range(9, 17))
    # The records that fail wait, and the batch is settled.
    assert query.plan() is None
    without_zeros(query)
    before = [node.checkpoint for node in query.store.shards.checkpoints().values() if node.checkpoint]
    assert before
    query.end()
    assert not [text for text in before if len(text) == 60]
    for number in range(17, 25):
        kinesis.put(kinesis.open_shards[number % 2], str(number).encode())
    with caplog.at_level(logging.WARNING):
        again = lives.begin(kinesis, query.checkpoint)
        rows = again.drain()
    assert numbers(rows) == [11, 12, *range(17, 25)]
    assert "filled up to 60 digits" in caplog.text
    for shard, node in again.store.shards.checkpoints().items():
        assert node.checkpoint is None or len(node.checkpoint) == 60, shard
    caplog.clear()
    again.end()
    kinesis.put(kinesis.open_shards[0], b"25")
    assert numbers(lives.begin(kinesis, again.checkpoint).drain()) == [25]
    assert "filled up" not in caplog.text


def test_a_start_asks_for_the_record_before_with_the_zeros_of_the_service(lives: Lives) -> None:
    """Nothing is known of when it arrived, as of a position that somebody has set: the stream is asked for it."""
    kinesis = MemoryKinesis()
    kinesis.pad(60)
    kinesis.put(kinesis.open_shards[0], b"1")
    kinesis.put(kinesis.open_shards[0], b"2")
    query = lives.begin(kinesis, retryBackoff="1h..1h x1")
    query.batch(failing=[2])
    assert query.plan() is None
    without_zeros(query)
    shards = query.store.shards
    for shard, node in shards.checkpoints().items():
        unknown = msgspec.structs.replace(node, arrival=None, seen=None)
        shards.amend(shard, query.run.epoch, checkpoint=unknown, inflight=shards.inflight()[shard])
    query.end()
    kinesis.put(kinesis.open_shards[0], b"3")
    assert numbers(lives.begin(kinesis, query.checkpoint).drain()) == [2, 3]


def test_the_first_number_of_a_shard_says_whether_the_service_fills_up() -> None:
    def listed(first: str) -> Shard:
        return Shard("a", sequences=(RecordPosition(first), None))

    assert find_digits(listed("0" * 12 + "495")) == 15
    assert [find_digits(listed(first)) for first in ("0", "495", "1000")] == [0, 0, 0]
    assert find_digits(Shard("a")) == 0


POSITIONS = st.builds(
    lambda number, sub: str(RecordPosition(number, sub)), st.integers(1, 10**20), st.sampled_from([-1, 0, 3])
)


@given(st.lists(POSITIONS, min_size=6, max_size=6), st.integers(21, 40))
def test_all_texts_of_a_shard_are_filled_up(texts: list[str], digits: int) -> None:
    one, two, three, four, five, six = texts
    state = ShardState(
        TRIM_HORIZON,
        CheckpointNode(checkpoint=one.partition(":")[0], txid=3, position=f"AFTER_SEQUENCE_NUMBER {two}"),
        InflightNode(
            txid=3,
            waiting=(Run(three, four, 2, five), Run("", six, 1, one)),
            dead=(Run(two, two),),
            pending=(PendingRun(3, (0, 2), prev=one), PendingRun(3, (3, 4))),
        ),
        {3: keys_of_texts([three, four])},
    )
    filled = fill_state(state, digits)
    assert filled.checkpoint is not None
    assert filled.inflight is not None
    stored = msgspec.json.encode(filled.checkpoint) + msgspec.json.encode(filled.inflight)
    found = re.findall(rb'[" ]([0-9]{3,}):?[0-9]*"', stored)
    assert {len(text) for text in found} == {digits}
    assert {len(at.sequence) for at in filled.turns[3].positions} == {digits}
    # What compares does so as before, and what is filled up stays as it is.
    assert [RecordPosition.parse(run.last) for run in filled.waiting] == [
        run.last_position for run in state.waiting
    ]
    assert fill_state(filled, digits) is filled
