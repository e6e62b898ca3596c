"""Knows which shards have new records, from their last turns or from looks at their tips."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping

from twins.old_sight.look_pace import IDLE_MS, LookPace, TurnCalls

from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.positions import Position

_TRUST_MS = 10_000
"""The milliseconds for which a look that found something stays valid.

A look reads a record, and one of 10 MiB blocks the shard for 5 seconds. If the turn after it is refused for that,
another look would cause the refusal of the next turn too, for ever.
"""


class TipWatch:
    """The knowledge about each shard's tip.

    Times are milliseconds, given by the caller, of a clock that never steps back.

    Attributes:
        closed: the shards that were listed as closed: such a one has an end, and no tip.
    """

    def __init__(self, pace: LookPace | None = None) -> None:
        self.closed: Container[str] = ()
        self._pace = pace or LookPace()
        self._more: dict[str, bool | None] = {}
        self._looked: dict[str, int] = {}
        self._found: dict[str, int] = {}
        self._draining = False
        self._at_tip: set[str] = set()
        self._beyond: set[str] = set()
        self._until = 0

    def forget(self, shards: Collection[str]) -> None:
        """Drop what is known of shards that are gone."""
        for known in (self._more, self._looked, self._found):
            for shard in shards:
                known.pop(shard, None)
        self._at_tip.difference_update(shards)
        self._beyond.difference_update(shards)

    def stop_at_tip(self, until: int) -> None:
        """From now on, stop reading a shard once it is at its tip, or was read beyond `until`.

        `until` is in epoch milliseconds by the server's clock. A shard that receives records as fast as they are read
        never reaches its tip. A closed shard is read to its end: its children may have records from before.
        """
        self._draining = True
        self._until = until
        self._at_tip, self._beyond = set(), set()

    def go_on(self) -> None:
        """Read on after `stop_at_tip`."""
        self._draining = False
        self._at_tip, self._beyond = set(), set()

    def due_looks(self, positions: Mapping[str, Position], now: int) -> dict[str, Position]:
        """Return the shards of which it is not known whether they have more, and that may be looked at now.

        Not all of them need be looked at: those that were left out the last time come first.
        """
        due = {
            shard: at
            for shard, at in positions.items()
            if not self._more.get(shard) and self._pace.next_look(shard, now) <= now
        }
        for shard in [shard for shard in due if now - self._found.get(shard, -_TRUST_MS) < _TRUST_MS]:
            del due[shard]
            self._note(shard, True, now)
        return dict(sorted(due.items(), key=lambda pair: self._looked.get(pair[0], 0)))

    def note_looks(self, found: Mapping[str, bool | None], now: int, *, ahead: bool = False) -> None:
        """Learn what looks at the shards have found, at the positions where they stand now.

        `ahead`: the looks were made beside the batch before, which has told the pace.
        """
        for shard, more in found.items():
            if not ahead:
                self._pace.note_look(shard, now, found=more)
            self._note(shard, more, now)
            if more:
                self._found[shard] = now

    def find_shards_to_read(self, positions: Mapping[str, Position]) -> list[str]:
        """Return the shards known to have something new at their positions."""
        return sorted(shard for shard in positions if self._more.get(shard))

    def has_more(self, shard: str) -> bool:
        """Return whether a shard is known to have something new at its position."""
        return bool(self._more.get(shard))

    def note_batch(
        self,
        plan: Plan,
        states: Mapping[str, ShardState],
        now: int,
        *,
        replayed: bool = False,
        calls: Mapping[str, TurnCalls] | None = None,
    ) -> None:
        """Learn from a settled batch: at the tip, more to come, or unknown (nothing read, for example throttled).

        If the position has not moved, `seen` may come from an earlier turn, so another look must follow. The same holds
        if the batch was `replayed`: its turns saw the tip as it was before a crash, or before draining began.
        To `stop_at_tip` what was seen before it says nothing. `calls`: those of each turn.
        """
        for shard, count in (calls or {}).items():
            self._pace.note_calls(shard, now, count, plan.txid)
        if self._draining:
            nodes = {shard: states[shard].checkpoint for shard in plan.read}
            self._beyond |= {s for s, node in nodes.items() if node and (node.arrival or 0) > self._until}
        if replayed:
            for shard in plan.read:
                self._more.pop(shard, None)
                self._found.pop(shard, None)
            return
        for shard in plan.read:
            node = states[shard].checkpoint
            if node is not None:
                moved = node.position != plan.positions[shard]
                if moved:
                    self._found.pop(shard, None)
                self._pace.note_turn(shard, now, moved=moved)
                early = self._draining and node.seen is not None and node.seen < self._until
                self._note(shard, node.seen is None if moved and not early else None, now)

    def next_look(self, positions: Mapping[str, Position], now: int) -> int:
        """Return the time of the next look; shards known to have more, even if they may not be read, need none."""
        due = [self._pace.next_look(shard, now) for shard in positions if not self._more.get(shard)]
        return min(due, default=now + IDLE_MS)

    @property
    def drained(self) -> set[str]:
        """Return the shards that have been read as far as `stop_at_tip` says."""
        return self._beyond.union(shard for shard in self._at_tip if shard not in self.closed)

    def _note(self, shard: str, more: bool | None, now: int) -> None:
        self._more[shard] = more
        self._looked[shard] = now
        if more is False and self._draining:
            self._at_tip.add(shard)
