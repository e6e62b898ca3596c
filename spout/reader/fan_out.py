"""Reads one shard by subscriptions (enhanced fan-out) and renews them; every record once, in order.

"Develop enhanced fan-out consumers" and SubscribeToShard in the Amazon Kinesis Data Streams documentation: a
subscription lasts 5 minutes and is renewed from the last continuation; a consumer has one subscription to a shard at a
time, and a new one only 5 seconds after the last. A thread of its own reads its events, into a bounded buffer.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import pyarrow as pa

from kinesis_trident.checkpoint.model.nodes import Subscribing
from kinesis_trident.common.per_process import PerProcess
from kinesis_trident.spout.kinesis import InUseError, KinesisError, Page, ThrottledError, Unavailable
from kinesis_trident.spout.kinesis.rate_limit import full_jitter
from kinesis_trident.spout.kinesis.record_batches import select_from
from kinesis_trident.spout.positions import After, Position
from kinesis_trident.spout.reader.answers import LATE, Closing, Denied, ShardAnswer
from kinesis_trident.spout.reader.polling import ShardCalls, ShardPager
from kinesis_trident.tracker.records import RecordPosition


class Subscriber(Protocol):
    """Creates subscriptions."""

    def subscribe(self, consumer: str, shard: str, position: str) -> Subscription:
        """Subscribe a consumer (its ARN) to a shard from a position in the text form of `spout.positions`."""
        ...


class SubscriptionPager(ShardPager):
    """Reads one shard forward by SubscribeToShard, turn after turn, while its subscription stays open in between.

    Events that arrived before a turn say nothing about the shard's tip during it: the turn takes their records, but
    only a later event, or one with records, shows the tip.

    Args:
        fan_out: the calls, the consumer, and the bytes of events that the process buffers.
        closing, position, deaggregate, calls: see `ShardPager`.
        clock: seconds of any one clock.

    Attributes:
        in_use: another reader has the consumer's subscription, or had it less than 5 seconds ago.
    """

    def __init__(
        self,
        fan_out: FanOut,
        closing: Closing,
        position: Position,
        *,
        deaggregate: bool = True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        calls: ShardCalls | None = None,
    ) -> None:
        super().__init__(closing, position, deaggregate=deaggregate, calls=calls)
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
    def waiting(self) -> int:
        """Return the number of events that have arrived and were not taken."""
        return self._events.waiting if self._events is not None else 0

    @property
    def may_stay_open(self) -> bool:
        """Return whether a later turn can go on with the subscription."""
        return self._events is not None and self._events.is_open

    def leave(self) -> None:
        """End a turn, and keep the subscription open for the next one, with what the turn has left of an event."""
        assert self._events is not None
        self._start, self._page = self._resume, None
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

    def next(self, limit: int, patience: float = math.inf) -> ShardAnswer:
        """See `ShardPager.next`: the next event, whatever its size. A subscription that has ended is renewed there."""
        if patience < 0:
            return LATE
        piece = self._next_piece()
        if piece is None:
            deadline = self._clock() + patience
            try:
                event = self._next_event(deadline)
                if event is None:
                    return LATE
                # An event that cannot be processed arrives again with the next subscription.
                piece = self._take(event)
            except (ThrottledError, Unavailable) as error:
                self._give_up()
                if isinstance(error, InUseError) and not self.in_use:
                    self.in_use = True
                    self._calls.subscribing = Subscribing.TAKEN
                self._calls.throttles += isinstance(error, ThrottledError) and not self.in_use
                return LATE if self._clock() >= deadline else Denied(self._locate_error(error))
            except KinesisError as error:
                self.close()
                raise self._locate_error(error) from error
            self._failures = 0
        page, records, is_end = piece
        self._given = self._given or records.num_rows > 0
        if self._overtaken and not self._given and page.records.num_rows:
            # What others have read arrives late: it does not show the tip either.
            self._earlier = max(self._earlier, 0)
        if is_end:
            self.close()
        return self._judge(piece)

    def _is_at_tip(self, page: Page) -> bool:
        """Return whether an event reached the tip, of which this turn knows."""
        return super()._is_at_tip(page) and not self.waiting and (self._given or self._earlier < 0)

    def close(self) -> None:
        """End the subscription, if there is one; the next read begins another."""
        self._left = self._rest = None
        if self._events is not None:
            self._events.close()
            self._events = None

    def _next_event(self, deadline: float) -> Page | None:
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
            found = self._subscriber.subscribe(self._consumer, self._closing.shard, str(self._resume))
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
        if self._page is None:
            return self._start
        if self._page.next_iterator is not None:
            return After(RecordPosition(self._page.next_iterator))
        return self.position

    def _give_up(self) -> None:
        self.close()
        self._failures += 1
        self._free = self._clock() + full_jitter(self._failures, self._rng)


def _is_before(one: Position, other: Position) -> bool:
    return isinstance(one, After) and isinstance(other, After) and one.record < other.record


class OpenSubscriptions:
    """The subscriptions of a process that are open and that no turn uses now. Thread-safe.

    Spark gives a shard to whichever worker process is free: the turns of a shard may be read by several in turns.
    """

    def __init__(self) -> None:
        self._pagers: dict[tuple[object, ...], tuple[Position, SubscriptionPager]] = {}

    def __contains__(self, key: tuple[object, ...]) -> bool:
        """Return whether there is one of a shard, though it may have ended."""
        return key in self._pagers

    def take(self, key: tuple[object, ...], position: Position) -> SubscriptionPager | None:
        """Return the one of a shard, if its events go on at this position, or before."""
        at, pager = self._pagers.pop(key, (None, None))
        if at is None or pager is None:
            return None
        if pager.may_stay_open and (at == position or _is_before(at, position)):
            return pager
        pager.close()
        return None

    def keep(self, key: tuple[object, ...], position: Position, pager: SubscriptionPager) -> None:
        """Keep the one of a shard for the turn that goes on at this position."""
        pager.leave()
        _, replaced = self._pagers.pop(key, (None, None))
        self._pagers[key] = position, pager
        if replaced is not None:
            replaced.close()


_subscriptions: PerProcess[None, OpenSubscriptions] = PerProcess()


def open_subscriptions() -> OpenSubscriptions:
    """Return those of this process: the threads that read events do not exist after a fork."""
    return _subscriptions.get(None, OpenSubscriptions)


@dataclass(frozen=True, slots=True)
class FanOut:
    """A consumer's ARN and its subscriber, which push new records, and the subscriptions that stay open.

    `most`: the bytes of events that the process buffers. `is_held`: a process of this query began a subscription less
    than 5 seconds ago, and Kinesis refuses another one. `rng`: draws the waits after a refusal.
    """

    subscriber: Subscriber
    consumer: str
    kept: OpenSubscriptions = field(default_factory=OpenSubscriptions)
    most: int = 2**25
    is_held: bool = False
    rng: random.Random = field(default_factory=random.Random)


SILENCE = 30.0
"""Seconds without an event, not even an empty one, after which a subscription is dead."""

UNUSED = 30.0
"""Seconds after which a subscription that no turn has used ends."""


class Subscription(Protocol):
    """The events of one subscription; unusable after an error."""

    def next(self, seconds: float) -> Page | None:
        """Wait for the next event, at most `seconds` (else raise Unavailable); None when it has ended normally."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class LeftEvent(NamedTuple):
    """What a turn has left of an event: records that did not fit, and a page of which parts are still to be split."""

    left: tuple[Page, pa.RecordBatch] | None = None
    rest: tuple[Page, bool] | None = None

    @property
    def size(self) -> int:
        """Return the bytes of the memory that they keep, also of records around them."""
        return sum(
            one[0].records.get_total_buffer_size() for one in (self.left, self.rest) if one is not None
        )


