"""The root of all our errors, and those that any package raises."""

from __future__ import annotations

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors that msgspec raises for bad bytes; RecursionError is for a document that is nested too deep."""


class KinesisTridentError(Exception):
    """The root of every error that this package raises."""


class MissingPackageError(KinesisTridentError, ImportError):
    """An optional package is not installed; the message says how to get it."""
