"""Roots that come in arrays, in any order and as often as they have tuples: sorted, each once."""

from __future__ import annotations

import numpy as np

from tracker.runs import Int64s

__all__ = ["int64s", "one_each", "signed", "together"]


def signed(number: int) -> int:
    """A 64-bit number, signed."""
    return (number + 2**63) % 2**64 - 2**63


def int64s(numbers: Int64s) -> Int64s:
    """64-bit numbers, signed."""
    return numbers.view(np.int64) if numbers.dtype == np.uint64 else numbers


def one_each(roots: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
    """The roots ascending, each once, with the XOR of its values."""
    rises = roots[1:] > roots[:-1]
    if rises.all():
        return roots, values
    if not _ascending(roots):
        order = _order(roots)
        roots, values = roots[order], values[order]
        rises = roots[1:] > roots[:-1]
        if rises.all():
            return roots, values
    starts = np.concatenate([[0], np.flatnonzero(rises) + 1])
    return roots[starts], np.bitwise_xor.reduceat(values, starts)


def _order(roots: Int64s) -> Int64s:
    """What sorts roots. One number each is sorted, the root's distance from the lowest and its index: no argsort."""
    low = roots.min()
    index_bits = len(roots).bit_length()
    shift = max(0, (int(roots.max()) - int(low)).bit_length() + index_bits - 64)
    keys = (roots - low).view(np.uint64)
    keys >>= np.uint64(shift)
    keys <<= np.uint64(index_bits)
    keys |= np.arange(len(roots), dtype=np.uint64)
    keys.sort()
    keys &= np.uint64((1 << index_bits) - 1)
    order: Int64s = keys.view(np.int64)
    if shift and not _ascending(roots[order]):
        # Roots whose distance is alike in its higher bits.
        order = np.argsort(roots)
    return order


def _ascending(roots: Int64s) -> bool:
    return bool((roots[1:] >= roots[:-1]).all())


def together(done: list[Int64s], alone: list[int]) -> Int64s:
    """Ascending roots of arrays and single ones, in one array."""
    if len(done) == 1 and not alone:
        return done[0]
    return np.sort(np.concatenate([*done, np.array(alone, dtype=np.int64)]))
