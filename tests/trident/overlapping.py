"""A store in memory that is talked to as one far away: what is sent is done at once, and answered later, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kinesis_trident.trident.maps.backing import LOST, Version
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.overlap import Exchange


class MemoryExchange(Exchange[str]):
    """Over any store. `log` says what was sent and taken: `ask`, `read`, `write` and `written`."""

    def __init__(self, store: ByteStore, guard: str | None, part_size: int) -> None:
        self.part_size = part_size
        self.log: list[str] = []
        self._store = store
        self._guard = guard
        self._answers: deque[Any] = deque()

    def ask(self, names: Sequence[str]) -> Sequence[str]:
        self.log.append("ask")
        self._answers.append((*self._store.get_many(names), self._guard_now()))
        return names

    def read(self, count: int) -> tuple[list[bytes | None], Sequence[Version], bytes | None]:
        self.log.append("read")
        answer: tuple[list[bytes | None], Sequence[Version], bytes | None] = self._answers.popleft()
        assert len(answer[0]) == count
        return answer

    def write(
        self,
        names: Sequence[str],
        values: Sequence[bytes | None],
        versions: Sequence[Version],
        guard: bytes | None,
    ) -> None:
        self.log.append("write")
        if guard != self._guard_now():
            self._answers.append([LOST] * len(names))
        else:
            self._answers.append(self._store.compare_and_set_many(names, values, versions))

    def written(self, count: int) -> Sequence[Version]:
        self.log.append("written")
        answer: Sequence[Version] = self._answers.popleft()
        assert len(answer) == count
        return answer

    def _guard_now(self) -> bytes | None:
        return None if self._guard is None else self._store.get_many([self._guard])[0][0]


class Overlapping(ByteStore):
    """Mixed into a store, before it: reads and writes of two keys at a time overlap."""

    @property
    def overlaps(self) -> bool:
        return True

    @contextmanager
    def exchange(self, guard: str | None) -> Iterator[MemoryExchange]:
        yield MemoryExchange(self, guard, 2)
