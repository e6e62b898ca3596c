"""Keeps the records that busy shards refuse apart, and gives each what it can take: other shards do not wait."""

from __future__ import annotations

import logging
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from twins.old_sink.put_pools import RequestBound, is_refused
from twins.old_sink.shard_map import ROW_BYTES, Aggregation, KnownShards, ShardMap, pack_rows

from kinesis_trident.spout.kinesis import KinesisError
from kinesis_trident.spout.kinesis.put_entries import Entries, Entry

log = logging.getLogger(__name__)

_RECORDS, _BYTES = 1000, 2**20
"""What a shard takes in a second."""

_APART = 0.1
"""Seconds between two requests with records of a busy shard, over all lanes."""

_LONGEST_WAIT = 5.0

_POLL = 0.1
"""Seconds at most that a pool waits for a busy shard: records of others may have come."""

_Mask = np.ndarray[Any, np.dtype[np.bool_]]
_Indexes = np.ndarray[Any, np.dtype[np.int64]]

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
    """The busy shards of one stream, for all lanes of a task. Thread-safe; times are seconds of any one clock.

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
        self._lock = threading.Lock()
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
        with self._lock:
            return frozenset(self._busy)

    def settle(self, home: str, accepted: int, refused: int, now: float) -> None:
        """Learn how many records of one request a shard has accepted and refused."""
        with self._lock:
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
        with self._lock:
            busy = self._busy.get(home)
            if busy is None:
                return len(rows)
            if now < busy.free:
                return 0
            seconds = min(1.0, now - busy.since) * busy.share
            busy.since, busy.free = now, now + _APART
            records = len(rows) if packed else int(_RECORDS * seconds)
            return max(1, min(records, rows.count_fitting(int(_BYTES * seconds))))

    def pause(self, homes: Iterable[str], now: float) -> float:
        """Return the seconds until something may be sent to one of these shards."""
        with self._lock:
            frees = [self._busy[home].free if home in self._busy else now for home in homes]
        return max(0.0, min(frees, default=now) - now)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Rows of a request, of one shard or of all that are not busy, and the aggregate that they are sent in, if any."""

    home: str | None
    rows: Entries
    aggregate: Entry | None = None

    def __len__(self) -> int:
        return len(self.rows) if self.aggregate is None else 1


