"""A run whose batches the old planner plans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast
from unittest.mock import patch

from twins.old_choose.next_batch import BatchPlanner

from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.spout.planner import run
from kinesis_trident.spout.planner.choose import Course
from kinesis_trident.spout.planner.run import SourceRun


class OldPlanner(BatchPlanner):
    """Counts no requests to drain: `OldRun` does."""

    course = Course(0.0, None)

    def count_unseen(self) -> int:
        """Return the number of shards at which this run has not looked yet, and may."""
        due, _ = self._state.sights.find_due(self._find_watched(), self._steady_ms())
        return sum(self._state.sights.of(shard).pace.looked is None for shard in due)

    def note_pauses(self) -> None:
        """Nobody has paused anything."""

    def drain(self, asked: int = 0) -> None:
        """See `BatchPlanner.drain`."""
        super().drain()


class OldRun(SourceRun):
    """Plans as runs did before `choose`."""

    _drains_for = 0

    def _take_over(self, offsets: Sequence[Plan], relieved: int | None = None) -> None:
        with patch.object(run, "PlanningSteps", OldPlanner):
            super()._take_over(offsets, relieved)

    def _next_plan(self, max_records: int | None, deadline: float) -> Plan | None:
        unseen_before = math.inf
        while True:
            self._takeover.raise_if_replaced()
            planner = cast(OldPlanner, self._planner)
            self._follow_drains(planner)
            if self._takeover.stop_asked and not self._takeover.drain_asked:
                self._store.stop.answer(self._state.shards.settled, self.epoch)
                self._rest_until(deadline)
                return None
            plan = planner.plan(max_records)
            self._notes.note(planner.standings)
            if plan is None and planner.is_drained:
                self.note_end("finished")
                if self._takeover.stop_asked:
                    self._store.stop.answer(self._state.shards.settled, self.epoch)
            if plan is not None:
                self._reconciler.hand_over(planner.complete_plan(plan))
            if plan is not None or planner.is_drained:
                return plan
            unseen = planner.count_unseen()
            goes_on, unseen_before = planner.is_draining or 0 < unseen < unseen_before, unseen
            if not goes_on and self._around.steady() >= deadline:
                return None
            self._rest_until(math.inf if goes_on else deadline)

    def _follow_drains(self, planner: OldPlanner) -> None:
        takeover = self._takeover
        asked = takeover.drains
        if (
            takeover.drain_asked
            and asked != self._drains_for
            and (self._drains_for or not planner.is_draining)
        ):
            planner.drain()
            self._drains_for = asked
        elif self._drains_for and not (takeover.drain_asked or takeover.stop_asked):
            planner.go_on()
            if self._has_noted_end:
                self._store.ends.forget(self.epoch)
            self._drains_for, self._has_noted_end = 0, False

    def _rest_until(self, deadline: float) -> None:
        planner = cast(OldPlanner, self._planner)
        left = math.inf if planner.is_draining else deadline - self._around.steady()
        seconds = min(planner.seconds_until_due(), left)
        if self._around.wait(self._wake, max(seconds, 0.001)):
            self._wake.clear()
