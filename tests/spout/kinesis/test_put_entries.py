"""Entries in columns are the entries of a list, and are written in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from kinesis_trident.spout.kinesis.packing import hash_key
from kinesis_trident.spout.kinesis.put_entries import Entries, Entry, RequestBound
from kinesis_trident.spout.kinesis.put_records import Tries, put_request
from kinesis_trident.spout.patience import Patience
from kinesis_trident.spout.sink.shard_map import KnownShards

ENTRIES = st.lists(
    st.fixed_dictionaries(
        {
            "Data": st.binary(max_size=30),
            "PartitionKey": st.text(st.characters(codec="utf-8"), min_size=1, max_size=5),
        },
        optional={"ExplicitHashKey": st.integers(0, 2**128 - 1).map(str)},
    ),
    max_size=30,
)
CUTS = st.lists(st.integers(0, 30), max_size=4).map(sorted)


def size_of(entry: Entry) -> int:
    return len(entry["Data"]) + len(entry["PartitionKey"].encode())


def cut(entries: Sequence[Entry], cuts: list[int]) -> Iterator[list[Entry]]:
    """The entries in pieces."""
    for start, end in zip([0, *cuts], [*cuts, len(entries)], strict=True):
        yield list(entries[start:end])


@settings(deadline=None)
@given(ENTRIES, CUTS, st.data())
def test_columns_are_a_sequence_of_the_same_entries(
    given_entries: list[Entry], cuts: list[int], data: st.DataObject
) -> None:
    entries = Entries.join([Entries.of(part) for part in cut(given_entries, cuts)])
    assert list(entries) == given_entries
    assert [entries[at] for at in range(len(entries))] == given_entries
    assert entries.size == sum(map(size_of, given_entries))
    wanted = data.draw(st.lists(st.booleans(), min_size=len(entries), max_size=len(entries)))
    picked = entries.pick(np.array(wanted, dtype=np.bool_))
    assert list(picked) == [
        entry for entry, is_wanted in zip(given_entries, wanted, strict=True) if is_wanted
    ]
    size = data.draw(st.integers(0, 200))
    count = entries.count_fitting(size)
    assert sum(map(size_of, given_entries[:count])) <= size
    assert count == len(given_entries) or sum(map(size_of, given_entries[: count + 1])) > size


@settings(deadline=None)
@given(ENTRIES, st.integers(1, 9), st.integers(1, 90), st.data())
def test_what_was_refused_and_what_was_not_sent_keep_their_order(
    entries: list[Entry], records: int, size: int, data: st.DataObject
) -> None:
    left = list(entries)

    def send(sent: Entries) -> list[dict[str, Any]]:
        nonlocal left
        assert list(sent) == left[: len(sent)]
        assert 0 < len(sent) <= records
        assert len(sent) == 1 or sent.size <= size
        refused = data.draw(st.lists(st.booleans(), min_size=len(sent), max_size=len(sent)))
        left = [entry for entry, one in zip(left, refused, strict=False) if one] + left[len(sent) :]
        return [{"ErrorCode": "InternalFailure"} if one else {} for one in refused]

    tries = Tries(Patience(1.0, lambda: 0.0))
    put_request(send, entries, sleep=lambda _: None, tries=tries, bound=RequestBound(records, size))
    assert left == []


@settings(deadline=None)
@given(ENTRIES, st.sets(st.integers(0, 2**128 - 2), max_size=5))
def test_the_homes_of_records_are_the_shards_of_their_hash_keys(
    entries: list[Entry], splits: set[int]
) -> None:
    shards = [(last, f"shard-{last}") for last in sorted({*splits, 2**128 - 1})]

    def home(entry: Entry) -> str:
        hashed = int(entry.get("ExplicitHashKey", hash_key(entry["PartitionKey"])))
        return next(name for last, name in shards if hashed <= last)

    assert KnownShards.of(shards).homes(Entries.of(entries)) == [home(entry) for entry in entries]
