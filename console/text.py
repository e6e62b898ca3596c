"""Formats numbers, positions and lists for people, and tells the time."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from kinesis_trident.common.times import iso_time, timestamp

_NAMED = 10
_LONG_NUMBER = re.compile(r"\d{21,}")


def now_ms() -> int:
    """Return the epoch milliseconds by this machine's clock."""
    return int(time.time() * 1000)


def epoch_ms(text: str) -> int:
    """Return the epoch milliseconds of a time, of UTC if it names no zone; 0 if a text is no time."""
    try:
        return timestamp(text)
    except ValueError:
        return 0


def duration(milliseconds: int) -> str:
    """Format milliseconds in suitable units: `350 ms`, `4.2 s`, `3m 05s`, `2h 07m`, `1d 4h`."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds // 1000
    if seconds < 60:
        # Cut off as the other units are: 59,999 ms is not yet a minute.
        return f"{seconds}.{milliseconds % 1000 // 100} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m {seconds:02}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes:02}m"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h"


def lag_text(lag_ms: int | None) -> str:
    """Format the age of the oldest unread record: `none` if everything is read, `unknown` if nobody knows."""
    return "unknown" if lag_ms is None else duration(lag_ms) if lag_ms else "none"


def position_text(position: str) -> str:
    """Write a position, as nodes have it, for people: with a time in place of its milliseconds, which can be typed."""
    name, _, number = position.partition(" ")
    return f"{name} {iso_time(int(number))}" if name == "AT_TIMESTAMP" and number.isdecimal() else position


def short(text: str) -> str:
    """Shorten a sequence number (56 digits) in the middle: its ends identify it."""
    return _LONG_NUMBER.sub(lambda number: f"{number[0][:4]}…{number[0][-12:]}", text)


def some_of(names: Iterable[str], most: int = _NAMED) -> str:
    """Return the first names of a list, with the number of the others."""
    every = sorted(set(names))
    more = len(every) - most
    return ", ".join(every[:most]) + (f" and {more:,} more" if more > 0 else "")
