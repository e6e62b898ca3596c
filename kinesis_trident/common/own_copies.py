"""Copies of values that a user's function may change in place, while the same values are used again."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TypeVar, cast

T = TypeVar("T")
Values = TypeVar("Values", bound=Sequence[Any])

_ATOMS = frozenset({type(None), bool, int, float, str, bytes, Decimal, datetime, date})
"""The types of values that nobody can change in place."""


def fresh(value: T) -> T:
    """Return a copy of a value; itself, if nobody can change it."""
    return value if type(value) in _ATOMS else copy.deepcopy(value)


def fresh_all(values: Values) -> Values:
    """Return copies of values; themselves, if nobody can change them."""
    if _ATOMS.issuperset(map(type, values)):
        return values
    # One by one: what stands there twice becomes two, of which each may be changed.
    copies = [fresh(value) for value in values]
    return cast(Values, tuple(copies) if isinstance(values, tuple) else copies)
