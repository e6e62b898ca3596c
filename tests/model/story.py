"""One schedule of a family from beginning to end: phases of lives side by side, then one last life that drains."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from file_systems import IN_MEMORY

from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.engines import SparkProtocol
from kinesis_trident.spout.errors import OutcomeMissingError
from kinesis_trident.spout.partition import TurnsPartition
from model.ackers import Acked
from model.driver import Driver, Judging, Plain, Tasks
from model.families import FAMILIES, Family
from model.joined import Joined
from model.life import Life, SparkCheckpoint
from model.pausing import Operator, PauseRule
from model.requests import Requested
from model.schedule import Actor, Schedule, Stuck
from model.session import Dice
from model.world import World
from model.zookeeper import Nodes

__all__ = ["Told", "play"]

_LATER_MS = 400_000
"""More than five minutes: starts that were refused for too many takeovers are allowed again."""

_WITH_A_NEW_CHECKPOINT = (
    "Start the query with a new checkpointLocation",
    "start with a new one to go on from ZooKeeper's position",
)
"""The texts of errors that ask for a new checkpoint also with `onCheckpointMismatch=continue`."""

_STARTS = 3
_HEEDED = 6
"""The starts of the last life, where a person tries what errors advise."""

_LOSE = 0.01


@dataclass
class Told:
    """The result of a schedule: its world, with the violations, and who came to which point in its last phase."""

    family: str
    seed: int
    world: World | Joined | Requested
    trace: list[tuple[str, object]] = field(default_factory=list)

    @property
    def again(self) -> str:
        """Return how to play it again."""
        return f"make model FAMILY={self.family} SEED={self.seed} COUNT=1"


def play(family: str, seed: int) -> Told:
    """Play the schedule of a seed, whose lives follow one of Spark's protocols, or now one and now the other."""
    rng = random.Random(f"{family} {seed}")
    protocols = (("4.2",), ("4.0",), ("4.0", "4.2"))[seed % 3]
    if plays := FAMILIES[family].plays:
        return Told(family, seed, plays(rng, protocols))
    with tempfile.TemporaryDirectory(prefix="model", dir=IN_MEMORY) as folder:
        story = _Story(FAMILIES[family], rng, Path(folder), protocols)
        try:
            story.play()
        except Stuck as stuck:
            story.world.violation(str(stuck))
        return Told(family, seed, story.world, story.trace)


