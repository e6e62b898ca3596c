"""Several Redis servers: a cluster of three, and a primary with its replica and a Sentinel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from harness import eventually
from server_fixtures import _program
from servers import LOOPBACK, RedisServer

from kinesis_trident.checkpoint.embedded import free_port

SLOTS = 16_384
NODES = 3

_PAUSE_MS = 60_000
"""No server that only stands still for a while, as on a busy machine, counts as dead."""


class Sentinel(RedisServer):
    """Watches a primary, named `mymaster`."""

    name = "sentinel"

    def __init__(self, program: Path, primary: int) -> None:
        super().__init__(program)
        self._primary = primary

    def _command(self) -> list[str]:
        config = self._folder / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind {LOOPBACK}\n"
            f"sentinel monitor mymaster {LOOPBACK} {self._primary} 1\n"
            f"sentinel down-after-milliseconds mymaster {_PAUSE_MS}\n"
            # A failover that comes to nothing is tried again after twice this.
            "sentinel failover-timeout mymaster 10000\n"
        )
        return [str(self._program), str(config), "--sentinel"]

    def give_up(self) -> None:
        """Take a primary for dead that has been silent for a second, from now on."""
        client: Any = redis.Redis(LOOPBACK, self.port)
        client.sentinel_set("mymaster", "down-after-milliseconds", 1_000)


class Cluster:
    """Three nodes, each with a third of the slots."""

    def __init__(self, servers: list[RedisServer]) -> None:
        self.servers = servers
        self.clients: list[Any] = [redis.Redis(LOOPBACK, server.port) for server in servers]
        self.ids = [client.cluster("MYID").decode() for client in self.clients]

    @property
    def url(self) -> str:
        """Of two of the nodes: the third is found."""
        return "redis+cluster://" + ",".join(f"{LOOPBACK}:{server.port}" for server in self.servers[:2])

    def form(self, buses: list[int]) -> None:
        """Make a cluster of the servers."""
        for node, client in enumerate(self.clients):
            first, last = SLOTS * node // NODES, SLOTS * (node + 1) // NODES - 1
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", node + 1)
        for server, bus in list(zip(self.servers, buses, strict=True))[1:]:
            self.clients[0].execute_command("CLUSTER MEET", LOOPBACK, server.port, bus)
        eventually(lambda: all(self.is_whole(client) for client in self.clients), "a cluster")

    def is_whole(self, client: Any) -> bool:
        """Tell whether a node knows all nodes, and that all slots are served."""
        info = client.cluster("INFO")
        return info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == NODES

    def begin_move(self, slot: int) -> tuple[int, int]:
        """Move the keys of a slot to another node, which does not own it yet: the two nodes."""
        source = next(n for n in range(NODES) if slot < SLOTS * (n + 1) // NODES)
        target = (source + 1) % NODES
        self.clients[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", self.ids[source])
        self.clients[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", self.ids[target])
        for key in self.clients[source].execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
            self.clients[source].execute_command(
                "MIGRATE", LOOPBACK, self.servers[target].port, key, 0, 5_000
            )
        return source, target

    def end_move(self, slot: int, target: int) -> None:
        """Give the slot to the other node."""
        for client in self.clients:
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", self.ids[target])


@contextmanager
def cluster() -> Iterator[Cluster]:
    program = _program("redis-server")
    buses = [free_port() for _ in range(NODES)]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                RedisServer(program, cluster_enabled="yes", cluster_port=bus, cluster_node_timeout=_PAUSE_MS)
            )
            for bus in buses
        ]
        made = Cluster(servers)
        made.form(buses)
        yield made


@contextmanager
def watched_primary() -> Iterator[tuple[RedisServer, RedisServer, Sentinel]]:
    """A primary, its replica, and a Sentinel that knows both."""
    program = _program("redis-server")
    with (
        RedisServer(program, repl_diskless_sync_delay=0) as primary,
        RedisServer(program, replicaof=f"{LOOPBACK} {primary.port}", repl_diskless_sync_delay=0) as replica,
        Sentinel(program, primary.port) as sentinel,
    ):
        client: Any = redis.Redis(LOOPBACK, sentinel.port)

        def knows() -> bool:
            return any(one["port"] == replica.port for one in client.sentinel_slaves("mymaster"))

        eventually(knows, "the Sentinel to find the replica")
        yield primary, replica, sentinel
