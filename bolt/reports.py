"""What a tracked operator says of its input: one report a shard and task, once the input is exhausted.

Reports travel in a Spark accumulator, a mapping keyed by content: the same task run twice says the same and
overwrites itself, and failures merge by union, so a record that failed in any run of it has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

from checkpoint.nodes import NotDone
from tracker.ids import ordinal_of, shard_of, tag_of

__all__ = ["FailedRun", "ReportKey", "ReportParam", "Reports", "TurnLedger", "anchors_of", "merged"]


class FailedRun(NamedTuple):
    """Neighbouring records that failed for the same reason.

    `first_ordinal` to `last_ordinal` in the turn, both included; `first` and `last` as `sequence[:sub]`, `prev` the
    record just before where the operator saw it.
    """

    first_ordinal: int
    last_ordinal: int
    first: str
    last: str
    prev: str | None
    reason: str

    def not_done(self) -> NotDone:
        """As it is published."""
        count = self.last_ordinal - self.first_ordinal + 1
        return NotDone(self.first, self.last, count, self.reason, self.prev)


class ReportKey(NamedTuple):
    """What a report is about, and what its operator saw: the content is part of the key."""

    txid: int
    tag: int
    operator: str
    shard: int
    rows: int
    consumed: int


Reports = dict[ReportKey, tuple[FailedRun, ...]]


class ReportParam(AccumulatorParam[Reports]):
    """Adds reports up: the same key overwrites, failures merge."""

    def zero(self, value: Reports) -> Reports:
        """No reports."""
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:
        """Both sides' reports, in `value1`."""
        for key, failed in value2.items():
            known = value1.get(key)
            value1[key] = failed if known is None or known == failed else tuple(merged([*known, *failed]))
        return value1


def merged(runs: Iterable[FailedRun]) -> Iterator[FailedRun]:
    """The union of runs, sorted; those that overlap become one, with the first one's reason."""
    held: FailedRun | None = None
    for run in sorted(runs, key=lambda run: (*run[:4], run.prev or "", run.reason)):
        if held is None:
            held = run
        elif run.first_ordinal <= held.last_ordinal:
            if run.last_ordinal > held.last_ordinal:
                held = held._replace(last_ordinal=run.last_ordinal, last=run.last)
        else:
            yield held
            held = run
    if held is not None:
        yield held


def anchors_of(batch: pa.RecordBatch, column: str) -> tuple[np.ndarray, np.ndarray]:
    """The roots and the tuple ids of a batch whose rows have one anchor each."""
    anchors = batch.column(column).flatten()
    roots, edges = anchors.flatten()
    return roots.to_numpy(zero_copy_only=False), edges.to_numpy(zero_copy_only=False)


class _Turn:
    """What one operator saw of one shard so far."""

    __slots__ = ("consumed", "count", "failed", "seen")

    def __init__(self) -> None:
        self.count = 0
        self.consumed = 0
        self.failed: list[FailedRun] = []
        self.seen: tuple[int, str] | None = None


class TurnLedger:
    """Counts and XORs one operator's input in one task, shard by shard, over whole batches."""

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._turns: dict[tuple[int, int, int], _Turn] = {}

    def add(
        self,
        txid: int,
        roots: np.ndarray,
        edges: np.ndarray,
        positions: pa.Array,
        failed: Mapping[int, str],
    ) -> None:
        """Note a batch of one anchor a row: `positions` are its message ids, `failed` maps rows to reasons."""
        if not len(roots):
            return
        tags, shards = tag_of(roots), shard_of(roots)
        for start, stop in _stretches(tags, shards):
            turn = self._turns.setdefault((txid, int(tags[start]), int(shards[start])), _Turn())
            turn.count += stop - start
            turn.consumed ^= int(np.bitwise_xor.reduce(edges[start:stop]))
            for row in sorted(row for row in failed if start <= row < stop):
                self._fail(turn, row, start, roots, positions, failed[row])
            turn.seen = (int(ordinal_of(roots[stop - 1 : stop])[0]), _position(positions, stop - 1))

    def reports(self) -> Reports:
        """What is to be said now that the input is exhausted."""
        return {
            ReportKey(txid, tag, self._operator, shard, turn.count, turn.consumed): tuple(turn.failed)
            for (txid, tag, shard), turn in self._turns.items()
        }

    @staticmethod
    def _fail(turn: _Turn, row: int, start: int, roots: np.ndarray, positions: pa.Array, reason: str) -> None:
        ordinal, here = int(ordinal_of(roots[row : row + 1])[0]), _position(positions, row)
        last = turn.failed[-1] if turn.failed else None
        if last is not None and last.last_ordinal == ordinal - 1 and last.reason == reason:
            turn.failed[-1] = last._replace(last_ordinal=ordinal, last=here)
            return
        before = turn.seen
        if row > start:
            before = (int(ordinal_of(roots[row - 1 : row])[0]), _position(positions, row - 1))
        prev = before[1] if before is not None and before[0] == ordinal - 1 else None
        turn.failed.append(FailedRun(ordinal, ordinal, here, here, prev, reason))


def _stretches(tags: np.ndarray, shards: np.ndarray) -> Iterator[tuple[int, int]]:
    """Where rows of one shard's turn start and stop."""
    edges = np.flatnonzero((np.diff(tags) != 0) | (np.diff(shards) != 0)) + 1
    yield from pairwise([0, *edges.tolist(), len(tags)])


def _position(message_ids: pa.Array, row: int) -> str:
    """`sequence[:sub]` of a message id, `stream/shardId:sequence[:sub]`."""
    return str(message_ids[row]).rpartition("/")[2].partition(":")[2]
