"""The plainest model of a shard: every record held by itself, nothing folded, nothing merged."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kinesis_trident.tracker.records import NotDone, Noted, RecordPosition, Run
from kinesis_trident.tracker.retry import RetryPolicy


@dataclass
class Record:
    position: RecordPosition
    state: str = "done"
    attempt: int = 1
    due: int = 0
    failures: tuple[Noted, ...] = ()
    beside: bool = False
    gone: bool = False

    def fate(self) -> tuple[object, ...]:
        return (self.state, self.attempt, self.due, self.failures)

    def done(self) -> None:
        self.state, self.beside = "done", False


class NaiveShard:
    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        self.records: list[Record] = []

    def index(self, position: RecordPosition) -> int:
        return next(i for i, record in enumerate(self.records) if record.position == position)

    def deliver(self, positions: Sequence[RecordPosition]) -> list[Record]:
        new = [Record(position, attempt=0) for position in positions]
        self.records += new
        return new

    def settle(self, records: Sequence[Record], reasons: dict[int, str], now: int, seed: int) -> None:
        """The outcome of a delivery of neighbours: those at the indexes in `reasons` failed."""
        attempt = records[0].attempt + 1
        due = None if attempt > self.policy.limit else self.policy.due(attempt, now, random.Random(seed))
        for i, record in enumerate(records):
            if i in reasons:
                self._fail(record, attempt, due, now, reasons[i])
            else:
                record.done()

    def _fail(self, record: Record, attempt: int, due: int | None, now: int, reason: str) -> None:
        record.attempt = attempt
        record.failures = (*record.failures, Noted(now, reason))
        if due is not None:
            record.state, record.due = "waiting", due
        elif self.policy.dead_letter:
            record.state, record.due = "dead", 0
        else:
            record.done()

    def expire(self, records: Sequence[Record], now: int) -> None:
        for record in records:
            record.gone = True
            self._fail(record, record.attempt, None, now, "EXPIRED")

    def replay(
        self, record: Record, run: Sequence[Record], checkpoint: RecordPosition | None, now: int
    ) -> None:
        for each in run or [record]:
            if each.state == "done":
                each.beside = checkpoint is not None and each.position <= checkpoint
            each.state, each.attempt, each.due, each.failures = "waiting", 0, now // 1000 * 1000, ()

    @property
    def checkpoint(self) -> RecordPosition | None:
        last = None
        for record in self.records:
            if record.state != "done" and not record.beside:
                break
            last = record.position
        return last

    def of(self, run: Run) -> list[Record]:
        """The records that a run stands for: `count` of them from its first one on, all gone or all still there."""
        if run.failures and run.failures[-1].reason == "EXPIRED":
            fate = ("dead", run.attempt, run.due, run.failures)
            held = [record for record in self.records if record.gone and record.fate() == fate]
        else:
            held = [record for record in self.records if not record.gone]
        if run.first:
            first = RecordPosition.parse(run.first)
            start = next(i for i, record in enumerate(held) if record.position == first)
        else:
            assert run.prev is not None
            prev = RecordPosition.parse(run.prev)
            start = next(i for i, record in enumerate(held) if record.position > prev)
        return held[start : start + run.count]

    def pieces(
        self, records: Sequence[Record], reasons: dict[int, str], *, rng: random.Random, tell_prev: bool
    ) -> list[NotDone]:
        """Return what a reporter says of failed neighbours: in random order, equal ones joined or not."""
        found: list[NotDone] = []
        indexes = sorted(reasons)
        while indexes:
            group = [indexes.pop(0)]
            while (
                indexes
                and indexes[0] == group[-1] + 1
                and reasons[indexes[0]] == reasons[group[0]]
                and rng.random() < 0.7
            ):
                group.append(indexes.pop(0))
            first, last = records[group[0]].position, records[group[-1]].position
            before = self.index(first) - 1
            if group[0] == 0 and before >= 0 and rng.random() < 0.5:
                # The row before the turn's first one is of another run, or of the turn before.
                before = rng.randint(0, before)
            prev = str(self.records[before].position) if tell_prev and before >= 0 else None
            found.append(NotDone(str(first), str(last), len(group), reasons[group[0]], prev))
        rng.shuffle(found)
        return found


def due(waiting: Sequence[Run], now: int) -> tuple[Run, ...]:
    """The runs that are due, in shard order, as a plan takes them up."""
    return tuple(run for run in waiting if run.due <= now)


def shard_positions(rng: random.Random) -> Iterator[RecordPosition]:
    """Sequence numbers of up to 56 digits with gaps; now and then an aggregate of several user records."""
    sequence = rng.choice([0, 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898])
    while True:
        sequence += rng.randint(1, 4)
        if rng.random() < 0.2:
            for sub in range(rng.randint(1, 4)):
                yield RecordPosition(sequence, sub)
        else:
            yield RecordPosition(sequence)
