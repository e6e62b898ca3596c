"""Writes the rows of a task: some requests at a time, of which no two have rows of one partition key."""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from kinesis_trident.spout.kinesis import RequestTooLargeError, ThrottledError, Unavailable
from kinesis_trident.spout.kinesis.put_entries import REQUEST_BYTES, Entries
from kinesis_trident.spout.kinesis.put_records import Tries
from kinesis_trident.spout.patience import Patience
from kinesis_trident.spout.sink.backlog import Backlog
from kinesis_trident.spout.sink.targets import Pacing, StreamTarget

Waitable = threading.Event | threading.Condition


@dataclass(frozen=True, slots=True)
class Sent:
    """The counts of a write: rows, their bytes (payload and partition key), and refusals of records."""

    records: int = 0
    size: int = 0
    refusals: int = 0


class WritePool:
    """Writes rows to streams, at most `requests` requests at a time; as a context manager.

    The rows of each stream are divided by partition key into as many backlogs, each of which has one request under way,
    so that the rows of one partition key are written in order, except as `put_request` says. In memory are at most
    three requests for each thread, one of them waiting for busy shards, and the part being divided.

    Args:
        requests: the maximum of concurrent requests.
        patience: bounds the time without an accepted record; shared by all requests.
        pacing: the rates to keep to.
        wait: waits so many seconds, or until the event is set or the condition notified.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        requests: int,
        patience: Patience,
        *,
        pacing: Pacing | None = None,
        wait: Callable[[Waitable, float], object] = lambda what, seconds: what.wait(seconds),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = self._unstarted = requests
        self._backlogs: dict[StreamTarget, list[Backlog]] = {}
        # What the threads look at: a dict is a set in order. Most backlogs of many streams are only collected.
        self._full: dict[Backlog, None] = {}
        self._begun: dict[Backlog, None] = {}
        self._sending: dict[Backlog, None] = {}
        self._collected = 0
        self._lock = threading.Lock()
        self._has_room, self._has_work = (threading.Condition(self._lock) for _ in range(2))
        self._patience = patience
        self._pacing = pacing
        self._wait = wait
        self._clock = clock
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._records = self._size = 0
        self._threads = ThreadPoolExecutor(requests, thread_name_prefix="put-records")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._threads.shutdown()

    def add(self, target: StreamTarget, parts: Iterable[Entries]) -> None:
        """Write records to one stream.

        Args:
            target: the stream.
            parts: records, some at a time; consumed one part after the other, as there is room.

        Raises:
            KinesisError: a request failed; others may be written, and the rest is not.
            Exception: `parts` raised it; records sent before are written.
        """
        for part in parts:
            self._records += len(part)
            self._size += part.size
            divided = list(self._divide(part))
            with self._lock:
                for backlog, rows in zip(self._of(target), divided, strict=True):
                    backlog.add(rows)
                    self._place(backlog)
                self._collected += part.size
                self._flush_largest()
                self._start(
                    lambda: not any(one.is_full for one in (*self._full, *self._begun, *self._sending))
                )

    def finish(self) -> Sent:
        """Write everything; on return Kinesis has acknowledged every record.

        Raises:
            KinesisError: a request failed; others may be written, and the rest is not.
        """
        with self._lock:
            for one in self._all():
                one.flush()
                self._place(one)
            self._start(lambda: not (self._full or self._begun or self._sending))
            return Sent(self._records, self._size, sum(one.tries.refusals for one in self._all()))

    def _divide(self, part: Entries) -> Iterator[Entries]:
        """Yield the records of each backlog."""
        if self._requests == 1:
            yield part
            return
        keys = part.keys.tolist()
        if None in keys:
            # A record without a key has no order to keep: it goes anywhere.
            keys = [str(at) if key is None else key for at, key in enumerate(keys)]
        hashed = map(zlib.crc32, map(str.encode, keys))
        places = np.fromiter(hashed, np.uint32, len(part)) % self._requests
        for at in range(self._requests):
            yield part.pick(np.flatnonzero(places == at))

    def _of(self, target: StreamTarget) -> list[Backlog]:
        if target not in self._backlogs:
            self._backlogs[target] = [
                Backlog(target, Tries(self._patience, target.where), self._clock)
                for _ in range(self._requests)
            ]
        return self._backlogs[target]

    def _all(self) -> Iterator[Backlog]:
        return (one for some in self._backlogs.values() for one in some)

    def _place(self, backlog: Backlog) -> None:
        """Put a backlog where the threads look for it, unless one sends from it or there is nothing to send."""
        if backlog in self._sending:
            return
        if backlog.waiting:
            self._begun[backlog] = None
        elif backlog.is_full:
            self._full[backlog] = None

    def _flush_largest(self) -> None:
        """Send some of what is collected for several streams, if together it is more than their requests may be."""
        most = REQUEST_BYTES * self._requests
        if len(self._backlogs) == 1 or self._collected <= most:
            return
        collected = sum(one.size for one in self._all() if not one.is_full)
        while collected > most:
            largest = max((one for one in self._all() if not one.is_full), key=lambda one: one.size)
            largest.flush()
            self._place(largest)
            collected -= largest.size

    def _start(self, is_done: Callable[[], bool]) -> None:
        """Let the threads work until something holds, if it does not yet."""
        if not is_done():
            while self._unstarted:
                self._unstarted -= 1
                self._threads.submit(self._send_all)
            self._has_work.notify()
            self._has_room.wait_for(lambda: self._failure is not None or is_done())
        if self._failure is not None:
            raise self._failure

    def _end(self, failure: BaseException | None = None) -> None:
        with self._lock:
            # The first failure is the cause; the others only end early because of it.
            self._failure = self._failure or failure
            self._stop.set()
            self._has_room.notify_all()
            self._has_work.notify_all()

    def _begins(self) -> bool:
        """Return whether there is memory for another request beside those that wait."""
        return sum(one.waiting for one in self._begun) <= REQUEST_BYTES * self._requests

    def _send_all(self) -> None:
        """Send one request after the other, of whatever backlog is due."""
        try:
            while (backlog := self._next()) is not None:
                is_elsewhere = self._send(backlog)
                if is_elsewhere:
                    backlog.target.stream.refresh()
                with self._lock:
                    del self._sending[backlog]
                    self._place(backlog)
                    self._has_room.notify()
        except BaseException as error:
            self._end(error)

    def _next(self) -> Backlog | None:
        """Return a backlog to send from, once one is due; None at the end."""
        with self._lock:
            while not self._stop.is_set():
                begins = self._begins()
                found = ((one.earliest(begins=begins), one) for one in self._begun)
                due, backlog = min(found, key=lambda one: one[0], default=(math.inf, None))
                seconds = due - self._clock()
                if seconds > 0 and begins and self._full:
                    # What has begun goes first: it takes memory, and rows of its keys wait behind it.
                    backlog, seconds = next(iter(self._full)), 0.0
                if backlog is not None and seconds <= 0:
                    self._take(backlog, begins=begins)
                    return backlog
                if math.isinf(seconds):
                    self._has_work.wait()
                else:
                    self._wait(self._has_work, seconds)
            return None

    def _take(self, backlog: Backlog, *, begins: bool) -> None:
        """Take a backlog to send from, and let another thread look for the next."""
        if begins:
            before = backlog.size
            backlog.begin()
            self._collected -= before - backlog.size
            self._has_room.notify()
        self._begun.pop(backlog, None)
        self._full.pop(backlog, None)
        self._sending[backlog] = None
        if self._begun or self._full:
            # Another thread sends it, or waits until it is due.
            self._has_work.notify()

    def _send(self, backlog: Backlog) -> bool:
        """Send one request; return whether a record has arrived in another shard than the map says."""
        target = backlog.target
        # These may call Kinesis, while other threads go on.
        packs = target.packs()
        known = target.stream.shards_of_keys(listing=packs)
        with self._lock:
            request = backlog.take(known, packs=packs)
        if not len(request) or not self._keep_pace(backlog, request):
            return False
        try:
            results = target.send(request)
        except (RequestTooLargeError, ThrottledError, Unavailable) as error:
            with self._lock:
                backlog.fail(error, request)
            return False
        known = target.stream.shards_of_keys(listing=True) if backlog.asks_homes(results) else None
        with self._lock:
            return backlog.settle(results, known)

    def _keep_pace(self, backlog: Backlog, request: Entries) -> bool:
        """Wait until the rates allow a request; return whether it is still to be sent."""
        if self._pacing is not None:
            count, size = len(request), request.size
            seconds = self._pacing.reserve(count, size, self._clock())
            if seconds > 0:
                self._wait(self._stop, seconds)
                # In the rest of the wait other requests were sent: if all are refused, that does not go on for ever.
                backlog.tries.excuse(min(seconds, self._pacing.seconds(count, size)))
        return not self._stop.is_set()
