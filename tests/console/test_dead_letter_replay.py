"""Message ids, and what is asked of the shards they name."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, strategies as st
from samples_console import CHILD, NOW, letter

from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import DeadLettersNode, Replay
from kinesis_trident.console.dead_letter_replay import find_listed, message_id_of, replay_words
from kinesis_trident.console.redelivery import Redelivery
from kinesis_trident.console.target import ConsoleError
from kinesis_trident.tracker.position_keys import keys_of_texts, pack_in_parts
from kinesis_trident.tracker.records import RecordPosition

positions = st.builds(RecordPosition, st.integers(0, 10**56), st.integers(-1, 1000))
names = st.text(alphabet="abcXYZ019_.-", min_size=1).filter(lambda name: ".." not in name)


runs = st.builds(
    lambda source, begin, last, known: MessageId(
        source, last, begin if known else None, None if known else begin
    ),
    st.builds("{}/{}".format, names, names),
    *(positions, positions, st.booleans()),
).filter(lambda one: (one.first or one.prev) < one.last)


@given(st.builds(MessageId.of_record, st.builds("{}/{}".format, names, names), positions) | runs, positions)
def test_a_message_id_is_read_as_it_is_written(one: MessageId, other: RecordPosition) -> None:
    read = message_id_of(str(one))
    assert read == one
    assert f"{one.stream}/{one.shard}" == one.source
    assert one.covers(one.last)
    assert one.is_one is (".." not in str(one))
    above = other >= one.first if one.first is not None else one.prev is None or other > one.prev
    assert one.covers(other) is (above and other <= one.last)


def test_a_run_of_which_nobody_knows_the_beginning_has_a_name() -> None:
    one = message_id_of("orders/shard:after None..9")
    assert one.covers(RecordPosition(9))
    assert not one.covers(RecordPosition(10))


def test_nothing_is_read_that_is_never_written() -> None:
    ends = ("0", "4", "04", "5", "9", "10", "4:0", "4:00", "4:7", "None", "", "x", " 4")
    sources = ("o/s:", "o/s", "o:", "/s:", "o/:")
    lasts = ("", *map("".join, product(("..", ".", "...", "..after "), ends)))
    for text in map("".join, product(sources, ("", "after ", "after", "..", "after after "), ends, lasts)):
        one = MessageId.find(text)
        if one is not None:
            assert (str(one), one.covers(one.last)) == (text, True)


@pytest.mark.parametrize("earlier", ["after 4", "after 4:1"])
def test_a_letter_that_does_not_name_its_record_is_left_out_of_a_replay_of_all(earlier: str) -> None:
    """An earlier release has listed one record after another one, whose own name nobody knows, like this."""
    records = (letter(f"orders/s:{earlier}"), letter("orders/s:2"))
    marks = (Replay(NOW, pack_in_parts(keys_of_texts(["3"])), 5, "done"),)
    assert find_listed([DeadLettersNode(count=3, target="", last=records, replays=marks)]) == (
        ["orders/s:2"],
        1,
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "orders/shard",
        "/shard:1",
        "orders/:1",
        "orders/shard:",
        "o/s:x",
        "o/s:after None",
        "o/s:after 4",
        "o/s:after 4..4",
        "o/s:9..4",
        "o/s:4..4",
        "o/s:1..x",
    ],
)
def test_what_is_no_message_id_says_so(text: str) -> None:
    with pytest.raises(ConsoleError, match="is not a message id"):
        message_id_of(text)


@given(st.sets(positions, max_size=50))
def test_every_record_is_asked_for_once_and_in_order(some: set[RecordPosition]) -> None:
    records = tuple(map(str, sorted(some)))
    nodes = Redelivery(None, CHILD, (), records, len(records), again=True).nodes  # type: ignore[arg-type]
    assert [text for node in nodes for text in node.records] == list(records)
    assert all((node.op, node.again) == ("replay", True) for node in nodes)


def test_many_records_are_cut_into_nodes_far_below_a_mebibyte() -> None:
    records = tuple(str(RecordPosition(10**55 + number, 999)) for number in range(2_001))
    nodes = Redelivery(None, CHILD, (), records, 2_001).nodes  # type: ignore[arg-type]
    assert sum(len(node.records) for node in nodes) == 2_001
    assert len(nodes) > 1
    assert max(sum(map(len, node.records)) for node in nodes) < 100_000


def test_all_stands_for_what_is_listed_only_when_that_is_all() -> None:
    records = (letter("orders/s:1"), letter("orders/s:2"))
    assert find_listed([DeadLettersNode(count=2, target="", last=records)]) == (
        ["orders/s:1", "orders/s:2"],
        0,
    )
    with pytest.raises(
        ConsoleError, match=r"there are 3 dead letters, of which ZooKeeper lists the last 2.*--from /dead"
    ):
        find_listed([DeadLettersNode(count=3, target="/dead", last=records)])


def test_a_listed_run_points_to_the_folder() -> None:
    node = DeadLettersNode(count=4, target="/dead", last=(letter("orders/s:1..4", NOW, count=4),))
    with pytest.raises(ConsoleError, match=r"orders/s:1\.\.4 stands for 4 records.*--from /dead"):
        find_listed([node])
    assert replay_words(node) == ["--from", "/dead"]
    assert replay_words(DeadLettersNode(count=1, target="/dead", last=(letter("orders/s:1"),))) == ["--all"]
    # Whoever writes to ZooKeeper chooses the target.
    assert replay_words(DeadLettersNode(count=9, target="kinesis://letters")) == [
        "--from",
        "kinesis://letters",
    ]
    for strange in ("kinesis://$(x)", "kinesis://a/b", "s3://bucket/x?endpoint=evil"):
        assert replay_words(DeadLettersNode(count=9, target=strange)) == ["--from", "FOLDER"]


def test_what_was_skipped_is_in_no_folder() -> None:
    """Those that are named are replayed; of the others it is said how many there are."""
    run = letter("orders/s:1..4", NOW, count=4)
    assert find_listed([DeadLettersNode(count=9, target="skip", last=(run, letter("orders/s:5")))]) == (
        ["orders/s:5"],
        8,
    )
    assert replay_words(DeadLettersNode(count=9, target="skip", last=(letter("orders/s:5"),))) == ["--all"]
    assert replay_words(DeadLettersNode(count=4, target="skip", last=(run,))) == []
