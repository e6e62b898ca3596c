"""The outcome of a batch, and how it was joined with the records of a turn that had no row."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import msgspec

from kinesis_trident.bolt.errors import NotOfThisBatchError
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import NotDone, Pin, Plan
from kinesis_trident.spout.positions import After, At, parse_position
from kinesis_trident.tracker.failure import Failure, text_of
from kinesis_trident.tracker.few_failures import Few
from kinesis_trident.tracker.records import RecordPosition, Run


def outcome(
    plan: Plan,
    sources: Mapping[str, str],
    pins: Mapping[str, Pin],
    failed: Mapping[str, Iterable[NotDone]],
    refused: Mapping[str, Failure],
) -> dict[str, tuple[NotDone, ...]]:
    """Join the failures of operators (by shard) and of a sink (by message id) into the outcome of the batch.

    `sources` has the plan's shards by the beginning of their message ids, `stream/shardId`.

    Raises:
        NotOfThisBatchError: a refused record was not in the batch.
    """
    turns = {shard: _PinnedTurn(plan, shard, pin) for shard, pin in pins.items()}
    pieces = {
        shard: [turns[shard].with_prev(run) if shard in turns else run for run in runs]
        for shard, runs in failed.items()
    }
    # Looked up only for what a sink refused: an operator may have failed every record.
    known = {shard: _Spans(map(_span, runs)) for shard, runs in pieces.items()} if refused else {}
    for message_id, failure in refused.items():
        named = MessageId.find(message_id)
        if named is None or not named.is_one:
            msg = f"outcomes.fail: {message_id!r} is not a message id. Its form is stream/shardId:sequence[:sub]"
            raise NotOfThisBatchError(msg)
        shard, where = sources.get(named.source, ""), named.last
        if shard not in turns or not turns[shard].holds(where):
            streams = ", ".join(sorted(plan.streams))
            msg = (
                f"outcomes.fail: record {message_id!r} is not in batch {plan.txid} of {streams}. Fail only rows "
                "of the current batch"
            )
            raise NotOfThisBatchError(msg)
        if shard not in known or where not in known[shard]:
            pieces.setdefault(shard, []).append(NotDone(str(where), str(where), 1, text_of(failure)))
    few, found = Few("batch"), dict[str, tuple[NotDone, ...]]()
    for shard, runs in pieces.items():
        if runs:
            kept = ((run, few.keep(run.text)) for run in sort_in_shard_order(runs))
            # Nearly all stay the same object.
            found[shard] = tuple(
                [run if text == run.text else msgspec.structs.replace(run, text=text) for run, text in kept]
            )
    return found


def _span(piece: NotDone) -> tuple[RecordPosition, RecordPosition]:
    return RecordPosition.parse(piece.first), RecordPosition.parse(piece.last)


class _Spans:
    """Disjoint spans of positions, both ends included, with a fast lookup: a sink may refuse a whole batch."""

    def __init__(self, spans: Iterable[tuple[RecordPosition, RecordPosition]]) -> None:
        self._spans = sorted(spans)

    def of(self, where: RecordPosition) -> tuple[RecordPosition, RecordPosition] | None:
        """Return the span that holds a position."""
        at = bisect_left(self._spans, where, key=lambda span: span[1])
        return self._spans[at] if at < len(self._spans) and self._spans[at][0] <= where else None

    def __contains__(self, where: RecordPosition) -> bool:
        return self.of(where) is not None


class _PinnedTurn:
    """The positions that a pinned turn holds."""

    def __init__(self, plan: Plan, shard: str, pin: Pin) -> None:
        start = parse_position(pin.start)
        self._after = start.record if isinstance(start, After) else None
        self._from = start.record if isinstance(start, At) else None
        self._last = RecordPosition.parse(pin.last) if pin.last is not None else None
        self._plan, self._shard, self._pin = plan, shard, pin

    @cached_property
    def _befores(self) -> dict[str, str | None]:
        """The record before each run that was delivered again, by its first one: most of what fails may be these."""
        return {run.first: run.prev for run in self._plan.retries.get(self._shard, ()) if run.first}

    @cached_property
    def _taken_up(self) -> list[tuple[RecordPosition, RecordPosition, str | None]]:
        """The first and last positions of the runs that were delivered again, and the record before each."""
        through = RecordPosition.parse(self._pin.through) if self._pin.through else None
        found = []
        for (run, dead), served in zip(self._plan.due(self._shard), self._pin.served, strict=False):
            if dead or served <= 0:
                continue
            first, last = _run_span(run)
            if through is not None and served < run.count:
                last = min(last, through)
            found.append((first, last, run.prev))
        return found

    @cached_property
    def _due(self) -> _Spans:
        return _Spans((first, last) for first, last, _ in self._taken_up)

    @cached_property
    def _prevs(self) -> dict[RecordPosition, str]:
        return {last: prev for _, last, prev in self._taken_up if prev is not None}

    def holds(self, where: RecordPosition) -> bool:
        """Return whether a record at this position can have been in the turn."""
        new = self._last is not None and where <= self._last
        if (
            new
            and (self._after is None or where > self._after)
            and (self._from is None or where >= self._from)
        ):
            return True
        return where in self._due

    def with_prev(self, run: NotDone) -> NotDone:
        """Return an operator's failure with the record before it; without one it is the first of its segment.

        The position before the segment is then just before it, so the safe checkpoint is exact.
        """
        if run.prev is not None:
            return run
        if run.first in self._befores:
            return msgspec.structs.replace(run, prev=self._befores[run.first])
        where = RecordPosition.parse(run.first)
        # What is delivered again was delivered before the turn's new records.
        is_new = self._after is not None and where > self._after
        span = None if is_new else self._due.of(where)
        prev = self._prevs.get(span[1]) if span else self._after and str(self._after)
        return msgspec.structs.replace(run, prev=prev)


def _run_span(run: Run) -> tuple[RecordPosition, RecordPosition]:
    if run.first:
        return RecordPosition.parse(run.first), run.last_position
    before = RecordPosition.parse(run.prev or "0")
    return RecordPosition(before.sequence, before.sub + 1), run.last_position


def join_outcomes(unreadable: Sequence[NotDone], outcome: Sequence[NotDone]) -> list[NotDone]:
    """Return both in shard order; an outcome may name, one by one, records that had no row."""
    firsts, lasts = (
        RecordPosition.parse_all([getattr(piece, end) for piece in unreadable]) for end in ("first", "last")
    )

    def is_unreadable(piece: NotDone) -> bool:
        where = RecordPosition.parse(piece.last)
        at = bisect_left(lasts, where)
        return at < len(lasts) and firsts[at] <= where

    return sort_in_shard_order([*unreadable, *(piece for piece in outcome if not is_unreadable(piece))])


def sort_in_shard_order(items: Iterable[NotDone]) -> list[NotDone]:
    return sorted(items, key=lambda one: RecordPosition.parse(one.last))
