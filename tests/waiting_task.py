"""A task of Spark that waits in the middle of what it writes, until the test wakes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["WaitingTask"]


class WaitingTask:
    """`df.mapInArrow(task.function, df.schema)` waits at its first rows; pipes lead to its process and back."""

    def __init__(self, folder: Path) -> None:
        self._pipes = [str(folder / name) for name in ("reached", "wake")]
        for pipe in self._pipes:
            os.mkfifo(pipe)

    @property
    def function(self) -> Callable[[Iterator[Any]], Iterator[Any]]:
        reached, wake = self._pipes

        def wait(batches: Iterator[Any]) -> Iterator[Any]:
            Path(reached).write_text("now")
            Path(wake).read_text()
            yield from batches

        return wait

    def reached(self) -> None:
        """Wait until the task waits."""
        Path(self._pipes[0]).read_text()

    def wake(self) -> None:
        """Let it go on."""
        Path(self._pipes[1]).write_text("now")
