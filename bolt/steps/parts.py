"""Runs a batch through steps in parts, so that a small batch whose tuples become large is never held as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from kinesis_trident.bolt.steps.functions import Judged, Step, join_parts
from kinesis_trident.common.arrow_columns import booleans
from kinesis_trident.tracker.failure import Failure, join

_MOST_BYTES = 1 << 30
"""The bytes that one input row may become in all: Arrow's texts end at twice as many."""

S = TypeVar("S", bound=Step)


def in_parts(step: Step, batch: pa.RecordBatch) -> Iterator[Judged]:
    """Judge a batch by one step: in its parts, if it has a method `parts`, or at once.

    Failures of a step that has a name, `operation`, have it.
    """
    parts, name = getattr(step, "parts", None), getattr(step, "operation", None)
    for judged in (step(batch),) if parts is None else parts(batch):
        if judged.failed and name is not None:
            where = (f"in {name}",)
            failed = {
                row: one if one.where else msgspec.structs.replace(one, where=where)
                for row, one in judged.failed.items()
            }
            yield replace(judged, failed=failed)
        else:
            yield judged


def chain(
    steps: Sequence[S],
    batch: pa.RecordBatch,
    judge: Callable[[S, pa.RecordBatch], Iterator[Judged]] = in_parts,
) -> Iterator[Judged]:
    """Run a batch through steps one after the other; rows are traced back to the first input.

    Yields:
        Parts in the order of the input; each has all rows of the input rows that it is about.
    """
    if not steps:
        yield Judged(batch, np.arange(batch.num_rows, dtype=np.int64), {})
        return
    for judged in judge(steps[0], batch):
        if len(steps) == 1:
            yield judged
        else:
            yield from _next_steps(judged, steps[1:], judge)


def _next_steps(
    above: Judged, steps: Sequence[S], judge: Callable[[S, pa.RecordBatch], Iterator[Judged]]
) -> Iterator[Judged]:
    """Run a part through the next steps; rows wait while a later part can have more of the same input row."""
    count = above.rows.num_rows
    failed = dict(above.failed)
    held: list[Judged] = []
    open_row: int | None = None
    for part in chain(steps, above.rows, judge):
        source = above.source[part.source]
        for row, failure in part.failed.items():
            _fail(failed, int(above.source[row]), failure)
        end = count if part.end is None else part.end
        before, open_row = open_row, None
        if 0 < end < count and above.source[end] == above.source[end - 1]:
            open_row = int(above.source[end])
        if open_row is not None and open_row == before:
            held.append(Judged(part.rows, source, {}))
            continue
        cut = len(source) if open_row is None else int(np.searchsorted(source, open_row))
        ready = [*held, Judged(part.rows.slice(0, cut), source[:cut], {})]
        held = [Judged(part.rows.slice(cut), source[cut:], {})]
        if before is not None:
            ready = _drop_too_large(ready, before, failed)
        joined = join_parts(ready)
        edge = open_row if open_row is not None else int(above.source[end]) if end < count else above.end
        # A failure goes with the part that has the other rows of its input row.
        done = {row: failure for row, failure in failed.items() if edge is None or row < edge}
        failed = {row: failure for row, failure in failed.items() if row not in done}
        yield Judged(joined.rows, joined.source, done, edge)


def _drop_too_large(parts: list[Judged], row: int, failed: dict[int, Failure]) -> list[Judged]:
    """Drop the rows of an input row that has become too large to be one batch, and fail it."""
    if sum(part.rows.nbytes for part in parts) <= _MOST_BYTES:
        return parts
    why = Failure.said(f"it became more than {_MOST_BYTES >> 20:,} MiB. Emit less for one tuple")
    _fail(failed, row, why)
    kept = [part.source != row for part in parts]
    return [
        Judged(part.rows.filter(booleans(keep)), part.source[keep], {})
        for part, keep in zip(parts, kept, strict=True)
    ]


def _fail(failed: dict[int, Failure], row: int, failure: Failure) -> None:
    known = failed.get(row)
    failed[row] = failure if known is None else join(known, failure)
