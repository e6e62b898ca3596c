"""The rows of some partition keys of a stream that are still to be written: one request of them at a time. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from kinesis_trident.spout.kinesis import KinesisError, RequestTooLargeError
from kinesis_trident.spout.kinesis.put_entries import Entries, Entry, RequestBound, is_refused
from kinesis_trident.spout.kinesis.put_records import Tries
from kinesis_trident.spout.sink.shard_map import ROW_BYTES, KnownShards, pack_rows
from kinesis_trident.spout.sink.targets import StreamTarget

_Indexes = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class _Taken:
    """Rows of a request, of one shard or of all that are not busy, and the aggregate that they are sent in, if any."""

    home: str | None
    rows: Entries
    aggregate: Entry | None = None

    def __len__(self) -> int:
        return len(self.rows) if self.aggregate is None else 1


class Backlog:
    """The rows of some partition keys of one stream, in their order, until Kinesis has acknowledged them.

    A request is collected, and begun once it is full. What a shard refuses waits apart, in its order, and what comes
    for the shard later waits behind it; rows that are sent in aggregates are all kept by shard. When the shards are
    listed again, each row goes to the shard that takes it now, and those of a key stay in their order.

    Args:
        target: the stream.
        tries: the tries of these rows.
        clock: seconds, monotonic.

    Attributes:
        target: the stream.
        tries: the tries of these rows.
        size: the bytes that are collected.
    """

    def __init__(self, target: StreamTarget, tries: Tries, clock: Callable[[], float]) -> None:
        self.target = target
        self.tries = tries
        self._clock = clock
        self._collected: list[Entries] = []
        self._count = self.size = 0
        self._is_flushed = False
        self._ready: list[Entries] = []
        self._apart: dict[str, list[Entries]] = {}
        self._known: KnownShards | None = None
        self._taken: list[_Taken] = []
        self._again = -math.inf

    @property
    def is_full(self) -> bool:
        """Return whether a request is collected."""
        return self._count > 0 and (self._is_flushed or self.target.filling().is_full(self._count, self.size))

    @property
    def waiting(self) -> int:
        """Return the bytes of memory of the rows whose request has begun."""
        return sum(one.size + ROW_BYTES * len(one) for one in self._begun())

    def add(self, rows: Entries) -> None:
        """Collect rows."""
        if len(rows):
            self._collected.append(rows)
            self._count += len(rows)
            self.size += rows.size

    def flush(self) -> None:
        """Let what is collected begin, though it may fill no request."""
        self._is_flushed = True

    def earliest(self, *, begins: bool) -> float:
        """Return the time from which something may be sent; infinite if there is nothing.

        Args:
            begins: what is collected may begin; it does once nothing is left but what waits for busy shards.
        """
        if self._ready or (begins and self._may_begin()):
            return self._again
        return max(self._again, self.target.busy.free(self._apart))

    def begin(self) -> None:
        """Begin what is collected, if its time has come."""
        if self._ready or not self._may_begin():
            return
        if not self._apart:
            self.tries.begin()
        rows = Entries.join(self._collected)
        first = self.target.filling().take_fitting(rows)
        self._ready.append(first)
        rest = rows[len(first) :]
        self._collected = [rest] if rest else []
        self._count, self.size = len(rest), rest.size
        self._is_flushed = self._is_flushed and bool(rest)

    def take(self, known: KnownShards | None, *, packs: bool) -> Entries:
        """Return what to send next, of the first rows, as much as a request and the busy shards take; empty for none.

        Args:
            known: the shards, as far as it matters which there are.
            packs: send aggregates.
        """
        if known is not self._known:
            self._ready[:0] = (one for some in self._apart.values() for one in some)
            self._known, self._apart = known, {}
        busy = self.target.busy
        if self._ready and known is not None and (packs or self._apart or busy.find_busy()):
            self._sort_out(known, everything=packs)
        bound = self.target.bound
        now, left = self._clock(), RequestBound(bound.records, bound.bytes)
        for home in list(self._apart):
            rows, packed = Entries.join(self._apart.pop(home)), packs and bool(home)
            count = busy.allow(home, rows, now, packed=packed) if left.records > 0 else 0
            take = self._take_packed if packed else self._take_some
            if rest := take(home, rows, count, left):
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

    def asks_homes(self, results: Sequence[dict[str, Any]]) -> bool:
        """Return whether the shards matter: one has refused a record, and which one is not known."""
        return any(one.home is None for one in self._taken) and bool(is_refused(results).any())

    def settle(self, results: Sequence[dict[str, Any]], known: KnownShards | None) -> bool:
        """Drop the rows that were accepted; return whether one has arrived in another shard than its own.

        Args:
            results: one for each record that was sent.
            known: the shards, if a record was refused and they could be listed; None lets the others wait for it.

        Raises:
            KinesisError: nothing was accepted for as long as the patience of the tries allows.
        """
        refused, end, now = is_refused(results), len(results), self._clock()
        taken, self._taken = self._taken, []
        counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        is_elsewhere, is_held_up = False, False
        # Those of a shard return to the front of its records one after the other.
        for one in reversed(taken):
            mine = np.arange(end - len(one), end)
            end -= len(one)
            if one.home is not None:
                groups = {one.home: mine}
            elif not refused[mine].any():
                continue
            elif known is not None:
                groups = {home: mine[some] for home, some in _group_by_home(known.homes(one.rows)).items()}
            else:
                self._ready.insert(0, one.rows.pick(refused[mine]))
                is_held_up = True
                continue
            for home, some in groups.items():
                back = some[refused[some]]
                counts[home][0] += len(some) - len(back)
                counts[home][1] += len(back)
                if len(back):
                    rows = one.rows if one.aggregate is not None else one.rows.pick(back - end)
                    self._apart.setdefault(home, []).insert(0, rows)
                is_elsewhere |= bool(home) and any(
                    results[at].get("ShardId", home) != home for at in some.tolist()
                )
        for home, (accepted, back_again) in counts.items():
            self.target.busy.settle(home, accepted, back_again, now)
        failure, self._again = self.tries.learn(results), now
        if failure is not None and (is_held_up or self.tries.is_spent()):
            self._again += self.tries.wait_after(failure)
        return is_elsewhere

    def fail(self, error: KinesisError, request: Entries) -> None:
        """Put back what was taken: the request has failed as a whole.

        Raises:
            KinesisError: nothing was accepted for as long as the patience of the tries allows, or a single record is
                too large.
        """
        taken, self._taken = self._taken, []
        for one in reversed(taken):
            (self._ready if one.home is None else self._apart.setdefault(one.home, [])).insert(0, one.rows)
        if isinstance(error, RequestTooLargeError):
            self.target.bound.shrink(error, request, is_alone=sum(len(one.rows) for one in taken) == 1)
        else:
            self.tries.learn()
            self._again = self._clock() + self.tries.wait_after(error)

    def _begun(self) -> Iterator[Entries]:
        yield from self._ready
        for some in self._apart.values():
            yield from some
        yield from (one.rows for one in self._taken)

    def _may_begin(self) -> bool:
        return self.is_full and self._apart.keys() <= self.target.busy.find_busy()

    def _sort_out(self, known: KnownShards, *, everything: bool) -> None:
        """Move the rows of busy shards, or all, behind those that wait for them already."""
        rows = Entries.join(self._ready)
        busy = self.target.busy.find_busy() | self._apart.keys()
        kept = []
        for home, indexes in _group_by_home(known.homes(rows)).items():
            if everything or home in busy:
                self._apart.setdefault(home, []).append(rows.pick(indexes))
            else:
                kept.append(indexes)
        self._ready = [rows.pick(np.sort(np.concatenate(kept)))] if kept else []

    def _take_some(self, home: str | None, rows: Entries, count: int, left: RequestBound) -> Entries:
        """Take the first rows, as many as there is room for; return the others."""
        # A record that is larger than a request may be is sent alone.
        fitting = rows.count_fitting(left.bytes) or int(not self._taken)
        count = min(count, left.records, fitting)
        if count:
            part = rows[:count]
            self._taken.append(_Taken(home, part))
            left.records -= count
            left.bytes -= part.size
        return rows[count:]

    def _take_packed(self, home: str, rows: Entries, count: int, left: RequestBound) -> Entries:
        """Take the first rows of a shard in aggregates, as many as there is room for; return the others."""
        assert self.target.most is not None
        at = 0
        for record, number in pack_rows(rows[:count], min(self.target.most, self.target.bound.bytes)):
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
