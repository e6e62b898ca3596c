"""A job that is a script of its own, over several lives: started, waited for, killed with all its processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError
from processes import alive
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

__all__ = [
    "CRASH_SITE",
    "HERE",
    "Lives",
    "PATIENCE",
    "command_of",
    "digest",
    "eventually",
    "kill_tree",
    "parent_of",
    "remove",
    "workers_of",
]

HERE = Path(__file__).resolve().parent
CRASH_SITE = HERE / "crash_site"
"""On the path of a job, its `sitecustomize` prepares the places where its processes can be stopped."""

PATIENCE = 300.0
"""Seconds that a test waits for anything."""

T = TypeVar("T")


def eventually(look: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """The first truthy answer of `look`; fails with `what` when there is none in time."""
    retrying = Retrying(
        stop=stop_after_delay(patience),
        wait=wait_fixed(0.05),
        retry=retry_if_result(lambda answer: not answer),
    )
    try:
        return retrying(look)
    except RetryError:
        msg = f"not within {patience:g} s: {what}"
        raise AssertionError(msg) from None


def remove(client: KazooClient, path: str) -> None:
    """Delete a node and all below it, also while a thread of a query adds to it."""

    def removed() -> bool:
        with suppress(NotEmptyError, NoNodeError):
            client.delete(path, recursive=True)
        return not client.exists(path)

    eventually(removed, f"{path} is deleted")


def command_of(process: psutil.Process) -> list[str]:
    """Return the command line of a process; nothing if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return list(process.cmdline())
    return []


def workers_of(daemons: list[psutil.Process]) -> list[psutil.Process]:
    """Return the Python workers among these, each a fork of a daemon that has the same command line."""
    return [one for one in daemons if parent_of(one) in daemons]


def parent_of(process: psutil.Process) -> psutil.Process | None:
    """Return who started a process; None if it has ended, as idle workers do."""
    with suppress(psutil.NoSuchProcess):
        return process.parent()
    return None


def kill_tree(root: psutil.Process) -> None:
    """SIGKILL to a process and every one below it, whatever group it is in; returns when all are dead."""
    tree: set[psutil.Process] = set()
    while True:
        # Stopped ones start no others, so this comes to an end.
        found = {root, *root.children(recursive=True)} - tree
        if not found:
            break
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        tree |= found
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    eventually(lambda: not any(map(alive, tree)), "the end of all killed processes")


def digest(printed: str) -> str:
    """The errors that a job's output names, each once, and its end: the first cause may stand far above that."""
    errors = dict.fromkeys(re.findall(r"^.*(?:[Ee]rror|Exception): .*$", printed, re.MULTILINE))
    return "\n".join([*(line[:500] for line in errors), "...", printed[-4000:]])


class Lives:
    """The processes of a job: its folder stays from one life to the next."""

    def __init__(self, folder: Path, script: Path) -> None:
        self.folder = folder
        self._script = script
        self._log = folder / "job.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._lives = 0
        self._begun = 0

    def launch(self, asked: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """Start a life: the script with a file that holds `asked`."""
        self._lives += 1
        self._begun = self._log.stat().st_size if self._log.exists() else 0
        file = self.folder / f"asked-{self._lives}.json"
        file.write_text(json.dumps(asked))
        path = os.pathsep.join((str(CRASH_SITE), str(HERE), os.environ["PYTHONPATH"]))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(self._script), str(file)],
                stdout=log,
                stderr=log,
                env=os.environ
                | {
                    "PYSPARK_PYTHON": sys.executable,
                    "PYSPARK_DRIVER_PYTHON": sys.executable,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                }
                | ({"PYTHONPATH": path} if environment else {})
                | environment,
                start_new_session=True,
            )

    def until(self, look: Callable[[], object], what: str) -> None:
        """Wait while the job runs until `look` says something true."""
        eventually(lambda: look() or not self.running, what)
        assert self.running, f"the job ended before {what}\n{self.tail()}"

    def finish(self) -> int:
        """Wait for the end of this life: the exit code."""
        assert self._process is not None
        try:
            return self._process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            msg = f"the job does not end\n{self.tail()}"
            raise AssertionError(msg) from None

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM, and every process below."""
        if self._process is not None and self.running:
            kill_tree(psutil.Process(self._process.pid))
            self._process.wait()

    @property
    def running(self) -> bool:
        """Tell whether this life has not ended."""
        assert self._process is not None
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The driver's process."""
        assert self._process is not None
        return self._process.pid

    def processes(self) -> list[psutil.Process]:
        """Every process below the driver's."""
        assert self._process is not None
        return psutil.Process(self._process.pid).children(recursive=True)

    def said(self) -> str:
        """Return what this life has printed."""
        return self._log.read_bytes()[self._begun :].decode(errors="replace") if self._log.exists() else ""

    def tail(self) -> str:
        """Return what that says of errors, and its end."""
        return digest(self.said())
