"""One life of a query by Spark's protocol: an offset is logged before it is used, and committed when it is done.

What `MicroBatchExecution` does: a batch that was logged and not committed is begun again with `partitions`;
`latest` is called only after a commit; a new checkpointLocation always has a batch 0, also where there is nothing to
read. In which order, and with which arguments, is a matter of the protocol (`spout.engines`).
"""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Callable
from threading import Event

from kinesis_trident.bolt.errors import BoltError
from kinesis_trident.checkpoint.errors import CheckpointError
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.engines import ENGINES, Engine, SparkProtocol
from kinesis_trident.spout.errors import SpoutError
from kinesis_trident.spout.kinesis import KinesisError
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.clocks import Surroundings
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.query_by_hand import SparkCheckpoint
from model.driver import Driver, Tasks
from model.inline import InlineExecutor
from model.schedule import Actor, Killed
from model.session import Dice, Session
from model.world import World

__all__ = ["ConcurrentError", "Life", "MakeDriver", "SparkCheckpoint"]

_IDLE = 3
"""The number of times a life asks for more in vain before it ends."""

_STOPPED_WELL = 0.3
_BESIDE = 0.8

MakeDriver = Callable[[World, Actor, SourceStore, Tasks], Driver]


class ConcurrentError(Exception):
    """Another query has written the same entry of Spark's log."""


class Life:
    """From the start of a query to its end, its death or its error.

    Args:
        world: of the model.
        actor: the process of the query: what its driver and its planning process do comes one after the other.
        log: Spark's checkpoint.
        options: of the source.
        start: begins another process.
        make_driver: what the query does with its batches.
        protocol: of Spark's calls.
        batches: how many it has at most; None to drain the stream.
        dice: what goes wrong with the sessions of the planning process, the driver and the tasks.
        rng: decides what else happens.
    """

    def __init__(
        self,
        world: World,
        actor: Actor,
        log: SparkCheckpoint,
        options: SourceOptions,
        start: Callable[[str, Callable[[Actor], object]], object],
        make_driver: MakeDriver,
        *,
        protocol: SparkProtocol,
        batches: int | None,
        dice: tuple[Dice, Dice, Dice],
        rng: random.Random,
    ) -> None:
        self._world = world
        self._actor = actor
        self._log = log
        self._options = options
        self._start = start
        self._make_driver = make_driver
        self._protocol = protocol
        self._left = batches
        self._dice = dice
        self._rng = rng
        self._session: Session | None = None
        self._step: Callable[[], float | None] | None = None
        self.error: Exception | None = None

    def live(self) -> None:
        """Live; an error of ours ends the query, as it may, and any other is a violation."""
        world = self._world
        try:
            self._live()
            end = "ended"
        except Killed:
            world.stats["life: killed"] += 1
            raise
        except (CheckpointError, SpoutError, BoltError, KinesisError, ConcurrentError) as error:
            self.error, end = error, type(error).__name__
            if "This is a defect" in str(error):
                world.violation(f"{self._actor.name}{self._fenced()}: {end}: {error}")
        except Exception as error:
            self.error, end = error, type(error).__name__
            world.violation(f"{self._actor.name}{self._fenced()}: {traceback.format_exc(-4)}")
        world.stats[f"life: {end}"] += 1

    def _fenced(self) -> str:
        """Return what to say besides of an error that a run gives which is not the newest any more."""
        ids = self._session.ids if self._session else []
        epoch = max((self._world.epochs.get(id_, 0) for id_ in ids), default=0)
        return ", which a newer run has replaced" if 0 < epoch < self._world.epoch else ""

    def _live(self) -> None:
        world, rng = self._world, self._rng
        mine = Session(world.zookeeper, self._actor, self._dice[0])
        self._session = mine
        run = SourceRun(
            self._options,
            world.kinesis,
            mine,
            Surroundings(
                clock=lambda: world.now / 1000,
                steady=lambda: world.now / 1000,
                rng=random.Random(rng.random()),
                wait=self._wait,
                executor=InlineExecutor(),
                reconnect=lambda: Session(world.zookeeper, self._actor),
                # Nothing that the model checks depends on it.
                status_period=None,
                beside=lambda step, _: self._begin_beside(step),
            ),
        )
        session = Session(world.zookeeper, self._actor, self._dice[1])
        tasks = Tasks(world, self._actor, self._dice[2], rng, self._start, self._beside)
        driver = self._make_driver(world, self._actor, SourceStore(session, run.layout), tasks)  # type: ignore[arg-type]
        if self._left is None:
            run.drain_and_end()
        self._go_on(run, ENGINES[self._protocol](lambda _: run), driver)
        if not world.calm and self._log.committed and rng.random() < _STOPPED_WELL:
            run.settle_finished(self._log.at(self._log.committed))
        run.close()

    def _begin_beside(self, step: Callable[[], float | None]) -> None:
        """What the planning process does beside a batch from here on."""
        self._step = step

    def _beside(self) -> None:
        """Let the planning process do some of what it does beside the tasks of a batch."""
        while self._step is not None and self._rng.random() < _BESIDE:
            self._world.now += self._rng.choice([0, 50, 1000])
            if not self._world.calm and self._rng.random() < 0.3:
                self._world.put(1)
            before = self._world.reads
            if self._step() is None:
                self._step = None
            self._world.stats["reads beside a batch"] += self._world.reads - before

    def _go_on(self, run: SourceRun, engine: Engine, driver: Driver) -> None:
        log, point, world = self._log, self._actor.point, self._world
        have, done = len(log.offsets), log.committed
        if have and self._protocol == "4.0":
            last = log.logged(have)
            engine.partitions(last, last)
        states_starts = self._protocol == "4.2"
        idle = 0
        while self._left is None or self._left > 0:
            start = log.logged(done) if done else engine.initial() if have or states_starts else None
            if have == done:
                end = engine.latest(start if states_starts else None, self._options.max_records_per_trigger)
                start = start or engine.initial()
                if end == start and have:
                    idle += 1
                    if self._left is None or idle > _IDLE:
                        return
                    continue
                idle = 0
                point()
                if len(log.offsets) != have:
                    raise ConcurrentError
                log.offsets.append(json.dumps(end))
                have += 1
                point()
                if done:
                    # Spark tells of a commit once the next offset is logged.
                    run.purge()
            assert start is not None
            driver.process((id(log), have), engine.partitions(start, log.logged(have)))
            if self._dies():
                self._actor.die("killed with its batch written, and not committed")
            point()
            if log.committed != done:
                raise ConcurrentError
            log.committed = done = have
            txid = log.at(have).txid
            world.committed[txid] = run.epoch
            if run.epoch < world.epoch:
                world.overtaken.add(txid)
            self._world.stats["batches"] += 1
            if self._left is not None:
                self._left -= 1
                if self._rng.random() < 0.3:
                    self._world.put(self._rng.randint(1, 4))

    def _dies(self) -> bool:
        chance = 0.0 if self._world.calm else self._world.dies_written
        return chance > 0 and self._rng.random() < chance

    def _wait(self, woken: Event, seconds: float) -> bool:
        """Let others go on while this one waits; the clock goes on as long."""
        self._world.now += max(1, int(seconds * 1000))
        self._actor.point("wait")
        return woken.is_set()