class ShardPool:
    """A pool (`Pool`) of one lane, to which records are added while others are sent.

    Records of a shard that has refused one wait apart, in their order, behind those that it has refused; those that are
    sent in aggregates are all kept by shard. When the shards are listed again, each record goes to the shard that takes
    it now, and those of a key stay in their order.

    Args:
        shards: the busy shards, which the lanes share.
        clock: seconds, monotonic.
        changed: guards this pool, and is notified when it has changed.
        aggregation: of the records; None to send each as it is.
    """

    def __init__(
        self,
        shards: BusyShards,
        clock: Callable[[], float],
        changed: threading.Condition,
        aggregation: Aggregation | None = None,
    ) -> None:
        self._shards = shards
        self._clock = clock
        self._changed = changed
        self._aggregation = aggregation
        self._known: KnownShards | None = None
        self._ready: list[Entries] = []
        self._apart: dict[str, list[Entries]] = {}
        self._taken: list[_Taken] = []
        self.goes_on = True

    def __len__(self) -> int:
        with self._changed:
            apart = (one for some in self._apart.values() for one in some)
            return sum(map(len, (*self._ready, *apart, *(one.rows for one in self._taken))))

    @property
    def is_ready(self) -> bool:
        """Return whether there are records that wait for no busy shard, or are under way."""
        homes = {*self._apart, *(one.home for one in self._taken)}
        return bool(self._ready) or not homes <= self._shards.find_busy()

    @property
    def waiting(self) -> int:
        """Return the bytes of memory of the records that wait apart."""
        return sum(one.size + ROW_BYTES * len(one) for some in self._apart.values() for one in some)

    def add(self, entries: Entries) -> None:
        """Add records behind those that are there."""
        with self._changed:
            self._ready.append(entries)

    def pause(self) -> float:
        """See `Pool.pause`."""
        with self._changed:
            if self._ready or self._taken:
                return 0.0
            return min(_POLL, self._shards.pause(self._apart, self._clock()))

    def take(self, bound: RequestBound) -> Entries:
        """See `Pool.take`."""
        # Either may call Kinesis, while other lanes go on.
        packs = self._aggregation is not None and not self._aggregation.is_off()
        known = self._shards.known(listing=packs)
        with self._changed:
            self._give_back()
            if known is not self._known:
                self._ready[:0] = (one for some in self._apart.values() for one in some)
                self._known, self._apart = known, {}
            if self._ready and known is not None and (packs or self._apart or self._shards.find_busy()):
                self._sort_out(known, everything=packs)
            now, left = self._clock(), RequestBound(bound.records, bound.bytes)
            for home in list(self._apart):
                rows, packed = Entries.join(self._apart.pop(home)), packs and bool(home)
                count = self._shards.allow(home, rows, now, packed=packed) if left.records > 0 else 0
                if packed:
                    rest = self._take_packed(home, rows, count, left, bound.bytes)
                else:
                    rest = self._take_some(home, rows, count, left)
                if rest:
                    self._apart[home] = [rest]
            if self._ready and left.records > 0:
                rows = Entries.join(self._ready)
                rest = self._take_some(None, rows, len(rows), left)
                self._ready = [rest] if rest else []
            parts: list[Entries] = []
            for _, some in groupby(self._taken, lambda one: one.aggregate is None):
                taken = list(some)
                records = [one.aggregate for one in taken if one.aggregate is not None]
                parts += [Entries.of(records)] if records else [one.rows for one in taken]
            return Entries.join(parts) if parts else Entries.of(())

    def is_cut(self) -> bool:
        """See `Pool.is_cut`."""
        return sum(len(one.rows) for one in self._taken) == 1

    def settle(self, results: Sequence[dict[str, Any]]) -> None:
        """See `Pool.settle`."""
        refused, end = is_refused(results), len(results)
        is_open = refused.any() and any(one.home is None for one in self._taken)
        known = self._shards.known(listing=True) if is_open else None
        with self._changed:
            taken, self._taken = self._taken, []
            counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
            is_elsewhere = False
            self.goes_on = True
            # Those of a shard return to the front of its records one after the other.
            for one in reversed(taken):
                mine = slice(end - len(one), end)
                is_elsewhere |= self._settle(one, known, refused[mine], results[mine], counts)
                end = mine.start
            now = self._clock()
            for home, (accepted, back) in counts.items():
                self._shards.settle(home, accepted, back, now)
            self._changed.notify_all()
        if is_elsewhere:
            self._shards.refresh()

    def _settle(
        self,
        taken: _Taken,
        known: KnownShards | None,
        refused: _Mask,
        results: Sequence[dict[str, Any]],
        counts: dict[str, list[int]],
    ) -> bool:
        """Put back what was refused, and count it; tell whether a record has arrived where the map does not say."""
        rows = taken.rows
        if taken.home is not None:
            groups = {taken.home: np.arange(len(taken))}
        elif not refused.any():
            return False
        elif known is not None:
            groups = _group_by_home(known.homes(rows))
        else:
            self._ready.insert(0, rows.pick(refused))
            self.goes_on = False
            return False
        is_elsewhere = False
        for home, indexes in groups.items():
            mine = indexes[refused[indexes]]
            counts[home][0] += len(indexes) - len(mine)
            counts[home][1] += len(mine)
            if len(mine):
                back = rows if taken.aggregate is not None else rows.pick(mine)
                self._apart.setdefault(home, []).insert(0, back)
            is_elsewhere |= bool(home) and any(
                results[at].get("ShardId", home) != home for at in indexes.tolist()
            )
        return is_elsewhere

    def _give_back(self) -> None:
        """Put back what was taken and not settled: the request has failed as a whole."""
        for one in reversed(self._taken):
            (self._ready if one.home is None else self._apart.setdefault(one.home, [])).insert(0, one.rows)
        self._taken = []

    def _sort_out(self, known: KnownShards, *, everything: bool) -> None:
        """Move the records of busy shards, or all, behind those that wait for them already."""
        rows = Entries.join(self._ready)
        busy = self._shards.find_busy() | self._apart.keys()
        kept = []
        for home, indexes in _group_by_home(known.homes(rows)).items():
            if everything or home in busy:
                self._apart.setdefault(home, []).append(rows.pick(indexes))
            else:
                kept.append(indexes)
        self._ready = [rows.pick(np.sort(np.concatenate(kept)))] if kept else []

    def _take_some(self, home: str | None, rows: Entries, count: int, left: RequestBound) -> Entries:
        """Take the first records, as many as there is room for; return the others."""
        # A record that is larger than a request may be is sent alone.
        fitting = rows.count_fitting(left.bytes) or int(not self._taken)
        count = min(count, left.records, fitting)
        if count:
            part = rows[:count]
            self._taken.append(_Taken(home, part))
            left.records -= count
            left.bytes -= part.size
        return rows[count:]

    def _take_packed(self, home: str, rows: Entries, count: int, left: RequestBound, most: int) -> Entries:
        """Take the first records of a shard in aggregates, as many as there is room for; return the others."""
        assert self._aggregation is not None
        at = 0
        for record, number in pack_rows(rows[:count], min(self._aggregation.most, most)):
            size = len(record["Data"]) + len(record["PartitionKey"].encode())
            if left.records <= 0 or (size > left.bytes and self._taken):
                break
            part, at = rows[at : at + number], at + number
            self._taken.append(_Taken(home, part, record if number > 1 else None))
            left.records -= 1
            left.bytes -= size
        return rows[at:]


def _group_by_home(homes: Sequence[str]) -> dict[str, _Indexes]:
    """Return the indexes of the records of each shard, in order."""
    found: dict[str, list[int]] = defaultdict(list)
    for index, home in enumerate(homes):
        found[home].append(index)
    return {home: np.array(indexes, np.int64) for home, indexes in found.items()}
