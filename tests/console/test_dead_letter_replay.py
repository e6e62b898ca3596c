"""Message ids, and what is asked of the shards they name."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from samples_console import CHILD, NOW, PARENT, letter

from kinesis_trident.checkpoint.model.nodes import DeadLettersNode
from kinesis_trident.console.dead_letter_replay import MessageId, listed_ids, requests
from kinesis_trident.console.target import ConsoleError
from kinesis_trident.tracker.records import RecordPosition

positions = st.builds(RecordPosition, st.integers(0, 10**56), st.integers(-1, 1000))
names = st.text(alphabet="abcXYZ019_.-", min_size=1).filter(lambda name: ".." not in name)


@given(names, names, positions)
def test_a_message_id_is_read_as_it_is_written(stream: str, shard: str, position: RecordPosition) -> None:
    assert MessageId.parse(f"{stream}/{shard}:{position}") == MessageId(stream, shard, position)


@pytest.mark.parametrize(
    "text", ["", "orders", "orders/shard", "/shard:1", "orders/:1", "orders/shard:", "o/s:x"]
)
def test_what_is_no_message_id_says_so(text: str) -> None:
    with pytest.raises(ConsoleError, match="is not a message id"):
        MessageId.parse(text)


@pytest.mark.parametrize("text", ["orders/shard:1..9", "orders/shard:after 1..9"])
def test_a_range_points_to_the_folder(text: str) -> None:
    with pytest.raises(ConsoleError, match="--from FOLDER"):
        MessageId.parse(text)


@given(
    st.lists(
        st.builds(MessageId, st.just("orders"), st.sampled_from([PARENT, CHILD]), positions), max_size=50
    )
)
def test_every_record_is_asked_for_once_and_in_order(ids: list[MessageId]) -> None:
    asked = requests(ids)
    for shard in (PARENT, CHILD):
        records = [RecordPosition.parse(text) for node in asked.get(shard, []) for text in node.records]
        assert records == sorted({one.position for one in ids if one.shard == shard})
        assert all(node.op == "replay" for node in asked.get(shard, []))


def test_many_records_are_cut_into_nodes_far_below_a_mebibyte() -> None:
    ids = [MessageId("orders", CHILD, RecordPosition(10**55 + number, 999)) for number in range(2_001)]
    nodes = requests(ids)[CHILD]
    assert sum(len(node.records) for node in nodes) == 2_001
    assert len(nodes) > 1
    assert max(sum(map(len, node.records)) for node in nodes) < 100_000


def test_all_stands_for_what_is_listed_only_when_that_is_all() -> None:
    records = (letter("orders/s:1"), letter("orders/s:2"))
    assert list(listed_ids([DeadLettersNode(count=2, target="", last=records)])) == [
        "orders/s:1",
        "orders/s:2",
    ]
    with pytest.raises(
        ConsoleError, match=r"there are 3 dead letters, of which ZooKeeper lists the last 2.*--from /dead"
    ):
        list(listed_ids([DeadLettersNode(count=3, target="/dead", last=records)]))


def test_a_listed_range_is_refused_later_by_its_id() -> None:
    node = DeadLettersNode(count=4, target="/dead", last=(letter("orders/s:1..4", NOW, count=4),))
    (text,) = listed_ids([node])
    with pytest.raises(ConsoleError, match="stands for several records"):
        MessageId.parse(text)
