from __future__ import annotations

import pytest
import samples
from hypothesis import given, strategies as st

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.split_nodes import (
    PART_SIZE,
    head_of,
    is_part,
    join,
    owner_of,
    part_paths,
    split,
)

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
