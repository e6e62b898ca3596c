"""The ordered linked map: the six RecordNodeList tests of kinesis-storm-spout, and the nine cells."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.inflight.entries import Entry, EntryList, State, as_position
from kinesis_trident.tracker.records import RecordPosition


def listed(count: int) -> tuple[EntryList, list[Entry]]:
    entries, nodes = EntryList(), [Entry(RecordPosition(i)) for i in range(1, count + 1)]
    for node in nodes:
        entries.append(node)
    return entries, nodes


def check(entries: EntryList, nodes: list[Entry]) -> None:
    assert list(entries) == nodes
    assert len(entries) == len(nodes)
    assert entries.first is (nodes[0] if nodes else None)
    assert entries.last is (nodes[-1] if nodes else None)
    for left, node, right in zip([None, *nodes], nodes, [*nodes[1:], None], strict=False):
        assert node.before is left
        assert node.after is right
        assert entries.find(node.last) is node


def test_list_1_append_14() -> None:
    check(*listed(14))


def test_list_2_remove_the_single_one() -> None:
    entries, (node,) = listed(1)
    entries.remove(node)
    check(entries, [])


@pytest.mark.parametrize("index", [0, 2, 4])
def test_list_3_remove_first_middle_last_and_append_again(index: int) -> None:
    """Defect 14: after the tail was removed, an append has to link to the new tail."""
    entries, nodes = listed(5)
    entries.remove(nodes.pop(index))
    check(entries, nodes)
    nodes.append(Entry(RecordPosition(9)))
    entries.append(nodes[-1])
    check(entries, nodes)


def test_list_4_first() -> None:
    assert EntryList().first is None
    entries, nodes = listed(3)
    assert entries.first is nodes[0]


def test_list_5_last() -> None:
    assert EntryList().last is None
    entries, nodes = listed(3)
    assert entries.last is nodes[2]


def test_list_6_size() -> None:
    assert [len(listed(count)[0]) for count in range(4)] == [0, 1, 2, 3]


@given(st.lists(st.integers(0, 30), max_size=60))
def test_inserting_and_removing_keeps_the_order(sequences: list[int]) -> None:
    entries, plain = EntryList(), dict[RecordPosition, Entry]()
    for sequence in sequences:
        position = RecordPosition(sequence)
        if position in plain:
            entries.remove(plain.pop(position))
        else:
            plain[position] = Entry(position)
            entries.insert(plain[position], entries.at_or_after(position))
        check(entries, [plain[key] for key in sorted(plain)])


def test_out_of_order_is_refused() -> None:
    entries, nodes = listed(3)
    for sequence, after in ((3, None), (2, None), (4, nodes[1])):
        with pytest.raises(OrderError, match=f"record {sequence} is out of order"):
            entries.insert(Entry(RecordPosition(sequence)), after)
    check(entries, nodes)


@pytest.mark.parametrize(
    ("previous", "following", "kept", "checkpoint"),
    [
        ("none", "acked", "", 3),
        ("none", "pending", "n", 2),
        ("none", "none", "", 2),
        ("pending", "acked", "pn", None),
        ("pending", "pending", "pcn", None),
        ("pending", "none", "pc", None),
        ("acked", "acked", "n", None),
        ("acked", "pending", "cn", None),
        ("acked", "none", "c", None),
    ],
)
def test_nine_cells(previous: str, following: str, kept: str, checkpoint: int | None) -> None:
    states = {"acked": State.ACKED, "pending": State.PENDING}
    entries, names = EntryList(), {}
    if previous == "acked":
        # An acked entry is never the first.
        entries.append(Entry(RecordPosition(0)))
    for name, sequence, state in (("p", 1, previous), ("c", 2, "pending"), ("n", 3, following)):
        if state != "none":
            names[name] = Entry(RecordPosition(sequence), state=states[state])
            entries.append(names[name])
    moved = entries.fold(names["c"])
    assert moved == (RecordPosition(checkpoint) if checkpoint else None)
    assert [node for node in entries if node.last.sequence] == [names[name] for name in kept]


@pytest.mark.parametrize("value", [RecordPosition(12, 3), "12:3", b"12:3"])
def test_positions_are_read_from_what_arrays_hold(value: object) -> None:
    assert as_position(value) == RecordPosition(12, 3)
