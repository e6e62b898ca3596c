"""Looks at processes; both tests and the processes that they start use it."""

from __future__ import annotations

from contextlib import suppress

import psutil

__all__ = ["alive"]


def alive(process: psutil.Process) -> bool:
    """Tell whether a process runs: a number that another process has by now, and a zombie, are none."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
