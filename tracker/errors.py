"""The errors of the trackers."""

from __future__ import annotations

from kinesis_trident.common.errors import KinesisTridentError


class TrackerError(KinesisTridentError):
    """A tracker got a contradictory call. Nothing was changed."""


class BackoffError(TrackerError, ValueError):
    """The text or the numbers of a retry policy are not valid."""


class OrderError(TrackerError, ValueError):
    """Positions are out of order, overlap, or lie outside of the range that they belong to."""


class UnknownRunError(TrackerError, KeyError):
    """No such run waits or is dead in this tracker: it was settled before, or never planned here."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""
