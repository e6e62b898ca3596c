"""Plays one schedule: a job runs, records come, faults strike at their moments; at the end the observer judges."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from chaos.fault_table import FAULT_CLASSES
from chaos.faults import Fault
from chaos.observer import broken_promises
from chaos.scene import Scene
from chaos.schedule import FAULTS, Event, Moment, Schedule, Strike, draw
from chaos.trace import follow_job
from chaos.world import Disk, World

__all__ = ["Outcome", "begin_to_play", "play", "play_seed"]

_PATIENCE = 240.0
"""Seconds for a whole schedule."""

_ROUNDS_MOST = 60
_SAID_MOST = 2000
"""Characters of what a job said that ended; its folder has the rest."""

_STARTS_MOST = 12
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Outcome:
    """What came of a schedule."""

    schedule: Schedule
    broken: list[str]
    seconds: float
    figures: dict[str, int] = field(default_factory=dict)
    left_out: str = ""


def play(schedule: Schedule, world: World, folder: Path) -> Outcome:
    """Play a schedule; the folder of one that breaks no promise is removed."""
    if "disk" in schedule.needs and not Disk.possible():
        return Outcome(schedule, [], 0, left_out="only root can mount a disk that may be full")
    began = time.monotonic()
    with Scene(schedule, world, folder) as scene:
        figures = _Play(scene).run()
        seen = scene.evidence()
        steps, refused = follow_job(scene.trace()) if schedule.is_followed else (0, "")
    broken = broken_promises(seen)
    if refused:
        broken.append(f"the specification has no such step: {refused}")
    figures += Counter(
        records=len(seen.records), deliveries=len(seen.deliveries), looks=len(seen.looks), steps=steps
    )
    if not broken:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(schedule, broken, time.monotonic() - began, dict(figures))


_worlds: list[World] = []
"""That of this process, if it is one of those that share the schedules of a run."""


def begin_to_play(folder: Path) -> None:
    """Start the servers of this process, for all schedules that it will play."""
    # Kazoo says a lot of servers that are killed.
    logging.disable(logging.CRITICAL)
    _worlds.append(World(folder / str(os.getpid())).__enter__())


def play_seed(seed: int) -> Outcome:
    """Play the schedule of a seed."""
    (world,) = _worlds
    return play(draw(seed), world, world.folder / str(seed))


class _Play:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._waiting: list[Strike] = [*scene.schedule.strikes]
        self._fault: Fault | None = None
        self._base = 0
        self._rounds = 0
        self._put_at = -1
        self._explained: dict[int, set[str]] = defaultdict(set)
        """By life: what it may say that ends."""
        self._figures: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        """Play it to its end."""
        scene, until = self._scene, time.monotonic() + _PATIENCE
        scene.job.start()
        if scene.acker is not None:
            scene.acker.start()
        while not self._is_done():
            if time.monotonic() > until:
                scene.troubles.append(
                    f"not at its end within {_PATIENCE:g} s: fault {self._fault}, waiting {self._waiting}, "
                    f"{scene.nodes.unfinished}; {scene.job.current.tail()[:_SAID_MOST]}"
                )
                break
            if len(scene.troubles) > 0:
                break
            scene.witness.look()
            self._feed()
            self._strike_and_heal()
            self._keep_alive()
            time.sleep(_LOOK_SECONDS)
        scene.job.end()
        # A batch may have been settled at the very end.
        scene.witness.look()
        self._figures["lives"] = scene.job.count
        self._figures["batches"] = scene.nodes.txid
        return self._figures

    def _is_done(self) -> bool:
        fed = self._rounds >= self._scene.schedule.rounds
        return fed and not self._waiting and self._fault is None and self._scene.is_drained()

    def _feed(self) -> None:
        """Put a round when a batch has been settled since the last one, while batches are needed."""
        scene = self._scene
        awaited = any(not FAULTS[strike.fault].last for strike in self._waiting)
        wanted = self._rounds < scene.schedule.rounds or (awaited and self._rounds < _ROUNDS_MOST)
        if wanted and scene.nodes.settled > self._put_at:
            self._put_at = scene.nodes.settled
            self._rounds += 1
            scene.put()

    def _strike_and_heal(self) -> None:
        scene = self._scene
        if self._fault is not None:
            if self._fault.is_over(scene):
                self._fault.heal(scene)
                self._fault, self._base = None, scene.nodes.txid
            return
        if self._waiting and self._has_come(self._waiting[0]):
            strike = self._waiting.pop(0)
            self._fault = FAULT_CLASSES[strike.fault]()
            self._figures[strike.fault] += 1
            self._explain()
            self._fault.strike(scene)

    def _has_come(self, strike: Strike) -> bool:
        nodes, moment = self._scene.nodes, strike.moment
        if FAULTS[strike.fault].last:
            return self._rounds >= self._scene.schedule.rounds and self._scene.is_drained()
        txid = self._base + moment.batches
        return self._seen(moment) >= txid or nodes.settled >= txid

    def _seen(self, moment: Moment) -> int:
        """The newest batch that has come so far."""
        scene = self._scene
        if moment.event is Event.PLANNED:
            return scene.nodes.txid
        if moment.event is Event.READ:
            return max((one.txid for one in scene.witness.deliveries()), default=0)
        if moment.event is Event.PROCESSED:
            return max((txid for _, txid in scene.witness.whole()), default=0)
        return scene.nodes.settled

    def _explain(self) -> None:
        """A life that a fault has met may end for it, also later; one that began after that may not."""
        if self._fault is not None and self._fault.explains:
            self._explained[self._scene.job.count].add(self._fault.explains)

    def _keep_alive(self) -> None:
        """Start a job that has ended, as whoever supervises it would; an end that no fault explains is a trouble."""
        scene = self._scene
        self._explain()
        life = scene.job.current
        if scene.acker is not None and scene.acker.said:
            scene.troubles.append(f"the process that acks ended: {scene.acker.said}")
        if life.running:
            return
        said = life.said()
        if said.strip() and not any(re.search(one, said) for one in self._explained[scene.job.count]):
            scene.troubles.append(
                f"life {scene.job.count} ended, and no fault explains it: {life.tail()[:_SAID_MOST]}"
            )
        if scene.job.count >= _STARTS_MOST:
            scene.troubles.append(f"started {_STARTS_MOST} times: {life.tail()[:_SAID_MOST]}")
            return
        life.kill()
        scene.job.start()
