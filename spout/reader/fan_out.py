"""Event after event of one shard by a subscription (enhanced fan-out): begun, renewed, every record once, in order.

"Develop enhanced fan-out consumers" and SubscribeToShard in the Amazon Kinesis Data Streams documentation: a
subscription lasts 5 minutes and is renewed from the last continuation; a shard gives a consumer one at a time, and a
new one only 5 seconds after the last.
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
from kinesis_trident.spout.reader.polling import ShardPager
from kinesis_trident.tracker.records import RecordPosition

__all__ = ["RESUBSCRIBE_SECONDS", "Subscriber", "Subscription", "SubscriptionPager"]

RESUBSCRIBE_SECONDS = 5.0
"""How long after a subscription began the same consumer gets no other one to the shard."""

_IN_USE_PATIENCE = 15.0
"""Seconds of waiting for a subscription that somebody else holds before the turn ends."""

_IN_USE_PERIOD = 1.0
"""A consumer may make one SubscribeToShard call a second to a shard."""

_SILENCE = 30.0
"""Seconds without an event, not even an empty one, after which a subscription is dead."""


class Subscription(Protocol):
    """The events of one subscription; of no more use after an error."""

    def next(self, seconds: float) -> Page | None:
        """The next event, waited for at most so long (then Unavailable is raised); None when it has ended in order."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Subscriber(Protocol):
    """Where subscriptions come from."""

    def subscribe(self, consumer: str, shard: str, position: str) -> Subscription:
        """Subscribe a consumer (its ARN) to a shard from a position in the text form of `spout.positions`."""
        ...


class SubscriptionPager(ShardPager):
    """Reads one shard forward by SubscribeToShard.

    It is closed at the end of each turn. To keep it for the next one would need the same worker process, which Spark
    does not promise, and what waits in the socket meanwhile says nothing about the shard's tip by then.

    Args:
        subscriber: the calls.
        consumer: its ARN.
        stream, shard, position, closing, deaggregate: see `ShardPager`.
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
    ) -> None:
        super().__init__(stream, shard, position, closing, deaggregate=deaggregate)
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

        A subscription that has ended is renewed where it ended; that another one is waited for counts as a throttle.
        """
        part = self._next_part()
        if part is not None:
            return part
        deadline = self._clock() + patience
        try:
            page = self._next_page(deadline)
            # An event that cannot be taken comes again with the next subscription.
            records = None if page is None else self._take(page)
        except (ThrottledError, Unavailable) as error:
            self._give_up()
            if self._clock() >= deadline:
                return None
            raise self._said(error) from error
        except KinesisError as error:
            self.close()
            raise self._said(error) from error
        if records is not None:
            self._failures = 0
        return records

    def close(self) -> None:
        """End the subscription, if there is one; reading on begins another."""
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
        """A new subscription; None when it would come after the deadline."""
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
        """Where a subscription goes on: the continuation also counts what had no records."""
        if self.page is not None and self.page.next_iterator is not None:
            return After(RecordPosition(int(self.page.next_iterator)))
        return self.position

    def _give_up(self) -> None:
        self.close()
        self._failures += 1
        self._free = self._clock() + full_jitter(self._failures, self._rng)
