"""Measure how fast the in-flight tracker is, and what a record in flight costs: `python -m benchmarks.tracker`.

Side by side with what one would write in its place: a dict and a heap, or an OrderedDict, one call a record.
"""

from __future__ import annotations

import heapq
import random
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.report import Section, best, publish
from kinesis_trident.tracker.inflight.record_tracker import InflightRecordTracker
from kinesis_trident.tracker.open_shard import OpenShard
from kinesis_trident.tracker.records import NotDone, RecordPosition
from kinesis_trident.tracker.retry import Backoff, Fates, RetryPolicy
from kinesis_trident.tracker.settling import TurnFacts, settle

RECORDS = 1_000_000
WINDOW = 10_000
ONE_BY_ONE = 200_000
TURN = 100_000


@dataclass(frozen=True, slots=True)
class Row:
    """One way to track: time to emit and ack the records, bytes a record in flight where measured.

    `ours` is the time of this project's tracker for the same work, where this is another one.
    """

    what: str
    seconds: float
    records: int
    bytes_each: float | None = None
    ours: float | None = None

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds


class Tracker(Protocol):
    """The interface of the plain trackers."""

    @property
    def checkpoint(self) -> object:
        """The last record of the done prefix."""
        ...

    def emit(self, position: Hashable) -> object:
        """A record was delivered."""
        ...

    def ack(self, position: Hashable) -> object:
        """A record is done."""
        ...


class DictAndHeap:
    """Done or not in a dict, what is open in a heap."""

    def __init__(self) -> None:
        self.done: dict[Hashable, bool] = {}
        self.heap: list[Hashable] = []
        self.checkpoint: Hashable = None

    def emit(self, position: Hashable) -> None:
        """A record was delivered."""
        self.done[position] = False
        heapq.heappush(self.heap, position)  # type: ignore[type-var]

    def ack(self, position: Hashable) -> None:
        """A record is done."""
        self.done[position] = True
        while self.heap and self.done[self.heap[0]]:
            self.checkpoint = heapq.heappop(self.heap)  # type: ignore[type-var]
            del self.done[self.checkpoint]


class Ordered:
    """Done or not in an OrderedDict, in the order of emission."""

    def __init__(self) -> None:
        self.done: OrderedDict[Hashable, bool] = OrderedDict()
        self.checkpoint: Hashable = None

    def emit(self, position: Hashable) -> None:
        """A record was delivered."""
        self.done[position] = False

    def ack(self, position: Hashable) -> None:
        """A record is done."""
        self.done[position] = True
        while self.done and self.done[first := next(iter(self.done))]:
            self.checkpoint = first
            del self.done[first]


def windows(count: int) -> list[npt.NDArray[np.int64]]:
    """All ordinals, in random order within windows."""
    generator = np.random.default_rng(1)
    return [start + generator.permutation(min(WINDOW, count - start)) for start in range(0, count, WINDOW)]


def bulk(positions: Sequence[RecordPosition], acks: Sequence[npt.NDArray[np.int64]]) -> None:
    tracker = InflightRecordTracker()
    tracker.emit_many(len(positions), positions)
    for ordinals in acks:
        tracker.ack_many(ordinals)
    assert tracker.checkpoint == positions[-1]


def bulk_with_failures(positions: Sequence[RecordPosition], acks: Sequence[npt.NDArray[np.int64]]) -> None:
    tracker, rng = InflightRecordTracker(RetryPolicy(3, Backoff(0, 0, 1))), random.Random(1)
    tracker.emit_many(len(positions), positions)
    for ordinals in acks:
        bad = ordinals % 100 == 7
        tracker.fail_many(ordinals[bad], 0, "boom", rng)
        tracker.ack_many(ordinals[~bad])
    tracker.ack_many(tracker.retry_many(0))
    assert tracker.checkpoint == positions[-1]


def one_by_one(tracker: Tracker, positions: Sequence[Hashable], order: Sequence[int]) -> None:
    for position in positions:
        tracker.emit(position)
    for ordinal in order:
        tracker.ack(positions[ordinal])
    assert tracker.checkpoint == positions[-1]


