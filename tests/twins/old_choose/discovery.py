"""Lists the shards of a source: new ones often, all now and then, and when a read finds one missing."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from kinesis_trident.checkpoint.model.standing import Looks, Standing
from kinesis_trident.spout.kinesis import ThrottledError, Unavailable
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.settling.shard_events import BatchSettled, ShardEvent
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.planner.state import SourceState
from kinesis_trident.spout.planner.tip.tip_probe import TipProbe
from kinesis_trident.spout.positions import Position

log = logging.getLogger(__name__)

_AGAIN = 1.0
"""Seconds until a required listing is tried again."""

_EVERY = {Looks.UNTIL_KNOWN: 2.0, Looks.SELDOM: 3_600.0}
"""Seconds between two looks at a shard that is not read, and in which nothing new was seen yet.

One that is looked at seldom, or is at its end, has lost nothing if it was empty all the time: looks show that.
"""

_ALL_EVERY = 60.0
"""Seconds between two listings of all shards; those in between list only new ones."""

_STOOD_STILL_MS = 3_600_000
"""Milliseconds of the server's clock beyond this process's steady one after which the machine has stood still: a clock
that never steps back does not count while a machine sleeps. Retention is 24 hours at least."""

_DESCRIBED_FOR = 10.0
"""Seconds for which a description of a stream is used: an account has few DescribeStreamSummary calls a second."""


class Listings:
    """Keeps the shards of a state up to date with its streams.

    Args:
        state: of the source.
        probe: how often it has seen an open shard end.
        options: `describeShardInterval`.
        clock: seconds that never step back; the streams have just been described.
        rng: for the jitter, with which an interval is longer: queries started together do not list together for ever.

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
        self._asked = clock()
        self._ended_open = 0
        self.is_current = True

    def find_arrival_bound(self) -> int:
        """Return a time, in epoch milliseconds by the server's clock, by which all present records had arrived.

        Raises:
            StreamRecreatedError: a stream was deleted and created again.
        """
        # A run that drains from its start has just described them.
        self.describe(_AGAIN)
        return self._state.streams.bound_now(self._clock())

    def describe(self, longest: float = _DESCRIBED_FOR) -> bool:
        """Describe the streams, unless that was tried less than `longest` seconds ago; return whether they could be.

        A stream that was deleted and created again shows only here where reading starts at a time, or at the oldest
        record: in any stream that is a position. To delete and create one takes longer than such a description is used.

        Raises:
            StreamRecreatedError: a stream was deleted and created again.
        """
        now = self._clock()
        if now - self._asked < longest:
            return True
        self._asked = now
        try:
            self._state.streams.describe_again(self._state.shards.active, now)
        except (ThrottledError, Unavailable) as error:
            log.warning("cannot describe the streams now, continuing with what is known of them: %s", error)
            return False
        return True

    def watch(self, before: Shards, event: ShardEvent, after: Shards) -> None:
        """Note the shards that were read to their end: what comes after them is to be listed."""
        if isinstance(event, BatchSettled) and not after.childless.isdisjoint(event.ended):
            self._next = -math.inf

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
        ends, self._ended_open = self._probe.ended_open - self._ended_open, self._probe.ended_open
        if self._clock() < self._next and not ends:
            return
        interval = self._interval if self.is_current else min(self._interval, _AGAIN)
        self._next = self._clock() + interval * self._rng.uniform(1.0, 1.2)
        self.describe()
        try:
            # A listing of new shards is cheap; shards that retention removed are not urgent.
            everything = self._clock() >= self._all_next
            self._state.list_shards(everything=everything)
        except (ThrottledError, Unavailable) as error:
            log.warning("cannot list the shards now, continuing with the known ones: %s", error)
            return
        self.is_current = True
        if everything:
            self._all_next = self._clock() + _ALL_EVERY * self._rng.uniform(1.0, 1.2)
        self._state.note_at_tip(self._state.sights)
        self._state.sights = self._state.lister.check_retention(self._state.shards, self._state.sights)

    def check_changed_shards(self, sights: Sights) -> bool | None:
        """Return whether another listing explains that a shard cannot be looked at; None if that is not known now.

        Raises:
            StreamRecreatedError: a stream was deleted and created again.
            DataLossError: with `failOnDataLoss`, a shard was removed that was not read to its end.
        """
        before = self._state.shards.lineage
        try:
            # The stream may be another one by now: describing it shows that, and what to do.
            if not self._check_retention(sights):
                return None
            # Retention removes shards between two listings: the next listing shows whether that is a loss.
            self._state.list_shards(everything=True)
        except (ThrottledError, Unavailable) as error:
            log.warning("cannot find out now why a shard cannot be read, trying again: %s", error)
            return None
        return self._state.shards.lineage != before

    def check_standstill(self, before: Sights) -> None:
        """Check the retention if the machine has stood still until the last looks; `before`: as of before them.

        A look that finds a shard's tip would otherwise say that nothing of it was lost.

        Raises:
            DataLossError: with `failOnDataLoss`, records have expired unread.
        """
        if self._state.sights.newest > self._state.streams.bound_now(self._clock()) + _STOOD_STILL_MS:
            self._check_retention(before)

    def _check_retention(self, before: Sights) -> bool:
        self._state.note_at_tip(before)
        if not self.describe(0):
            self._state.sights = self._state.sights.forget_looks(before)
            return False
        self._state.sights = self._state.lister.check_retention(self._state.shards, self._state.sights)
        return True

    def choose_unread(self, standings: Mapping[str, Standing]) -> dict[str, Position]:
        """Return now and then the shards that are not read and whose next record was not seen yet: its age is the lag.

        `standings`: of the shards that may be looked at otherwise than at their pace.
        """
        now, shards, sights, due = self._clock(), self._state.shards, self._state.sights, {}
        # One that was read meanwhile waits anew.
        again: dict[str, float | None] = {s: None for s, one in sights.by_shard.items() if one.look_again}
        for shard, standing in standings.items():
            looks, state, sight = standing.looks, shards.states[shard], sights.of(shard)
            if looks in _EVERY:
                look = sight.look
                here = look if look is not None and look.position == state.position else None
                at_end = here is not None and here.is_end
                every = _EVERY[Looks.SELDOM if at_end else looks]
                at = sight.look_again or now + (0 if looks is Looks.UNTIL_KNOWN else every)
                known = here is not None and here.more and not at_end
                if not known and now >= at:
                    at, due[shard] = now + every, state.position
                again[shard] = at
        self._state.sights = sights.put({s: replace(sights.of(s), look_again=at) for s, at in again.items()})
        return due
