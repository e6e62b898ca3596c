"""Client and server side by side: the next keys are asked for before these are computed, and no write is waited for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kinesis_trident.trident.maps.backing import Version

__all__ = ["Exchange", "RawChange", "run_exchange"]

N = TypeVar("N")

_AHEAD = 3
"""Parts that are read before the first of them is written: the server always has one to work on."""

RawChange = Callable[
    [slice, list[bytes | None], bytes | None], tuple[Sequence[bytes | None], Collection[int]]
]
"""(some of the keys, what stands under them, what stands under the guard) -> as `trident.maps.backing.Change`."""


class Exchange(ABC, Generic[N]):
    """A connection of one exchange. What is sent is answered in its order, and each answer is taken once.

    `N` is what the store makes of names. All raise `StoreUnavailableError` and `StoreError`, as a `ByteStore` does.
    """

    part_size: int
    """Keys of one request."""

    @abstractmethod
    def ask(self, names: Sequence[str]) -> Sequence[N]:
        """Send a read of these keys, and of the guard not before them: the keys as `write` takes them."""

    @abstractmethod
    def read(self, count: int) -> tuple[list[bytes | None], Sequence[Version], bytes | None]:
        """Take the answer to the next read: as of `ByteStore.get_many`, and what stands under the guard."""

    @abstractmethod
    def write(
        self,
        names: Sequence[N],
        values: Sequence[bytes | None],
        versions: Sequence[Version],
        guard: bytes | None,
    ) -> None:
        """Send a compare and set of these keys. Where the store can, all are lost if the guard has changed."""

    @abstractmethod
    def written(self, count: int) -> Sequence[Version]:
        """Take the answer to the next write: as of `ByteStore.compare_and_set_many`, or `UNREAD`."""


def run_exchange(
    exchange: Exchange[Any], count: int, name: Callable[[slice], Sequence[str]], change: RawChange
) -> list[Version]:
    """Read, change and write keys, a part after the other.

    Args:
        exchange: on which nothing is under way. After an error there may be.
        count: of the keys.
        name: the names of some of them.
        change: called once a part, in order.

    Returns:
        As of `ByteStore.compare_and_set_many`; a key that stays as it is keeps the version that was read.
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


@dataclass(frozen=True, slots=True)
class _Read:
    """A read under way."""

    part: slice
    names: Sequence[Any]


@dataclass(frozen=True, slots=True)
class _Write:
    """A write under way."""

    at: Sequence[int]

    def settle(self, versions: list[Version], written: Sequence[Version]) -> None:
        if isinstance(self.at, range):
            versions[self.at.start : self.at.stop] = written
            return
        for i, version in zip(self.at, written, strict=True):
            versions[i] = version
