"""The reports of a tracked operator on its input: one for each shard and task, at the end of the input.

Reports are a mapping keyed by content: a task that runs twice makes the same report and overwrites it, and failures
merge by union, so a record that failed in any run of it has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

from kinesis_trident.bolt.tracking.anchors import Anchors, groups_of
from kinesis_trident.bolt.tracking.failed import NONE, Failed
from kinesis_trident.bolt.tracking.fusion import current_task
from kinesis_trident.bolt.tracking.spans import WHOLE, Spans
from kinesis_trident.common.arrow_columns import numbers
from kinesis_trident.tracker.failure import Failure, join
from kinesis_trident.tracker.ids import of_turn, ordinal_of, turn_of
from kinesis_trident.tracker.sums import XorSum, sums_of


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

    @property
    def taken(self) -> XorSum:
        """The sum of the input."""
        return XorSum(self.rows, self.consumed)

    @property
    def made(self) -> XorSum:
        """The sum of the output."""
        return XorSum(self.emitted, self.produced)


Reports = dict[ReportKey, Failed]


class ReportParam(AccumulatorParam[Reports]):
    """Merges reports: the same key overwrites, failures are united."""

    def zero(self, value: Reports) -> Reports:
        """Return an empty mapping."""
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:
        """Merge both sides' reports into `value1`."""
        for key, failed in value2.items():
            known = value1.get(key)
            value1[key] = failed if known is None else known.union(failed)
        return value1


def add_failures(known: dict[int, Failure], more: Mapping[int, Failure]) -> None:
    """Add failures by row or root; several of one are joined."""
    for at, failure in more.items():
        before = known.get(at)
        known[at] = failure if before is None else join(before, failure)


class _TurnTotals:
    """The totals of one operator's input and output of one shard so far."""

    __slots__ = ("failed", "made", "seen", "taken")

    def __init__(self) -> None:
        self.taken = self.made = XorSum()
        self.failed: list[Failed] = []
        self.seen: tuple[int, str] | None = None


class _Records:
    """Rows of the source with the failures among them."""

    def __init__(self, roots: np.ndarray, message_ids: pa.Array, failed: dict[int, Failure]) -> None:
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

    def fail(self, roots: Iterable[int], failure: Failure) -> list[int]:
        """Fail those of the roots that are here; return the others."""
        others = []
        for root in roots:
            row = self._rows.get(root)
            if row is None:
                others.append(root)
            else:
                self.fail_rows({row: failure})
        return others

    def fail_rows(self, failed: Mapping[int, Failure]) -> None:
        """Fail some of the rows."""
        add_failures(self.failed, failed)


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
        self._failed: dict[int, Failure] = {}
        self._keys: dict[int, str] = {}
        self._task = current_task()
        self._held: _Records | None = None

    def consume(self, taken: Anchors) -> None:
        """Tuples came in."""
        for turn, some in self._sums_of(taken):
            turn.taken = XorSum.over((turn.taken, some))

    def produce(self, made: Anchors) -> None:
        """Tuples went out."""
        for turn, some in self._sums_of(made):
            turn.made = XorSum.over((turn.made, some))

    def fail(self, roots: Iterable[int], failure: Failure) -> None:
        """Fail the trees of these roots; several failures of one are joined."""
        if self._task is not None and self._task.source is not None:
            roots = self._task.source.fail_in_hand(roots, failure)
        add_failures(self._failed, dict.fromkeys(roots, failure))

    def consume_records(self, taken: Anchors, message_ids: pa.Array, failed: Mapping[int, Failure]) -> None:
        """Count input rows of the source, with one anchor each; `failed` maps rows to failures.

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

    def fail_records(self, taken: Anchors, failed: Mapping[int, Failure]) -> None:
        """Fail more of the rows that `consume_records` has counted last."""
        if self._held is None:
            for row, failure in failed.items():
                self.fail([int(taken.roots[row])], failure)
        else:
            self._held.fail_rows(failed)

    def note_keys(self, roots: np.ndarray, hashes: Sequence[str]) -> None:
        """Note the hashes of the keys of records that have failed."""
        self._keys.update(zip(roots.tolist(), hashes, strict=True))

    def fail_in_hand(self, roots: Iterable[int], failure: Failure) -> list[int]:
        """Fail those of the roots that are among the current rows; return the others."""
        return [*roots] if self._held is None else self._held.fail(roots, failure)

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
                failures = list(map(held.failed.__getitem__, places[at].tolist()))
                here = held.positions(places[at])
                turn.failed.append(Failed.over(ordinals[at], ordinals[at], failures, here, here, prevs))
            (last,) = held.positions(places[-1:])
            turn.seen = (int(ordinals[-1]), last)

    def reports(self, stage: int = 0, partition: int = 0) -> Reports:
        """Return the reports at the end of the input; `stage` and `partition` are the task's."""
        self._let_go()
        roots = np.array(sorted(self._failed), dtype=np.int64)
        for (tag, shard), places in groups_of(roots):
            ordinals = ordinal_of(roots[places])
            failures = [self._failed[root] for root in roots[places].tolist()]
            spans = np.full(len(places), WHOLE) if self._spans is None else self._spans.of(shard, ordinals)
            for span in set(spans.tolist()):
                here = np.flatnonzero(spans == span)
                unplaced = Failed.over(ordinals[here], ordinals[here], [failures[at] for at in here.tolist()])
                self._turn(tag, shard, span).failed.append(unplaced)
        keys: dict[tuple[int, int], dict[int, str]] = {}
        keyed = np.fromiter(self._keys, np.int64, len(self._keys))
        for turn_key, places in groups_of(keyed):
            hashes = map(self._keys.__getitem__, keyed[places].tolist())
            keys[turn_key] = dict(zip(ordinal_of(keyed[places]).tolist(), hashes, strict=True))
        return {
            ReportKey(
                self.txid, tag, self._operator, shard, *turn.taken, *turn.made, stage, partition, span
            ): NONE.union(*turn.failed).with_keys(keys.get((tag, shard), {}) if turn.failed else {})
            for (tag, shard, span), turn in self._turns.items()
        }

    def _sums_of(self, anchors: Anchors) -> Iterator[tuple[_TurnTotals, XorSum]]:
        """The sum of the anchors' edges of each turn or span."""
        roots, edges = anchors.roots, anchors.edges
        if self._spans is None:
            for turn, some in sums_of(turn_of(roots), edges):
                yield self._turn(*of_turn(turn), WHOLE), some
            return
        for (tag, shard), places in groups_of(roots):
            spans = self._spans.of(shard, ordinal_of(roots[places]))
            for span, some in sums_of(spans, edges[places]):
                yield self._turn(tag, shard, span), some

    def _turn(self, *key: int) -> _TurnTotals:
        tag, shard, span = key
        turn = self._turns.get((tag, shard, span))
        if turn is None:
            turn = self._turns[tag, shard, span] = _TurnTotals()
        return turn
