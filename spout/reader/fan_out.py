"""Reads one shard by subscriptions (enhanced fan-out) and renews them; every record once, in order.

"Develop enhanced fan-out consumers" and SubscribeToShard in the Amazon Kinesis Data Streams documentation: a
subscription lasts 5 minutes and is renewed from the last continuation; a consumer has one subscription to a shard at a
time, and a new one only 5 seconds after the last.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from kinesis_trident.spout.kinesis import InUseError, KinesisError, Page, ThrottledError, Unavailable
from kinesis_trident.spout.kinesis.closing import Closing
from kinesis_trident.spout.kinesis.rate_limit import full_jitter
from kinesis_trident.spout.positions import After, Position
from kinesis_trident.spout.reader.polling import ShardCalls, ShardPager
from kinesis_trident.tracker.records import RecordPosition

__all__ = ["RESUBSCRIBE_SECONDS", "Subscriber", "Subscription", "SubscriptionPager"]

RESUBSCRIBE_SECONDS = 5.0
"""Seconds after the start of a subscription during which the consumer gets no other one to the shard."""

_IN_USE_PATIENCE = 15.0
"""Seconds to wait for a subscription that another reader holds before the turn ends."""

_IN_USE_PERIOD = 1.0
"""Seconds between calls: a consumer may call SubscribeToShard once a second for a shard."""

_SILENCE = 30.0
"""Seconds without an event, not even an empty one, after which a subscription is dead."""


class Subscription(Protocol):
    """The events of one subscription; unusable after an error."""

    def next(self, seconds: float) -> Page | None:
        """Wait for the next event, at most `seconds` (else raise Unavailable); None when it has ended normally."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Subscriber(Protocol):
    """Creates subscriptions."""

    def subscribe(self, consumer: str, shard: str, position: str) -> Subscription:
        """Subscribe a consumer (its ARN) to a shard from a position in the text form of `spout.positions`."""
        ...


class SubscriptionPager(ShardPager):
    """Reads one shard forward by SubscribeToShard.

    The subscription is closed at the end of each turn. Keeping it would need the same worker process, which Spark does
    not guarantee, and events that wait in the socket say nothing about the shard's current tip.

    Args:
        subscriber: the calls.
        consumer: its ARN.
        stream, shard, position, closing, deaggregate, calls: see `ShardPager`.
        clock: seconds of any one clock.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        consumer: str,
        stream: str,
        shard: str,
        position: Position,
        closing: Closing,
        *,
        deaggregate: bool = True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
        calls: ShardCalls | None = None,
    ) -> None:
        super().__init__(stream, shard, position, closing, deaggregate=deaggregate, calls=calls)
        self._subscriber = subscriber
        self._consumer = consumer
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._subscription: Subscription | None = None
        self._silent = True
        self._failures = 0
        self._free = -math.inf

    def next(self, limit: int, patience: float = math.inf) -> pa.RecordBatch | None:
        """See `ShardPager.next`: the next event, whatever its size.

        A subscription that has ended is renewed where it ended; waiting for another reader's one counts as a throttle.
        """
        part = self._next_part()
        if part is not None:
            return part
        deadline = self._clock() + patience
        try:
            page = self._next_page(deadline)
            # An event that cannot be processed arrives again with the next subscription.
            records = None if page is None else self._take(page)
        except (ThrottledError, Unavailable) as error:
            self._give_up()
            self._calls.throttles += isinstance(error, ThrottledError)
            if self._clock() >= deadline:
                return None
            raise self._located(error) from error
        except KinesisError as error:
            self.close()
            raise self._located(error) from error
        if records is not None:
            self._failures = 0
        return records

    def close(self) -> None:
        """End the subscription, if there is one; the next read begins another."""
        self._rest = None
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    def _next_page(self, deadline: float) -> Page | None:
        while True:
            if self._subscription is None:
                self._subscription = self._subscribe(deadline)
                if self._subscription is None:
                    return None
                self._silent = True
            page = self._subscription.next(min(_SILENCE, deadline - self._clock()))
            if page is not None:
                self._silent = False
                return page
            if self._silent:
                msg = "the subscription ended without an event"
                raise Unavailable(msg)
            self.close()

    def _subscribe(self, deadline: float) -> Subscription | None:
        """Begin a subscription; None if that is not possible before the deadline."""
        given_up = self._clock() + _IN_USE_PATIENCE
        while True:
            wait = max(0.0, self._free - self._clock())
            if self._clock() + wait > deadline:
                return None
            if wait:
                self._sleep(wait)
            try:
                return self._subscriber.subscribe(self._consumer, self._shard, str(self._resume))
            except InUseError:
                if self._clock() >= given_up:
                    raise
                self._free = self._clock() + _IN_USE_PERIOD * (1 + self._rng.random())

    @property
    def _resume(self) -> Position:
        """Return the position of the next subscription: the continuation also covers empty events."""
        if self.page is not None and self.page.next_iterator is not None:
            return After(RecordPosition(int(self.page.next_iterator)))
        return self.position

    def _give_up(self) -> None:
        self.close()
        self._failures += 1
        self._free = self._clock() + full_jitter(self._failures, self._rng)
