"""The memory that a process has, and the most that it has had."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

__all__ = ["peak", "resident"]

_STATUS = Path("/proc/self/status")


def peak() -> int:
    """The most memory that this process has had resident, in bytes.

    On Linux as VmHWM: `ru_maxrss` counts what the parent had when it started this process, too.
    """
    if _STATUS.exists():
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def resident() -> int:
    """The memory that this process has resident now, in bytes; its peak where the system does not tell."""
    if not _STATUS.exists():
        return peak()
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024
