"""The servers that schedules share: Kinesis, ZooKeeper, Redis; each behind a proxy, started when first needed."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import redis
from breakable import Breakable
from ensemble import Ensemble
from secure_servers import certificates
from server_programs import find
from servers import RedisServer, kill_server

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis

__all__ = ["Disk", "Keepers", "SmallZooKeeper", "Stores", "World"]

LOOPBACK = "127.0.0.1"


class Keepers:
    """ZooKeeper: the servers, and where a job reaches them, each through a proxy."""

    def __init__(self, servers: Sequence[EmbeddedZooKeeper], ensemble: Ensemble | None = None) -> None:
        self.servers = servers
        self.ensemble = ensemble
        self.proxies = [Breakable(LOOPBACK, server.port) for server in servers]

    @property
    def hosts(self) -> str:
        """Where a job reaches them."""
        return ",".join(f"{LOOPBACK}:{proxy.port}" for proxy in self.proxies)

    @property
    def direct(self) -> str:
        """Where the observer does."""
        return ",".join(server.hosts for server in self.servers)

    @property
    def folders(self) -> list[Path]:
        """Where their data is."""
        return [server._folder for server in self.servers]

    def kill(self) -> None:
        """`kill -9` to all."""
        for server in self.servers:
            if server.running:
                kill_server(server)

    def start(self) -> None:
        """Start those that do not run."""
        for server in self.servers:
            server.start()


class SmallZooKeeper(EmbeddedZooKeeper):
    """A server whose files take no more of a disk than they hold."""

    def _command(self) -> list[str]:
        java, *rest = super()._command()
        return [java, "-Dzookeeper.preAllocSize=64", *rest]


class Stores:
    """Redis with an append-only file, and perhaps a replica; a job reaches the primary through a proxy."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        program = find("redis-server")
        if program.path is None:
            msg = f"redis-server is missing: {program.how}"
            raise RuntimeError(msg)
        self._program = program.path
        self.primary = self._server()
        self._replica: RedisServer | None = None
        self.proxy = stack.enter_context(Breakable(LOOPBACK, self.primary.port))

    def _server(self) -> RedisServer:
        lasting = {"appendonly": "yes", "appendfsync": "always", "repl_diskless_sync_delay": 0}
        return self._stack.enter_context(RedisServer(self._program, **lasting))

    @property
    def client(self) -> redis.Redis:
        """A client of the primary."""
        return redis.Redis.from_url(self.primary.url, socket_timeout=5)

    @property
    def replica(self) -> RedisServer:
        """The other server, which follows the primary."""
        if self._replica is None:
            self._replica = self._server()
            # By a command: as a setting, it would be one again after each restart.
            redis.Redis.from_url(self._replica.url).replicaof(LOOPBACK, self.primary.port)
        return self._replica

    def swap(self) -> None:
        """The replica is the primary from now on."""
        self.primary, self._replica = self.replica, self.primary
        self.proxy.aim(self.primary.port)


class Disk:
    """A small disk, which can be full. Only root may mount one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], check=True)

    @staticmethod
    def possible() -> bool:
        """Tell whether this process may mount one."""
        return os.geteuid() == 0

    def fill(self) -> None:
        """Leave no byte free."""
        with suppress(OSError), (self.folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        """Remove what fills it."""
        (self.folder / "filler").unlink(missing_ok=True)

    def unmount(self) -> None:
        """Remove it, even while somebody has a file of it open."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


class TlsFront:
    """Kinesis over TLS, on a port of its own."""

    def __init__(self, folder: Path, target: int) -> None:
        certificates(folder)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "server.pem")
        self._target = target
        self.authority = folder / "ca.pem"
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        listening = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._connected, LOOPBACK, 0, ssl=self._context), self._loop
        ).result()
        self.port: int = listening.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            from_server, to_server = await asyncio.open_connection(LOOPBACK, self._target)
            await asyncio.gather(_pass_on(reader, to_server), _pass_on(from_server, writer))


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    sink.close()


class World:
    """All servers of a run; a context manager that stops them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._single: Keepers | None = None
        self._three: Keepers | None = None
        self._tls: TlsFront | None = None

    def __enter__(self) -> Self:
        self.kinesis = self._stack.enter_context(ScriptedKinesis(quotas=Quotas.none()))
        self.endpoint = self._stack.enter_context(
            Breakable(LOOPBACK, int(self.kinesis.endpoint_url.rpartition(":")[2]))
        )
        self.stores = Stores(self._stack)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def keepers(self, *, three: bool) -> Keepers:
        """Return one ZooKeeper server, or three of them."""
        if three:
            if self._three is None:
                ensemble = self._stack.enter_context(Ensemble(self.folder / "ensemble"))
                self._three = Keepers(ensemble.members, ensemble)
            return self._three
        if self._single is None:
            server = self._stack.enter_context(EmbeddedZooKeeper(self.folder / "zookeeper"))
            self._single = Keepers([server])
        return self._single

    def secure_endpoint(self) -> tuple[str, Path]:
        """Lead the endpoint's proxy to Kinesis over TLS: its URL, and the authority that vouches for it."""
        if self._tls is None:
            self._tls = TlsFront(self.folder, int(self.kinesis.endpoint_url.rpartition(":")[2]))
        self.endpoint.aim(self._tls.port)
        return f"https://{LOOPBACK}:{self.endpoint.port}", self._tls.authority

    def plain_endpoint(self) -> str:
        """Lead the endpoint's proxy to Kinesis without TLS: its URL."""
        self.endpoint.aim(int(self.kinesis.endpoint_url.rpartition(":")[2]))
        return f"http://{LOOPBACK}:{self.endpoint.port}"
