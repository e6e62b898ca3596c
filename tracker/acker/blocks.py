"""The trees of many roots that were emitted together, in arrays: what the acker keeps for roots in bulk."""

from __future__ import annotations

import numpy as np

from kinesis_trident.tracker.acker.arrays import Bools, Int64s, Runs, is_rising, one_each, order_of

__all__ = ["TreeBlock"]


class TreeBlock:
    """Ascending, distinct roots, at least one, with their values: 8 bytes a root, and what its `Runs` take.

    A value is 0 once its root is answered, as that of an open tree never is.
    """

    __slots__ = ("_moved", "_values", "roots")

    def __init__(self, roots: Int64s, values: Int64s) -> None:
        self.roots = Runs(roots)
        """All roots of the block, those that were answered or moved away too."""
        self._values = values.copy()
        self._moved: Bools | None = None

    @property
    def pending(self) -> int:
        """Return the number of roots that wait for an answer."""
        return int(np.count_nonzero(self._values))

    def find(self, roots: Int64s) -> tuple[Int64s, Bools | None]:
        """The places of roots, and which of them are here, None when all are; for `ack` and `answer`."""
        places, inside = self.roots.find(roots)
        if self._moved is not None:
            here = np.ones(len(roots), dtype=bool) if inside is None else inside
            here[here] = ~self._moved[places[here]]
            inside = None if here.all() else here
        return places, inside

    def place(self, root: int) -> int | None:
        """The place of a root; None when it is not here."""
        place = self.roots.place(root)
        return None if place is None or (self._moved is not None and self._moved[place]) else place

    def unconsumed(self) -> Int64s:
        """The roots whose value is zero from the start, ascending: nobody consumes them."""
        return self.roots.numbers(np.flatnonzero(self._values == 0))

    def ack_one(self, place: int, value: int) -> bool:
        """XOR one value into the root at a place; whether it is done by that."""
        if not self._values[place]:
            return False
        self._values[place] ^= value
        return not self._values[place]

    def ack(self, roots: Int64s, places: Int64s, values: Int64s) -> Int64s:
        """XOR a value each into roots at their places, all here, in any order and a root any number of times.

        Returns:
            The roots that are done by all values together, ascending.
        """
        if not len(roots):
            return roots
        rises = is_rising(places)
        first, last = int(places[0]), int(places[-1])
        is_slice = rises and last - first == len(places) - 1
        held = self._values[first : last + 1] if is_slice else self._values.take(places)
        if not held.all():
            is_open = held != 0
            return self.ack(roots[is_open], places[is_open], values[is_open])
        held ^= values
        if not rises:
            return self._put_in_any_order(roots, places, held, values)
        if not is_slice:
            self._values[places] = held
        done: Int64s = roots[held == 0]
        return done

    def _put_in_any_order(self, roots: Int64s, places: Int64s, held: Int64s, values: Int64s) -> Int64s:
        # All that have a place write there; the one that is read from it counts for its root, the others come after.
        writers = np.arange(len(places))
        self._values[places] = writers
        counts = self._values.take(places) == writers
        if counts.all():
            self._values[places] = held
        else:
            others = ~counts
            more_places, more = one_each(places[others], values[others])
            roots, places = roots[counts], places[counts]
            self._values[places] = held[counts]
            self._values[more_places] ^= more
            held = self._values.take(places)
        at = np.flatnonzero(held == 0)
        done: Int64s = roots[at[order_of(places[at])]] if len(at) else roots[at]
        return done

    def answer(self, roots: Int64s, places: Int64s) -> Int64s:
        """Answer ascending, distinct roots, all here, at their places; those that were not answered before."""
        fresh: Int64s = roots[self._values[places] != 0]
        self._values[places] = 0
        return fresh

    def remove(self, roots: Int64s, places: Int64s) -> tuple[Int64s, Int64s]:
        """Give ascending, distinct roots away, all here, at their places; those not answered, with their values."""
        values = self._values[places]
        is_open = values != 0
        roots, places, values = roots[is_open], places[is_open], values[is_open]
        if len(places):
            if self._moved is None:
                self._moved = np.zeros(len(self._values), dtype=bool)
            self._moved[places] = True
            self._values[places] = 0
        return roots, values

    def open_roots(self) -> Int64s:
        """The roots that wait for an answer, ascending."""
        return self.roots.numbers(np.flatnonzero(self._values))
