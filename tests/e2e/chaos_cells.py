"""The nine cells of spout and state through a death of the driver, and one of an executor while a batch is read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from crashed_topologies import Crash, Point, Victim
from matrix import SPOUTS
from test_exactly_once import (
    WHOLE_JOB,
    outcomes,
    test_a_cell_that_promises_it_is_exact,
    test_the_picture_in_the_docs_says_what_was_seen,
)

__all__ = [
    "outcomes",
    "test_a_cell_that_promises_it_is_exact",
    "test_the_picture_in_the_docs_says_what_was_seen",
]

pytestmark = [*WHOLE_JOB, pytest.mark.long]


@pytest.fixture(scope="module")
def deaths() -> list[Crash]:
    """The crashes that the job goes through."""
    return [Crash(Victim.DRIVER, Point.DURING), Crash(Victim.EXECUTOR, Point.PINNING)]


@pytest.fixture(scope="module")
def spouts() -> Sequence[str]:
    """The columns of the matrix that are played."""
    return SPOUTS
