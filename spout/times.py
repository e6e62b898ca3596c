"""How a time is written in options. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation

__all__ = ["timestamp"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS_FROM = 10**11
"""A number of this size is in milliseconds: in seconds it would be a date after the year 5000."""


def timestamp(given: str) -> int:
    """A time in ISO 8601 (UTC unless it names a zone) or in (milli)seconds since 1970, as milliseconds."""
    try:
        number = Decimal(given.strip())
    except InvalidOperation:
        pass
    else:
        if number.is_finite() and number >= 0:
            return int(number if number >= _MILLISECONDS_FROM else number * 1000)
    try:
        time = datetime.fromisoformat(given.strip())
    except ValueError:
        msg = (
            "a time in ISO 8601 (UTC unless it names a zone) such as 2026-01-31T12:00:00Z, or seconds or "
            "milliseconds since 1970"
        )
        raise ValueError(msg) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // timedelta(milliseconds=1)
