"""Events that wait for a turn: in order, within the memory, and not for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pyarrow as pa
import pytest
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from kinesis_trident.spout.kinesis import InUseError, KinesisError, Page
from kinesis_trident.spout.reader import fan_out
from kinesis_trident.spout.reader.fan_out import UNUSED, BufferedEvents, EventMemory, LeftEvent
from kinesis_trident.spout.testing import FakeTime

EVENT = 1000


class Pushed:
    """A subscription whose events a test pushes.

    Attributes:
        asked: how often it was asked for the next event: one more than there are in the buffer, once they are.
    """

    def __init__(self) -> None:
        self.events: SimpleQueue[Page | KinesisError | None] = SimpleQueue()
        self.asked = 0
        self.closed = False

    def push(self, *numbers: int) -> None:
        for number in numbers:
            data = pa.record_batch({"data": pa.array([b"%04d" % number * (EVENT // 4)], pa.binary())})
            self.events.put(Page(data, str(number), 0, EVENT))

    def next(self, seconds: float) -> Page | None:
        self.asked += 1
        found = self.events.get()
        if isinstance(found, KinesisError):
            raise found
        return found

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def source() -> Iterator[Pushed]:
    found = Pushed()
    yield found
    found.events.put(None)


def until(condition: Callable[[], bool]) -> None:
    Retrying(stop=stop_after_delay(60), wait=wait_fixed(0.005), retry=retry_if_result(lambda done: not done))(
        condition
    )


def taken(events: BufferedEvents, count: int) -> list[str | None]:
    pages = [events.next(60) for _ in range(count)]
    return [page.next_iterator if page else None for page in pages]


def test_events_come_in_order_and_the_end_after_them(source: Pushed) -> None:
    events = BufferedEvents(source, EventMemory(), 10**9)
    source.push(1, 2)
    until(lambda: events.waiting == 2)
    source.events.put(None)
    until(lambda: not events.is_open)
    assert taken(events, 3) == ["1", "2", None]
    assert source.closed


def test_an_error_comes_after_the_events_before_it(source: Pushed) -> None:
    events = BufferedEvents(source, EventMemory(), 10**9)
    source.push(1)
    source.events.put(InUseError("taken over"))
    until(lambda: not events.is_open)
    assert taken(events, 1) == ["1"]
    with pytest.raises(InUseError, match="taken over"):
        events.next(60)


def test_nothing_in_time_is_no_end(source: Pushed) -> None:
    events = BufferedEvents(source, EventMemory(), 10**9)
    with pytest.raises(TimeoutError):
        events.next(0)
    source.push(1)
    assert taken(events, 1) == ["1"]


def test_the_memory_bounds_all_of_them_but_an_empty_one_may_always_read(source: Pushed) -> None:
    memory, other = EventMemory(), Pushed()
    events, others = BufferedEvents(source, memory, 2 * EVENT), BufferedEvents(other, memory, 2 * EVENT)
    source.push(*range(9))
    # With their offsets two of them reach the bound.
    until(lambda: events.waiting == 2)
    other.push(*range(9))
    until(lambda: others.waiting == 1)
    for number in range(9):
        until(lambda: events.waiting > 0)
        # Never more than one event of each beyond the bound.
        assert memory.held < 4 * EVENT
        assert taken(events, 1) == [str(number)]
    assert taken(others, 9) == [str(number) for number in range(9)]
    until(lambda: memory.held == 0)
    other.events.put(None)


def left_of(size: int) -> LeftEvent:
    """Return the last record of an event of so many bytes."""
    records = pa.record_batch({"data": pa.array([bytes(size - 10), bytes(10)], pa.binary())})
    return LeftEvent((Page(records.slice(1), None, 0, 10), records.slice(1)))


def test_what_a_turn_leaves_of_an_event_counts_whole_until_it_is_used(
    source: Pushed, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its use makes room at once, and not with a later look of a thread that waits.
    monkeypatch.setattr(fan_out, "UNUSED", 1e6)
    memory = EventMemory()
    events = BufferedEvents(source, memory, 2 * EVENT)
    left = left_of(EVENT)
    events.leave(left)
    assert EVENT <= memory.held == left.size < 2 * EVENT
    source.push(1, 2)
    until(lambda: events.waiting == 1)
    # There is no room for the second one.
    assert events.use() is left
    until(lambda: events.waiting == 2)
    assert taken(events, 2) == ["1", "2"]
    assert memory.held == 0


def test_what_is_left_beyond_the_memory_is_dropped_with_the_subscription(source: Pushed) -> None:
    memory, others = EventMemory(), [Pushed() for _ in range(12)]
    for other in others:
        BufferedEvents(other, memory, 4 * EVENT).leave(left_of(EVENT))
    assert memory.held <= 4 * EVENT
    for other in others:
        other.events.put(None)
    # Those that end keep nothing: no turn goes on with them.
    until(lambda: memory.held == 0)
    events = BufferedEvents(source, memory, 4 * EVENT)
    source.events.put(None)
    until(lambda: not events.is_open)
    events.leave(left_of(EVENT))
    assert memory.held == 0


def test_the_events_of_many_shards_take_the_memory_and_one_event_each() -> None:
    memory, others = EventMemory(), [Pushed() for _ in range(12)]
    for other in others:
        other.push(*range(8))
    each = [BufferedEvents(other, memory, 4 * EVENT) for other in others]
    for events in each:
        events.leave()
    until(lambda: all(events.waiting for events in each))
    with memory.changed:
        count = sum(events.waiting for events in each)
        size = memory.held // count
        assert memory.held == count * size
    # Each may have asked for an event before the others' have filled the memory.
    assert EVENT <= size < 1.1 * EVENT
    assert len(others) <= count <= 4 + len(others)
    for events in each:
        events.close()
    until(lambda: memory.held == 0)


def test_one_that_nobody_uses_ends_and_gives_its_memory_back(source: Pushed) -> None:
    memory, time = EventMemory(), FakeTime()
    events = BufferedEvents(source, memory, 10**9, clock=time)
    source.push(1)
    # Its thread looks at the clock after each event, and asks for the next one then.
    until(lambda: source.asked == 2)
    events.leave()
    time.sleep(UNUSED - 1)
    source.push(2)
    until(lambda: source.asked == 3)
    events.use()
    time.sleep(UNUSED)
    source.push(3)
    until(lambda: source.asked == 4)
    assert events.waiting == 3
    events.leave()
    time.sleep(UNUSED)
    source.push(4)
    until(lambda: source.closed)
    assert not events.is_open
    assert memory.held == 0
