"""The reports of a tracked operator on its input: one for each shard and task, at the end of the input.

Reports are a mapping keyed by content: a task that runs twice makes the same report and overwrites it, and failures
merge by union, so a record that failed in any run of it has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

from kinesis_trident.bolt.tracking.anchors import Anchors, groups_of
from kinesis_trident.bolt.tracking.fusion import current_task
from kinesis_trident.bolt.tracking.spans import WHOLE, Spans
from kinesis_trident.checkpoint.model.nodes import NotDone
from kinesis_trident.common.arrow_columns import numbers
from kinesis_trident.tracker.acker.arrays import sums_of
from kinesis_trident.tracker.ids import of_turn, ordinal_of, turn_of
from kinesis_trident.tracker.reasons import join_reasons


class FailedRun(NamedTuple):
    """Records with neighbouring ordinals that failed for the same reason.

    `first_ordinal` to `last_ordinal` in the turn, both included. `first` and `last` are their positions as
    `sequence[:sub]`, `prev` that of the record just before; all empty if the operator did not see the source's
    rows.
    """

    first_ordinal: int
    last_ordinal: int
    first: str
    last: str
    prev: str | None
    reason: str

    def not_done(self) -> NotDone:
        """Return the run in the form in which it is published."""
        count = self.last_ordinal - self.first_ordinal + 1
        return NotDone(self.first, self.last, count, self.reason, self.prev)


class FailedRuns(tuple[FailedRun, ...]):
    """Runs that go from a task to the driver as columns: one by one, to pickle them takes longer than to judge them."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_columns, tuple(zip(*self, strict=True))


def _from_columns(*columns: tuple[Any, ...]) -> FailedRuns:
    return FailedRuns(map(FailedRun._make, zip(*columns, strict=True)))


class ReportKey(NamedTuple):
    """The subject of a report, and its operator's input and output: the content is part of the key.

    `stage` and `partition` are Spark's, of the task. `rows` and `consumed` are the number of input anchors of this
    shard and the XOR of their edges; `emitted` and `produced` the same of the output. `span` names the records, if
    these are summed up in parts (`bolt.tracking.spans`).
    """

    txid: int
    tag: int
    operator: str
    shard: int
    rows: int
    consumed: int
    emitted: int = 0
    produced: int = 0
    stage: int = 0
    partition: int = 0
    span: int = WHOLE


Reports = dict[ReportKey, tuple[FailedRun, ...]]


class ReportParam(AccumulatorParam[Reports]):
    """Merges reports: the same key overwrites, failures are united."""

    def zero(self, value: Reports) -> Reports:
        """Return an empty mapping."""
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:
        """Merge both sides' reports into `value1`."""
        for key, failed in value2.items():
            known = value1.get(key)
            value1[key] = failed if known is None or known == failed else tuple(merge_runs([*known, *failed]))
        return value1


def merge_runs(runs: Iterable[FailedRun]) -> Iterator[FailedRun]:
    """Yield the union of runs, sorted; overlapping ones become one, with the first one's reason.

    If several bolts hold some of the records, the reason names all of them.
    """
    found = list(runs)
    if all(before.last_ordinal < run.first_ordinal for before, run in pairwise(found)):
        # As one run over the rows reports them, and they may be very many.
        yield from found
        return
    held: FailedRun | None = None
    for run in sorted(found, key=lambda run: (*run[:4], run.prev or "", run.reason)):
        if held is None:
            held = run
        elif run.first_ordinal <= held.last_ordinal:
            held = held._replace(reason=join_reasons(held.reason, run.reason))
            if run.last_ordinal > held.last_ordinal:
                held = held._replace(last_ordinal=run.last_ordinal, last=run.last)
        else:
            yield held
            held = run
    if held is not None:
        yield held


