"""The lives of a job: started, killed, paused, started beside one that sleeps; and their processes by kind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import stepped_clock
from lives import Lives, command_of, kill_tree, workers_of

__all__ = ["EXECUTOR", "READER", "WORKER", "Acker", "Lifetimes"]

EXECUTOR = "CoarseGrainedExecutorBackend"
READER = "python_streaming_source_runner"
WORKER = "pyspark.daemon"

_FOLDERS = ("notes", "out", "acker", "letters", "spool")
_SCRIPTS = Path(__file__).parent


class Lifetimes:
    """One application from its first life to its last; all lives share `folder`, and each has its own log below it.

    Args:
        asked: what `job.py` is told, the same in each life.
        environment: of its processes, besides.
    """

    def __init__(self, folder: Path, asked: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._asked = asked
        self._environment = environment
        self._lives: list[Lives] = []
        self.begun: list[tuple[float, Path]] = []
        """When each life began, and its Spark checkpoint."""
        self._seen: set[psutil.Process] = set()
        self.checkpoint = Path(asked["checkpoint"])
        self.clock = folder / "clock"
        stepped_clock.step(self.clock, 0)
        for name in _FOLDERS:
            (folder / name).mkdir(exist_ok=True)

    @property
    def count(self) -> int:
        """The number of lives so far."""
        return len(self._lives)

    @property
    def current(self) -> Lives:
        """The newest life."""
        return self._lives[-1]

    def start(self, *, anew: bool = False) -> None:
        """Start a life; `anew`: with a new Spark checkpoint."""
        number = self.count + 1
        if anew:
            self.checkpoint = self.checkpoint.with_name(f"{self.checkpoint.name}-{number}")
        self.begun.append((time.time(), self.checkpoint))
        folder = self.folder / f"life-{number}"
        folder.mkdir()
        life = Lives(folder, _SCRIPTS / "job.py")
        self._lives.append(life)
        life.launch(
            {**self._asked, "life": number, "folder": str(self.folder), "checkpoint": str(self.checkpoint)},
            {**self._environment, "KT_CLOCK": str(self.clock)},
        )

    def below(self, *words: str) -> list[psutil.Process]:
        """Return the processes of the newest life whose command line has one of these words."""
        found: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            found = self.current.processes()
        self._seen.update(found)
        return [one for one in found if any(word in part for word in words for part in command_of(one))]

    def workers(self) -> list[psutil.Process]:
        """Return the Python workers, each a fork of a daemon that has the same command line."""
        return workers_of(self.below(WORKER))

    def pause(self) -> None:
        """SIGSTOP to the newest life, from the driver down."""
        _signal(self.current, signal.SIGSTOP)

    def wake(self, life: Lives) -> None:
        """SIGCONT to all processes of a life."""
        _signal(life, signal.SIGCONT)

    def end(self) -> None:
        """Kill every process that is left, those too whose parents are dead."""
        for life in self._lives:
            life.kill()
        for process in self._seen:
            with suppress(psutil.NoSuchProcess):
                process.kill()


class Acker:
    """The process that acks what it finds in the output of a job with `ackMode=explicit`."""

    def __init__(self, folder: Path, options: Mapping[str, str]) -> None:
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it begins with all that is there."""
        path = self._folder / "acker" / "asked.json"
        path.write_text(json.dumps({"folder": str(self._folder), "options": self._options}))
        with (self._folder / "acker" / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_SCRIPTS / "acker.py"), str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ.copy(),
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            if self._process.poll() is None:
                kill_tree(psutil.Process(self._process.pid))
            self._process.wait()

    @property
    def said(self) -> str:
        """Return what it printed if it has ended by itself, as it never should."""
        if self._process is None or self._process.poll() is None:
            return ""
        return (self._folder / "acker" / "log").read_text()[-2000:]


def _signal(life: Lives, what: signal.Signals) -> None:
    """Send a signal to all processes of a life, from the driver down; none if that has ended."""
    with suppress(psutil.NoSuchProcess):
        for process in [psutil.Process(life.pid), *life.processes()]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(what)
