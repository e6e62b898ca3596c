"""The thoroughness of a run: `make chaos` sets CHAOS, and more of the same cases are played."""

from __future__ import annotations

import os
from typing import TypeVar

__all__ = ["CHAOS", "more_in_chaos"]

CHAOS = bool(os.environ.get("CHAOS"))

T = TypeVar("T")


def more_in_chaos(*some: T, more: tuple[T, ...]) -> tuple[T, ...]:
    """Return `some` cases, and the others too in `make chaos`."""
    return (*some, *more) if CHAOS else some
