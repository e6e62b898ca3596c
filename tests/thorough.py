"""The thoroughness of a run: what `make test` leaves to `make long`, and what to `make chaos`."""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

__all__ = ["CHAOS", "SEARCH", "cases", "examples"]

CHAOS = bool(os.environ.get("CHAOS"))
"""Set by `make long` and `make chaos`: more of the same cases are played."""

SEARCH = "HOSTILE_EXAMPLES" in os.environ
"""Set by `make chaos`, and for a search of hours: property tests play other examples each time."""

T = TypeVar("T")


def examples(most: int) -> int:
    """Return how many examples a property test plays: a quarter in `make test`, all in `make chaos`."""
    return most if CHAOS else max(1, most // 4)


def cases(*each: T, long: tuple[T, ...] = (), chaos: tuple[T, ...] = ()) -> list[object]:
    """Return the cases of a test: those of each run, those marked `long`, and those that `make chaos` adds."""
    left_out = [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long) for case in long
    ]
    return [*each, *left_out, *(chaos if CHAOS else ())]
