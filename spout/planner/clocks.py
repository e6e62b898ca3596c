"""The clocks and threads of a run, the wait of an idle source, and the repair of times set by a clock ahead."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from kinesis_trident.checkpoint.model.nodes import InflightNode
from kinesis_trident.tracker.retry import delay_asked

_AWAY = 0.1
"""Seconds from an answer to Spark's next call, of which more say that Spark waits for its trigger."""

_SOON, _LATER = 1, 60
"""Calls that wait before the next one that does not: after Spark has been waiting, and otherwise."""


class SteadyClock:
    """Epoch milliseconds that never step back. Thread-safe.

    If the wall clock steps back, time continues from its latest value at the pace of the monotonic clock: what is due
    in a second stays due in a second.

    Args:
        wall: epoch seconds.
        steady: seconds of a clock that never steps back.
    """

    def __init__(self, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self._wall = wall
        self._steady = steady
        self._lock = threading.Lock()
        # The wall clock first, here and below: a pause between the two would make this one fast, for ever.
        self._latest, self._read_at = wall(), steady()

    def __call__(self) -> int:
        """The time."""
        with self._lock:
            wall, read_at = self._wall(), self._steady()
            self._latest = max(wall, self._latest + read_at - self._read_at)
            self._read_at = read_at
            return int(self._latest * 1000)


def run_in_thread(step: Callable[[], float | None], wake: threading.Event) -> None:
    """Call steps in a thread of their own: see `Surroundings.beside`."""

    def work() -> None:
        while (seconds := step()) is not None:
            wake.wait(seconds)
            wake.clear()

    threading.Thread(target=work, name="prefetch", daemon=True).start()


@dataclass(frozen=True)
class Surroundings:
    """What a run uses of its process.

    Attributes:
        clock: epoch seconds; it may step back.
        steady: seconds that never step back, for all that is waited for.
        rng: for jitter and the marks of plans.
        hold: seconds that `latest` waits for something to do before Spark gets a chance to stop the query; less with a
            trigger interval.
        look_period: seconds between two looks at the tip of an idle shard; `idlePollInterval` if None.
        wait: waits until an event is set, at most so many seconds of `clock`; says whether it was.
        executor: reads ahead, and removes what settled batches leave; None for threads of its own.
        reconnect: gives another started KazooClient, for a note after the run's is closed; of the options if None.
        status_period: seconds between two notes in ZooKeeper of what the run sees; None for none.
        beside: reads ahead, with `prefetch`: calls a function again and again beside its caller, until it returns None.
            Each time it waits for as many seconds as the function has said, or until the event is set, and clears that.
    """

    clock: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic
    rng: random.Random = field(default_factory=random.Random)
    hold: float = 1.0
    look_period: float | None = None
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait
    executor: Executor | None = None
    reconnect: Callable[[], Any] | None = None
    status_period: float | None = 5.0
    beside: Callable[[Callable[[], float | None], threading.Event], object] = run_in_thread

    @cached_property
    def now(self) -> SteadyClock:
        """Epoch milliseconds that never step back."""
        return SteadyClock(self.clock, self.steady)

    def steady_ms(self) -> int:
        """Return the time of `steady` in milliseconds."""
        return int(self.steady() * 1000)


class IdleWait:
    """How long a call for the next offset waits while there is nothing to do.

    Spark calls an idle source again after 10 ms, so the source waits in the call. With a trigger interval Spark waits
    itself, and warns of each call that takes longer than the interval (`ProcessingTimeExecutor`: "falling behind").
    Nothing tells a source its trigger. So the first idle call does not wait, nor does one now and then, and the time
    until the next one shows whether Spark does; as long as it does, no call waits.

    Args:
        seconds: of a wait.

    Attributes:
        between: the seconds from the end of the last call to the beginning of this one, with a batch or without; 0 for
            the first.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until_try = 0
        self._is_away = self._left = False
        self.between = 0.0
        self._ended: float | None = None

    def begin(self, now: float) -> float:
        """Return the seconds that the call which begins now waits at most."""
        self.between = 0.0 if self._ended is None else now - self._ended
        if self._left:
            before, self._is_away = self._is_away, self.between > _AWAY
            self._until_try = _SOON if before or self._is_away else _LATER
            self._left = False
        return 0.0 if self._leaves else self._seconds

    def end(self, now: float, *, idle: bool) -> None:
        """Note that the call ends now; `idle`: with nothing to do."""
        self._ended = now
        if idle and self._leaves:
            self._left = True
        elif idle:
            self._until_try -= 1

    @property
    def _leaves(self) -> bool:
        return self._is_away or self._until_try <= 0


def correct_due_times(inflight: InflightNode, now: int, longest_delay: int, timeout: int) -> InflightNode:
    """Return the records in flight with implausibly late times corrected. Pure; times are milliseconds.

    Another process has set these times, by a clock that may have been hours ahead of `now`. A retry that is due later
    than the longest delay from now, or than its failure has asked for, becomes due; an ack with more than two timeouts
    left (clocks differ) gets one.
    """
    waiting = tuple(
        msgspec.structs.replace(run, due=now)
        if run.due > now + max(longest_delay, delay_asked(run.failures))
        else run
        for run in inflight.waiting
    )
    pending = tuple(
        msgspec.structs.replace(run, due=now + timeout) if run.due > now + 2 * timeout else run
        for run in inflight.pending
    )
    if (waiting, pending) == (inflight.waiting, inflight.pending):
        return inflight
    return msgspec.structs.replace(inflight, waiting=waiting, pending=pending)
