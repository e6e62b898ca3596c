from __future__ import annotations

import pytest
import samples
from hypothesis import given, strategies as st
from msgspec.structs import replace

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.nodes import InflightNode
from kinesis_trident.checkpoint.model.split_nodes import (
    PART_SIZE,
    PiecesHead,
    head_of,
    is_part,
    join,
    owner_of,
    part_paths,
    split,
)
from kinesis_trident.tracker.records import Noted, PendingRun

PATH = "/app/orders@1/acks/7"


@given(st.binary(max_size=500), st.integers(1, 200))
def test_what_is_split_joins_to_the_same(data: bytes, part_size: int) -> None:
    written, parts = split(PATH, data, part_size)
    if len(data) <= part_size:
        assert (written, parts) == (data, {})
        return
    head = head_of(written)
    assert head is not None
    assert part_paths(PATH, head) == list(parts)
    assert all(len(part) <= part_size for part in parts.values())
    assert all(is_part(path) and owner_of(path) == PATH for path in parts)
    assert join(PATH, head, list(parts.values())) == data


def test_nodes_in_one_piece_are_no_heads() -> None:
    for node in (samples.acks(1), samples.plan(), samples.pin(1), samples.settled(1)):
        assert head_of(encode(node)) is None
    assert head_of(b"\xff") is None
    assert not is_part(PATH)


def test_other_content_goes_to_other_parts() -> None:
    one, other = (split(PATH, byte * (PART_SIZE + 1))[1] for byte in (b"a", b"b"))
    assert not set(one) & set(other)


@pytest.mark.parametrize("damage", [lambda parts: parts[:-1], lambda parts: [parts[0], parts[0]]])
def test_parts_that_do_not_add_up_name_the_node(damage: object) -> None:
    written, parts = split(PATH, b"a" * 60 + b"b" * 60, 60)
    head = head_of(written)
    assert head is not None
    with pytest.raises(CorruptNodeError, match=PATH):
        join(PATH, head, damage(list(parts.values())))  # type: ignore[operator]


def many(*, without: int = -1, reason: str = "ValueError") -> InflightNode:
    waiting, dead = (
        [samples.run(10**55 + 7 * n, reason=reason) for n in range(start, stop) if n != without]
        for start, stop in ((0, 2000), (2000, 3000))
    )
    return samples.inflight(5, *waiting, dead=tuple(dead))


@given(
    st.text(max_size=40) | st.sampled_from(["a" * 50 + ".", "~", '"pieces"', "." * 60]),
    st.lists(st.tuples(st.integers(1, 9), st.text(max_size=60)), max_size=3),
    st.integers(1, 5000),
)
def test_a_node_with_pieces_joins_to_the_same(
    reason: str, pending: list[tuple[int, str]], part_size: int
) -> None:
    node = replace(
        many(reason=reason),
        blocked=reason,
        pending=tuple(PendingRun(txid, (0, 2), failures=(Noted(1, text),) * 30) for txid, text in pending),
    )
    data = encode(node, in_pieces=True)
    written, parts = split(PATH, data, part_size, whole=100)
    head = head_of(written)
    assert isinstance(head, PiecesHead)
    paths = part_paths(PATH, head)
    assert set(paths) == set(parts)
    assert all(len(part) <= part_size for part in parts.values())
    assert all(is_part(path) and owner_of(path) == PATH for path in parts)
    assert join(PATH, head, [parts[path] for path in paths]) == data
    assert decode(PATH, data, InflightNode) == node
    assert len(written) < 50 * len(paths) + 9000


def test_words_of_reasons_make_no_parts() -> None:
    reason = f'"waiting":"/{"path/" * 9}module.py' + '", no table'
    pending = tuple(PendingRun(txid, (0, 2), failures=(Noted(1, reason),)) for txid in range(5000))
    node = replace(many(), pending=pending)
    data = encode(node, in_pieces=True)
    written, parts = split(PATH, data, whole=100)
    alone, few = split(PATH, encode(many(), in_pieces=True), whole=100)
    assert len(written) < len(alone) + 1000
    assert len(parts) == len(few) + 2
    head = head_of(written)
    assert head is not None
    assert join(PATH, head, [parts[path] for path in part_paths(PATH, head)]) == data


def test_one_run_less_changes_few_parts() -> None:
    whole, less = (
        split(PATH, encode(node, in_pieces=True), whole=100)[1] for node in (many(), many(without=1234))
    )
    assert len(less) > 10
    assert len(set(less) - set(whole)) <= 2


def test_a_part_with_another_content_names_the_node() -> None:
    written, parts = split(PATH, encode(many(), in_pieces=True), whole=100)
    head = head_of(written)
    assert head is not None
    content = list(parts.values())
    for damaged in ([content[1], content[0], *content[2:]], content[:-1], [b"", *content[1:]]):
        with pytest.raises(
            CorruptNodeError, match=f"{PATH} is stored in parts, of which .* has another content"
        ):
            join(PATH, head, damaged)
