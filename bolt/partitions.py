"""Moves rows to partitions by their numbers, with every Spark from 4.0 on."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_WORD = 0xFFFFFFFF


def move_to_partitions(frame: DataFrame, count: int, place: Column | str) -> DataFrame:
    """Bring each row to the partition whose number `place` is, a column of ints from 0 to count - 1, or its name."""
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(count, place)
    # Spark 4.0 moves rows only by the hash of a value, so each number becomes one whose hash leads there.
    values = F.array(*map(F.lit, find_values(count)))
    return frame.repartition(
        count, F.element_at(values, (F.col(place) if isinstance(place, str) else place) + 1)
    )


@lru_cache
def find_values(count: int) -> tuple[int, ...]:
    """Return for each of `count` partitions an int that `DataFrame.repartition` brings there."""
    found: dict[int, int] = {}
    value = 0
    while len(found) < count:
        found.setdefault(murmur3(value.to_bytes(4, "little")) % count, value)
        value += 1
    return tuple(found[number] for number in range(count))


def murmur3(data: bytes, seed: int = 42) -> int:
    """Return Spark's `hash` of bytes, a signed number: MurmurHash3 in which each byte after the last word is one."""
    state, whole = seed & _WORD, len(data) & ~3
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, whole, 4)]
    for word in (*words, *(byte - (byte >> 7 << 8) for byte in data[whole:])):
        mixed = word * 0xCC9E2D51 & _WORD
        mixed = _rotate(mixed, 15) * 0x1B873593 & _WORD
        state = _rotate(state ^ mixed, 13) * 5 + 0xE6546B64 & _WORD
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _WORD
    state = (state ^ state >> 13) * 0xC2B2AE35 & _WORD
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _WORD
