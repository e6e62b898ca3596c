"""Arrays of roots: where each of many stands among ascending ones, and the sums of the values of each.

Runs of consecutive numbers are found without a search a number.

One run is a subtraction. Many are found through a directory: the span of the numbers cut into as many equal slots as
there are runs, or up to twice that, each slot with the number of runs that begin before its end. Numbers that are
spread evenly, such as random ones, are at most a few steps from there; where they are not, it is a binary search.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kinesis_trident.tracker.ids import xor_of

__all__ = ["Runs", "int64s", "is_narrow", "is_rising", "one_each", "order_of", "sums_of", "together"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_GROUP_BITS = 6
"""Runs are counted from the first of 2**6 slots, so that a count fits into a byte."""

_CROWD = 32
"""With more runs in one slot than this, a binary search is faster."""

_DIGIT_BITS = 16
"""Numbers of so many bits numpy sorts by counting, some times as fast as larger ones by comparing."""


class Runs:
    """Ascending, distinct int64 numbers, at least one.

    They take at most 11 bytes for each where no two are consecutive, 15 where few are, none where all are. A place
    is a number's index among them, from 0.
    """

    __slots__ = ("_befores", "_counts", "_firsts", "_offsets", "_shift", "_size", "first", "last")

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
        self._befores: Int64s | None = None
        self._counts = np.empty(0, dtype=np.uint8)
        self._shift = np.uint64(0)
        if len(self._firsts) > 1:
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
            starts = self._offsets.take(run)
            within = numbers - firsts
            inside = within.view(np.uint64) < (self._offsets.take(run + 1) - starts).view(np.uint32)
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
        shift = max(0, (span // count).bit_length() - 1)
        self._shift = np.uint64(shift)
        slots = self._slots(self._firsts)
        groups = (span >> shift + _GROUP_BITS) + 1
        in_group = np.bincount(slots >> _GROUP_BITS, minlength=groups)
        if in_group.max() > np.iinfo(np.uint8).max:
            return
        counts = np.zeros(groups << _GROUP_BITS, dtype=np.uint8)
        np.add.at(counts, slots, np.uint8(1))
        if counts.max() > _CROWD:
            return
        by_group = counts.reshape(groups, -1)
        np.cumsum(by_group, axis=1, dtype=np.uint8, out=by_group)
        self._counts = counts
        # Less one: the last run that begins before the group, to which a slot's count is added.
        self._befores = np.cumsum(in_group) - in_group - 1

    def _slots(self, numbers: Int64s) -> Int64s:
        slots: Int64s = ((numbers - self._firsts[0]).view(np.uint64) >> self._shift).view(np.int64)
        return slots

    def _run_of(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """The last run that begins at or before each number, any for one that is before all; and where it begins."""
        if len(numbers) and numbers.min() < self.first:
            numbers = np.maximum(numbers, self.first)
        if self._befores is None:
            return self._searched(numbers)
        # What is beyond the span lands in any slot, and is not found in that one's runs.
        slots = self._slots(numbers)
        run: Int64s = self._befores.take(slots >> _GROUP_BITS, mode="clip")
        run += self._counts.take(slots, mode="clip")
        firsts: Int64s = self._firsts.take(run, mode="clip")
        beyond = np.flatnonzero(firsts > numbers)
        numbers, earlier = numbers.take(beyond), run.take(beyond)
        while len(beyond):
            earlier -= 1
            begun = self._firsts.take(earlier)
            run[beyond] = earlier
            firsts[beyond] = begun
            still = np.flatnonzero(begun > numbers)
            beyond, numbers, earlier = beyond.take(still), numbers.take(still), earlier.take(still)
        return run, firsts

    def _searched(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Return what `_run_of` does. To search for ascending numbers is some times as fast as for shuffled ones."""
        run: Int64s
        if _ascending(numbers):
            run = np.searchsorted(self._firsts, numbers, "right") - 1
        else:
            order = order_of(numbers)
            run = np.empty_like(order)
            run[order] = np.searchsorted(self._firsts, numbers.take(order), "right") - 1
        return run, self._firsts[run]


def int64s(numbers: Int64s) -> Int64s:
    """64-bit numbers, signed."""
    return numbers.view(np.int64) if numbers.dtype == np.uint64 else numbers


def one_each(roots: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
    """The roots ascending, each once, with the XOR of its values."""
    rises = roots[1:] > roots[:-1]
    if rises.all():
        return roots, values
    if not _ascending(roots):
        order = order_of(roots)
        roots, values = roots.take(order), values.take(order)
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
        order = order_of(keys)
        keys, values = keys.take(order), values.take(order)
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] > keys[:-1]) + 1])
    counts = np.diff(starts, append=len(keys))
    xors = np.bitwise_xor.reduceat(values, starts)
    yield from zip(keys[starts].tolist(), counts.tolist(), xors.tolist(), strict=True)


def order_of(numbers: Int64s) -> Int64s:
    """Return the indices that sort numbers, at least one."""
    low = numbers.min()
    away = (numbers - low).view(np.uint64)
    bits = int(away.max()).bit_length()
    # Two digits are enough for most.
    shift = max(0, bits - 2 * _DIGIT_BITS)
    high = away >> np.uint64(shift) if shift else away
    order: Int64s = high.astype(np.uint16).argsort(kind="stable")
    if bits > _DIGIT_BITS:
        order = order.take(
            (high >> np.uint64(_DIGIT_BITS)).astype(np.uint16).take(order).argsort(kind="stable")
        )
    if shift and not _ascending(numbers.take(order)):
        order = np.argsort(numbers)
    return order


def is_narrow(numbers: Int64s) -> bool:
    """Return True if numbers, at least one, are so close together that they are sorted by one digit."""
    return (int(numbers.max()) - int(numbers.min())) >> _DIGIT_BITS == 0


def is_rising(numbers: Int64s) -> bool:
    """Return True if each number is greater than the one before."""
    return bool((numbers[1:] > numbers[:-1]).all())


def _ascending(roots: Int64s) -> bool:
    return bool((roots[1:] >= roots[:-1]).all())


def together(done: list[Int64s], alone: list[int]) -> Int64s:
    """Ascending roots of arrays and single ones, in one array."""
    if len(done) == 1 and not alone:
        return done[0]
    return np.sort(np.concatenate([*done, np.array(alone, dtype=np.int64)]))
