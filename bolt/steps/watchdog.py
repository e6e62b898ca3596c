"""Watches the calls of users' functions: one that does not end blocks its batch, and raises nothing.

The process's timer watches, because its signal also comes while a regular expression runs, which lets no other thread
run. Without a limit the signal finds out that one call goes on and on, and leaves a note of it for the console. With a
limit it ends the process: Spark's worker in an attempt at a batch, and a child of it where `bolt.tracking.isolation`
looks for the record.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Protocol, TypeVar

import numpy as np

from kinesis_trident.checkpoint.model.nodes import SlowCall
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.ids import of_turn, turn_of

log = logging.getLogger(__name__)

_NOTED_AFTER = 60.0
_LONGEST_NOTE = 30.0
_STDERR = 2
# Of some instructions the line is not known.
_LINE = re.compile(r'  File "(?P<file>.+)", line \S+ in (?P<name>.+)')
_HOME = Path(__file__).parents[2]
_OURS = tuple(f"{_HOME / name}{os.sep}" for name in ("bolt", "common", "trident"))

T = TypeVar("T")


class Rooted(Protocol):
    """Tuples with the roots of each."""

    def roots_at(self, row: int) -> list[int]:
        """Return the roots of a tuple."""
        ...


class Notes(Protocol):
    """Where the console finds notes; pickled with the operators."""

    def put(self, call: SlowCall) -> str:
        """Leave a note; return its name."""
        ...

    def remove(self, name: str) -> None:
        """Take a note back."""
        ...


@dataclass(frozen=True, slots=True)
class Watch:
    """How the calls of an operator are watched.

    Attributes:
        notes: takes notes of calls that do not end.
        limit: the seconds that a call may take; None for no limit.
        operator: its name.
        noted_after: the seconds between two looks at the current call; one that is the same in both is noted.
        no_retry: the classes of the errors of calls after which no retry can help.
    """

    notes: Notes | None = None
    limit: float | None = None
    operator: str = ""
    noted_after: float = _NOTED_AFTER
    no_retry: frozenset[str] = frozenset()

    def judge(self, failure: Failure) -> Failure:
        """Return what the failure of a call means."""
        return failure.without_retry(self.no_retry)


class Watchdog:
    """The watchdog of a process: its main thread runs one call at a time."""

    def __init__(self) -> None:
        self._trace = _STDERR
        self.begin_process()

    def begin_process(self) -> None:
        """Begin anew, in a new process: it inherits no timer."""
        self._watch: Watch | None = None
        self._hand: tuple[Rooted, Sequence[int]] | None = None
        self._calls, self._seen, self._seen_at = count(), -1, 0
        # A call of a function may take no longer than this one, which is written in C.
        self.next_call: Callable[[], object] = self._calls.__next__
        self._note: tuple[Notes, str] | None = None
        self._is_ticking = self._is_limiting = False

    def trace_to(self, file: int) -> None:
        """Let a call that comes to its limit write its stack there."""
        self._trace, self._is_limiting = file, False

    def begin(self, watch: Watch, tuples: Rooted, rows: Sequence[int]) -> None:
        """Begin a call that is about some tuples."""
        self._watch, self._hand = watch, (tuples, rows)
        if current_thread() is not main_thread():
            # Only it may say what a signal does.
            self._watch = None
        elif watch.limit is not None:
            self._limit()
        elif watch.notes is not None and (
            not self._is_ticking or signal.getsignal(signal.SIGALRM) != self._look
        ):
            self._tick(watch)
        self.next_call = self._next_call if watch.limit is not None else self._calls.__next__
        self._next_call()

    def _next_call(self) -> None:
        """Begin the next call for tuples of the same batch, with a limit of its own, or behind one that was noted."""
        next(self._calls)
        if self._watch is not None:
            if self._watch.limit is not None:
                signal.setitimer(signal.ITIMER_REAL, self._watch.limit)
            if self._note is not None:
                self._take_back()

    def end(self) -> None:
        """End the call."""
        watch, self._watch = self._watch, None
        if watch is not None and watch.limit is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if self._note is not None:
            self._take_back()

    def _limit(self) -> None:
        if not self._is_limiting:
            # What is registered is not registered again.
            faulthandler.unregister(signal.SIGALRM)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            # Python's own handlers do not run while a library's code does.
            faulthandler.register(signal.SIGALRM, file=self._trace, chain=True)
            self._is_limiting, self._is_ticking = True, False

    def _tick(self, watch: Watch) -> None:
        if signal.getsignal(signal.SIGALRM) not in (signal.SIG_DFL, self._look):
            # A function that ends its own calls by this signal needs it, and would take ours for the end of its time.
            if self._is_ticking:
                signal.setitimer(signal.ITIMER_REAL, 0)
                self._is_ticking = False
            self._watch = None
            return
        faulthandler.unregister(signal.SIGALRM)
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, watch.noted_after, watch.noted_after)
        self._is_ticking, self._is_limiting = True, False

    def _look(self, _signal: int, frame: FrameType | None) -> None:
        """Note the current call if it was the current one at the last look too."""
        watch, calls = self._watch, next(self._calls)
        if watch is None:
            # The worker waits for its next task, or for rows.
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._is_ticking = False
        elif calls != self._seen + 1:
            self._seen_at = int(time.time() * 1000)
        elif self._note is None and watch.notes is not None:
            call = SlowCall(watch.operator, _called(_frames_of(frame)), self._seen_at, self._shards())
            writer = Thread(target=self._write, args=(watch.notes, call), daemon=True)
            writer.start()
            # A regular expression lets it run only here.
            writer.join(_LONGEST_NOTE)
            self.next_call = self._next_call
        self._seen = calls

    def _write(self, notes: Notes, call: SlowCall) -> None:
        log.warning(
            "%s in %s does not end: %s in hand",
            call.function,
            call.operator,
            count_noun(sum(call.shards.values()), "record is", "records are"),
        )
        with suppress(Exception):
            self._note = notes, notes.put(call)

    def _take_back(self) -> None:
        assert self._note is not None
        (notes, name), self._note = self._note, None
        if self._watch is None or self._watch.limit is None:
            self.next_call = self._calls.__next__
        with suppress(Exception):
            notes.remove(name)

    def _shards(self) -> dict[int, int]:
        assert self._hand is not None
        tuples, rows = self._hand
        roots = np.array(sorted({root for row in rows for root in tuples.roots_at(row)}), np.int64)
        turns, counts = np.unique(turn_of(roots), return_counts=True)
        return {of_turn(turn)[1]: count for turn, count in zip(turns.tolist(), counts.tolist(), strict=True)}


WATCHDOG = Watchdog()
os.register_at_fork(after_in_child=WATCHDOG.begin_process)


def watched(calls: Iterator[T], watch: Watch | None, tuples: Rooted, rows: Sequence[int]) -> Iterator[T]:
    """Yield the same; the making of each is a call that is about some tuples."""
    if watch is None:
        yield from calls
        return
    while True:
        WATCHDOG.begin(watch, tuples, rows)
        try:
            one = next(calls, None)
        finally:
            WATCHDOG.end()
        if one is None:
            return
        yield one


def function_in(trace: str) -> str:
    """Return the name of the user's function in the stack that a call wrote at its limit; empty if there is none."""
    for thread in trace.split("\n\n"):
        frames = [
            (found["file"], found["name"]) for found in map(_LINE.fullmatch, thread.splitlines()) if found
        ]
        if name := _called(frames[::-1]):
            return name
    return ""


def _frames_of(frame: FrameType | None) -> list[tuple[str, str]]:
    frames = []
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    return frames[::-1]


def _called(frames: Sequence[tuple[str, str]]) -> str:
    """Return the function that an operator has called; `frames`: files and names, the outermost first."""
    inside = False
    for file, name in frames:
        if file.startswith(_OURS):
            inside = True
        elif inside:
            return name
    return ""
