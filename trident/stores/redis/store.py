"""Reads and writes of Redis that overlap."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from kinesis_trident.trident.maps.backing import LOST, Version
from kinesis_trident.trident.stores.overlap import Line

if TYPE_CHECKING:
    from kinesis_trident.trident.stores.redis import RedisByteStore

__all__ = ["RedisLine"]


class RedisLine(Line[str]):
    """The guard is one key more of each read, and compared in the script of each write."""

    def __init__(self, store: RedisByteStore, connection: Any, guard: str | None, part_size: int) -> None:
        self.part_size = part_size
        self._store = store
        self._connection = connection
        self._guard = b"" if guard is None else guard.encode()
        self._asked: list[Sequence[str]] = []
        self._written: deque[Sequence[bytes | None]] = deque()

    def ask(self, names: Sequence[str]) -> Sequence[str]:
        """See `Line.ask`."""
        self._asked.append(names)
        encoded = list(map(str.encode, names))
        self._send(self._store.get([*encoded, self._guard] if self._guard else encoded))
        return names

    def read(self, count: int) -> tuple[list[bytes | None], Sequence[Version], bytes | None]:
        """See `Line.read`; a version is the bytes themselves."""
        found = self._take()
        guard = found.pop() if self._guard else None
        return found, found, guard

    def write(
        self,
        names: Sequence[str],
        values: Sequence[bytes | None],
        versions: Sequence[Version],
        guard: bytes | None,
    ) -> None:
        """See `Line.write`."""
        self._send(self._store.compare_and_set(names, versions, values, (self._guard, guard)))
        self._written.append(values)

    def written(self, count: int) -> Sequence[Version]:
        """See `Line.written`."""
        lost = self._take()
        values = self._written.popleft()
        if not lost:
            return values
        versions: list[Version] = [*values]
        for i in range(1, count + 1) if lost == [0] else lost:
            versions[i - 1] = LOST
        return versions

    def _send(self, request: bytes) -> None:
        with self._store.speaking(chain.from_iterable(self._asked)):
            self._connection.send_packed_command([request])

    def _take(self) -> Any:
        with self._store.speaking(chain.from_iterable(self._asked)):
            return self._connection.read_response()
