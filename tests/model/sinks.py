"""The sinks, and how often each record is counted there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Protocol

from kinesis_trident.bolt.errors import StaleBatchError

__all__ = ["FileSink", "LooseSink", "OpaqueState", "Sink"]

_KEYS = 4


class Sink(Protocol):
    """A sink; records are numbers."""

    def write(self, batch: object, txid: int, numbers: Iterable[int], point: Callable[[], None]) -> None:
        """Write a batch, once more perhaps; others may run at each `point`.

        `batch` is its place in Spark's checkpoint, `txid` ours.
        """

    def counts(self) -> Counter[int]:
        """Return how often each record counts."""


class OpaqueState:
    """Trident's opaque state, a list of records a key: it keeps the value before the txid that last changed it."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[int, tuple[int, ...], tuple[int, ...]]] = {}

    def write(self, batch: object, txid: int, numbers: Iterable[int], point: Callable[[], None]) -> None:
        """See `Sink.write`: key by key.

        Raises:
            StaleBatchError: a newer txid has changed a key.
        """
        keys: dict[int, list[int]] = defaultdict(list)
        for number in sorted(numbers):
            keys[number % _KEYS].append(number)
        for key, more in sorted(keys.items()):
            point()
            stored, value, before = self._values.get(key, (0, (), ()))
            if txid < stored:
                msg = f"the state of key {key} is of txid {stored}, newer than {txid}"
                raise StaleBatchError(msg)
            basis = before if txid == stored else value
            self._values[key] = (txid, (*basis, *more), basis)

    def counts(self) -> Counter[int]:
        """See `Sink.counts`."""
        return Counter(number for _, value, _ in self._values.values() for number in value)


class FileSink:
    """Spark's file sink: a batch counts once, as the first that came to its end wrote it."""

    def __init__(self) -> None:
        self._batches: dict[object, tuple[int, ...]] = {}

    def write(self, batch: object, txid: int, numbers: Iterable[int], point: Callable[[], None]) -> None:
        """See `Sink.write`."""
        point()
        self._batches.setdefault(batch, tuple(numbers))

    def counts(self) -> Counter[int]:
        """See `Sink.counts`."""
        return Counter(number for numbers in self._batches.values() for number in numbers)


class LooseSink:
    """Takes what comes, as often as it comes."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def write(self, batch: object, txid: int, numbers: Iterable[int], point: Callable[[], None]) -> None:
        """See `Sink.write`."""
        self._counts.update(numbers)

    def counts(self) -> Counter[int]:
        """See `Sink.counts`."""
        return self._counts
