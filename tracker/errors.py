"""The errors of the trackers, and those by which your code says what the failure of a record means."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import ClassVar

from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.common.visible_text import shorten


class RecordFailure(KinesisTridentError):
    """The root of the two errors that say whether, and when, a record comes again."""

    retry: ClassVar[bool] = True
    after: str | timedelta | None = None


class PermanentFailure(RecordFailure):
    """Raised by your code: no retry can help this record. It goes to the dead letter after this one delivery.

    Raise it, or a subclass, in a function, a bolt or an operation of Trident, or give it to
    `collector.fail` or `Acks.fail`.
    """

    retry = False


class RetryLater(RecordFailure):
    """Raised by your code: this record fails, and does not come again before a while, such as `10m`, has passed.

    Where the policy's delay is longer, that one counts. The delivery counts as any that has failed.

    Raises:
        DelayError: `after` is neither a duration with its unit nor a `timedelta`.
    """

    def __init__(self, after: str | timedelta, reason: str = "") -> None:
        super().__init__(after, reason)
        self.after, self.reason = after, reason
        # Where it is raised, a mistake is found at its place.
        seconds_of(after)

    def __str__(self) -> str:
        return self.reason


class TrackerError(KinesisTridentError):
    """A tracker got a contradictory call. Nothing was changed."""


class BackoffError(TrackerError, ValueError):
    """The text or the numbers of a retry policy are not valid."""


class DelayError(TrackerError, ValueError):
    """A delay before the next delivery is not valid, or is given for a record that does not come again."""


class OrderError(TrackerError, ValueError):
    """Positions are out of order, overlap, or lie outside of the range that they belong to."""


class UnknownRunError(TrackerError, KeyError):
    """No such run waits or is dead in this tracker: it was settled before, or never planned here."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
"""The milliseconds of each unit of a duration."""

DURATION = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)"
_DELAY = re.compile(rf"\s*{DURATION}\s*", re.ASCII)
_LONGEST = timedelta(days=366)
"""A stream keeps no record for longer."""


def seconds_of(after: object) -> int:
    """Return a delay in whole seconds, rounded up: a duration with its unit, such as `30s`, `10m` or `1h`.

    Raises:
        DelayError: it is none, or longer than 366 days.
    """
    delay = after if isinstance(after, timedelta) else timedelta(-1)
    if isinstance(after, str) and (found := _DELAY.fullmatch(after)):
        # A number of any size: as many milliseconds as are too long stand for more.
        delay = timedelta(milliseconds=min(float(found[1]) * UNITS[found[2]], 1e12))
    if not timedelta(0) <= delay <= _LONGEST:
        msg = (
            f"after={shorten(repr(after), 100)} is no delay. Give a duration with its unit, such as '30s', '10m' or "
            "'1h', or a timedelta, of at most 366 days"
        )
        raise DelayError(msg)
    return -(-delay // timedelta(seconds=1))
