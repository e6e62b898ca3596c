"""A copy of how the failures of operators and of a sink were joined into the outcome of a batch."""

from __future__ import annotations

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
from kinesis_trident.tracker.runs import Runs, cut

NotDoneByShard = Mapping[str, Sequence[NotDone]]


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
    turns = {shard: _Delivered(plan, shard, pin) for shard, pin in pins.items()}
    pieces = {
        shard: [turns[shard].with_prev(run) if shard in turns else run for run in runs]
        for shard, runs in failed.items()
    }
    # Looked up only for what a sink refused: an operator may have failed every record.
    known = {shard: Runs.sort(tuple(runs)) for shard, runs in pieces.items()} if refused else {}
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
        if shard not in known or known[shard].find_holder(where.order) is None:
            pieces.setdefault(shard, []).append(NotDone(str(where), str(where), 1, text_of(failure)))
    few, found = Few("batch"), dict[str, tuple[NotDone, ...]]()
    for shard, runs in pieces.items():
        if runs:
            kept = ((run, few.keep(run.text)) for run in Runs.sort(runs))
            # Nearly all stay the same object.
            found[shard] = tuple(
                [run if text == run.text else msgspec.structs.replace(run, text=text) for run, text in kept]
            )
    return found


class _Delivered:
    """The records of one shard that a pinned turn has delivered: runs that came again, and new ones behind them."""

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
    def _again(self) -> Runs[Run]:
        """The runs, or parts of runs, that were delivered again."""
        due, pin = self._plan.due(self._shard), self._pin
        return Runs(
            [
                cut(run, served, pin.through)[0]
                for (run, dead), served in zip(due, pin.served, strict=False)
                if served > 0 and not dead
            ]
        )

    def holds(self, where: RecordPosition) -> bool:
        """Return whether a record at this position can have been in the turn."""
        new = self._last is not None and where <= self._last
        if (
            new
            and (self._after is None or where > self._after)
            and (self._from is None or where >= self._from)
        ):
            return True
        return self._again.find_holder(where.order) is not None

    def with_prev(self, piece: NotDone) -> NotDone:
        """Return an operator's failure with the record before it; without one it is the first of its segment.

        The position before the segment is then just before it, so the safe checkpoint is exact.
        """
        if piece.prev is not None:
            return piece
        if piece.first in self._befores:
            return msgspec.structs.replace(piece, prev=self._befores[piece.first])
        where = RecordPosition.parse(piece.first)
        # What is delivered again was delivered before the turn's new records.
        is_new = self._after is not None and where > self._after
        at = None if is_new else self._again.find_holder(where.order)
        prev = self._again[at].prev if at is not None else self._after and str(self._after)
        return msgspec.structs.replace(piece, prev=prev)
