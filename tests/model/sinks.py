"""The sinks, and how often each record is counted there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from kinesis_trident.bolt.errors import StaleBatchError

__all__ = ["FileSink", "FolderSink", "LooseSink", "OpaqueState", "OverwrittenSink", "Sink", "Written"]

_KEYS = 4


class Written(NamedTuple):
    """A batch as it is written: its place in Spark's checkpoint, and ours: home, txid and epoch."""

    entry: object
    home: str
    txid: int
    epoch: int


class Sink(Protocol):
    """A sink; records are numbers."""

    def write(self, batch: Written, numbers: Iterable[int], point: Callable[[], None]) -> None:
        """Write a batch, once more perhaps; others may run at each `point`."""

    def counts(self) -> Counter[int]:
        """Return how often each record counts."""


class OpaqueState:
    """Trident's opaque state, a list of records a key: it keeps the value before the txid that last changed it."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[int, tuple[int, ...], tuple[int, ...]]] = {}

    def write(self, batch: Written, numbers: Iterable[int], point: Callable[[], None]) -> None:
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
            if batch.txid < stored:
                msg = f"the state of key {key} is of txid {stored}, newer than {batch.txid}"
                raise StaleBatchError(msg)
            basis = before if batch.txid == stored else value
            self._values[key] = (batch.txid, (*basis, *more), basis)

    def counts(self) -> Counter[int]:
        """See `Sink.counts`."""
        return Counter(number for _, value, _ in self._values.values() for number in value)


class FileSink:
    """Spark's file sink: a batch counts once, as the first that came to its end wrote it."""

    def __init__(self) -> None:
        self._batches: dict[object, tuple[int, ...]] = {}

    def write(self, batch: Written, numbers: Iterable[int], point: Callable[[], None]) -> None:
        """See `Sink.write`."""
        point()
        self._batches.setdefault(batch.entry, tuple(numbers))

    def counts(self) -> Counter[int]:
        """See `Sink.counts`."""
        return Counter(number for numbers in self._batches.values() for number in numbers)


class FolderSink:
    """A folder a txid and epoch, which a write replaces: of a txid the rows of the highest epoch count.

    Args:
        shared: the home whose folders those of several streams go on in; None for folders of their own.
    """

    def __init__(self, shared: str | None = None) -> None:
        self._shared = shared
        self._folders: dict[tuple[str, int], dict[int, tuple[int, ...]]] = defaultdict(dict)

    def write(self, batch: Written, numbers: Iterable[int], point: Callable[[], None]) -> None:
        """See `Sink.write`."""
        home = self._shared if self._shared and batch.home == "@streams" else batch.home
        epochs = self._folders[home, batch.txid]
        epochs.pop(batch.epoch, None)
        point()
        epochs[batch.epoch] = tuple(numbers)

    def counts(self) -> Counter[int]:
        """See `Sink.counts`."""
        newest = (epochs[max(epochs)] for epochs in self._folders.values() if epochs)
        return Counter(number for numbers in newest for number in numbers)


class OverwrittenSink:
    """A folder a txid: a write deletes it before it reads, as Spark's mode `overwrite` does."""

    def __init__(self) -> None:
        self._folders: dict[int, tuple[int, ...]] = {}

    def delete(self, batch: Written) -> None:
        """Delete what there is of a txid."""
        self._folders.pop(batch.txid, None)

    def write(self, batch: Written, numbers: Iterable[int], point: Callable[[], None]) -> None:
        """See `Sink.write`."""
        self._folders[batch.txid] = tuple(numbers)

    def counts(self) -> Counter[int]:
        """See `Sink.counts`."""
        return Counter(number for numbers in self._folders.values() for number in numbers)


class LooseSink:
    """Takes what comes, as often as it comes."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def write(self, batch: Written, numbers: Iterable[int], point: Callable[[], None]) -> None:
        """See `Sink.write`."""
        self._counts.update(numbers)

    def counts(self) -> Counter[int]:
        """See `Sink.counts`."""
        return self._counts