class _Story:
    def __init__(
        self, family: Family, rng: random.Random, folder: Path, protocols: Sequence[SparkProtocol]
    ) -> None:
        self._family = family
        self._protocols = protocols
        self._rng = rng
        self.world = World(
            rng, family.sink(), folder, shards=rng.choice([1, 2, 3]), rows_may_differ=family.rows_may_differ
        )
        self.world.odd, self.world.dies_written = family.odd, family.dies_written
        self.world.reason = family.reason or self.world.reason
        self.world.pad(family.digits)
        self._operator = Operator(self.world, rng, Dice(rng, lose=_LOSE)) if family.pauses else None
        if family.pauses:
            PauseRule(self.world)
        self._log = SparkCheckpoint()
        self._last = self._log
        self._lives = 0
        self._copy: Nodes | None = None
        self.trace: list[tuple[str, object]] = []

    def play(self) -> None:
        world, rng = self.world, self._rng
        for _ in range(rng.randint(1, self._family.phases)):
            self._phase()
            if world.violations:
                return
            world.now += rng.choice([0, 2000, _LATER_MS])
        world.calm = True
        self._drain()
        if not world.violations:
            for what in (*self._family.ledger(world), *world.left_in_flight()):
                world.violation(what)

    def _phase(self) -> None:
        """Some lives side by side, each with its options and its Spark checkpoint."""
        world, rng, family = self.world, self._rng, self._family
        world.put(rng.randint(2, 8))
        more = family.options(world)
        if family.restores:
            self._copy_or_restore()
        if family.trims:
            world.trim()
        schedule = Schedule(
            random.Random(rng.random()),
            switch=rng.choice([0.02, 0.1, 0.3]),
            kill=rng.choice(family.kills),
        )
        for _ in range(rng.choice(family.lives)):
            self._begin(schedule, self._choose_log(), more, batches=rng.randint(1, 4))
        if self._operator is not None:
            schedule.start("operator", self._operator.live)
        if rng.random() < 0.5:
            world.reshard()
        before = world.zookeeper.zxid
        self._let_run(schedule)
        if family.restores == "within" and world.zookeeper.zxid > before and rng.random() < family.copies:
            self._copy = world.zookeeper.state(rng.randint(before + 1, world.zookeeper.zxid)).nodes
        world.zookeeper.forget()

    def _drain(self) -> None:
        """The last life: nothing bad happens any more, so it reads all there is; what stood in its way passes."""
        self.world.now += _LATER_MS
        more = self._family.options(self.world)
        if self._operator is not None:
            self._drain_all_but_what_is_paused(self._operator, more)
        for attempt in range(_HEEDED if self._family.heeds else _STARTS):
            log = SparkCheckpoint() if self._family.checkpoints == "new" and not attempt else self._last
            self._last = log
            schedule = Schedule(random.Random(1), freeze=0)
            lives = [self._begin(schedule, log, more, batches=None)]
            self._let_run(schedule)
            error = lives[0][-1].error
            if error is None:
                return
            overtaken = (
                isinstance(error, OutcomeMissingError) and self.world.settled + 1 in self.world.overtaken
            )
            if overtaken or any(way in str(error) for way in _WITH_A_NEW_CHECKPOINT):
                # A person does what the error says.
                self._last = SparkCheckpoint()
            elif self._family.heeds and "onCheckpointMismatch=continue" in str(error):
                if self._rng.random() < 0.5:
                    more = {**more, "onCheckpointMismatch": "continue"}
                else:
                    # What the error does not advise where Spark's checkpoint knows more: nothing may be lost by it.
                    self._last = SparkCheckpoint()
            self.world.now += _LATER_MS
        self.world.violation(f"the last life does not drain: {type(error).__name__}: {error}")

    def _drain_all_but_what_is_paused(self, operator: Operator, more: dict[str, str]) -> None:
        """A life that drains ends, and leaves what is paused; then that is resumed."""
        schedule = Schedule(random.Random(1), freeze=0)
        lives = [self._begin(schedule, self._last, more, batches=None)]
        self._let_run(schedule)
        if (error := lives[0][-1].error) is not None:
            self.world.violation(
                f"a life does not drain beside what is paused: {type(error).__name__}: {error}"
            )
        operator.resume_all()
        self.world.now += _LATER_MS

    def _let_run(self, schedule: Schedule) -> None:
        try:
            schedule.play()
        finally:
            self.trace = schedule.trace

    def _begin(
        self, schedule: Schedule, log: SparkCheckpoint, more: dict[str, str], *, batches: int | None
    ) -> list[Life]:
        """Start a life; the list holds it once it has begun."""
        self._lives += 1
        rng = random.Random(self._rng.random())
        options = self.world.options(**more)
        begun: list[Life] = []

        def live(actor: Actor) -> None:
            self.world.now += self._family.start_ms
            dice = (self._dice("reader", rng), self._dice("driver", rng), self._dice("tasks", rng))
            life = Life(
                self.world,
                actor,
                log,
                options,
                schedule.start,
                self._driver(schedule.start, rng),
                protocol=self._protocols[self._lives % len(self._protocols)],
                batches=batches,
                dice=dice,
                rng=rng,
            )
            begun.append(life)
            life.live()

        schedule.start(f"life{self._lives}", live, killable=batches is not None)
        return begun

    def _dice(self, whose: str, rng: random.Random) -> Dice:
        if self.world.calm:
            return Dice(rng)
        lose = 0.0 if whose == "tasks" else _LOSE
        return Dice(rng, lose=lose, expire=self._family.expire, lag=whose in self._family.lags)

    def _driver(
        self, start: Callable[[str, Callable[[Actor], object]], object], rng: random.Random
    ) -> Callable[[World, Actor, SourceStore, Tasks], Driver]:
        kind = self._family.driver
        if kind == "acked":
            return lambda *given: Acked(*given, start=start, rng=rng)
        if kind == "unread":
            return lambda *given: Plain(*given, reading=self._reads)
        if kind == "changing":
            return rng.choice([Plain, Judging])
        return Plain if kind == "plain" else Judging

    @staticmethod
    def _reads(part: TurnsPartition) -> bool:
        """Tell whether a plain query runs a task: each time the same, for one batch."""
        names = [turn.shard for turn in part.turns]
        return random.Random(f"{part.plan} {names}").random() < 0.7

    def _choose_log(self) -> SparkCheckpoint:
        rng, main = self._rng, self._log
        kind = self._family.checkpoints
        if kind == "same":
            return main
        if kind == "new":
            return rng.choice([main, main, main.copy(), SparkCheckpoint()])
        log = rng.choice([main, main.copy(), SparkCheckpoint(), main.copy(), main.copy()])
        if log.offsets and log is not main and rng.random() < 0.7:
            log.committed = rng.randint(0, min(log.committed, len(log.offsets) - 1))
            del log.offsets[log.committed + rng.choice([0, 1, 1]) :]
        self._last = log
        return log

    def _copy_or_restore(self) -> None:
        """Keep a copy of ZooKeeper's data, or start over with the one that was kept."""
        zookeeper, rng = self.world.zookeeper, self._rng
        if self._copy is not None and rng.random() < self._family.copies:
            self.world.restore(self._copy)
            self.world.stats["restored"] += 1
        elif self._family.restores == "between" and rng.random() < 0.4:
            self._copy = zookeeper.nodes
