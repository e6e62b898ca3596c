"""Runs a server that must not outlive its owner; `checkpoint.embedded` starts it as a separate script.

The owner holds the other end of the standard input. When that closes, because the owner stopped, crashed or was
killed, the server is stopped: this needs only a pipe of the operating system, works from any thread of the owner,
and also after SIGKILL. Only the standard library is imported, to start quickly.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from types import FrameType

STOP = b"s"
"""The byte that the owner writes to stop the server and keep its folder."""

_GRACE_SECONDS = 10.0


def keep(command: list[str], folder: str, stop_signal: int) -> int:
    """Run `command` until it or the standard input ends, and return its exit code.

    Args:
        command: the server.
        folder: removed if the owner ends without writing `STOP`; empty for none.
        stop_signal: the signal that asks the server to end.
    """
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    owner_gone = threading.Event()

    def watch() -> None:
        if os.read(sys.stdin.fileno(), 1) != STOP:
            owner_gone.set()
        _stop(server, stop_signal)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        server.send_signal(stop_signal)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    threading.Thread(target=watch, daemon=True).start()
    code = server.wait()
    if owner_gone.is_set() and folder:
        shutil.rmtree(folder, ignore_errors=True)
    return code


def _stop(server: subprocess.Popen[bytes], stop_signal: int) -> None:
    server.send_signal(stop_signal)
    try:
        server.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(abs(keep(sys.argv[3:], sys.argv[1], int(sys.argv[2]))))
