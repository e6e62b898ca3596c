"""Reads and writes that overlap do what they do one after the other."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from hypothesis import given, strategies as st
from overlapping import MemoryExchange

from kinesis_trident.trident.maps.backing import LOST
from kinesis_trident.trident.stores.memory import MemoryByteStore
from kinesis_trident.trident.stores.overlap import request_parts, run_exchange

COUNT = 23
NAMES = [f"key-{i}" for i in range(COUNT)]

positions = st.sets(st.integers(0, COUNT - 1))


@given(size=st.integers(1, COUNT + 1), there=positions, left=positions, taken=positions)
def test_every_key_is_changed_kept_or_lost(
    size: int, there: set[int], left: set[int], taken: set[int]
) -> None:
    """`taken`: another writer changes it before it is written."""
    store = MemoryByteStore("memory")
    store.set_many([NAMES[i] for i in there], [b"%d" % i for i in there])
    seen: dict[int, bytes | None] = {}

    def change(
        part: slice, raws: list[bytes | None], guard: bytes | None
    ) -> tuple[Sequence[bytes | None], Collection[int]]:
        assert guard is None
        here = range(part.start, part.stop)
        seen.update(zip(here, raws, strict=True))
        mine = [i for i in here if i in taken]
        store.set_many([NAMES[i] for i in mine], [b"theirs"] * len(mine))
        return [b"new-%d" % i for i in here], [i - part.start for i in here if i in left]

    versions = run_exchange(MemoryExchange(store, None, size), COUNT, NAMES.__getitem__, change)
    assert seen == {i: b"%d" % i if i in there else None for i in range(COUNT)}
    now, _ = store.get_many(NAMES)
    for i in range(COUNT):
        if i in left:
            assert versions[i] == seen[i]
            assert now[i] == (b"theirs" if i in taken else seen[i])
        elif i in taken:
            assert (versions[i], now[i]) == (LOST, b"theirs")
        else:
            assert versions[i] == now[i] == b"new-%d" % i


def test_the_next_keys_are_asked_for_before_these_are_written_and_no_write_is_waited_for() -> None:
    exchange = MemoryExchange(MemoryByteStore("memory"), None, 1)
    run_exchange(exchange, 6, NAMES.__getitem__, lambda part, raws, guard: ([b"x"] * len(raws), ()))
    turn = ["read", "write", "ask"]
    assert exchange.log == [*["ask"] * 3, *turn * 3, *("written", "read", "write") * 3, *["written"] * 3]


def test_nothing_is_written_once_the_guard_has_changed() -> None:
    store = MemoryByteStore("memory")
    store.set_many(["guard"], [b"1"])

    def change(
        part: slice, raws: list[bytes | None], guard: bytes | None
    ) -> tuple[Sequence[bytes | None], Collection[int]]:
        if part.start == 4:
            store.set_many(["guard"], [b"2"])
        assert guard == (b"2" if part.start >= 4 + 2 * 3 else b"1")
        return [b"x"] * len(raws), ()

    versions = run_exchange(MemoryExchange(store, "guard", 2), 12, NAMES.__getitem__, change)
    assert [version is LOST for version in versions] == [*[False] * 4, *[True] * 6, *[False] * 2]


@pytest.mark.parametrize("count", [0, 1])
def test_few_keys(count: int) -> None:
    store = MemoryByteStore("memory")
    versions = run_exchange(
        MemoryExchange(store, None, 5), count, NAMES.__getitem__, lambda part, raws, guard: ([b"x"], ())
    )
    assert versions == [b"x"] * count
    assert store.get_many(NAMES[:2])[0] == [b"x" if count else None, None]


@given(sizes=st.lists(st.integers(0, 9)), most=st.integers(1, 5), most_bytes=st.integers(0, 20))
def test_requests_are_bounded_by_keys_and_by_bytes(sizes: list[int], most: int, most_bytes: int) -> None:
    values = [b"x" * size if size else None for size in sizes]
    parts = request_parts(most, most_bytes, values, values)
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(len(sizes)))
    for part in parts:
        number = part.stop - part.start
        assert 0 < number <= most
        assert number == 1 or 2 * sum(sizes[part]) <= most_bytes