class _TurnTotals:
    """The totals of one operator's input and output of one shard so far."""

    __slots__ = ("consumed", "emitted", "failed", "produced", "rows", "seen")

    def __init__(self) -> None:
        self.rows = self.consumed = 0
        self.emitted = self.produced = 0
        self.failed: list[FailedRun] = []
        self.seen: tuple[int, str] | None = None

    def fail(self, failed: Iterable[tuple[int, str, str | None, str]]) -> None:
        """Add failed rows, in order: ordinal, position, that of the record just before if it is known, reason."""
        for ordinal, here, prev, reason in failed:
            last = self.failed[-1] if self.failed else None
            if last is not None and last.last_ordinal == ordinal - 1 and last.reason == reason:
                self.failed[-1] = last._replace(last_ordinal=ordinal, last=here)
            else:
                self.failed.append(FailedRun(ordinal, ordinal, here, here, prev, reason))


class _Records:
    """Rows of the source with the failures among them."""

    def __init__(self, roots: np.ndarray, message_ids: pa.Array, failed: dict[int, str]) -> None:
        self.roots = roots
        self.message_ids = message_ids
        self.failed = failed

    def positions(self, rows: np.ndarray) -> list[str]:
        """Return `sequence[:sub]` of some rows of one shard, whose message ids are `stream/shardId:sequence[:sub]`."""
        ids: list[str] = self.message_ids.take(numbers(rows)).to_pylist()
        # The same for all of them: neither a stream nor a shard has a colon in its name.
        begin = ids[0].index(":") + 1
        return [id_[begin:] for id_ in ids]

    @cached_property
    def _rows(self) -> dict[int, int]:
        return {root: row for row, root in enumerate(self.roots.tolist())}

    def fail(self, roots: Iterable[int], reason: str) -> list[int]:
        """Fail those of the roots that are here, each with its first reason; return the others."""
        others = []
        for root in roots:
            row = self._rows.get(root)
            if row is None:
                others.append(root)
            else:
                self.fail_rows({row: reason})
        return others

    def fail_rows(self, failed: Mapping[int, str]) -> None:
        """Fail some of the rows; the first reason of each counts, and that it is held only without one."""
        self.failed |= {row: join_reasons(self.failed.get(row), reason) for row, reason in failed.items()}


