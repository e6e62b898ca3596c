"""Overlaps client and server: reads the next keys before the current ones are computed, and awaits no write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kinesis_trident.trident.maps.backing import Version

N = TypeVar("N")

_AHEAD = 3
"""Parts that are read before the first of them is written, so that the server always has work."""

RawChange = Callable[
    [slice, list[bytes | None], bytes | None], tuple[Sequence[bytes | None], Collection[int]]
]
"""(some of the keys, their bytes, the guard's bytes) -> as in `trident.maps.backing.Change`."""


class Exchange(ABC, Generic[N]):
    """A connection for overlapping reads and writes. Requests are answered in order, and each answer is read once.

    `N` is the store's form of names. All methods raise `StoreUnavailableError` and `StoreError`, as a `ByteStore`
    does.
    """

    part_size: int
    """The number of keys in one request."""

    @abstractmethod
    def ask(self, names: Sequence[str]) -> Sequence[N]:
        """Send a read of these keys, and of the guard not before them; return the keys in the form for `write`."""

    @abstractmethod
    def read(self, count: int) -> tuple[list[bytes | None], Sequence[Version], bytes | None]:
        """Receive the answer to the next read: as of `ByteStore.get_many`, and the bytes of the guard."""

    @abstractmethod
    def write(
        self,
        names: Sequence[N],
        values: Sequence[bytes | None],
        versions: Sequence[Version],
        guard: bytes | None,
    ) -> None:
        """Send a compare and set of these keys. If the store supports it, all are lost if the guard has changed."""

    @abstractmethod
    def written(self, count: int) -> Sequence[Version]:
        """Receive the answer to the next write: as of `ByteStore.compare_and_set_many`, or `UNREAD`."""


def run_exchange(
    exchange: Exchange[Any], count: int, name: Callable[[slice], Sequence[str]], change: RawChange
) -> list[Version]:
    """Read, change and write keys, one part after the other.

    Args:
        exchange: without pending requests. After an error there may be some.
        count: the number of keys.
        name: returns the names of some of them.
        change: called once for each part, in order.

    Returns:
        As of `ByteStore.compare_and_set_many`; an unchanged key keeps the version that was read.
    """
    versions: list[Version] = [None] * count
    under_way: deque[_Read | _Write] = deque()
    parts = (slice(at, min(at + exchange.part_size, count)) for at in range(0, count, exchange.part_size))

    def ask_next() -> None:
        part = next(parts, None)
        if part is not None:
            under_way.append(_Read(part, exchange.ask(name(part))))

    for _ in range(_AHEAD):
        ask_next()
    while under_way:
        sent = under_way.popleft()
        if isinstance(sent, _Write):
            sent.settle(versions, exchange.written(len(sent.at)))
            continue
        part, names = sent.part, sent.names
        raws, found, guard = exchange.read(len(names))
        values, left = change(part, raws, guard)
        at: Sequence[int] = range(part.start, part.stop)
        if left:
            versions[part] = found
            chosen = [i for i in range(len(names)) if i not in left]
            at = [at[i] for i in chosen]
            names, values, found = (
                [names[i] for i in chosen],
                [values[i] for i in chosen],
                [found[i] for i in chosen],
            )
        if at:
            exchange.write(names, values, found, guard)
            under_way.append(_Write(at))
        ask_next()
    return versions


def write_guarded(
    exchange: Exchange[Any],
    names: Sequence[str],
    values: Sequence[bytes | None],
    versions: Sequence[Version],
    check: Callable[[bytes | None], object],
) -> list[Version]:
    """Compare and set keys that were read before; each write compares the guard that `check` has seen.

    Returns:
        As of `ByteStore.compare_and_set_many`.
    """
    exchange.ask(())
    guard = exchange.read(0)[2]
    check(guard)
    written: list[Version] = []
    pending: deque[int] = deque()
    for at in range(0, len(names), exchange.part_size):
        part = slice(at, at + exchange.part_size)
        exchange.write(names[part], values[part], versions[part], guard)
        pending.append(len(names[part]))
        if len(pending) > _AHEAD:
            written += exchange.written(pending.popleft())
    while pending:
        written += exchange.written(pending.popleft())
    return written


def request_parts(most: int, most_bytes: int, *columns: Sequence[bytes | None]) -> list[slice]:
    """Return the parts of keys for one request each: at most `most`, with at most `most_bytes` unless it is one key.

    Args:
        most: the number of keys.
        most_bytes: what these columns hold together.
        columns: the bytes of each key.
    """
    count = len(columns[0])
    if sum(sum(map(len, filter(None, column))) for column in columns) <= most_bytes:
        return [slice(at, min(at + most, count)) for at in range(0, count, most)]
    parts: list[slice] = []
    start = held = 0
    for i, row in enumerate(zip(*columns, strict=True)):
        size = sum(map(len, filter(None, row)))
        if i > start and (i - start == most or held + size > most_bytes):
            parts.append(slice(start, i))
            start, held = i, 0
        held += size
    return [*parts, slice(start, count)]


@dataclass(frozen=True, slots=True)
class _Read:
    """A pending read."""

    part: slice
    names: Sequence[Any]


@dataclass(frozen=True, slots=True)
class _Write:
    """A pending write."""

    at: Sequence[int]

    def settle(self, versions: list[Version], written: Sequence[Version]) -> None:
        if isinstance(self.at, range):
            versions[self.at.start : self.at.stop] = written
            return
        for i, version in zip(self.at, written, strict=True):
            versions[i] = version
