"""Counts what became of the records of a run, for its progress and its status. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kinesis_trident.checkpoint.model.nodes import Pin
from kinesis_trident.checkpoint.model.run_status import RunCounts
from kinesis_trident.spout.planner.external_requests import Tally
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settlement import SettledShard
from kinesis_trident.tracker.reasons import MAX_REASONS, OTHER, TIMEOUT, error_class

BY_NAME = "ACKS_FAIL"
"""The class of failures that another process has reported with `Acks.fail`."""


class RunCounter:
    """Adds up the counts of a run, from its start."""

    def __init__(self) -> None:
        self._counts = RunCounts()

    def settle(
        self,
        before: Mapping[str, ShardState],
        done: Mapping[str, SettledShard],
        pins: Mapping[str, Pin],
        failures: Mapping[str, Mapping[str, int]],
    ) -> None:
        """Count the shards that a batch has settled.

        `before` are the same shards before it; `failures` has the number of failed records by shard and reason.
        """
        counts = self._counts
        counts.batches += 1
        for shard, after in done.items():
            pin, node, was = pins.get(shard), after.inflight, before[shard].held
            fresh = pin.fresh if pin is not None else 0
            if node.is_empty and not was:
                # As of most shards. Nothing was dead-lettered: it would have been in flight.
                counts.acked += fresh
            else:
                letters = sum(letter.count for letter in after.dead_lettered)
                dead = sum(run.count for run in node.dead)
                held = dead + sum(run.count for run in node.waiting) + sum(run.count for run in node.pending)
                # A replay that was asked for brings records back, and never makes these numbers smaller.
                counts.acked += max(0, was + fresh - held - letters)
                counts.exhausted += max(0, dead + letters - _dead(before[shard]))
                counts.dead_lettered += letters
            if pin is not None:
                counts.retried += pin.count - pin.fresh
                if pin.cost:
                    size, throttles, renewals = (*pin.cost, 0, 0)[:3]
                    counts.bytes += size
                    counts.throttles += throttles
                    counts.renewals += renewals
        for shard, reasons in failures.items():
            for reason, failed in reasons.items() if shard in done else ():
                add_failure(counts, error_class(reason), failed)

    def amend(self, before: ShardState, after: ShardState) -> None:
        """Count a shard that was changed between two batches."""
        self._counts.exhausted += max(0, _dead(after) - _dead(before))

    def spend(self, seconds: float, operations: int, written: int) -> None:
        """Count what settling a batch took; the run's requests and bytes so far tell those of the batch."""
        counts = self._counts
        counts.settle_seconds += seconds
        counts.last_settle_seconds = seconds
        counts.last_operations = operations - counts.operations
        counts.last_written = written - counts.written
        counts.operations, counts.written = operations, written

    def total(self, tally: Tally) -> RunCounts:
        """Return all counts, with those of the records that were acked and failed by name."""
        counts = msgspec.structs.replace(self._counts, failed=dict(self._counts.failed))
        counts.acked += tally.acked
        counts.timed_out += tally.timed_out
        add_failure(counts, BY_NAME, tally.failed)
        add_failure(counts, TIMEOUT, tally.timed_out)
        return counts


def add_failure(counts: RunCounts, name: str, count: int) -> None:
    """Add failures of one class; those beyond the first 64 classes are together."""
    if count:
        name = name if name in counts.failed or len(counts.failed) < MAX_REASONS else OTHER
        counts.failed[name] = counts.failed.get(name, 0) + count


def _dead(state: ShardState) -> int:
    return sum(run.count for run in state.dead)
