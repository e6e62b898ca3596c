"""Notices others who subscribe with this query's enhanced fan-out consumers. Pure, but for a line in the log."""

from __future__ import annotations

import logging
from collections import deque

from kinesis_trident.checkpoint.model.nodes import Subscribing
from kinesis_trident.spout.planner.settling.shard_events import BatchSettled, ShardEvent
from kinesis_trident.spout.planner.sight import HELD_MS, Sights

log = logging.getLogger(__name__)

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
        self._seen: deque[int] = deque(maxlen=_BATCHES)
        self._told = 0

    def watch(self, event: ShardEvent, sights: Sights) -> None:
        """See how the turns of a batch subscribed; `sights`: of before it was settled."""
        if not isinstance(event, BatchSettled) or not event.is_whole:
            return
        turns = ((shard, pin.subscribing) for shard, pin in event.finished.pins.items() if pin.subscribing)
        if self._first is None:
            # A run before this one may have read this batch, and begun subscriptions until now.
            self._first = event.now
        elif any(self._is_strange(sights.of(shard).subscribed or self._first, turn) for shard, turn in turns):
            self._note(event.now)
        self._settled = event.now

    def _is_strange(self, own: int, turn: int) -> bool:
        """Return whether a turn met another reader's subscription; `own`: when one of this query was seen last."""
        refused = turn == Subscribing.REFUSED and self._settled - own > HELD_MS
        return turn == Subscribing.TAKEN or refused

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
