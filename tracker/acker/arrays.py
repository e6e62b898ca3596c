"""Arrays of roots: where each of many ascending ones stands among them, and the sums of the values of each.

Runs of consecutive numbers are found without a search a number.

One run is a subtraction. Many are found through a directory: the span of the numbers cut into as many equal slots as
there are runs, each slot with the number of runs that begin before its end. Numbers that are spread evenly, such as
random ones, are at most a few steps from there; where they are not, it is a binary search.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kinesis_trident.tracker.ids import xor_of

__all__ = ["Runs", "int64s", "one_each", "sums_of", "together"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FEW = 16
"""Up to this many runs, a search is as fast as a look-up in a directory."""

_CROWD = 32
"""With more runs in one slot than this, a binary search is faster."""


class Runs:
    """Ascending, distinct int64 numbers, at least one; at most 12 bytes for each, none where they are consecutive.

    A place is a number's index among them, from 0.
    """

    __slots__ = ("_directory", "_firsts", "_offsets", "_shift", "_size", "first", "last")

    def __init__(self, numbers: Int64s) -> None:
        self._size = len(numbers)
        self.first, self.last = int(numbers[0]), int(numbers[-1])
        # Differences beyond 2**63 wrap around, but never to 1.
        gaps = numbers[1:] - numbers[:-1] != 1
        self._offsets: npt.NDArray[np.int32] | None = None
        if gaps.all():
            self._firsts = numbers.copy()
        else:
            starts = np.concatenate([[0], np.flatnonzero(gaps) + 1])
            self._firsts = numbers[starts]
            self._offsets = np.append(starts, self._size).astype(np.int32)
        self._directory: npt.NDArray[np.int32] | None = None
        self._shift = np.uint64(0)
        if len(self._firsts) > _FEW:
            self._make_directory()

    def find(self, numbers: Int64s) -> tuple[Int64s, Bools | None]:
        """The places of numbers, and which of them are here; None there when all are.

        The place of one that is not here means nothing, and may be no place at all.
        """
        if len(self._firsts) == 1:
            places = numbers - self._firsts[0]
            offsets = places.view(np.uint64)
            if not len(offsets) or offsets.max() < self._size:
                return places, None
            inside = offsets < self._size
        elif self._offsets is None:
            places, firsts = self._run_of(numbers)
            inside = firsts == numbers
        else:
            run, firsts = self._run_of(numbers)
            starts = self._offsets[run]
            within = numbers - firsts
            inside = within.view(np.uint64) < (self._offsets[run + 1] - starts).view(np.uint32)
            places = within + starts
        return places, None if inside.all() else inside

    def place(self, number: int) -> int | None:
        """The place of one number, None when it is not here."""
        if not self.first <= number <= self.last:
            return None
        run = int(np.searchsorted(self._firsts, number, "right")) - 1
        within = number - int(self._firsts[run])
        if self._offsets is None:
            return None if within else run
        start, end = self._offsets[run : run + 2].tolist()
        return start + within if within < end - start else None

    def numbers(self, places: npt.NDArray[np.intp]) -> Int64s:
        """The numbers at ascending places."""
        if self._offsets is None:
            apart: Int64s = self._firsts[places]
            return apart
        run = np.searchsorted(self._offsets, places, "right") - 1
        found: Int64s = self._firsts[run] + (places - self._offsets[run])
        return found

    def _make_directory(self) -> None:
        count = len(self._firsts)
        span = int(self._firsts[-1]) - int(self._firsts[0])
        # The slots are as wide as a power of two, at most as many as there are runs.
        shift = max(0, (span // count).bit_length())
        self._shift = np.uint64(shift)
        in_slot = np.bincount(self._slots(self._firsts), minlength=(span >> shift) + 1)
        if in_slot.max() <= _CROWD:
            self._directory = np.cumsum(in_slot, dtype=np.int32)

    def _slots(self, numbers: Int64s) -> Int64s:
        slots: Int64s = ((numbers - self._firsts[0]).view(np.uint64) >> self._shift).view(np.int64)
        return slots

    def _run_of(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """The last run that begins at or before each number, any for one that is before all; and where it begins."""
        run: Int64s
        if self._directory is None:
            run = np.searchsorted(self._firsts, numbers, "right") - 1
            run[run < 0] = 0
            return run, self._firsts[run]
        # What is outside the span lands in any slot, and is not found in that one's runs.
        run = self._directory.take(self._slots(numbers), mode="clip").astype(np.int64)
        run -= 1
        firsts = self._firsts[run]
        beyond = np.flatnonzero(firsts > numbers)
        if len(beyond):
            beyond = beyond[numbers[beyond] >= self._firsts[0]]
        while len(beyond):
            earlier = run[beyond] - 1
            run[beyond] = earlier
            firsts[beyond] = begun = self._firsts[earlier]
            beyond = beyond[begun > numbers[beyond]]
        return run, firsts


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


def sums_of(keys: Int64s, values: Int64s) -> Iterator[tuple[int, int, int]]:
    """Yield each key, ascending, with the number of its values and their XOR; keys come in any order."""
    if not len(keys):
        return
    if keys[0] == keys[-1] and (keys == keys[0]).all():
        # One shard's records, as most batches are.
        yield int(keys[0]), len(keys), xor_of(values)
        return
    if not _ascending(keys):
        order = _order(keys)
        keys, values = keys[order], values[order]
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] > keys[:-1]) + 1])
    counts = np.diff(starts, append=len(keys))
    xors = np.bitwise_xor.reduceat(values, starts)
    yield from zip(keys[starts].tolist(), counts.tolist(), xors.tolist(), strict=True)


def _order(roots: Int64s) -> Int64s:
    """Return the indices that sort roots. Sorts one number for each, its distance from the lowest and its index."""
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
