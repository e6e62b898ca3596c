"""Checks the bytes of a sketch before the library reads them: it believes their counts, and a wrong one is a crash.

The formats, and what each count leads to, are from the library's source, github.com/apache/datasketches-cpp at 5.2.0:
`newList`, `newSet`, `newHll`, `AuxHashMap::deserialize` in `hll/include`; `deserialize`, `merge`, `general_compress` in
`kll/include`. Numbers are little-endian. Pure. Values on which no length, index or order depends stay unchecked.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["checked_hll", "checked_kll_doubles"]

_HLL_FAMILY, _KLL_FAMILY = 7, 15

_LIST, _SET, _REGISTERS = (2, 0), (3, 1), (10, 2)
"""The forms of an HLL sketch: the length of the preamble in words of four bytes, and the mode's lower bits."""

_HLL_4, _HLL_6, _HLL_8 = 0, 1, 2

_COMPACT = 8
"""The flag of a sketch without free slots."""

_LIST_SLOTS = 8

_EMPTIEST = 1 << 26
"""The smallest hash of a value: six bits for a register's value, from 1 on, above those that name the register."""

_ELSEWHERE = 15
"""A register of four bits with this value has its value in the table behind the registers."""

_LARGEST = 63
"""The largest value of a register."""

_KLL_M = 8

_EMPTY, _SINGLE = 1, 4
"""The flags of a KLL sketch of nothing, and of one item."""

_KLL_START = 20

_MOST_LEVELS = 61

_MOST_ITEMS = 2**62
"""The sum of two leaves the highest of 64 bits free: with it, the library's search for the highest bit never ends."""


def checked_hll(data: bytes) -> bytes:
    """Return the bytes of an HLL sketch, in a form that the library reads, estimates and merges without harm.

    Raises:
        ValueError: they are of no HLL sketch.
    """
    _require(len(data) >= 8, "it is cut off")
    preamble, version, family, lg_k, _, flags, count, mode = data[:8]
    _require(version == 1 and family == _HLL_FAMILY, "it does not begin as an HLL sketch")
    _require(4 <= lg_k <= 21, "its lg_k is not from 4 to 21")
    _require(mode >> 2 & 3 <= _HLL_8, "its registers have no known size")
    form, compact = (preamble, mode & 3), bool(flags & _COMPACT)
    _require(form in {_LIST, _SET, _REGISTERS}, "its mode does not go with its preamble")
    if form == _SET:
        return _checked_set(data, lg_k, compact)
    if form == _LIST:
        _check_list(data, count, compact)
    else:
        _check_registers(data, lg_k, mode >> 2 & 3, compact)
    return data


def _check_list(data: bytes, count: int, compact: bool) -> None:
    """Check a sketch of few values: a hash of each, one after the other. A full list would have become another form."""
    _require(count < _LIST_SLOTS, "its list is longer than one can be")
    _require(len(data) >= 8 + 4 * (count if compact else _LIST_SLOTS), "its list is cut off")
    coupons = struct.unpack_from(f"<{count}I", data, 8)
    _require(min(coupons, default=_EMPTIEST) >= _EMPTIEST, "a value is empty")


def _checked_set(data: bytes, lg_k: int, compact: bool) -> bytes:
    """Check a sketch whose hashes are in a hash table; return it without the free slots.

    So the library fills a table itself, with each hash where it looks for it.
    """
    _require(lg_k > 7 and len(data) >= 12, "it is too small for a set")
    (count,) = struct.unpack_from("<I", data, 8)
    _require(count <= 3 * 2 ** (lg_k - 5), "its set is larger than one can be")
    table = _table(data, 12, count, compact)
    _require(int(table.min(initial=_EMPTIEST)) >= _EMPTIEST, "a value is empty")
    return data if compact else data[:5] + bytes([data[5] | _COMPACT]) + data[6:12] + table.tobytes()


def _table(data: bytes, start: int, count: int, compact: bool) -> NDArray[np.uint32]:
    """Return what a hash table holds, without its free slots."""
    _require(compact or data[4] < 32, "its table is larger than one can be")
    length = count if compact else 1 << data[4]
    _require(len(data) >= start + 4 * length, "its table is cut off")
    table: NDArray[np.uint32] = np.frombuffer(data, "<u4", length, start)
    if not compact:
        table = table[table != 0]
        _require(len(table) == count, "it has another number of values in its table")
    return table


