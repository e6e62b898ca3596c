"""Notices others who subscribe with this query's enhanced fan-out consumers. Pure, but for a line in the log."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping

from kinesis_trident.checkpoint.model.nodes import Subscribing
from kinesis_trident.spout.planner.settling.shard_events import BatchSettled, ShardEvent
from kinesis_trident.spout.planner.shards.source_shards import Shards

log = logging.getLogger(__name__)

_HELD_MS = 5_000
"""Milliseconds from the start of a subscription in which Kinesis refuses another one."""

_BATCHES = 3
"""Batches with a stranger's subscription that show another reader: one can be of a task that died before its pin."""

_WITHIN_MS = 10 * 60_000
_SAID_AGAIN_MS = 5 * 60_000


class ConsumerWatch:
    """Sees by the turns of settled batches who else subscribes to their shards.

    A turn is refused if a subscription is less than 5 seconds old. The query may have begun it itself, in another
    process; if it has begun none for so long, somebody else did.

    Attributes:
        taken: when that was last seen, in epoch milliseconds; None for never.
    """

    def __init__(self) -> None:
        self.taken: int | None = None
        self._first: int | None = None
        self._settled = 0
        self._begun: dict[str, int] = {}
        self._seen: deque[int] = deque(maxlen=_BATCHES)
        self._told = 0

    def watch(self, before: Shards, event: ShardEvent, after: Shards) -> None:
        """See what has happened to the shards."""
        if isinstance(event, BatchSettled):
            turns = {shard: pin.subscribing for shard, pin in event.finished.pins.items() if pin.subscribing}
            self.note_batch(turns, event.now)

    def is_held(self, shard: str, now: int) -> bool:
        """Return whether a turn of this query, or one that took its place, has subscribed less than 5 seconds ago."""
        begun = self._begun.get(shard)
        return begun is not None and now - begun < _HELD_MS

    def note_batch(self, turns: Mapping[str, int], now: int) -> None:
        """Note how the turns of a batch subscribed, by shard, and when it was settled, in epoch milliseconds."""
        if self._first is None:
            # A run before this one may have read this batch, and begun subscriptions until now.
            self._first = now
        elif any(self._is_strange(shard, turn, self._first) for shard, turn in turns.items()):
            self._note(now)
        for shard, turn in turns.items():
            if turn in (Subscribing.BEGUN, Subscribing.TAKEN):
                self._begun[shard] = now
        self._settled = now

    def _is_strange(self, shard: str, subscribing: int, first: int) -> bool:
        """Return whether a turn that was read after the last settled batch met another reader's subscription."""
        own = self._begun.get(shard, first)
        return subscribing == Subscribing.TAKEN or (
            subscribing == Subscribing.REFUSED and self._settled - own > _HELD_MS
        )

    def _note(self, now: int) -> None:
        self._seen.append(now)
        if len(self._seen) < _BATCHES or now - self._seen[0] > _WITHIN_MS:
            return
        self.taken = now
        if now - self._told >= _SAID_AGAIN_MS:
            self._told = now
            log.warning(
                "another reader subscribes with the consumer of this query, which polls meanwhile. Give each "
                "application a consumer of its own: another consumerName, or another consumerARN"
            )
