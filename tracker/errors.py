"""The root of all our errors, and the errors of the trackers."""

from __future__ import annotations

import msgspec

__all__ = [
    "UNREADABLE",
    "BackoffError",
    "KinesisTridentError",
    "MissingPackageError",
    "OrderError",
    "TrackerError",
    "UnknownRunError",
]


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors that msgspec raises for bad bytes; RecursionError is for a document that is nested too deep."""


class KinesisTridentError(Exception):
    """The root of every error that this package raises."""


class MissingPackageError(KinesisTridentError, ImportError):
    """An optional package is not installed; the message says how to get it."""


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