def _check_registers(data: bytes, lg_k: int, size: int, compact: bool) -> None:
    """Check a sketch with all its registers, and with a table of those whose value does not fit into four bits."""
    _require(len(data) >= 40, "it is cut off")
    smallest, k = data[6], 2**lg_k
    *sums, at_smallest, outside = struct.unpack_from("<dddII", data, 8)
    _require(all(map(math.isfinite, sums)), "its estimate is no number")
    _require(smallest <= _LARGEST and at_smallest <= k, "it counts more registers than it has")
    length = {_HLL_4: k // 2, _HLL_6: k * 3 // 4 + 1, _HLL_8: k}[size]
    _require(len(data) >= 40 + length, "its registers are cut off")
    registers = np.frombuffer(data, np.uint8, length, 40)
    if size == _HLL_4:
        table = _table(data, 40 + length, outside, compact) if outside else np.empty(0, np.uint32)
        _check_four_bits(np.stack([registers & 15, registers >> 4], axis=1).ravel(), smallest, table)
    else:
        _require(outside == 0, "it has a table of values, which its registers cannot have")
        _require(size == _HLL_6 or int(registers.max()) <= _LARGEST, "a register is too large")


def _check_four_bits(registers: NDArray[np.uint8], smallest: int, table: NDArray[np.uint32]) -> None:
    inside = registers[registers != _ELSEWHERE]
    _require(int(inside.max(initial=0)) + smallest <= _LARGEST, "a register is too large")
    elsewhere = np.flatnonzero(registers == _ELSEWHERE)
    named = np.sort(table & (len(registers) - 1))
    _require(np.array_equal(named, elsewhere), "its table is not one of the registers that it is for")
    _require(bool((table >> 26 >= smallest + _ELSEWHERE).all()), "its table has a value that is too small")


def checked_kll_doubles(data: bytes) -> bytes:
    """Return the bytes of a KLL sketch of doubles, which the library reads, asks and merges without harm.

    Raises:
        ValueError: they are of no such sketch.
    """
    _require(len(data) >= 8, "it is cut off")
    preamble, version, family, flags, k, m, _ = struct.unpack_from("<BBBBHBB", data)
    _require(version in {1, 2} and family == _KLL_FAMILY, "it does not begin as a KLL sketch")
    _require(preamble == (2 if flags & (_EMPTY | _SINGLE) else 5), "its preamble does not go with its flags")
    _require(k >= _KLL_M and m == _KLL_M, "its k or m is not one of a KLL sketch")
    if flags & _EMPTY:
        return data
    items = _items(data, 8) if flags & _SINGLE else _leveled_items(data, k)
    # The library sorts them, and a NaN is not in any order.
    _require(not math.isnan(items.min(initial=math.inf)), "an item is no number")
    return data


def _leveled_items(data: bytes, k: int) -> NDArray[np.float64]:
    """Return the items of all levels, the smallest and the largest item before them."""
    _require(len(data) >= _KLL_START, "it is cut off")
    n, levels = struct.unpack_from("<Q2xB", data, 8)
    _require(n < _MOST_ITEMS, "it counts more items than one can have seen")
    # An item of level i stands for 2 ** i.
    _require(1 <= levels <= min(n.bit_length(), _MOST_LEVELS), "its levels are too many, or none")
    _require(len(data) >= _KLL_START + 4 * levels, "its levels are cut off")
    starts = [*np.frombuffer(data, "<u4", levels, _KLL_START).tolist(), _capacity(k, levels)]
    sizes = [end - start for start, end in pairwise(starts)]
    _require(min(sizes) >= 0, "its levels overlap")
    _require(
        sum(size << level for level, size in enumerate(sizes)) == n,
        "its levels do not stand for as many items as it counts",
    )
    items = _items(data, _KLL_START + 4 * levels)
    _require(len(items) == sum(sizes) + 2, "it has another number of items in its levels")
    return items


def _items(data: bytes, start: int) -> NDArray[np.float64]:
    _require((len(data) - start) % 8 == 0, "its last item is cut off")
    return np.frombuffer(data, "<f8", offset=start)


@lru_cache
def _capacity(k: int, levels: int) -> int:
    """Return the number of items for which the library has room: two thirds of the level above in each."""
    return sum(max(_KLL_M, _shrunk(k, depth)) for depth in range(levels))


def _shrunk(k: int, depth: int) -> int:
    if depth > 30:
        return _shrunk(_shrunk(k, depth // 2), depth - depth // 2)
    thirds: int = 3**depth
    return ((k << depth + 1) // thirds + 1) >> 1


def _require(true: bool, otherwise: str) -> None:
    if not true:
        raise ValueError(otherwise)
