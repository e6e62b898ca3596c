"""The trees of many roots that were emitted together, in arrays: what the acker keeps for roots in bulk."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["TreeBlock"]

Int64s = npt.NDArray[np.int64]

_OPEN, _ANSWERED, _MOVED = 0, 1, 2


class TreeBlock:
    """Ascending, distinct roots with their values. Where they are consecutive, the roots themselves are not kept."""

    __slots__ = ("_first", "_last", "_roots", "_states", "_values")

    def __init__(self, roots: Int64s, values: Int64s) -> None:
        self._first, self._last = int(roots[0]), int(roots[-1])
        consecutive = self._last - self._first == len(roots) - 1
        self._roots = None if consecutive else roots.copy()
        self._values = values.copy()
        self._states = np.full(len(roots), _OPEN, dtype=np.uint8)

    @property
    def pending(self) -> int:
        """How many roots wait for an answer."""
        return int(np.count_nonzero(self._states == _OPEN))

    def has(self, root: int) -> bool:
        """Whether this root is here."""
        at = self._at(root)
        return at is not None and self._states[at] != _MOVED

    def holds(self, roots: Int64s) -> npt.NDArray[np.bool_]:
        """Which of these roots are here."""
        inside = (roots >= self._first) & (roots <= self._last)
        if self._roots is not None:
            at = np.minimum(np.searchsorted(self._roots, roots), len(self._roots) - 1)
            inside &= self._roots[at] == roots
        where = self._where(roots[inside])
        moved = self._states[where] == _MOVED
        if moved.any():
            inside[np.flatnonzero(inside)[moved]] = False
        return inside

    def zeros(self) -> Int64s:
        """Answer the roots whose value is zero from the start: nobody consumes them."""
        return self._answered(np.flatnonzero(self._values == 0))

    def ack_one(self, root: int, value: int) -> bool:
        """XOR one value into a root that is here; whether it is done by that."""
        at = self._at(root)
        if at is None or self._states[at] != _OPEN:
            return False
        self._values[at] ^= value
        if self._values[at]:
            return False
        self._states[at] = _ANSWERED
        return True

    def ack(self, roots: Int64s, values: Int64s) -> Int64s:
        """XOR values into roots that are all here; the roots that are done by that, ascending."""
        if not len(roots):
            return roots
        where, rises = self._where(roots), roots[1:] > roots[:-1]
        distinct = bool(rises.all())
        if not distinct and not (roots[1:] >= roots[:-1]).all():
            np.bitwise_xor.at(self._values, where, values)
            return self._answered(np.unique(where[self._values[where] == 0]))
        if not distinct:
            starts = np.concatenate([[0], np.flatnonzero(rises) + 1])
            where, values = where[starts], np.bitwise_xor.reduceat(values, starts)
        if int(where[-1]) - int(where[0]) == len(where) - 1:
            stretch = slice(int(where[0]), int(where[-1]) + 1)
            self._values[stretch] ^= values
            return self._answered(where[self._values[stretch] == 0])
        held = self._values[where] ^ values
        self._values[where] = held
        return self._answered(where[held == 0])

    def fail(self, roots: Int64s) -> Int64s:
        """Fail roots that are all here; those that were not answered before, ascending."""
        return self._answered(np.unique(self._where(roots)))

    def remove(self, root: int) -> int | None:
        """Give a root's value away, which is kept elsewhere from now on; None when it was answered."""
        at = self._at(root)
        if at is None or self._states[at] != _OPEN:
            return None
        self._states[at] = _MOVED
        return int(self._values[at])

    def open_roots(self) -> Int64s:
        """The roots that wait for an answer, ascending."""
        return self._named(np.flatnonzero(self._states == _OPEN))

    def _answered(self, where: npt.NDArray[np.intp]) -> Int64s:
        fresh = where[self._states[where] == _OPEN]
        self._states[fresh] = _ANSWERED
        return self._named(fresh)

    def _at(self, root: int) -> int | None:
        if not self._first <= root <= self._last:
            return None
        if self._roots is None:
            return root - self._first
        at = int(np.searchsorted(self._roots, root))
        return at if self._roots[at] == root else None

    def _where(self, roots: Int64s) -> npt.NDArray[np.intp]:
        return roots - self._first if self._roots is None else np.searchsorted(self._roots, roots)

    def _named(self, where: npt.NDArray[np.intp]) -> Int64s:
        return where + self._first if self._roots is None else self._roots[where]
