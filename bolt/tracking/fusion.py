"""Operators of which each takes what the one before it gives, in the same task and in one Python worker.

Nothing goes through the JVM between them. And while tuples of a batch of the source's rows are on their way through all
of them, that batch is still at hand: what fails further down is reported with its position, which else takes another
reading of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

__all__ = ["Fused", "InHand", "Operator", "Task", "current_task"]

Operator = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_MOST_ROWS = 10_000
"""Rows of a batch between two operators, as Spark gives them: one that makes many of one row fills no memory."""


class InHand(Protocol):
    """What holds a batch of the source's rows until the next one comes."""

    def fail_in_hand(self, roots: Iterable[int], reason: str) -> list[int]:
        """Fail those of the roots that are in hand; the others."""
        ...


class Task:
    """What the operators that run in one worker of a task know of each other: who holds the source's rows."""

    def __init__(self) -> None:
        self.source: InHand | None = None


_TASK: ContextVar[Task | None] = ContextVar("operators of one task", default=None)


def current_task() -> Task | None:
    """That of the operator that runs; None where it runs alone."""
    return _TASK.get()


@dataclass(frozen=True, slots=True)
class Fused:
    """Operators as one, the first first."""

    operators: tuple[Operator, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the last one gives."""
        _TASK.set(Task())
        try:
            for operator in self.operators[:-1]:
                batches = _in_slices(operator(batches))
            yield from self.operators[-1](batches)
        finally:
            _TASK.set(None)


def _in_slices(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _MOST_ROWS):
            yield batch.slice(start, _MOST_ROWS)
