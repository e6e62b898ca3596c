"""Faults of ZooKeeper, and of the way to it."""

from __future__ import annotations

from servers import kill_server

from chaos.faults import Fault
from chaos.scene import SESSION_SECONDS, Scene

__all__ = ["BlackHole", "Down", "ExpiredSessions", "FullDisk", "KillLeader", "Lag"]

_UNAVAILABLE = "ZooKeeperUnavailableError"


class KillLeader(Fault):
    """The leader of three dies, and comes back."""

    seconds = 3.0
    # The election can take longer than a session on a busy machine.
    explains = _UNAVAILABLE

    def start(self, scene: Scene) -> None:
        assert scene.keepers.ensemble is not None
        kill_server(scene.keepers.ensemble.leading)

    def heal(self, scene: Scene) -> None:
        scene.keepers.start()


class Lag(Fault):
    """What the leader sends to one of the three is late, for a while; the job may be connected to that one."""

    seconds = 6.0

    def start(self, scene: Scene) -> None:
        assert scene.keepers.ensemble is not None
        scene.keepers.ensemble.lag(500)

    def heal(self, scene: Scene) -> None:
        assert scene.keepers.ensemble is not None
        scene.keepers.ensemble.lag(0)


class Down(Fault):
    """All servers are down, for longer than the job waits."""

    seconds = SESSION_SECONDS * 1.5
    explains = _UNAVAILABLE

    def start(self, scene: Scene) -> None:
        scene.keepers.kill()

    def heal(self, scene: Scene) -> None:
        scene.keepers.start()


class BlackHole(Fault):
    """Connections to ZooKeeper stay, and nothing passes, for longer than the job waits."""

    seconds = SESSION_SECONDS * 1.5
    explains = _UNAVAILABLE

    def start(self, scene: Scene) -> None:
        for proxy in scene.keepers.proxies:
            proxy.freeze()

    def heal(self, scene: Scene) -> None:
        for proxy in scene.keepers.proxies:
            proxy.thaw()


class ExpiredSessions(Fault):
    """All processes of the job stand still for longer than their sessions live."""

    seconds = SESSION_SECONDS * 1.5
    explains = _UNAVAILABLE

    def start(self, scene: Scene) -> None:
        self._life = scene.job.current
        scene.job.pause()

    def heal(self, scene: Scene) -> None:
        scene.job.wake(self._life)


class FullDisk(Fault):
    """ZooKeeper's disk is full, on which it ends; then there is room, and it is started again."""

    seconds = SESSION_SECONDS * 1.5
    explains = _UNAVAILABLE

    def start(self, scene: Scene) -> None:
        scene.disks["ZooKeeper's disk full"].fill()

    def heal(self, scene: Scene) -> None:
        scene.disks["ZooKeeper's disk full"].free()
        # Where it has not ended by itself, it is started again all the same.
        scene.keepers.kill()
        scene.keepers.start()
