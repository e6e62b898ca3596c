"""Faults of what a job writes to: Redis, its disks; and of its clock."""

from __future__ import annotations

import redis
import stepped_clock
from lives import eventually

from chaos.faults import Fault
from chaos.scene import Scene

__all__ = [
    "FailOver",
    "FullCheckpoint",
    "FullLetters",
    "FullSpool",
    "RestartRedis",
    "StepBack",
    "StepForward",
]

_HOUR = 3600.0


class RestartRedis(Fault):
    """Redis dies, and comes back with what is in its append-only file."""

    seconds = 1.0
    explains = "Redis|redis"

    def start(self, scene: Scene) -> None:
        scene.world.stores.primary.kill()


class FailOver(Fault):
    """The replica becomes the primary, with all that was written."""

    seconds = 1.0
    explains = "Redis|redis"

    def start(self, scene: Scene) -> None:
        stores = scene.world.stores
        replica, primary = redis.Redis.from_url(stores.replica.url), stores.client
        eventually(lambda: replica.info("replication").get("master_link_status") == "up", "a replica")
        primary.execute_command("FAILOVER", "TO", "127.0.0.1", stores.replica.port, "TIMEOUT", 10_000)
        eventually(lambda: replica.info("replication")["role"] == "master", "the replica to be the primary")
        stores.swap()
        scene.witness.store = stores.client


class _FullDisk(Fault):
    """A disk is full for a while."""

    seconds = 5.0
    explains = "No space left on device"
    name: str

    def start(self, scene: Scene) -> None:
        scene.disks[self.name].fill()

    def heal(self, scene: Scene) -> None:
        scene.disks[self.name].free()


class FullCheckpoint(_FullDisk):
    """That of Spark's checkpoint."""

    name = "Spark's checkpoint: disk full"


class FullSpool(_FullDisk):
    """That of the records that wait for a retry."""

    name = "the spool: disk full"


class FullLetters(_FullDisk):
    """That of the dead letters."""

    name = "the dead letters: disk full"


class StepForward(Fault):
    """The clock of the job's Python processes is an hour ahead from now on."""

    seconds_ahead = _HOUR

    def start(self, scene: Scene) -> None:
        stepped_clock.step(scene.job.clock, self.seconds_ahead)


class StepBack(StepForward):
    """It is an hour behind."""

    seconds_ahead = -_HOUR
