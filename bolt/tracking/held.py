"""The frames of an attempt at a batch whose rows are kept for several readers, and how each is freed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame

from kinesis_trident.common.private_names import HELD_ROWS_LOST, free_rows, store_rows

_ADAPTIVE = "spark.sql.adaptive.enabled"


class Held:
    """Keeps rows until the end of an attempt, however it ends: as a context manager, or until `release`."""

    def __init__(self) -> None:
        self._cached: list[DataFrame] = []
        self._stored: list[DataFrame] = []

    def cache(self, frame: DataFrame) -> DataFrame:
        """Keep the rows of a frame once they are computed. Those that are lost are computed again."""
        self._cached.append(frame.persist())
        return self._cached[-1]

    def store(self, frame: DataFrame, *, adaptive: bool = True) -> DataFrame:
        """Compute a frame now and keep its rows. Lost rows are not computed again: then the batch is replayed.

        A cache would compute them again, and a function with another result the second time would change a state.
        Without `adaptive` all numbers of partitions are given, so that Spark need not plan again after each shuffle.
        """
        with nullcontext() if adaptive else plan_once(frame):
            self._stored.append(store_rows(frame))
        return self._stored[-1]

    def uncache(self) -> None:
        """Free the rows that can be computed again."""
        while self._cached:
            self._cached.pop().unpersist()

    def release(self) -> None:
        """Free all rows."""
        self.uncache()
        while self._stored:
            free_rows(self._stored.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def has_lost_held_rows(error: Exception) -> bool:
    """Return whether an action failed because stored rows were lost with their executor."""
    return HELD_ROWS_LOST in str(error)


@contextmanager
def plan_once(frame: DataFrame) -> Iterator[None]:
    """Turn off adaptive planning, which needs a job and a plan for each shuffle. The session is the query's own."""
    settings = frame.sparkSession.conf
    before = settings.get(_ADAPTIVE)
    settings.set(_ADAPTIVE, "false")
    try:
        yield
    finally:
        settings.set(_ADAPTIVE, str(before))