def turn(failed: Sequence[NotDone]) -> None:
    fates = Fates(RetryPolicy(3, Backoff(0, 0, 1)), 0, random.Random(1))
    shard, _ = settle(OpenShard(), TurnFacts(failed=failed, fresh=(str(TURN), TURN)), fates)
    due = [(run, False) for run in shard.waiting]
    shard, _ = settle(shard, TurnFacts(due, [run.count for run in shard.waiting]), fates)
    assert shard.safe == RecordPosition(TURN)


def in_flight(hold: Callable[[], object], records: int) -> float:
    """Bytes a record that `hold` keeps, per record."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        held = hold()
        size = tracemalloc.get_traced_memory()[0] - before
        del held
        return size / records
    finally:
        tracemalloc.stop()


def hold_bulk(positions: Sequence[RecordPosition], acks: Sequence[npt.NDArray[np.int64]]) -> object:
    tracker = InflightRecordTracker()
    tracker.emit_many(len(positions), positions)
    for ordinals in acks:
        # Every second record stays open: nothing can be folded.
        tracker.ack_many(ordinals[ordinals % 2 == 1])
    return tracker


def hold_plain(tracker: Tracker, positions: Sequence[Hashable]) -> object:
    for position in positions:
        tracker.emit(position)
    return tracker


def run() -> list[Row]:
    """Measure everything, the plain trackers after what they are compared with."""
    positions = [RecordPosition(10**55 + i) for i in range(RECORDS)]
    ordinals = list(range(RECORDS))
    acks = windows(RECORDS)
    order = np.concatenate(acks).tolist()
    some, some_order = positions[:ONE_BY_ONE], np.concatenate(windows(ONE_BY_ONE)).tolist()
    failed = [NotDone(str(i), str(i), 1, "boom", str(i - 1)) for i in range(50, TURN, 100)]

    def single(make: Callable[[], Tracker]) -> float:
        return best(lambda: one_by_one(make(), some, some_order), 3)

    def plain(make: Callable[[], Tracker]) -> float:
        return best(lambda: one_by_one(make(), ordinals, order), 2)

    def held(make: Callable[[], Tracker]) -> float:
        return in_flight(lambda: hold_plain(make(), ordinals), RECORDS)

    arrays, by_position = best(lambda: bulk(positions, acks)), single(InflightRecordTracker)  # type: ignore[arg-type]
    return [
        Row(
            "arrays: 1 M records, acked 10 k a call",
            arrays,
            RECORDS,
            in_flight(lambda: hold_bulk(positions, acks), RECORDS),
        ),
        Row(
            "arrays: the same, 1 % scattered failures, retried",
            best(lambda: bulk_with_failures(positions, acks)),
            RECORDS,
        ),
        Row("dict and heap, one call a record", plain(DictAndHeap), RECORDS, held(DictAndHeap), arrays),
        Row("OrderedDict, one call a record", plain(Ordered), RECORDS, held(Ordered), arrays),
        Row(
            "by position: 200 k records, one call a record",
            by_position,
            ONE_BY_ONE,
            in_flight(lambda: hold_plain(InflightRecordTracker(), some), ONE_BY_ONE),  # type: ignore[arg-type]
        ),
        Row("dict and heap, by position", single(DictAndHeap), ONE_BY_ONE, ours=by_position),
        Row("OrderedDict, by position", single(Ordered), ONE_BY_ONE, ours=by_position),
        Row("turns: 100 k records, 1 % failed once", best(lambda: turn(failed)), TURN),
    ]


def main() -> None:
    """Measure, print, and write the section."""
    rows = run()
    publish(
        Section(
            "tracker",
            "Tracking what is in flight",
            "python -m benchmarks.tracker",
            [
                "acks in random order within 10 k",
                "time",
                "records/s",
                "bytes a record in flight",
                "ours is",
            ],
            [
                [
                    row.what,
                    f"{row.seconds * 1e3:,.1f} ms",
                    f"{row.rate / 1e6:,.2f} M",
                    "" if row.bytes_each is None else f"{row.bytes_each:,.1f}",
                    "" if row.ours is None else f"{row.seconds / row.ours:,.2f} x",
                ]
                for row in rows
            ],
            note="Bytes: with every second record acked for arrays, which is their worst case; else all in flight, "
            "the positions themselves not counted. The plain trackers know no retries and no failures.",
        )
    )


if __name__ == "__main__":
    main()
