"""A run whose process has ended is taken over without a warning; of another machine's process nobody here knows."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from kinesis_trident.checkpoint.model.nodes import OwnerNode
from kinesis_trident.spout.planner.takeover import has_ended


@pytest.fixture(scope="module")
def ended() -> int:
    """The number of a process that has ended; it is not given again so soon."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def owner(pid: int, host: str) -> OwnerNode:
    return OwnerNode(epoch=1, host=host, pid=pid, since=1)


def test_only_a_process_of_this_machine_is_known_to_have_ended(ended: int) -> None:
    here = socket.gethostname()
    assert has_ended(owner(ended, here))
    assert not has_ended(owner(ended, f"not-{here}"))
    assert not has_ended(owner(os.getpid(), here))
