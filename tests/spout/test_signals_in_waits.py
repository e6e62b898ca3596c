"""A signal that comes at any point of a wait ends it: no lock that the wait holds keeps the handler up."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import signal, threading, time

def interrupted(*_):
    signal.raise_signal(signal.SIGTERM)
    return False

# An event waits so, with its lock held.
threading.Condition.wait = time.sleep = interrupted
"""
WAITS = {
    "a job": """
from kinesis_trident.spout import termination

class Running:
    isActive = True

    def awaitTermination(self):
        print("ended")

def stop(running, timeout):
    running.isActive = False

termination.stop = stop
termination.await_termination(Running())
""",
    "a server": """
from kinesis_trident.console.commands.servers import serve

class Server:
    name, endpoint_url, running = "kinesis", "http://127.0.0.1:1", True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        print("ended")

serve(Server())
""",
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_signal_in_the_middle_of_a_wait_ends_it(wait: str) -> None:
    imports = "import kinesis_trident.spout.termination, kinesis_trident.console.commands.servers\n"
    program = imports + PROGRAM + WAITS[wait]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.endswith("ended\n")
