"""The wall clock of a job's Python processes, stepped while they run. The clocks of the JVM and of the files stay.

`KT_CLOCK` names a file that holds the step in seconds, as a double. Python imports this before anything that asks for
the time, so `time.time` and `time.time_ns` are these wherever a module has taken them.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

__all__ = ["install", "step"]

_SECONDS = struct.Struct("d")


def step(path: Path, seconds: float) -> None:
    """Let the clock be ahead by so many seconds, or behind; the test's side."""
    if not path.exists():
        path.write_bytes(_SECONDS.pack(seconds))
    # In place: the processes have the file mapped.
    with path.open("r+b") as file:
        file.write(_SECONDS.pack(seconds))


def install() -> None:
    """Read the step with each look at the clock; the job's side."""
    with Path(os.environ["KT_CLOCK"]).open("rb") as file:
        ahead = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + _SECONDS.unpack_from(ahead)[0]
    time.time_ns = lambda: now_ns() + int(_SECONDS.unpack_from(ahead)[0] * 1e9)
