"""The trees of many roots that were emitted together, in arrays: what the acker keeps for roots in bulk."""

from __future__ import annotations

import numpy as np

from kinesis_trident.tracker.acker.arrays import Bools, Int64s, Runs

__all__ = ["TreeBlock"]

_OPEN, _ANSWERED, _MOVED = 0, 1, 2


class TreeBlock:
    """Ascending, distinct roots, at least one, with their values: 9 bytes a root, and what its `Runs` take."""

    __slots__ = ("_moved", "_states", "_values", "roots")

    def __init__(self, roots: Int64s, values: Int64s) -> None:
        self.roots = Runs(roots)
        """All roots of the block, those that were answered or moved away too."""
        self._values = values.copy()
        self._states = np.full(len(roots), _OPEN, dtype=np.uint8)
        self._moved = False

    @property
    def pending(self) -> int:
        """Return the number of roots that wait for an answer."""
        return int(np.count_nonzero(self._states == _OPEN))

    def find(self, roots: Int64s) -> tuple[Int64s, Bools | None]:
        """The places of roots, and which of them are here, None when all are; for `ack` and `answer`."""
        places, inside = self.roots.find(roots)
        if self._moved:
            here = np.ones(len(roots), dtype=bool) if inside is None else inside
            here[here] = self._states[places[here]] != _MOVED
            inside = None if here.all() else here
        return places, inside

    def place(self, root: int) -> int | None:
        """The place of a root; None when it is not here."""
        place = self.roots.place(root)
        return None if place is None or self._states[place] == _MOVED else place

    def answer_zeros(self) -> Int64s:
        """Answer the roots whose value is zero from the start: nobody consumes them."""
        zero = np.flatnonzero(self._values == 0)
        self._states[zero] = _ANSWERED
        return self.roots.numbers(zero)

    def ack_one(self, place: int, value: int) -> bool:
        """XOR one value into the root at a place; whether it is done by that."""
        if self._states[place] != _OPEN:
            return False
        self._values[place] ^= value
        if self._values[place]:
            return False
        self._states[place] = _ANSWERED
        return True

    def ack(self, roots: Int64s, places: Int64s, values: Int64s) -> Int64s:
        """XOR a value each into ascending, distinct roots, all here, at their places; those that are done by that."""
        if not len(roots):
            return roots
        first, last = int(places[0]), int(places[-1])
        if last - first == len(places) - 1:
            held = self._values[first : last + 1]
            held ^= values
        else:
            held = self._values[places] ^ values
            self._values[places] = held
        at = np.flatnonzero(held == 0)
        return self.answer(roots[at], places[at])

    def answer(self, roots: Int64s, places: Int64s) -> Int64s:
        """Answer ascending, distinct roots, all here, at their places; those that were not answered before."""
        is_open = self._states[places] == _OPEN
        if is_open.all():
            self._states[places] = _ANSWERED
            return roots
        self._states[places[is_open]] = _ANSWERED
        fresh: Int64s = roots[is_open]
        return fresh

    def remove(self, roots: Int64s, places: Int64s) -> tuple[Int64s, Int64s]:
        """Give ascending, distinct roots away, all here, at their places; those not answered, with their values."""
        is_open = self._states[places] == _OPEN
        roots, places = roots[is_open], places[is_open]
        self._states[places] = _MOVED
        self._moved |= bool(len(places))
        return roots, self._values[places]

    def open_roots(self) -> Int64s:
        """The roots that wait for an answer, ascending."""
        return self.roots.numbers(np.flatnonzero(self._states == _OPEN))
