"""Objects of which each process has its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class PerProcess(Generic[K, V]):
    """Values by key, each made when a process first asks for it, and kept as long as the process lives.

    Spark forks its Python workers. What a child inherits is dropped unused: the threads of a client are gone, its
    sockets are shared with the parent, and a lock may be held by a thread that does not exist there.
    """

    def __init__(self) -> None:
        self._of_processes: dict[int, tuple[threading.Lock, dict[K, V]]] = {}

    def get(self, key: K, make: Callable[[], V], *, is_usable: Callable[[V], bool] | None = None) -> V:
        """Return this process's value of a key; made now if there is none, or it is not usable any more."""
        lock, values = self._of_processes.setdefault(os.getpid(), (threading.Lock(), {}))
        with lock:
            if key not in values or (is_usable is not None and not is_usable(values[key])):
                values[key] = make()
            return values[key]
