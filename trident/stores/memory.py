"""A state in the driver's memory, lost when the process ends: for tests, examples, and recomputable values."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Self

from kinesis_trident.trident.maps.backing import LOST, Version
from kinesis_trident.trident.state import StateType
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.factory import MapStateFactory
from kinesis_trident.trident.stores.key_text import is_own
from kinesis_trident.trident.stores.options import MapOptions


class MemoryOptions(MapOptions, kw_only=True, frozen=True, rename="camel"):
    """Options of the memory state; the `max_size` last used keys are kept; 0: all."""

    global_key: str = "$MEMORY-MAP-STATE-GLOBAL$"
    max_size: int = 0


class MemoryByteStore(ByteStore):
    """Bytes in a dictionary, for one process and all its threads.

    Args:
        name: for errors.
        expire: seconds that a key lives after it was set; 0: forever.
        max_size: the number of last used keys that are kept; 0: all. A state's own keys do not count.
        prefix: of the keys, by which a state's own are known.
        clock: returns seconds.
    """

    where = ""
    resends = False

    def __init__(
        self,
        name: str,
        expire: float = 0,
        max_size: int = 0,
        prefix: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.where = name
        self._expire = expire
        self._max_size = max_size
        self._prefix = prefix
        self._clock = clock
        self._values: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        # With `max_size`, apart from what is counted and forgotten.
        self._own: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        self._lock = threading.RLock()

    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        """See `ByteStore.get_many`."""
        with self._lock:
            now = self._clock()
            found = [self._get(key, now) for key in keys]
        return found, list(found)

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        """See `ByteStore.compare_and_set_many`."""
        with self._lock:
            now = self._clock()
            written: list[Version] = []
            for key, value, version in zip(keys, values, versions, strict=True):
                if self._get(key, now) == version:
                    self._set(key, value, now)
                    written.append(value)
                else:
                    written.append(LOST)
            self._forget()
            return written

    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        """See `ByteStore.set_many`."""
        with self._lock:
            now = self._clock()
            for key, value in zip(keys, values, strict=True):
                self._set(key, value, now)
            self._forget()

    def names(self) -> list[str]:
        """See `ByteStore.names`."""
        with self._lock:
            return list(self._values)

    def _get(self, key: str, now: float) -> bytes | None:
        kept = self._kept(key) if self._max_size else self._values
        entry = kept.get(key)
        if entry is None:
            return None
        if entry[1] and entry[1] <= now:
            del kept[key]
            return None
        if self._max_size:
            kept.move_to_end(key)
        return entry[0]

    def _set(self, key: str, value: bytes | None, now: float) -> None:
        kept = self._kept(key) if self._max_size else self._values
        if value is None:
            kept.pop(key, None)
            return
        kept[key] = (value, now + self._expire if self._expire else 0.0)
        if self._max_size:
            kept.move_to_end(key)

    def _forget(self) -> None:
        """Keep the last used keys: after a request, so that it does not find gone what its task has just read."""
        while self._max_size and len(self._values) > self._max_size:
            self._values.popitem(last=False)

    def _kept(self, key: str) -> OrderedDict[str, tuple[bytes, float]]:
        return self._own if is_own(key, self._prefix) else self._values


class MemoryMapState(MapStateFactory):
    """Makes states in the driver's memory. States of one factory share their values; those of two factories do not.

    With `maxSize` it forgets the least recently used keys, and counts them from nothing again.
    """

    driver_local: ClassVar[bool] = True
    lasting: ClassVar[bool] = False
    options_type: ClassVar[type[MapOptions]] = MemoryOptions

    def __init__(self, kind: StateType = StateType.OPAQUE, target: str = "memory", **options: Any) -> None:
        super().__init__(kind, target, **options)

    @classmethod
    def opaque(cls, target: str = "memory", **options: Any) -> Self:
        """See `MapStateFactory.opaque`; `target` is a name for errors."""
        return super().opaque(target, **options)

    @classmethod
    def transactional(cls, target: str = "memory", **options: Any) -> Self:
        """See `MapStateFactory.transactional`; `target` is a name for errors."""
        return super().transactional(target, **options)

    @classmethod
    def non_transactional(cls, target: str = "memory", **options: Any) -> Self:
        """See `MapStateFactory.non_transactional`; `target` is a name for errors."""
        return super().non_transactional(target, **options)

    @property
    def place(self) -> Hashable:
        """See `StateFactory.place`: each factory has its own values."""
        return self._id

    def _connect(self) -> ByteStore:
        options = self._options
        assert isinstance(options, MemoryOptions)
        return MemoryByteStore(
            self._target, options.expire_interval_sec, options.max_size, options.key_prefix
        )
