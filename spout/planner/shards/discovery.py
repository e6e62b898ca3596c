"""Lists the shards of a source: new ones often, all now and then, and when a read finds one missing."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable

from kinesis_trident.spout.kinesis import KinesisError, ThrottledError, Unavailable
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.shards.tip_probe import TipProbe
from kinesis_trident.spout.planner.shards.tips import TipWatch
from kinesis_trident.spout.planner.state import SourceState

__all__ = ["Listings"]

log = logging.getLogger(__name__)

_AGAIN = 1.0
"""Seconds until a required listing is tried again."""

_BLOCKED_EVERY = 2.0
"""Seconds between two looks at a blocked shard in which nothing new was seen yet."""

_ALL_EVERY = 60.0
"""Seconds between two listings of all shards; those in between list only new ones."""


class Listings:
    """Keeps the shards of a state up to date with its streams.

    Args:
        state: of the source.
        probe: its looks at tips are recorded before the retention is checked.
        options: `describeShardInterval`.
        clock: seconds that never step back; the streams have just been described.
        rng: for the jitter, so that queries started together do not list together for ever.

    Attributes:
        is_current: the shards were listed since the last request.
    """

    def __init__(
        self,
        state: SourceState,
        probe: TipProbe,
        options: SourceOptions,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._state = state
        self._probe = probe
        self._interval = options.describe_shard_interval
        self._clock = clock
        self._rng = rng
        self._next = self._all_next = -math.inf
        self._begun = clock()
        self._ends = 0
        self._look_again: dict[str, float] = {}
        self.is_current = True

    def arrived_by(self) -> int:
        """Return a time, in epoch milliseconds by the server's clock, by which all present records had arrived.

        Raises:
            StreamRecreatedError: a stream was deleted and created again.
        """
        passed = 0.0
        try:
            self._state.describe_streams()
        except (ThrottledError, Unavailable) as error:
            log.warning("cannot get the server's time now, using this machine's clock: %s", error)
            passed = self._clock() - self._begun
        return self._state.streams.by_now + int(passed * 1000)

    def list_at_once(self) -> None:
        """Make the next `refresh` list the shards."""
        self._next = -math.inf
        self.is_current = False

    def refresh(self) -> None:
        """List the shards if that is due; calls that Kinesis cannot answer now are made another time.

        Raises:
            DataLossError: with `failOnDataLoss`, records have expired unread.
            StreamRecreatedError: a stream was deleted and created again.
        """
        # What comes after a shard that has ended is listed at once: from then on it is known what of it expires.
        ends = self._state.ended + self._probe.ended_open
        if self._clock() < self._next and ends == self._ends:
            return
        self._ends = ends
        interval = self._interval if self.is_current else min(self._interval, _AGAIN)
        self._next = self._clock() + interval * self._rng.uniform(0.8, 1.2)
        try:
            self._state.describe_streams()
            # A listing of new shards is cheap; shards that retention removed are not urgent.
            everything = self._clock() >= self._all_next
            self._state.list_shards(everything=everything)
        except (ThrottledError, Unavailable) as error:
            log.warning("cannot list the shards now, continuing with the known ones: %s", error)
            return
        self.is_current = True
        if everything:
            self._all_next = self._clock() + _ALL_EVERY * self._rng.uniform(0.8, 1.2)
        self._state.seen_at_tip(self._probe.looks)
        self._state.check_retention()

    def shards_to_read(self, tip: TipWatch, now: int) -> list[str]:
        """Return the shards with new records, as `TipWatch.shards_to_read`.

        Raises:
            StreamRecreatedError: a stream was deleted and created again.
            KinesisError: a shard cannot be looked at.
        """
        try:
            self._look_at_blocked()
            return tip.shards_to_read(self._state.positions(), now)
        except (ThrottledError, Unavailable):
            raise
        except KinesisError:
            before = self._state.lineage
            try:
                # The stream may be another one by now: describing it shows that, and what to do.
                self._state.describe_streams()
                # Retention removes shards between two listings: the next listing shows whether that is a loss.
                self._state.list_shards(everything=True)
            except (ThrottledError, Unavailable) as error:
                log.warning("cannot find out now why a shard cannot be read, trying again: %s", error)
                return []
            if self._state.lineage == before:
                raise
            return tip.shards_to_read(self._state.positions(), now)

    def _look_at_blocked(self) -> None:
        """Look now and then for the next record of each blocked shard, until one is seen: its age is the lag."""
        waiting = {}
        now = self._clock()
        for shard, position in self._state.positions().items():
            if self._state.shards[shard].blocked:
                look = self._probe.looks.get(shard)
                known = look is not None and look.position == position and look.more
                if not known and now >= self._look_again.get(shard, now):
                    self._look_again[shard] = now + _BLOCKED_EVERY
                    waiting[shard] = position
        if waiting:
            self._probe.look(waiting)
