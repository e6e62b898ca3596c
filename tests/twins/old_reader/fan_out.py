"""Reads one shard by subscriptions (enhanced fan-out) and renews them; every record once, in order.

"Develop enhanced fan-out consumers" and SubscribeToShard in the Amazon Kinesis Data Streams documentation: a
subscription lasts 5 minutes and is renewed from the last continuation; a consumer has one subscription to a shard at a
time, and a new one only 5 seconds after the last. A thread of its own reads its events, into a bounded buffer.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
from twins.old_reader.closing import Closing
from twins.old_reader.polling import ShardCalls, ShardPager

from kinesis_trident.checkpoint.model.nodes import Subscribing
from kinesis_trident.spout.kinesis import InUseError, KinesisError, Page, ThrottledError, Unavailable
from kinesis_trident.spout.kinesis.rate_limit import full_jitter
from kinesis_trident.spout.kinesis.record_batches import select_from
from kinesis_trident.spout.positions import After, Position
from kinesis_trident.spout.reader.fan_out import BufferedEvents, FanOut, LeftEvent, event_memory
from kinesis_trident.tracker.records import RecordPosition


class SubscriptionPager(ShardPager):
    """Reads one shard forward by SubscribeToShard, turn after turn, while its subscription stays open in between.

    Events that arrived before a turn say nothing about the shard's tip during it: the turn takes their records, but
    only a later event, or one with records, shows the tip.

    Args:
        fan_out: the calls, the consumer, and the bytes of events that the process buffers.
        stream, shard, position, closing, deaggregate, calls: see `ShardPager`.
        clock: seconds of any one clock.

    Attributes:
        in_use: another reader has the consumer's subscription, or had it less than 5 seconds ago.
    """

    def __init__(
        self,
        fan_out: FanOut,
        stream: str,
        shard: str,
        position: Position,
        closing: Closing,
        *,
        deaggregate: bool = True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        calls: ShardCalls | None = None,
    ) -> None:
        super().__init__(stream, shard, position, closing, deaggregate=deaggregate, calls=calls)
        # Not all of it: the subscriptions that it keeps open are pagers like this one.
        self._subscriber, self._consumer = fan_out.subscriber, fan_out.consumer
        self._most, self._rng = fan_out.most, fan_out.rng
        self._clock = clock
        self._sleep = sleep
        self._events: BufferedEvents | None = None
        self._start = position
        self._silent = True
        # Events that had arrived when the turn began and are still to be taken; below 0 after a later one.
        self._earlier = 0
        self._given = False
        self._overtaken = False
        self._failures = 0
        self._free = -math.inf
        self.in_use = False

    @property
    def at_tip(self) -> bool:
        """Return whether the last event reached the tip, of which this turn knows."""
        return super().at_tip and not self.waiting and (self._given or self._earlier < 0)

    @property
    def waiting(self) -> int:
        """Return the number of events that have arrived and were not taken."""
        return self._events.waiting if self._events is not None else 0

    @property
    def may_stay_open(self) -> bool:
        """Return whether a later turn can go on with the subscription."""
        return self._events is not None and self._events.is_open and not self.drained

    def leave(self) -> None:
        """End a turn, and keep the subscription open for the next one, with what the turn has left of an event."""
        assert self._events is not None
        self._start, self.page = self._resume, None
        if self._left is not None:
            page, records = self._left
            self._left = replace(page, records=records), records
        self._events.leave(LeftEvent(self._left, self._rest))
        self._left = self._rest = None

    def go_on(self, position: Position, closing: Closing, calls: ShardCalls) -> None:
        """Begin the next turn of the shard with the subscription that was kept open.

        Its events up to `position` other processes have read meanwhile.
        """
        assert self._events is not None
        self._closing, self._calls = closing, calls
        self._left, self._rest = self._events.use()
        self._overtaken = _is_before(self.position, position)
        if self._overtaken:
            self.position = self._start = position
            self._left = None
        elif self._left is not None:
            page, records = self._left
            self._left = page, select_from(records, position)
        self._given = False
        self._earlier = self._events.waiting

    def next(self, limit: int, patience: float = math.inf) -> pa.RecordBatch | None:
        """See `ShardPager.next`: the next event, whatever its size. A subscription that has ended is renewed there."""
        part = self._next_part()
        if part is None:
            part = self._next_event(self._clock() + patience)
        self._given = self._given or (part is not None and part.num_rows > 0)
        if self._overtaken and not self._given and self.page is not None and self.page.records.num_rows:
            # What others have read arrives late: it does not show the tip either.
            self._earlier = max(self._earlier, 0)
        return part

    def _next_event(self, deadline: float) -> pa.RecordBatch | None:
        try:
            page = self._next_page(deadline)
            # An event that cannot be processed arrives again with the next subscription.
            records = None if page is None else self._take(page)
        except (ThrottledError, Unavailable) as error:
            self._give_up()
            if isinstance(error, InUseError) and not self.in_use:
                self.in_use = True
                self._calls.subscribing = Subscribing.TAKEN
            self._calls.throttles += isinstance(error, ThrottledError) and not self.in_use
            if self._clock() >= deadline:
                return None
            raise self._locate_error(error) from error
        except KinesisError as error:
            self.close()
            raise self._locate_error(error) from error
        if records is not None:
            self._failures = 0
        return records

    def close(self) -> None:
        """End the subscription, if there is one; the next read begins another."""
        self._left = self._rest = None
        if self._events is not None:
            self._events.close()
            self._events = None

    def _next_page(self, deadline: float) -> Page | None:
        while True:
            if self._events is None:
                wait = max(0.0, self._free - self._clock())
                if self._clock() + wait > deadline:
                    return None
                if wait:
                    self._sleep(wait)
                self._events = self._subscribe()
                self._silent = True
                self._earlier = 0
            try:
                page = self._events.next(min(deadline - self._clock(), threading.TIMEOUT_MAX))
            except TimeoutError:
                return None
            if page is not None:
                self._silent = False
                self._earlier -= 1
                return page
            if self._silent:
                msg = "the subscription ended without an event"
                raise Unavailable(msg)
            self.close()

    def _subscribe(self) -> BufferedEvents:
        try:
            found = self._subscriber.subscribe(self._consumer, self._shard, str(self._resume))
        except InUseError:
            self.in_use = True
            # After one of its own the turn can be refused for that one.
            self._calls.subscribing = self._calls.subscribing or Subscribing.REFUSED
            raise
        self.in_use = False
        self._calls.subscribing = max(self._calls.subscribing, Subscribing.BEGUN)
        return BufferedEvents(found, event_memory(), self._most)

    @property
    def _resume(self) -> Position:
        """Return the position of the next subscription: the continuation also covers empty events."""
        if self.page is None:
            return self._start
        if self.page.next_iterator is not None:
            return After(RecordPosition(self.page.next_iterator))
        return self.position

    def _give_up(self) -> None:
        self.close()
        self._failures += 1
        self._free = self._clock() + full_jitter(self._failures, self._rng)


def _is_before(one: Position, other: Position) -> bool:
    return isinstance(one, After) and isinstance(other, After) and one.record < other.record
