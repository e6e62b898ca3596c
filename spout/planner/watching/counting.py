"""Counts what became of the records of a run, for its progress and its status. No I/O."""

from __future__ import annotations

from functools import reduce

import msgspec

from kinesis_trident.checkpoint.model.run_status import RunCounts
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.shard_events import Amended, BatchSettled, ShardEvent, Tally
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.tracker.failure import OTHER, Kind, error_class
from kinesis_trident.tracker.few_failures import MAX_REASONS

BY_NAME = "ACKS_FAIL"
"""The class of failures that another process has reported with `Acks.fail`, but of those that no retry can help."""


class RunCounter:
    """Adds up the counts of a run, from its start.

    Attributes:
        tally: the records that were acked and failed by name.
    """

    def __init__(self) -> None:
        self._counts = RunCounts()
        self.tally = Tally()

    def watch(self, before: Shards, event: ShardEvent, after: Shards) -> None:
        """Count what has happened to the shards."""
        match event:
            case BatchSettled():
                self._settle(before, event)
            case Amended(units):
                self.tally = reduce(Tally.add, [unit.tally for unit in units], self.tally)
                for shard in {unit.shard for unit in units if unit.state is not None}:
                    gone = _count_dead(after.states[shard]) - _count_dead(before.states[shard])
                    self._counts.exhausted += max(0, gone)

    def _settle(self, before: Shards, event: BatchSettled) -> None:
        counts, finished = self._counts, event.finished
        for unit in event.units:
            shard, after = unit.shard, unit.state or before.of(finished.plan, unit.shard)
            pin, state = finished.pins.get(shard), before.of(finished.plan, shard)
            fresh, was = pin.fresh if pin is not None else 0, state.held
            if not (after.held or was):
                # As of most shards. Nothing was dead-lettered: it would have been in flight.
                counts.acked += fresh
            else:
                letters = sum(letter.count for letter in unit.buried)
                # A replay that was asked for brings records back, and never makes these numbers smaller.
                counts.acked += max(0, was + fresh - after.held - letters)
                counts.exhausted += max(0, _count_dead(after) + letters - _count_dead(state))
                counts.dead_lettered += letters
            if pin is not None:
                counts.retried += pin.count - pin.fresh
                if pin.cost:
                    size, throttles, renewals = (*pin.cost, 0, 0)[:3]
                    counts.bytes += size
                    counts.throttles += throttles
                    counts.renewals += renewals
            for reason, failed in finished.failures.get(shard, {}).items():
                add_failure(counts, error_class(reason), failed)
        if not event.is_whole:
            return
        counts.batches += 1
        counts.settle_seconds += event.seconds
        counts.last_settle_seconds = event.seconds
        counts.last_operations = event.operations - counts.operations
        counts.last_written = event.written - counts.written
        counts.operations, counts.written = event.operations, event.written

    def total(self) -> RunCounts:
        """Return all counts, with those of the records that were acked and failed by name."""
        counts, tally = msgspec.structs.replace(self._counts, failed=dict(self._counts.failed)), self.tally
        counts.acked += tally.acked
        counts.timed_out += tally.timed_out
        add_failure(counts, BY_NAME, tally.failed - tally.permanent)
        add_failure(counts, Kind.PERMANENT.name, tally.permanent)
        add_failure(counts, Kind.TIMEOUT.name, tally.timed_out)
        return counts


def add_failure(counts: RunCounts, name: str, count: int) -> None:
    """Add failures of one class; those beyond the first 64 classes are together."""
    if count:
        name = name if name in counts.failed or len(counts.failed) < MAX_REASONS else OTHER
        counts.failed[name] = counts.failed.get(name, 0) + count


def _count_dead(state: ShardState) -> int:
    return sum(run.count for run in state.dead)
