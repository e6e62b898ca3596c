"""The root of all our errors, and what the trackers refuse."""

from __future__ import annotations

__all__ = [
    "BackoffError",
    "KinesisTridentError",
    "MissingPackageError",
    "OrderError",
    "TrackerError",
    "UnknownRunError",
]


class KinesisTridentError(Exception):
    """The root of every error that this package raises by itself."""


class MissingPackageError(KinesisTridentError, ImportError):
    """A package is not installed that this one does not bring by itself; the message says how to get it."""


class TrackerError(KinesisTridentError):
    """A tracker was told something that cannot be true. Nothing was changed."""


class BackoffError(TrackerError, ValueError):
    """The text or the numbers of a retry policy make no sense."""


class OrderError(TrackerError, ValueError):
    """Positions are out of order, overlap, or lie outside of what they are said to be a part of."""


class UnknownRunError(TrackerError, KeyError):
    """No such run waits or is dead in this tracker: its outcome was settled before, or never planned here."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""
