"""Test that bulk requests to Redis and memcached are what one after the other would be; answers likewise."""

from __future__ import annotations

import hiredis
import msgspec
import pytest
from hypothesis import given, strategies as st

from kinesis_trident.trident.maps.backing import LOST
from kinesis_trident.trident.stores.memcached.connection import IncompleteError
from kinesis_trident.trident.stores.memcached.protocol import (
    MemcachedError,
    compare_and_sets,
    found,
    gets,
    not_stored,
    sets,
    stored,
)
from kinesis_trident.trident.stores.redis.store import command, join_items, pack_items

raws = st.one_of(st.binary(max_size=300), st.sampled_from([b"\r\n", b"EN\r\n", b"VA 1 c2\r\nx", b"MN\r\n"]))
lengths = st.integers(0, 300).map(lambda size: b"x" * size)


@given(st.lists(st.one_of(raws, lengths), min_size=1))
def test_a_command_is_what_a_client_of_redis_reads(words: list[bytes]) -> None:
    reader = hiredis.Reader()
    reader.feed(command(words))
    assert reader.gets() == words
    assert reader.gets() is False


@given(st.lists(st.one_of(st.none(), st.text(max_size=300))))
def test_an_array_is_what_msgpack_reads(texts: list[str | None]) -> None:
    items = [None if text is None else text.encode() for text in texts]
    assert msgspec.msgpack.decode(pack_items(items)) == [text or "" for text in texts]


@given(st.lists(st.one_of(st.none(), raws)))
def test_joined_can_be_told_again_or_is_nothing(items: list[bytes | None]) -> None:
    text = join_items(items)
    assert not text or text.split(b"\xc1") == items


def test_texts_are_joined() -> None:
    assert join_items([b"[1,2,null]", "né".encode()]) == b"[1,2,null]" + b"\xc1" + "né".encode()


@given(st.lists(st.one_of(st.none(), st.tuples(raws, st.integers(1, 99))), min_size=1))
def test_found_in_one_go_is_what_is_there(entries: list[tuple[bytes, int] | None]) -> None:
    answer = b"".join(
        b"EN\r\n" if entry is None else b"VA %d c%d\r\n%b\r\n" % (len(entry[0]), entry[1], entry[0])
        for entry in entries
    )
    values = [None if entry is None else entry[0] for entry in entries]
    cases = [None if entry is None else b"%d" % entry[1] for entry in entries]
    assert found(answer, len(entries)) == (values, cases)


def test_an_answer_that_ends_within_a_value_is_incomplete() -> None:
    for end in range(1, 14):
        with pytest.raises(IncompleteError):
            found(b"VA 4 c5\r\nab\r\n\r\n"[:end], 1)


def test_requests_of_each_kind() -> None:
    assert gets([b"a", b"b"]) == b"mg a v c\r\nmg b v c\r\n"
    assert sets([b"a", b"b"], [b"1", None], b" T9") == b"ms a 1 c T9\r\n1\r\nmd b\r\n"
    all_there = compare_and_sets([b"a", b"b"], [b"1", b"x" * 2000], [b"5", b"6"], b" T9")
    assert all_there == b"ms a 1 c C5 T9\r\n1\r\nms b 2000 c C6 T9\r\n" + b"x" * 2000 + b"\r\n"
    one_new = compare_and_sets([b"a", b"b"], [b"1", b"22"], [b"5", None], b"")
    assert one_new == b"ms a 1 c C5\r\n1\r\nms b 2 c ME\r\n22\r\n"
    gone = compare_and_sets([b"a", b"b"], [None, None], [b"5", None], b"")
    assert gone == b"md a C5\r\nms b 0 c ME T-1\r\n\r\n"


def test_quiet_sets_and_their_answers() -> None:
    assert compare_and_sets([b"a"], [b"1"], [b"5"], b"", b"k q") == b"ms a 1 k q C5\r\n1\r\n"
    assert compare_and_sets([b"a"], [b"1"], [None], b"", b"k q") == b"ms a 1 k q ME\r\n1\r\n"
    assert not_stored(b"") == set()
    assert not_stored(b"EX ka\r\nNS kkey\r\nNF k~bYQ==\r\n") == {b"a", b"key", b"~bYQ=="}
    with pytest.raises(IncompleteError):
        not_stored(b"EX kColu")
    with pytest.raises(MemcachedError, match="out of memory"):
        not_stored(b"EX ka\r\nSERVER_ERROR out of memory storing object\r\n")


def test_what_was_stored_and_what_was_not() -> None:
    assert stored(b"HD c5\r\nHD c6\r\n", 2) == [b"5", b"6"]
    assert stored(b"HD c5\r\nEX c6\r\nNS c7\r\nNF\r\n", 4) == [b"5", LOST, LOST, LOST]
    assert stored(b"HD c5\r\nHD\r\n", 2) == [b"5", None]
    with pytest.raises(MemcachedError, match="out of memory"):
        stored(b"HD c5\r\nSERVER_ERROR out of memory\r\n", 2)