_NOTHING = LeftEvent()


class EventMemory:
    """The bytes of all events of a process that wait for a turn, or were left by one.

    Whoever has neither may always read one event.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.held = 0


class BufferedEvents:
    """The events of a subscription in the order of their arrival. One turn at a time uses it.

    Args:
        source: the subscription.
        memory: shared with the other subscriptions of the process.
        most: the bytes of buffered events of the process beyond which only an empty buffer is filled.
        clock: seconds of a clock that never steps back.
    """

    def __init__(
        self,
        source: Subscription,
        memory: EventMemory,
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._memory = memory
        self._most = most
        self._clock = clock
        self._events: deque[Page] = deque()
        self._left = _NOTHING
        self._end: KinesisError | None = None
        self._over = False
        self._closed = False
        self._unused_since: float | None = None
        threading.Thread(target=self._read, name="events", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Return the number of events that have arrived and were not taken."""
        return len(self._events)

    @property
    def is_open(self) -> bool:
        """Return whether more events can come."""
        return not (self._over or self._closed)

    def next(self, seconds: float) -> Page | None:
        """Return the next event; None when the subscription has ended normally.

        Raises:
            TimeoutError: none arrived within `seconds`; a later one may.
            KinesisError: the subscription has ended for this reason, after the events before.
        """
        with self._memory.changed:
            if not self._memory.changed.wait_for(lambda: self._events or self._over, max(0.0, seconds)):
                raise TimeoutError
            if self._events:
                page = self._events.popleft()
                self._memory.held -= page.records.nbytes
                self._memory.changed.notify_all()
                return page
            if self._end is not None:
                raise self._end
            return None

    def use(self) -> LeftEvent:
        """Begin to use it again; return what the turn before has left."""
        with self._memory.changed:
            self._unused_since = None
            left, self._left = self._left, _NOTHING
            self._memory.held -= left.size
            self._memory.changed.notify_all()
            return left

    def leave(self, left: LeftEvent = _NOTHING) -> None:
        """Let it collect events for a later turn, for a limited time, behind what this turn has left.

        If there is no memory for what is left, it ends: the next turn reads that again.
        """
        with self._memory.changed:
            self._unused_since = self._clock()
            self._left = left
            self._memory.held += left.size
            is_useless = self._over or (left.size > 0 and self._memory.held > self._most)
        if is_useless:
            self.close()

    def close(self) -> None:
        """Drop its events, and end it when the thread that reads them wakes: a read in progress holds its socket."""
        with self._memory.changed:
            self._closed = True
            self._memory.held -= sum(page.records.nbytes for page in self._events) + self._left.size
            self._events.clear()
            self._left = _NOTHING
            self._memory.changed.notify_all()

    def _read(self) -> None:
        try:
            while self._has_room():
                page = self._source.next(SILENCE)
                with self._memory.changed:
                    if page is None or self._closed:
                        break
                    self._events.append(page)
                    self._memory.held += page.records.nbytes
                    self._memory.changed.notify_all()
        except KinesisError as error:
            self._end = error
        finally:
            self._source.close()
            with self._memory.changed:
                self._over = True
                is_left = self._unused_since is not None
                self._memory.changed.notify_all()
            if is_left:
                # No turn goes on with one that has ended.
                self.close()

    def _has_room(self) -> bool:
        """Wait until an event may be read; False if none is wanted any more."""
        with self._memory.changed:
            while not self._closed and (self._events or self._left.size) and self._memory.held >= self._most:
                if self._is_unused():
                    break
                self._memory.changed.wait(UNUSED)
        if self._is_unused():
            self.close()
        return not self._closed

    def _is_unused(self) -> bool:
        since = self._unused_since
        return since is not None and self._clock() - since >= UNUSED


_memories: PerProcess[None, EventMemory] = PerProcess()


def event_memory() -> EventMemory:
    """Return this process's."""
    return _memories.get(None, EventMemory)
