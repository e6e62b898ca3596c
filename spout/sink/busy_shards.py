"""Gives each shard that refuses records what it can take. Pure, except for what lists the shards."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kinesis_trident.spout.kinesis import KinesisError
from kinesis_trident.spout.kinesis.put_entries import Entries
from kinesis_trident.spout.sink.shard_map import KnownShards, ShardMap

log = logging.getLogger(__name__)

_RECORDS, _BYTES = 1000, 2**20
"""What a shard takes in a second."""

_APART = 0.1
"""Seconds between two requests with records of a busy shard, over all requests."""

_LONGEST_WAIT = 5.0

_LEAST, _MORE, _MOST = 1 / 64, 1.25, 4.0
"""The least share, its growth with each request that a shard takes whole, and the share from which it is not busy."""


@dataclass(slots=True)
class _Busy:
    """A shard that has refused a record.

    Attributes:
        since: when its records were sent last.
        free: the time until which none is sent.
        share: the part of what a shard takes that is left for this task, as far as it knows.
        failures: how many requests in a row it has refused whole.
    """

    since: float
    free: float = 0.0
    share: float = 1.0
    failures: int = 0


class BusyShards:
    """The busy shards of one stream, for all requests of a task. Times are seconds of any one clock.

    Only what may call Kinesis (`known`, `refresh`) is thread-safe.

    Args:
        shards: returns the map of the shards; called when the first record is refused, or to pack the first aggregate.
        jitter: draws a time between two.
        is_auto: tells whether the stream distributes records by itself: then no hash key says which shard is busy.
    """

    def __init__(
        self,
        shards: Callable[[], ShardMap],
        jitter: Callable[[float, float], float] = random.uniform,
        is_auto: Callable[[], bool] = lambda: False,
    ) -> None:
        self._list = shards
        self._is_auto = is_auto
        self._listing = threading.Lock()
        self._jitter = jitter
        self._map: ShardMap | None = None
        self._is_unknown = False
        self._busy: dict[str, _Busy] = {}

    def known(self, *, listing: bool) -> KnownShards | None:
        """Return the shards; None if they were not listed and are not to be, cannot be, or no key leads to one."""
        if (self._map is None and not listing) or self._is_unknown or self._is_auto():
            return None
        with self._listing:
            if self._map is None and not self._is_unknown:
                try:
                    self._map = self._list()
                except KinesisError as error:
                    log.info("a busy shard holds up the others, because they cannot be listed: %s", error)
                    self._is_unknown = True
        return self._map.known if self._map is not None else None

    def refresh(self) -> None:
        """List the shards again: a record has arrived in another one than the map says."""
        if self._map is not None:
            self._map.refresh()

    def find_busy(self) -> frozenset[str]:
        """Return the shards that are busy now."""
        return frozenset(self._busy)

    def settle(self, home: str, accepted: int, refused: int, now: float) -> None:
        """Learn how many records of one request a shard has accepted and refused."""
        busy = self._busy.get(home)
        if refused:
            if busy is None:
                busy = self._busy[home] = _Busy(now)
            else:
                taken = max(0.5, accepted / (accepted + refused))
                busy.share = 1.0 if accepted and busy.share > 1 else max(_LEAST, busy.share * taken)
            busy.failures = 0 if accepted else busy.failures + 1
            busy.free = now + self._jitter(
                _APART, max(_APART, min(_LONGEST_WAIT, _APART * 2 ** min(busy.failures, 9)))
            )
        elif busy is not None and accepted:
            busy.failures = 0
            busy.share *= _MORE
            if busy.share >= _MOST:
                del self._busy[home]

    def allow(self, home: str, rows: Entries, now: float, *, packed: bool = False) -> int:
        """Return how many of the first rows of a shard may be sent now, and count them as sent."""
        busy = self._busy.get(home)
        if busy is None:
            return len(rows)
        if now < busy.free:
            return 0
        seconds = min(1.0, now - busy.since) * busy.share
        busy.since, busy.free = now, now + _APART
        records = len(rows) if packed else int(_RECORDS * seconds)
        return max(1, min(records, rows.count_fitting(int(_BYTES * seconds))))

    def free(self, homes: Iterable[str]) -> float:
        """Return the time from which something may be sent to one of these shards; infinite for none."""
        return min(
            (self._busy[home].free if home in self._busy else -math.inf for home in homes), default=math.inf
        )
