"""Arrays of roots: where each of many stands among ascending ones, and the sums of the values of each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kinesis_trident.tracker.ids import xor_of

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_GROUP_BITS = 6
"""Roots are counted from the first of 2**6 slots, so that a count fits into a byte."""

_CROWD = 32
"""With more runs in one slot than this, a binary search is faster."""

_DIGIT_BITS = 16
"""Numbers of so many bits numpy sorts by counting, some times as fast as larger ones by comparing."""


class Roots:
    """Ascending, distinct int64 numbers, at least one. A place is a number's index among them, from 0.

    Consecutive numbers are one run. A directory cuts the span of the runs into as many equal slots as there are runs,
    or up to twice that, each with the number of runs that begin before its end. Numbers that are spread evenly, such
    as random ones, are at most a few steps from there; where they are not, a binary search finds them. All this takes
    at most 11 bytes for each number where no two are consecutive, 15 where few are, none where all are.
    """

    __slots__ = ("_befores", "_counts", "_firsts", "_shift", "_starts")

    def __init__(self, numbers: Int64s) -> None:
        # Differences beyond 2**63 wrap around, but never to 1.
        starts = np.concatenate([[0], np.flatnonzero(numbers[1:] - numbers[:-1] != 1) + 1])
        count = len(starts)
        self._starts = None if count == len(numbers) else np.append(starts, len(numbers)).astype(np.int32)
        self._firsts = firsts = numbers[starts]
        span = int(firsts[-1]) - int(firsts[0])
        shift = max(0, (span // count).bit_length() - 1)
        self._shift = np.uint64(shift)
        slots, groups = self._slots(firsts), (span >> shift + _GROUP_BITS) + 1
        in_group = np.bincount(slots >> _GROUP_BITS, minlength=groups)
        self._befores: Int64s | None = None
        self._counts = np.zeros(groups << _GROUP_BITS, dtype=np.uint8)
        if in_group.max() <= np.iinfo(np.uint8).max:
            np.add.at(self._counts, slots, np.uint8(1))
            if self._counts.max() <= _CROWD:
                # Less one: the last run that begins before the group, to which a slot's count is added.
                self._befores = np.cumsum(in_group) - in_group - 1
                by_group = self._counts.reshape(groups, -1)
                np.cumsum(by_group, axis=1, dtype=np.uint8, out=by_group)

    def find(self, numbers: Int64s) -> tuple[Int64s, Bools]:
        """Return the places of numbers, and which of them are here: the place of another one means nothing."""
        run, firsts = self._find_run(np.maximum(numbers, self._firsts[0]))
        if self._starts is None:
            return run, firsts == numbers
        starts = self._starts.take(run)
        within = numbers - firsts
        inside = within.view(np.uint64) < (self._starts.take(run + 1) - starts).view(np.uint32)
        return within + starts, inside

    def numbers(self, places: npt.NDArray[np.intp]) -> Int64s:
        """Return the numbers at places."""
        run = places if self._starts is None else np.searchsorted(self._starts, places, "right") - 1
        found: Int64s = self._firsts[run]
        return found if self._starts is None else found + (places - self._starts[run])

    def _slots(self, numbers: Int64s) -> Int64s:
        slots: Int64s = ((numbers - self._firsts[0]).view(np.uint64) >> self._shift).view(np.int64)
        return slots

    def _find_run(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Return the last run that begins at or before each number, none of which is before all, and where it does."""
        run: Int64s
        if self._befores is None:
            order = order_of(numbers) if len(numbers) else np.arange(0)
            run = np.empty_like(order)
            run[order] = np.searchsorted(self._firsts, numbers.take(order), "right") - 1
            return run, self._firsts[run]
        # What is beyond the span lands in any slot, and is not found in that one's runs.
        slots = self._slots(numbers)
        run = self._befores.take(slots >> _GROUP_BITS, mode="clip")
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


def int64s(numbers: Int64s) -> Int64s:
    """Return 64-bit numbers as signed ones."""
    return numbers.view(np.int64) if numbers.dtype == np.uint64 else numbers


def combine_roots(roots: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
    """Return the roots ascending, each once, with the XOR of its values."""
    if not _is_ascending(roots):
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
    if not _is_ascending(keys):
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
    if shift and not _is_ascending(numbers.take(order)):
        order = np.argsort(numbers)
    return order


def _is_ascending(numbers: Int64s) -> bool:
    return bool((numbers[1:] >= numbers[:-1]).all())
