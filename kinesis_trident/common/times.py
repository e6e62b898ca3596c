"""Reads the times that people type, and writes times for people. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation

from kinesis_trident.common.visible_text import shorten

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS_FROM = 10**11
"""A number this large is in milliseconds: in seconds it would be a date after the year 5000."""

_SECONDS_BEFORE = 10**10
"""A number this large, but no larger than the last one, is of neither unit: a digit of milliseconds is missing."""

_END = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
"""The latest accepted time: calls take times as `datetime`."""

_DATES = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
"""The formats of dates without separators, by their length."""

_ACCEPTED = (
    "a time in ISO 8601 (UTC unless it names a zone) such as 2026-01-31T12:00:00Z, or seconds or milliseconds since "
    "1970"
)


def timestamp(given: str) -> int:
    """Parse a time in ISO 8601 (UTC by default) or in (milli)seconds since 1970; return milliseconds.

    Raises:
        ValueError: saying what is accepted; also for a number that can be read as a date.
    """
    given = given.strip()
    try:
        number = Decimal(given)
    except InvalidOperation:
        return _check_range(_parse_date(given))
    if not number.is_finite():
        raise ValueError(_ACCEPTED)
    _refuse_date(given)
    if _SECONDS_BEFORE <= number < _MILLISECONDS_FROM:
        msg = f"{_ACCEPTED}; {shorten(given, 40)} is neither: a digit is missing, or one is too many"
        raise ValueError(msg)
    return _check_range(
        int(number if number >= _MILLISECONDS_FROM else number * 1000) if number <= _END else -1
    )


def iso_time(milliseconds: int) -> str:
    """Write epoch milliseconds as UTC, to the second; a value out of the range of dates stays a number."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"


def _parse_date(given: str) -> int:
    try:
        time = datetime.fromisoformat(given)
    except ValueError:
        raise ValueError(_ACCEPTED) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // timedelta(milliseconds=1)


def _refuse_date(number: str) -> None:
    """Refuse digits such as 20260131, which are both a short ISO 8601 date and a number of seconds."""
    form = _DATES.get(len(number))
    if form is None or not re.fullmatch(r"(19|20|21)[0-9]+", number):
        return
    try:
        date = datetime.strptime(number, form).replace(tzinfo=UTC)
    except ValueError:
        return
    written = date.date().isoformat() if len(number) == 8 else date.isoformat().replace("+00:00", "Z")
    msg = (
        f"{_ACCEPTED}; {number} can be a date or a number: write {written} for the date, {number}.0 for "
        "the number"
    )
    raise ValueError(msg)


def _check_range(milliseconds: int) -> int:
    if not 0 <= milliseconds <= _END:
        msg = f"{_ACCEPTED}; from 1970 to 9999"
        raise ValueError(msg)
    return milliseconds
