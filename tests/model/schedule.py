"""The schedule: processes as greenlets of which one runs at a time, handed over at points, by dice.

The same dice give the same schedule. Nobody waits for time: a process that sleeps has the clock set on.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from greenlet import getcurrent, greenlet

if TYPE_CHECKING:
    from model.session import Session

__all__ = ["Actor", "Killed", "Schedule", "Stuck"]

_HANG_SECONDS = 120.0
"""By the real clock: only a defect of the model keeps a process from its next point so long."""

_FREEZE = 0.01
_FREEZES = (20, 100, 400)


class Killed(BaseException):
    """The process of this actor was killed."""


class Stuck(Exception):
    """A schedule goes on and on."""


class Actor:
    """A process: its sessions, and its turn to run."""

    def __init__(
        self, schedule: Schedule, name: str, body: Callable[[Actor], object], *, killable: bool
    ) -> None:
        self._schedule = schedule
        self._killable = killable
        self.name = name
        self.body = body
        self.sessions: list[Session] = []
        self.greenlet: greenlet | None = None
        self.awake_at = 0
        self.dead = False

    def point(self, what: object = None) -> None:
        """See `model.session.Process`."""
        self._schedule.pause(self, what)
        for session in self.sessions[:]:
            session.deliver()

    def wrote(self) -> None:
        """See `model.session.Process`."""
        self.die_perhaps("killed after a write")

    def die_perhaps(self, note: object) -> None:
        if self._killable and self._schedule.strikes():
            self.die(note)
        if self.dead:
            raise Killed

    def die(self, note: object) -> NoReturn:
        """End the process here."""
        self.dead = True
        self._schedule.trace.append((self.name, note))
        raise Killed


class Schedule:
    """Processes, and the dice that choose between them.

    Args:
        rng: the dice.
        switch: how likely another process goes on at a point.
        kill: how likely a process that may be killed is, at a point.
        freeze: how likely a process is paused, for as long as others come to many points.
        most: points after which the schedule is stuck.

    Attributes:
        trace: who came to which point.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        switch: float = 0.0,
        kill: float = 0.0,
        freeze: float = _FREEZE,
        most: int = 30_000,
    ) -> None:
        self._rng = rng
        self._switch = switch
        self._kill = kill
        self._freeze = freeze
        self._most = most
        self._actors: list[Actor] = []
        self._current: Actor | None = None
        self._root: greenlet | None = None
        self._stuck = False
        self.trace: list[tuple[str, object]] = []

    def start(self, name: str, body: Callable[[Actor], object], *, killable: bool = False) -> Actor:
        """Begin a process; it runs when it is its turn."""
        actor = Actor(self, name, body, killable=killable)
        self._actors.append(actor)
        return actor

    def play(self) -> None:
        """Let the processes run to their ends.

        Raises:
            Stuck: they do not come to it.
        """
        errors: list[BaseException] = []
        # What hangs cannot be ended, but left behind.
        thread = threading.Thread(target=self._run, args=[errors], daemon=True)
        thread.start()
        thread.join(_HANG_SECONDS)
        for error in errors:
            raise error
        if thread.is_alive():
            msg = f"{self._current.name if self._current else 'nobody'} comes to no point for {_HANG_SECONDS:g} s"
            raise Stuck(msg)
        if self._stuck:
            msg = f"no end after {self._most} points; the last: {self.trace[self._most - 8 : self._most]}"
            raise Stuck(msg)

    def _run(self, errors: list[BaseException]) -> None:
        self._root = getcurrent()
        try:
            # Comes back each time that a process has ended.
            while self._actors:
                self._hand_over(self._choose(None))
        except BaseException as error:
            errors.append(error)

    def strikes(self) -> bool:
        """Tell whether a process that may be killed is."""
        return self._kill > 0 and self._rng.random() < self._kill

    def pause(self, actor: Actor, what: object) -> None:
        """Let others go on, perhaps."""
        self.trace.append((actor.name, what))
        if len(self.trace) > self._most:
            self._stuck = True
            for other in self._actors:
                other.dead = True
        actor.die_perhaps("killed")
        if self._rng.random() < self._freeze:
            actor.awake_at = len(self.trace) + self._rng.choice(_FREEZES)
        chosen = self._choose(actor)
        if chosen is not actor:
            self._hand_over(chosen)
            actor.die_perhaps("killed")

    def _choose(self, now: Actor | None) -> Actor:
        awake = self._actors
        if len(awake) > 1:
            at = len(self.trace)
            awake = [actor for actor in awake if actor.awake_at <= at] or awake
        if now is not None and now in awake and self._rng.random() >= self._switch:
            return now
        return self._rng.choice(awake)

    def _hand_over(self, actor: Actor) -> None:
        self._current = actor
        if actor.greenlet is None:
            actor.greenlet = greenlet(self._live, parent=self._root)
        actor.greenlet.switch(actor)

    def _live(self, actor: Actor) -> None:
        """Be a process, from its begin to its end."""
        try:
            actor.body(actor)
        except Killed:
            pass
        finally:
            for session in list(actor.sessions):
                session.stop()
            self._actors.remove(actor)
