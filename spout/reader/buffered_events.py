"""Reads the events of a subscription in a thread of its own, into a buffer of bounded size."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from kinesis_trident.per_process import PerProcess
from kinesis_trident.spout.kinesis import KinesisError, Page

__all__ = ["BufferedEvents", "EventMemory", "Subscription", "event_memory"]

SILENCE = 30.0
"""Seconds without an event, not even an empty one, after which a subscription is dead."""

UNUSED = 30.0
"""Seconds after which a subscription that no turn has used ends."""


class Subscription(Protocol):
    """The events of one subscription; unusable after an error."""

    def next(self, seconds: float) -> Page | None:
        """Wait for the next event, at most `seconds` (else raise Unavailable); None when it has ended normally."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class EventMemory:
    """The bytes of all buffered events of a process; whoever has an empty buffer may always read one event."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.held = 0


class BufferedEvents:
    """The events of a subscription in the order of their arrival. One turn at a time uses it.

    Args:
        source: the subscription.
        memory: shared with the other subscriptions of the process.
        most: the bytes of buffered events of the process beyond which only an empty buffer is filled.
        clock: seconds of a clock that never steps back.
    """

    def __init__(
        self,
        source: Subscription,
        memory: EventMemory,
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._memory = memory
        self._most = most
        self._clock = clock
        self._events: deque[Page] = deque()
        self._end: KinesisError | None = None
        self._over = False
        self._closed = False
        self._unused_since: float | None = None
        threading.Thread(target=self._read, name="events", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Return the number of events that have arrived and were not taken."""
        return len(self._events)

    @property
    def is_open(self) -> bool:
        """Tell whether more events can come."""
        return not (self._over or self._closed)

    def next(self, seconds: float) -> Page | None:
        """Return the next event; None when the subscription has ended normally.

        Raises:
            TimeoutError: none arrived within `seconds`; a later one may.
            KinesisError: the subscription has ended for this reason, after the events before.
        """
        with self._memory.changed:
            if not self._memory.changed.wait_for(lambda: self._events or self._over, max(0.0, seconds)):
                raise TimeoutError
            if self._events:
                page = self._events.popleft()
                self._memory.held -= page.records.nbytes
                self._memory.changed.notify_all()
                return page
            if self._end is not None:
                raise self._end
            return None

    def use(self) -> None:
        """Begin to use it again."""
        self._unused_since = None

    def leave(self) -> None:
        """Let it collect events for a later turn, for a limited time."""
        self._unused_since = self._clock()

    def close(self) -> None:
        """Drop its events, and end it when the thread that reads them wakes: a read in progress holds its socket."""
        with self._memory.changed:
            self._closed = True
            self._memory.held -= sum(page.records.nbytes for page in self._events)
            self._events.clear()
            self._memory.changed.notify_all()

    def _read(self) -> None:
        try:
            while self._has_room():
                page = self._source.next(SILENCE)
                with self._memory.changed:
                    if page is None or self._closed:
                        break
                    self._events.append(page)
                    self._memory.held += page.records.nbytes
                    self._memory.changed.notify_all()
        except KinesisError as error:
            self._end = error
        finally:
            self._source.close()
            with self._memory.changed:
                self._over = True
                self._memory.changed.notify_all()

    def _has_room(self) -> bool:
        """Wait until an event may be read; False if none is wanted any more."""
        with self._memory.changed:
            while not self._closed and self._events and self._memory.held >= self._most:
                if self._is_unused():
                    break
                self._memory.changed.wait(UNUSED)
        if self._is_unused():
            self.close()
        return not self._closed

    def _is_unused(self) -> bool:
        since = self._unused_since
        return since is not None and self._clock() - since >= UNUSED


_memories: PerProcess[None, EventMemory] = PerProcess()


def event_memory() -> EventMemory:
    """Return this process's."""
    return _memories.get(None, EventMemory)
