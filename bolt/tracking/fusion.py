"""Fuses consecutive operators into one task and one Python worker.

Nothing goes through the JVM between them. And while tuples of a batch of the source's rows pass through all of
them, that batch is still in memory: a downstream failure is reported with its position, which otherwise needs
another reading of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from kinesis_trident.bolt.steps.time_zones import in_session
from kinesis_trident.common.prompt_sockets import acknowledge_at_once
from kinesis_trident.common.worker_garbage import exempt_from_collections
from kinesis_trident.tracker.failure import Failure

Operator = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_MOST_ROWS = 10_000
"""Rows of a batch between two operators, as with Spark: an operator that makes many rows of one fills no memory."""


class InHand(Protocol):
    """A holder of the current batch of the source's rows, until the next one comes."""

    def fail_in_hand(self, roots: Iterable[int], failure: Failure) -> list[int]:
        """Fail those of the roots that are in the current batch; return the others."""
        ...


class Task:
    """The shared state of a task's operators in one worker: the holder of the source's rows."""

    def __init__(self) -> None:
        self.source: InHand | None = None


_TASK: ContextVar[Task | None] = ContextVar("operators of one task", default=None)


def current_task() -> Task | None:
    """Return the task of the running operator; None if it runs alone."""
    return _TASK.get()


@dataclass(frozen=True, slots=True)
class Fused:
    """Several operators as one, in the order of their application."""

    operators: tuple[Operator, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the output of the last operator."""
        _TASK.set(Task())
        try:
            for operator in self.operators[:-1]:
                batches = _in_slices(operator(batches))
            yield from self.operators[-1](batches)
        finally:
            _TASK.set(None)


@dataclass(frozen=True, slots=True)
class Select:
    """Takes some columns of the tuples."""

    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the tuples with these columns."""
        for batch in batches:
            yield batch.select(list(self.names))


@dataclass(frozen=True, slots=True)
class Promptly:
    """Runs an operator in a worker that gets its input without delay, with times in the session's zone."""

    operator: Operator
    zone: str = "UTC"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the output of the operator."""
        acknowledge_at_once()
        yield from self.operator(in_session(self.zone, batches))
        exempt_from_collections(Promptly)


def _in_slices(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _MOST_ROWS):
            yield batch.slice(start, _MOST_ROWS)