class OperatorLedger:
    """Counts and XORs the input and output of one operator in one task, shard by shard, over whole batches.

    Call `consume` first, then `produce` and `fail`, any number of times; `reports` at the end of the input. If
    there are `spans`, it sums up the records of each separately.
    """

    def __init__(self, operator: str, txid: int, spans: Spans | None = None) -> None:
        self._operator = operator
        self.txid = txid
        self._spans = spans
        self._turns: dict[tuple[int, int, int], _TurnTotals] = {}
        self._failed: dict[int, str] = {}
        self._task = current_task()
        self._held: _Records | None = None

    def consume(self, taken: Anchors) -> None:
        """Tuples came in."""
        for turn, count, xor in self._sums_of(taken):
            turn.rows += count
            turn.consumed ^= xor

    def produce(self, made: Anchors) -> None:
        """Tuples went out."""
        for turn, count, xor in self._sums_of(made):
            turn.emitted += count
            turn.produced ^= xor

    def fail(self, roots: Iterable[int], reason: str) -> None:
        """Fail the trees of these roots; the first reason of each counts, and that they are held only without one."""
        if self._task is not None and self._task.source is not None:
            roots = self._task.source.fail_in_hand(roots, reason)
        for root in roots:
            self._failed[root] = join_reasons(self._failed.get(root), reason)

    def consume_records(self, taken: Anchors, message_ids: pa.Array, failed: Mapping[int, str]) -> None:
        """Count input rows of the source, with one anchor each; `failed` maps rows to reasons.

        These failures carry their positions, so no lookup is needed; except those of spans, which do not see a
        record's neighbours. Until the next rows come, downstream failures in the same worker are added to them.
        """
        if self._spans is not None:
            self.consume(taken)
            self.fail_records(taken, failed)
            return
        self._let_go()
        self._held = _Records(taken.roots, message_ids, dict(failed))
        if self._task is not None:
            self._task.source = self
        self.consume(taken)

    def fail_records(self, taken: Anchors, failed: Mapping[int, str]) -> None:
        """Fail more of the rows that `consume_records` has counted last."""
        if self._held is None:
            for row, reason in failed.items():
                self.fail([int(taken.roots[row])], reason)
        else:
            self._held.fail_rows(failed)

    def fail_in_hand(self, roots: Iterable[int], reason: str) -> list[int]:
        """Fail those of the roots that are among the current rows; return the others."""
        return [*roots] if self._held is None else self._held.fail(roots, reason)

    def _let_go(self) -> None:
        """Record the failures among the current rows."""
        held, self._held = self._held, None
        if held is None:
            return
        failed = np.array(sorted(held.failed), dtype=np.int64)
        for (tag, shard), places in groups_of(held.roots):
            turn = self._turn(tag, shard, WHOLE)
            ordinals = ordinal_of(held.roots[places])
            at = np.flatnonzero(np.isin(places, failed))
            if len(at):
                before = np.maximum(at - 1, 0)
                known = ordinals[before] == ordinals[at] - 1
                prevs = [
                    prev if is_known else None
                    for prev, is_known in zip(held.positions(places[before]), known.tolist(), strict=True)
                ]
                if at[0] == 0 and turn.seen is not None and turn.seen[0] == ordinals[0] - 1:
                    prevs[0] = turn.seen[1]
                reasons = map(held.failed.__getitem__, places[at].tolist())
                turn.fail(zip(ordinals[at].tolist(), held.positions(places[at]), prevs, reasons, strict=True))
            (last,) = held.positions(places[-1:])
            turn.seen = (int(ordinals[-1]), last)

    def reports(self, stage: int = 0, partition: int = 0) -> Reports:
        """Return the reports at the end of the input; `stage` and `partition` are the task's."""
        self._let_go()
        unplaced: dict[tuple[int, int, int], list[FailedRun]] = {}
        roots = np.array(sorted(self._failed), dtype=np.int64)
        for root, turn, ordinal in zip(roots, turn_of(roots), ordinal_of(roots).tolist(), strict=True):
            tag, shard = of_turn(int(turn))
            span = WHOLE if self._spans is None else int(self._spans.of(shard, np.array([ordinal]))[0])
            runs = unplaced.setdefault((tag, shard, span), [])
            reason = self._failed[int(root)]
            if runs and runs[-1].last_ordinal == ordinal - 1 and runs[-1].reason == reason:
                runs[-1] = runs[-1]._replace(last_ordinal=ordinal)
            else:
                runs.append(FailedRun(ordinal, ordinal, "", "", None, reason))
        return {
            ReportKey(
                self.txid,
                tag,
                self._operator,
                shard,
                turn.rows,
                turn.consumed,
                turn.emitted,
                turn.produced,
                stage,
                partition,
                span,
            ): FailedRuns((*turn.failed, *unplaced.get((tag, shard, span), ())))
            for (tag, shard, span), turn in self._turns.items()
        }

    def _sums_of(self, anchors: Anchors) -> Iterator[tuple[_TurnTotals, int, int]]:
        """The number of anchors, and the XOR of their edges, of each turn or span."""
        roots, edges = anchors.roots, anchors.edges
        if self._spans is None:
            for turn, count, xor in sums_of(turn_of(roots), edges):
                yield self._turn(*of_turn(turn), WHOLE), count, xor
            return
        for (tag, shard), places in groups_of(roots):
            spans = self._spans.of(shard, ordinal_of(roots[places]))
            for span, count, xor in sums_of(spans, edges[places]):
                yield self._turn(tag, shard, span), count, xor

    def _turn(self, *key: int) -> _TurnTotals:
        tag, shard, span = key
        turn = self._turns.get((tag, shard, span))
        if turn is None:
            turn = self._turns[tag, shard, span] = _TurnTotals()
        return turn
