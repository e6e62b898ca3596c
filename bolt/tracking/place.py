"""The place of a running operator: its task's stage and partition, in Spark or in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from pyspark import TaskContext

from kinesis_trident.bolt.tracking.spans import PROPERTY


class Place(NamedTuple):
    """A task: `stage` and `partition` are its numbers. `spans`: requests separate sums (`bolt.tracking.spans`)."""

    stage: int = 0
    partition: int = 0
    spans: str | None = None


_PLACE: ContextVar[Place | None] = ContextVar("place of a task in this process", default=None)


def current_place() -> Place:
    """Return the place of the running operator; the first task outside of any."""
    place = _PLACE.get()
    if place is not None:
        return place
    context = TaskContext.get()
    if context is None:
        return Place()
    return Place(context.stageId(), context.partitionId(), context.getLocalProperty(PROPERTY))


def is_first_try() -> bool:
    """Return False in a task that Spark runs again, or twice."""
    context = TaskContext.get()
    return context is None or context.attemptNumber() == 0


@contextmanager
def placed(place: Place) -> Iterator[None]:
    """Run an operator of this process in a place."""
    token = _PLACE.set(place)
    try:
        yield
    finally:
        _PLACE.reset(token)
