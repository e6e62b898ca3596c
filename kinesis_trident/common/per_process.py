"""Objects of which each process has its own."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class PerProcess(Generic[K, V]):
    """Values by key, each made when a process first asks for it, and kept as long as the process lives, or as said.

    Spark forks its Python workers. What a child inherits is dropped unused: the threads of a client are gone, its
    sockets are shared with the parent, and a lock may be held by a thread that does not exist there.

    A value that is not kept any more lives on with whoever uses it; the next to ask for its key gets another one.

    Args:
        most: how many are kept, those that were asked for last.
        idle: seconds for which one is kept that nobody asks for; looked at when another one is made.
        clock: seconds that never step back.
    """

    def __init__(
        self, *, most: int | None = None, idle: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._idle = idle
        self._clock = clock
        self._of_processes: dict[int, tuple[threading.Lock, dict[K, tuple[V, float]]]] = {}

    def get(self, key: K, make: Callable[[], V], *, is_usable: Callable[[V], bool] | None = None) -> V:
        """Return this process's value of a key; made now if there is none, or it is not usable any more."""
        lock, values = self._of_processes.setdefault(os.getpid(), (threading.Lock(), {}))
        with lock:
            # The last one to be asked for goes to the end.
            value, _ = values.pop(key, (None, 0.0))
            is_new = value is None or (is_usable is not None and not is_usable(value))
            if value is None or is_new:
                value = make()
            values[key] = value, self._clock()
            if is_new:
                self._forget(values)
            return value

    def _forget(self, values: dict[K, tuple[V, float]]) -> None:
        """Drop the values that nobody has asked for lately."""
        most = len(values) if self._most is None else self._most
        since = self._clock() - self._idle
        while values:
            oldest = next(iter(values))
            if len(values) <= most and values[oldest][1] >= since:
                break
            del values[oldest]
