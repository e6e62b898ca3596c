"""Sends requests in parallel lanes: a lane sends one after the other, and a partition key stays in its lane."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
from twins.old_sink.busy_shards import ShardPool
from twins.old_sink.put_pools import REQUEST_BYTES, Filling
from twins.old_sink.put_records import put_pool
from twins.old_sink.targets import Pacing, StreamTarget

from kinesis_trident.spout.kinesis import KinesisError
from kinesis_trident.spout.kinesis.put_entries import Entries
from kinesis_trident.spout.patience import Patience

_WAITING = 4
"""The threads for each lane: one sends, the others wait for busy shards of other streams."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The counts of a write: rows, their bytes (payload and partition key), and refusals of records."""

    records: int = 0
    size: int = 0
    refusals: int = 0


@dataclass(eq=False, slots=True)
class _Lane:
    """The records of some partition keys: what is collected for a request, and what is being written."""

    fillings: dict[StreamTarget, Filling] = field(default_factory=dict)
    pools: dict[StreamTarget, ShardPool] = field(default_factory=dict)

    def filling(self, target: StreamTarget) -> Filling:
        if target not in self.fillings:
            self.fillings[target] = target.filling()
        return self.fillings[target]

    @property
    def has_room(self) -> bool:
        """Return whether nothing is being written but what waits for busy shards."""
        return not any(pool.is_ready for pool in self.pools.values())

    @property
    def waiting(self) -> int:
        """Return the bytes of memory of what waits for busy shards."""
        return sum(pool.waiting for pool in self.pools.values())


class Lanes:
    """Writes entries to streams, at most `lanes` requests at a time; as a context manager.

    A lane sends its next request when the last one is complete, so records of one partition key are written in order,
    except as `put_pool` says; records of busy shards wait beside it (`ShardPool`). At most three requests per lane, one
    of them waiting for busy shards, and the part being divided, are in memory.

    Args:
        lanes: the maximum of concurrent requests.
        patience: bounds the time without an accepted record; shared by the lanes.
        pacing: the rates to keep to.
        wait: waits so many seconds before a request, or until the event is set.
        clock: seconds, monotonic, of `pacing`.
    """

    def __init__(
        self,
        lanes: int,
        patience: Patience,
        *,
        pacing: Pacing | None = None,
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lanes = [_Lane() for _ in range(lanes)]
        self._changed = threading.Condition()
        # A stream whose shards are busy waits in a thread, while others send.
        self._slots = threading.Semaphore(lanes)
        self._patience = patience
        self._pacing = pacing
        self._wait = wait
        self._clock = clock
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._records = self._size = self._refusals = 0
        self._threads = ThreadPoolExecutor(_WAITING * lanes, thread_name_prefix="put-records")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._stop.set()
        self._threads.shutdown()

    def add(self, target: StreamTarget, parts: Iterable[Entries]) -> None:
        """Write records to one stream.

        Args:
            target: the stream.
            parts: records, some at a time; consumed one part after the other, as lanes have room.

        Raises:
            KinesisError: a request failed; others may be written, and the rest is not.
            Exception: `parts` raised it; records sent before are written.
        """
        for part in parts:
            self._records += len(part)
            self._size += part.size
            for lane, entries in self._divide(part):
                for request in lane.filling(target).add(entries):
                    self._start(lane, target, request)
        for lane in self._lanes:
            self._bound(lane)

    def _divide(self, part: Entries) -> Iterator[tuple[_Lane, Entries]]:
        """Yield the records of each lane."""
        count = len(self._lanes)
        if count == 1:
            yield self._lanes[0], part
            return
        keys = part.keys.tolist()
        if None in keys:
            # A record without a key has no order to keep: it goes to any lane.
            keys = [str(at) if key is None else key for at, key in enumerate(keys)]
        hashed = map(zlib.crc32, map(str.encode, keys))
        lanes = np.fromiter(hashed, np.uint32, len(part)) % count
        for at, lane in enumerate(self._lanes):
            yield lane, part.pick(np.flatnonzero(lanes == at))

    def finish(self) -> Sent:
        """Write everything; on return Kinesis has acknowledged every record.

        Raises:
            KinesisError: a request failed; others may be written, and the rest is not.
        """
        for lane in self._lanes:
            for target, filling in lane.fillings.items():
                if len(filling):
                    self._start(lane, target, filling.take())
        with self._changed:
            self._changed.wait_for(lambda: self._failed or not any(lane.pools for lane in self._lanes))
            self._raise_failure()
        return Sent(self._records, self._size, self._refusals)

    def _bound(self, lane: _Lane) -> None:
        """Send some of what was collected for several streams, if together it is more than a request."""
        while len(lane.fillings) > 1 and sum(each.size for each in lane.fillings.values()) > REQUEST_BYTES:
            target, filling = max(lane.fillings.items(), key=lambda item: item[1].size)
            self._start(lane, target, filling.take())

    def _start(self, lane: _Lane, target: StreamTarget, request: Entries) -> None:
        """Write a request, once the lane has room for it, and the memory too."""
        most = REQUEST_BYTES * len(self._lanes)
        with self._changed:
            self._changed.wait_for(
                lambda: self._failed or (lane.has_room and sum(one.waiting for one in self._lanes) <= most)
            )
            self._raise_failure()
            pool = lane.pools.get(target)
            if pool is None:
                pool = ShardPool(target.busy, self._clock, self._changed, target.aggregation)
                lane.pools[target] = pool
                self._threads.submit(self._put, lane, target, pool)
            pool.add(request)

    def _raise_failure(self) -> None:
        if self._failed:
            raise self._failed[0]

    def _put(self, lane: _Lane, target: StreamTarget, pool: ShardPool) -> None:
        """Write what is in a pool, and what is added meanwhile."""

        def send(entries: Entries) -> Sequence[dict[str, Any]]:
            if self._pacing is not None:
                seconds = self._pacing.reserve(len(entries), entries.size, self._clock())
                if seconds > 0:
                    pause(seconds)
                    self._patience.excuse(seconds)
            with self._slots:
                return target.send(entries)

        def pause(seconds: float) -> None:
            self._wait(self._stop, seconds)
            if self._stop.is_set():
                msg = f"not written to {target.where}: another request of this task failed"
                raise KinesisError(msg)

        try:
            while True:
                refusals = put_pool(
                    send, pool, sleep=pause, patience=self._patience, where=target.where, bound=target.bound
                )
                with self._changed:
                    self._refusals += refusals
                    if not pool:
                        del lane.pools[target]
                        self._changed.notify_all()
                        return
        except BaseException as error:
            # The first failure is the cause; the others only end early because of it.
            with self._changed:
                self._failed.append(error)
                self._stop.set()
                self._changed.notify_all()
