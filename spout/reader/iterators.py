"""Keeps the iterators at which this process's turns have ended, so that the next turn of a shard asks for none."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary

from kinesis_trident.spout.kinesis import Kinesis
from kinesis_trident.spout.positions import Position

__all__ = ["KeptIterators", "kept_iterators"]

_AGE = 240.0
"""Seconds for which an iterator is used: Kinesis keeps it for five minutes."""


class KeptIterators:
    """The iterators at the ends of turns, one a shard. Thread-safe, as each operation is one of a dict.

    An iterator yields what a new one at the same position would, so it does not matter which process read last.

    Args:
        clock: seconds that never step back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[Hashable, tuple[str, str, float]] = {}

    def keep(self, shard: Hashable, position: Position, iterator: str) -> None:
        """Keep the iterator at a position of a shard."""
        self._kept[shard] = str(position), iterator, self._clock()

    def take(self, shard: Hashable, position: Position) -> str | None:
        """Give back what is kept of a shard: its iterator, if it is at this position and not too old."""
        at, iterator, since = self._kept.pop(shard, ("", "", 0.0))
        return iterator if at == str(position) and self._clock() - since < _AGE else None


_by_client: WeakKeyDictionary[Kinesis, KeptIterators] = WeakKeyDictionary()


def kept_iterators(kinesis: Kinesis) -> KeptIterators:
    """Return the iterators of a client, which is one of this process, an endpoint and credentials."""
    return _by_client.setdefault(kinesis, KeptIterators())
