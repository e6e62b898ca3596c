"""The lines of our loggers: their form where nobody has configured logging, and how often one is repeated."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

TREE = "kinesis_trident"
"""The one logger above all of ours."""

_TEXT = "%(asctime)s %(levelname)s kinesis-trident: %(message)s"


def configure_logging(form: str) -> None:
    """Print our lines, from INFO on, to the standard error of this process, unless somebody has configured logging.

    Only Spark's own processes call it: its planning process and its Python workers, where no user's code has had a
    chance to. A handler of the root logger, or of ours, takes its place, also later. `form` is `text` or `json`.
    """
    tree = logging.getLogger(TREE)
    ours = next((handler for handler in tree.handlers if isinstance(handler, _OurHandler)), None)
    if ours is None:
        if tree.handlers:
            return
        ours = _OurHandler()
        tree.addHandler(ours)
        if tree.level == logging.NOTSET:
            tree.setLevel(logging.INFO)
    ours.setFormatter(_JsonLines() if form == "json" else logging.Formatter(_TEXT))


class _OurHandler(logging.Handler):
    """Writes to whatever is the standard error now, while the root logger has no handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            self.handleError(record)


class _JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, process and message."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "pid": os.getpid(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class Seldom:
    """Lets a line through once in a period for each key; two threads at once may get two through.

    Args:
        seconds: the period.
        clock: seconds that never step back.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last: dict[str, float] = {}

    def __call__(self, key: str) -> bool:
        """Return whether a line of this key may be written now; if so, no other one for a period."""
        now = self._clock()
        last = self._last.get(key)
        if last is not None and now - last < self._seconds:
            return False
        self._last[key] = now
        return True
