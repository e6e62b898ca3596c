"""A real ensemble of three ZooKeeper servers; what the leader sends to the third comes as late as a test wants."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from lives import eventually

from kinesis_trident.checkpoint.embedded import LOOPBACK, EmbeddedZooKeeper, free_port

_SERVERS = 3
_QUORUM_CFG = """\
initLimit=60
syncLimit=60
"""


class Late:
    """A TCP proxy: what comes back from the server at `port` is late by `seconds`, in order."""

    def __init__(self, port: int) -> None:
        self.seconds = 0.0
        self._target = port
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection((LOOPBACK, self._target))
                except OSError:
                    client.close()
                    continue
                for source, target, late in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pass_on, args=(source, target, late), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, late: bool) -> None:
        under_way: queue.Queue[tuple[float, bytes]] = queue.Queue()
        threading.Thread(target=_give, args=(under_way, target), daemon=True).start()
        data = b"-"
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            under_way.put((time.monotonic() + (self.seconds if late else 0), data))


def _give(under_way: queue.Queue[tuple[float, bytes]], target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            at, data = under_way.get()
            time.sleep(max(0, at - time.monotonic()))
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(data)


class _Member(EmbeddedZooKeeper):
    """One server of an ensemble; it serves once a majority runs."""

    def __init__(self, folder: Path, number: int, peers: str) -> None:
        super().__init__(folder, free_port())
        self._number = number
        self._peers = peers

    def _command(self) -> list[str]:
        command = super()._command()
        with (self._folder / "zoo.cfg").open("a") as config:
            config.write(_QUORUM_CFG + self._peers)
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(str(self._number))
        return command

    def _answers(self) -> bool:
        return self.role() is not None

    def role(self) -> str | None:
        """`leader` or `follower`; the empty string while it serves nobody, None while it does not answer."""
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=1) as connection:
                connection.sendall(b"srvr")
                answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return None
        modes = [line.partition(": ")[2] for line in answer.splitlines() if line.startswith("Mode: ")]
        return modes[0] if modes else ""


class Ensemble:
    """Three servers; the third follows one of the others, `lag` behind it."""

    def __init__(self, folder: Path) -> None:
        quorum = [free_port() for _ in range(_SERVERS)]
        election = [free_port() for _ in range(_SERVERS)]
        self._late = [Late(port) for port in quorum[:2]]
        seen_by_third = [*(late.port for late in self._late), quorum[2]]
        self._members = [
            _Member(
                folder / str(number + 1),
                number + 1,
                "".join(
                    f"server.{other + 1}={LOOPBACK}:{(seen_by_third if number == 2 else quorum)[other]}:"
                    f"{election[other]}\n"
                    for other in range(_SERVERS)
                ),
            )
            for number in range(_SERVERS)
        ]

    def __enter__(self) -> Self:
        first, second, third = self._members
        for member in (first, second):
            member.start()
        eventually(lambda: {first.role(), second.role()} == {"leader", "follower"}, "two servers agree")
        third.start()
        eventually(lambda: third.role() == "follower", "the third one follows")
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            member.stop()
        for late in self._late:
            late.close()

    @property
    def members(self) -> Sequence[EmbeddedZooKeeper]:
        """The servers."""
        return self._members

    @property
    def leading(self) -> EmbeddedZooKeeper:
        """The server that is ahead; waits until there is one."""
        # A second look may find a server that answers late.
        return eventually(
            lambda: next((one for one in self._members if one.role() == "leader"), None), "there is a leader"
        )

    @property
    def leader(self) -> str:
        """The address of that one."""
        return self.leading.hosts

    @property
    def follower(self) -> str:
        """The address of the server that lags."""
        return self._members[2].hosts

    @contextlib.contextmanager
    def lagging(self, milliseconds: int) -> Iterator[Self]:
        """The third server is so far behind."""
        self.lag(milliseconds)
        try:
            yield self
        finally:
            self.lag(0)

    def lag(self, milliseconds: int) -> None:
        """The third server is so far behind from now on."""
        for late in self._late:
            late.seconds = milliseconds / 1000
