"""Ids are derived: the same wherever they are computed, packed without loss, and mixed well."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from kinesis_trident.tracker.ids import (
    MAX_ORDINAL,
    MAX_SHARDS,
    mix64,
    of_turn,
    ordinal_of,
    roots,
    tag,
    tag_of,
    tuple_ids,
    turn_of,
)

UINT64 = st.integers(0, 2**64 - 1)


def unmixed(value: int) -> int:
    """The inverse of mix64, in Python integers."""
    mask = 2**64 - 1

    def unshift(x: int) -> int:
        return x ^ (x >> 33)

    value = unshift(value) * pow(0xC4CEB9FE1A85EC53, -1, 2**64) & mask
    value = unshift(value) * pow(0xFF51AFD7ED558CCD, -1, 2**64) & mask
    return unshift(value)


@given(st.lists(UINT64, min_size=1))
def test_mix64_is_a_bijection(values: list[int]) -> None:
    mixed = mix64(np.array(values, dtype=np.uint64))
    assert [unmixed(int(value)) for value in mixed] == values


def test_mix64_is_murmurhash3s_finalizer() -> None:
    # fmix64(1) and fmix64(2**64 - 1) of MurmurHash3.
    assert mix64(np.array([0, 1, 2**64 - 1], dtype=np.uint64)).tolist() == [
        0,
        0xB456BCFC34C2CB2C,
        0x64B5720B4B825F21,
    ]


def test_one_flipped_bit_flips_about_half_of_the_others() -> None:
    values = np.random.default_rng(7).integers(0, 2**64, 2_000, dtype=np.uint64)
    for bit in range(64):
        changed = mix64(values) ^ mix64(values ^ np.uint64(1 << bit))
        share = np.unpackbits(changed.view(np.uint8)).mean()
        assert 0.48 < share < 0.52


def test_mix64_leaves_its_argument_alone() -> None:
    values = np.arange(5, dtype=np.uint64)
    mix64(values)
    assert values.tolist() == [0, 1, 2, 3, 4]


def test_tuple_ids_are_told_apart_by_stream_batch_shard_and_ordinal_and_by_nothing_else() -> None:
    ordinals = np.arange(1000, dtype=np.int64)
    ids = tuple_ids("orders", 7, "shardId-0", ordinals)
    assert ids.dtype == np.int64
    others = [("clicks", 7, "shardId-0"), ("orders", 8, "shardId-0"), ("orders", 7, "shardId-1")]
    everything = np.concatenate([ids, *(tuple_ids(*other, ordinals) for other in others)])
    assert len(np.unique(everything)) == 4000
    parts = [tuple_ids("orders", 7, "shardId-0", ordinals[at : at + 7]) for at in range(0, 1000, 7)]
    assert np.array_equal(np.concatenate(parts), ids)
    # Fixed for good: a batch planned by one release may be replayed by the next.
    assert ids[:2].tolist() == [6504526379441389486, 295279811289222662]


@given(
    batch_tag=st.integers(0, 2**24 - 1),
    shard=st.integers(0, MAX_SHARDS - 1),
    ordinals=st.lists(st.integers(0, MAX_ORDINAL), min_size=1).map(sorted),
)
def test_roots_give_back_what_was_packed(batch_tag: int, shard: int, ordinals: list[int]) -> None:
    packed = roots(batch_tag, shard, np.array(ordinals, dtype=np.int64))
    assert packed.dtype == np.int64
    assert tag_of(packed).tolist() == [batch_tag] * len(ordinals)
    assert [of_turn(turn) for turn in turn_of(packed).tolist()] == [(batch_tag, shard)] * len(ordinals)
    assert ordinal_of(packed).tolist() == ordinals


@pytest.mark.parametrize(
    ("shard", "ordinal"),
    [(MAX_SHARDS, 0), (-1, 0), (0, MAX_ORDINAL + 1)],
    ids=["shards", "minus", "ordinals"],
)
def test_what_does_not_fit_is_refused_with_what_to_do(shard: int, ordinal: int) -> None:
    with pytest.raises(ValueError, match="Lower maxFetchRecordsPerShard"):
        roots(1, shard, np.array([0, ordinal], dtype=np.int64))


def test_an_empty_turn_has_no_ids() -> None:
    none = np.empty(0, dtype=np.int64)
    assert len(roots(1, 1, none)) == len(tuple_ids("s", 1, "x", none)) == 0


def test_a_tag_is_of_the_epoch_and_of_the_plan_in_24_bits() -> None:
    assert tag(1, "a") != tag(2, "a")
    assert tag(1, "a") != tag(1, "b")
    assert tag(1, "a") >> 12 == 1
    assert 0 <= tag(2**40 + 5, "a") < 2**24
