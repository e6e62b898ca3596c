"""Faults of the job's own processes."""

from __future__ import annotations

import re
from contextlib import suppress

import psutil
from lives import Lives, kill_tree

from chaos.faults import Fault
from chaos.lifetimes import EXECUTOR, READER
from chaos.scene import Scene

__all__ = ["KillAcker", "KillDriver", "KillExecutor", "KillJvm", "KillReader", "KillWorker", "Takeover"]


class KillDriver(Fault):
    """The driver and every process below it."""

    explains = "."

    def start(self, scene: Scene) -> None:
        scene.job.current.kill()


class KillJvm(Fault):
    """Spark's JVM; the driver loses it, and processes below it that are left go on for a while."""

    explains = "."

    def start(self, scene: Scene) -> None:
        _kill(scene.job.below("SparkSubmit"))


class KillReader(Fault):
    """The process that plans batches."""

    explains = "."

    def start(self, scene: Scene) -> None:
        _kill(scene.job.below(READER))


class KillWorker(Fault):
    """The Python processes that run tasks, each of them if several do."""

    def start(self, scene: Scene) -> None:
        _kill(scene.job.workers())


class KillExecutor(Fault):
    """One of two executors, with its Python workers."""

    def start(self, scene: Scene) -> None:
        executors = scene.job.below(EXECUTOR)
        if executors:
            with suppress(psutil.NoSuchProcess):
                kill_tree(scene.rng.choice(executors))


class KillAcker(Fault):
    """The process that acks."""

    seconds = 1.0

    def start(self, scene: Scene) -> None:
        assert scene.acker is not None
        scene.acker.kill()

    def heal(self, scene: Scene) -> None:
        assert scene.acker is not None
        scene.acker.start()


class Takeover(Fault):
    """All processes of the job are stopped, another run takes over; then they wake, and must end by themselves."""

    # The last one: PySpark gave up on a socket to its JVM, of which it was asleep for too long.
    explains = (
        "Fenced|StaleBatch|SettledBatch|Concurrent ?(update|Modification)|already exists|CANNOT_OPEN_SOCKET"
    )

    def start(self, scene: Scene) -> None:
        self._sleeping: Lives | None = scene.job.current
        self._settled = scene.nodes.settled
        self._awake = False
        scene.job.pause()
        scene.job.start(anew=scene.rng.random() < 0.5)

    def is_over(self, scene: Scene) -> bool:
        sleeping = self._sleeping
        assert sleeping is not None
        if not self._awake and scene.nodes.settled > self._settled:
            self._awake = True
            scene.job.wake(sleeping)
        return self._awake and not sleeping.running

    def heal(self, scene: Scene) -> None:
        assert self._sleeping is not None
        said = self._sleeping.said()
        if not re.search(self.explains, said):
            scene.troubles.append(
                f"a run that was replaced says something else: {self._sleeping.tail()[:2000]}"
            )


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
