"""A server that forks Spark's Python processes: `python warm_python.py SOCKET JVM`, until that process has ended.

Spark starts a process for the source of each query and a daemon for each kind of its workers. Each spends a second of
processor on imports, and Spark gives up on a source that has not connected within 10 s. `sitecustomize.py` hands such
a process over to a fork of this one, which has the modules imported. The fork takes the environment, the folder and
the standard streams of the process, ends with it, and gives it its status. One that a signal ends says so.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass

import psutil
from processes import alive
from warm_modules import import_all


def serve(server: socket.socket, jvm: psutil.Process) -> Process | None:
    """Fork for each process that is handed over; return it in the fork, nothing at the end."""
    forks: dict[int, socket.socket] = {}
    while alive(jvm):
        ready, _, _ = select.select([server, *forks.values()], [], [], 0.1)
        if server in ready:
            asked, _ = server.accept()
            process = Process.received(asked)
            if process is None:
                asked.close()
                continue
            if not (fork := os.fork()):
                for connection in (asked, *forks.values()):
                    connection.close()
                return process
            process.close()
            forks[fork] = asked
        for fork, asked in list(forks.items()):
            # Nothing more is sent: its end is closed, because the process has died.
            died = asked in ready
            if died:
                os.kill(fork, signal.SIGTERM)
            ended, status = os.waitpid(fork, 0 if died else os.WNOHANG)
            if ended:
                if not died:
                    code = os.waitstatus_to_exitcode(status)
                    if code < 0:
                        name = signal.Signals(-code).name
                        print(f"Fatal Python error: {name} ended process {fork}", file=sys.stderr, flush=True)
                    with suppress(BrokenPipeError):
                        asked.sendall(b"%d" % (code & 0xFF))
                asked.close()
                del forks[fork]
    for fork in forks:
        os.kill(fork, signal.SIGTERM)
    return None


@dataclass(frozen=True)
class Process:
    """A process that is handed over."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    streams: list[int]

    @classmethod
    def received(cls, asked: socket.socket) -> Process | None:
        """Receive one, with copies of its standard streams; nothing if it has ended before it had sent all."""
        try:
            head, streams, _, _ = socket.recv_fds(asked, 8, 3)
            text = asked.recv(int(head), socket.MSG_WAITALL) if head else b""
        except ConnectionResetError:
            return None
        if not text or len(text) < int(head):
            for stream in streams:
                os.close(stream)
            return None
        return cls(**json.loads(text), streams=list(streams))

    def close(self) -> None:
        """Close the copies of its streams."""
        for stream in self.streams:
            os.close(stream)

    def become(self) -> None:
        """Become it; return when its module has run."""
        for number, stream in enumerate(self.streams):
            os.dup2(stream, number)
        self.close()
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        faulthandler.enable()
        module, *sys.argv[1:] = self.arguments
        # What was imported is not what runs: runpy would warn.
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    """Serve, or be one of the forks."""
    jvm = psutil.Process(int(sys.argv[2]))
    import_all()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(sys.argv[1])
        gc.freeze()
        server.listen(64)
        process = serve(server, jvm)
    if process:
        process.become()


if __name__ == "__main__":
    main()
