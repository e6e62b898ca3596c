"""A fixed story, ended by a crash at each of its steps, and by two: what the dice may miss.

A step is a write to ZooKeeper, or one of Spark's own; the crash comes before or after it.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from file_systems import IN_MEMORY

from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.engines import SparkProtocol
from model.ackers import Acked
from model.driver import Driver, Judging, Tasks
from model.families import all_acked, once, once_by_kind, reason_by_kind
from model.life import Life, SparkCheckpoint
from model.schedule import Actor, Killed
from model.session import Dice, Session
from model.sinks import LooseSink, OpaqueState
from model.world import World

__all__ = ["KINDS", "Crash", "crashes", "play", "steps"]

KINDS = ("batch", "explicit", "failures")


class Crash(NamedTuple):
    """The place at which a life ends: before or after one of its steps."""

    step: int
    after: bool


class _Doomed:
    """The process of a life that ends with a crash; there is no other."""

    name = "life"

    def __init__(self, crash: Crash | None) -> None:
        self.sessions: list[Session] = []
        self.steps = 0
        self._crash = crash
        self._dead = False

    def point(self, what: object = None) -> None:
        """See `model.session.Process`."""
        if self._dead:
            raise Killed
        if what is None or (isinstance(what, tuple) and what[0] == "write"):
            self.steps += 1
            self._end(after=False)
        for session in list(self.sessions):
            session.deliver()

    def wrote(self) -> None:
        """See `model.session.Process`."""
        self._end(after=True)

    def _end(self, *, after: bool) -> None:
        if self._crash == Crash(self.steps, after):
            self._dead = True
            raise Killed


class _Steady(random.Random):
    """Dice that never let anything happen."""

    def random(self) -> float:
        return 0.99


def steps(kind: str) -> int:
    """Return how many steps the story has without a crash."""
    return play(kind)[0][0]


def crashes(last: int, stride: int = 1) -> Iterator[Crash]:
    """The crashes of a life of so many steps."""
    for step in range(1, last + 1, stride):
        yield Crash(step, after=False)
        yield Crash(step, after=True)


def play(kind: str, *ends: Crash) -> tuple[list[int], list[str]]:
    """Play the story: lives that end as given, and a last one. The steps of each, and what is not as promised.

    The step of the first crash decides which of Spark's protocols all lives follow.
    """
    with tempfile.TemporaryDirectory(prefix="model", dir=IN_MEMORY) as folder:
        explicit, by_kind = kind == "explicit", kind == "failures"
        world = World(random.Random(7), LooseSink() if explicit else OpaqueState(), Path(folder), shards=2)
        world.retry_limit = 1
        world.reason = reason_by_kind if by_kind else world.reason
        first, second = world.kinesis.open_shards
        for shard, failures in ((first, 0), (first, 1), (second, 99), (second, 0), (first, 0)):
            world.put_one(shard, failures)
        for shard, failures in zip(world.kinesis.split(first), (1, 0), strict=True):
            world.put_one(shard, failures)
        world.calm = True
        more = {"shardsPerTask": "2", "maxFetchRecordsPerShard": "2"}
        if by_kind:
            more |= {"noRetryFor": "KeyError"}
        if explicit:
            more |= {"ackMode": "explicit", "messageTimeout": "1s"}
        log = SparkCheckpoint()
        lived: list[int] = []
        protocol: SparkProtocol = "4.0" if ends and ends[0].step % 2 else "4.2"
        for end in (*ends, None):
            error = _live(world, log, more, end, lived, protocol)
            if error is not None:
                return lived, [f"a life after {ends}: {type(error).__name__}: {error}"]
            world.now += 1000
        for what in (
            *(all_acked if explicit else once_by_kind if by_kind else once)(world),
            *world.left_in_flight(),
        ):
            world.violation(what)
        return lived, world.violations


def _live(
    world: World,
    log: SparkCheckpoint,
    more: dict[str, str],
    end: Crash | None,
    lived: list[int],
    protocol: SparkProtocol,
) -> Exception | None:
    doomed = _Doomed(end)
    rng = _Steady()

    def make_driver(world: World, actor: Actor, store: SourceStore, tasks: Tasks) -> Driver:
        kind: Callable[..., Driver] = Judging
        if "ackMode" in more:
            return Acked(world, actor, store, tasks, start=_nobody, rng=rng)
        return kind(world, actor, store, tasks)

    life = Life(
        world,
        doomed,  # type: ignore[arg-type]
        log,
        world.options(**more),
        _nobody,
        make_driver,
        protocol=protocol,
        batches=None,
        dice=(Dice(rng), Dice(rng), Dice(rng)),
        rng=rng,
    )
    with suppress(Killed):
        life.live()
    for session in list(doomed.sessions):
        session.stop()
    lived.append(doomed.steps)
    return life.error


def _nobody(name: str, body: Callable[[Actor], object]) -> None:
    msg = f"{name} begins, and nobody was to"
    raise AssertionError(msg)
