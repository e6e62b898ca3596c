"""The history of an application since the page's server has started: bounded samples, and the batches. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from kinesis_trident.console.figures import HomeFacts
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.tracker.records import PendingRun, Run

_SAMPLES = 900
_BATCHES = 30


@dataclass(frozen=True, slots=True)
class Sample:
    """The numbers of an application at one time, in epoch milliseconds.

    Attributes:
        lag_ms: None if it is unknown.
        skew_ms: as of `HomeFacts`.
        read_rate, fail_rate: records a second since the sample before; None for the first one.
    """

    at: int
    lag_ms: int | None
    skew_ms: int
    read_rate: float | None = None
    fail_rate: float | None = None


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """One batch: when each of its phases ended, in epoch milliseconds by ZooKeeper's clock, as far as it was seen.

    Attributes:
        txid: of the batch.
        records: new ones, as far as they were seen; None if the batch was not seen with any of them.
        again: records of it that were delivered again, likewise.
        planned_at, read_at, finished_at, settled_at: None if the phase has not ended, or nobody saw it.
        done: the batch is settled.
    """

    txid: int
    records: int | None = None
    again: int | None = None
    planned_at: int | None = None
    read_at: int | None = None
    finished_at: int | None = None
    settled_at: int | None = None
    done: bool = False


@dataclass(slots=True)
class History:
    """The last half hour or more of one application, and its last batches; it is given each snapshot in order."""

    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    _batches: dict[int, BatchTimes] = field(default_factory=dict)
    _read: int = 0
    _dead: int = 0
    _exhausted: int = 0
    _failed_at: dict[str, int] = field(default_factory=dict)

    @property
    def batches(self) -> list[BatchTimes]:
        """Return the batches that were seen, the newest first."""
        return sorted(self._batches.values(), key=lambda batch: -batch.txid)

    def add(self, snapshot: Snapshot, now: int) -> None:
        """Take a look into account. `now` is in epoch milliseconds."""
        facts = HomeFacts(snapshot, now)
        numbers = facts.figures
        failed = self._new_failures(snapshot)
        # A record that was seen as exhausted has been counted with its last failure.
        failed += max(0, numbers.dead_lettered - self._dead - self._exhausted)
        before = self.samples[-1] if self.samples else None
        seconds = (now - before.at) / 1000 if before else 0.0
        known = before is not None and seconds > 0
        self.samples.append(
            Sample(
                now,
                numbers.lag_ms,
                facts.skew_ms,
                max(0, numbers.read - self._read) / seconds if known else None,
                failed / seconds if known else None,
            )
        )
        self._read, self._dead, self._exhausted = numbers.read, numbers.dead_lettered, numbers.exhausted
        self._see_batch(snapshot)

    def _new_failures(self, snapshot: Snapshot) -> int:
        """Count the failures in the nodes that are newer than those of the look before, by the query's clock."""
        failed = 0
        for shard, held in snapshot.inflight.items():
            newest = before = self._failed_at.get(shard, 0)
            runs: list[Run | PendingRun] = [*held.waiting, *held.dead, *held.pending]
            for run in runs:
                for failure in run.failures:
                    failed += run.count if failure.time > before else 0
                    newest = max(newest, failure.time)
            self._failed_at[shard] = newest
        return failed

    def _see_batch(self, snapshot: Snapshot) -> None:
        if snapshot.batch is not None:
            plan = snapshot.batch.plan
            pins = snapshot.pins.values()
            whole = set(plan.shards) <= set(snapshot.pins)
            self._batches[plan.txid] = BatchTimes(
                plan.txid,
                sum(pin.fresh for pin in pins) if pins else None,
                sum(pin.count - pin.fresh for pin in pins) if pins else None,
                snapshot.planned_at,
                snapshot.read_at if whole else None,
                snapshot.finished_at if snapshot.finished else None,
            )
        settled = snapshot.settled
        if settled is not None and settled.txid > 0:
            held = self._batches.get(settled.txid, BatchTimes(settled.txid))
            self._batches[settled.txid] = replace(held, settled_at=snapshot.settled_at)
            for txid, batch in self._batches.items():
                self._batches[txid] = replace(batch, done=batch.done or txid <= settled.txid)
        for txid in sorted(self._batches)[:-_BATCHES]:
            del self._batches[txid]
