"""The in-flight records of one shard, and its safe checkpoint: `InflightRecordTracker`.

After the class of that name in awslabs/kinesis-storm-spout 1.1.1, without its defects: a limit of 0 still
moves the checkpoint, a record acked or failed twice or too late cannot block the shard, retries wait for
their time, memory follows what is not done, and records of one aggregate are told apart by their
sub-sequence.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.ids import to_signed, xor_of
from kinesis_trident.tracker.inflight.open_rows import Ids, OpenRows, OpenRun, Positions, as_position
from kinesis_trident.tracker.open_shard import OpenShard, find_safe
from kinesis_trident.tracker.records import RecordPosition, Run
from kinesis_trident.tracker.retry import Fates, RetryHandler, RetryPolicy, State, decide
from kinesis_trident.tracker.sums import order_of

OrdinalArray = npt.NDArray[np.int64]

CHUNK = 65_536
"""Records of an array in one block at most, so that what is done is let go although a neighbour is still open."""

_FEW = 4
"""In up to so many blocks all ordinals are looked for; with more they are sorted first."""

_BASE, _LAST = attrgetter("base"), attrgetter("last")


class InflightRecordTracker:
    """The records of one shard that are delivered and not done, and the safe checkpoint below them.

    Records come and are acked or failed one at a time (`emit`, `ack`, `fail`: by position), or in arrays (`emit_many`,
    `ack_many`, `fail_many`: by ordinal). Both work on the same records. `handler` decides on the retries of single
    records; by default `policy` does, and the earliest due comes first, then the first in the shard. Not thread-safe.

    What was emitted has an ack value as an `Acker` has one for each root: the XOR of the ids outstanding. Acks XOR into
    it, and zero means done, unless a record failed.
    """

    def __init__(
        self,
        policy: RetryPolicy | None = None,
        checkpoint: RecordPosition | None = None,
        handler: RetryHandler | None = None,
    ) -> None:
        self._policy = policy or RetryPolicy()
        self._handler = handler
        self._safe = self._high = checkpoint
        self._is_at_rest = False
        # In shard order, and in that of ordinals.
        self._blocks: list[OpenRows] = []
        self._next = 0
        self._stored: list[RecordPosition] = []
        # What waits, and what has waited, to be taken one at a time; None until somebody asks, and after other changes.
        self._queue: list[tuple[int, RecordPosition]] | None = None
        self._most_queued = 0

    @classmethod
    def restore(
        cls,
        checkpoint: RecordPosition | None,
        waiting: Sequence[Run],
        dead: Sequence[Run],
        policy: RetryPolicy | None = None,
        *,
        through: RecordPosition | None = None,
    ) -> InflightRecordTracker:
        """Return the tracker of a shard from what is stored of it.

        Between the checkpoint and the last position known, everything but the runs is done. `through` is the
        last record that was ever delivered, where that is known: the checkpoint can then reach it again.

        Raises:
            OrderError: runs overlap each other or the checkpoint, or one has no beginning.
        """
        shard = OpenShard.read(checkpoint, waiting, dead, through=through)
        tracker = cls(policy, shard.safe)
        tracker._high = shard.high
        stored = [(run, State.WAITING) for run in shard.waiting] + [(run, State.DEAD) for run in shard.dead]
        stored.sort(key=lambda one: one[0].last_position)
        for run, state in stored:
            tracker._rows_alone().add_run(run, state, shard.safe)
        tracker._stored = [run.last_position for run, _ in stored]
        return tracker

    @property
    def checkpoint(self) -> RecordPosition | None:
        """Everything up to this record is done; None before the first."""
        if not self._is_at_rest:
            first = before = None
            for block in self._blocks:
                if (found := block.first_open()) is not None:
                    first, before = found
                    break
            # All before it is done, also what was stored: the last of that is as far as is known at times.
            self._safe = find_safe(self._safe, self._high, first, before, lambda: self._stored_before(first))
            self._is_at_rest = True
        return self._safe

    @property
    def high(self) -> RecordPosition | None:
        """The last record delivered or known to be done; None before the first."""
        return self._high

    @property
    def waiting(self) -> tuple[Run, ...]:
        """The runs that failed and come again, in shard order."""
        return tuple([run.stored() for block in self._blocks for run in block.runs(State.WAITING)])

    @property
    def dead(self) -> tuple[Run, ...]:
        """The runs that are exhausted or expired, for the dead letter, in shard order."""
        return tuple([run.stored() for block in self._blocks for run in block.runs(State.DEAD)])

    @property
    def retrying(self) -> int:
        """The number of runs that wait or are dead: what `maxRetryingRecords` bounds."""
        return sum([len(block.spans(State.WAITING, State.DEAD)[0]) for block in self._blocks])

    @property
    def held(self) -> int:
        """The number of records that are not done: what `maxInflightRecords` bounds."""
        return sum([block.records for block in self._blocks])

    def entries(self) -> Iterator[OpenRun]:
        """Return the runs above the checkpoint that are not done, in shard order."""
        checkpoint = self.checkpoint
        runs = (run for block in self._blocks for run in block.runs())
        return (run for run in runs if checkpoint is None or run.last > checkpoint)

    def __len__(self) -> int:
        return sum([len(block.spans()[0]) for block in self._blocks])

    def emit(self, position: RecordPosition, id: int = 0, retry: bool = False) -> bool:
        """Track a record that was delivered; `id` is the XOR of the ids of its first tuples, 0 when none are kept.

        Returns:
            Whether it is tracked by this call: not when it is tracked or done already, nor, with `retry`, when it
            does not wait for one.

        Raises:
            OrderError: a new record does not come after all emitted before, and is not behind the checkpoint.
        """
        high = self._high
        if retry:
            found = self._find(position)
            fate = found and found[0].fate(found[1])
            if found is None or fate is None or fate.state is not State.WAITING:
                return False
            block, row = found
            self._leave_neighbours(block, row)
            block.become(row, fate._replace(state=State.PENDING, attempt=fate.attempt + 1))
            if self._handler is not None:
                self._handler.emitted(position)
        elif high is not None and position <= high:
            safe = self.checkpoint
            if (safe is None or position > safe) and self._find(position, takes_done=True) is None:
                msg = f"record {position} was emitted after {high}, which comes later in the shard"
                raise OrderError(msg)
            return False
        else:
            block = self._rows_alone()
            block.add(position, high)
            self._high = position
        if id:
            block.values[position] = to_signed(id)
        return True

    def ack(self, position: RecordPosition, id: int = 0) -> bool:
        """XOR an id into the record's value: done when that is zero, so at once where no ids are kept.

        A record that waits for a retry, or is dead, is done by an ack without an id; one with an id is of a
        tree that failed, and ignored. Returns whether the record is done by this call; unknown ones are
        ignored.
        """
        found = self._find(position)
        if found is None:
            return False
        block, row = found
        if block.fate(row).state is not State.PENDING:
            if id:
                return False
        elif block.is_array and position not in block.values:
            if id:
                return block.value is not None and self._xor(block, to_signed(id))
        elif left := block.values.pop(position, 0) ^ to_signed(id):
            block.values[position] = left
            return False
        self._close(block, row, position)
        return True

    def fail(self, position: RecordPosition, now_ms: int, reason: str, rng: random.Random) -> bool:
        """A record failed, whatever its value is. Returns whether it will be retried.

        A record without retries left is dead until it is acked, once it has been dead-lettered; with a policy
        without dead letters it is done. Records that wait already, are dead, done or unknown are ignored.
        """
        found = self._find(position)
        if found is None or (before := found[0].fate(found[1])).state is not State.PENDING:
            return False
        (block, row), handler, failure = found, self._handler, Failure.said(reason)
        attempt, failures = before.attempt, before.failures
        if handler is None:
            fate = Fates(self._policy, now_ms, rng).decide(failure, attempt, failures)
        else:
            fate = decide(
                failure,
                attempt,
                failures,
                self._policy,
                now_ms,
                lambda attempt: handler.failed(position, attempt, now_ms, rng),
            )
        block.value = None
        block.values.pop(position, None)
        if fate.state is State.ACKED:
            self._close(block, row, position)
            return False
        block.become(row, fate)
        if len(self._queue or ()) > self._most_queued:
            self._queue = None
        if self._queue is not None and fate.state is State.WAITING:
            heapq.heappush(self._queue, (fate.due, position))
        return fate.state is State.WAITING

    def next_retry(self, now_ms: int) -> RecordPosition | None:
        """Return the record to deliver again now: the same one until it is emitted with `retry`, or acked."""
        handler = self._handler
        if handler is not None:
            stale: RecordPosition | None = None
            while (position := handler.next(now_ms)) is not None and position != stale:
                if self._due(position) is not None:
                    return position
                # Settled through another surface, or a handler that forgot an ack: it must not block the others.
                handler.acked(position)
                stale = position
            return None
        if self._queue is None:
            # Of an array `retry_many` takes runs of several.
            self._queue = [
                (run.due, run.last)
                for block in self._blocks
                for run in block.runs(State.WAITING)
                if run.count == 1 or not block.is_array
            ]
            heapq.heapify(self._queue)
            self._most_queued = 2 * len(self._queue) + 64
        queue = self._queue
        while queue and self._due(queue[0][1]) != queue[0][0]:
            heapq.heappop(queue)
        return queue[0][1] if queue and queue[0][0] <= now_ms else None

    def should_retry(self, now_ms: int) -> bool:
        """Return whether a record is due to be delivered again."""
        return self.next_retry(now_ms) is not None

    def emit_many(self, count: int, positions: Positions, ids: Ids | None = None) -> range:
        """Track `count` new neighbours, the record after the last one emitted being the first of them.

        `positions[i]` is the place of record i; it is kept, not copied, and looked up only where a run begins
        or ends. `ids` are the ids outstanding, one a record: only their XOR is kept, a run of records.
        Returns the records' ordinals.

        Raises:
            OrderError: they do not come after all that was emitted before.
        """
        if count and self._high is not None and (first := as_position(positions[0])) <= self._high:
            msg = f"{count} records from {first} on: expected them after {self._high}"
            raise OrderError(msg)
        if self._blocks and not self._blocks[-1].open:
            del self._blocks[-1]
        base = self._next
        for at in range(0, count, CHUNK):
            span = range(at, min(at + CHUNK, count))
            value = None if ids is None else xor_of(ids[at : span.stop])
            self._blocks.append(OpenRows(base + at, positions, span, self._high, value))
            self._high = self._blocks[-1].last
        self._next += count
        return range(base, self._next)

    def ack_many(self, ordinals: OrdinalArray, ids: Ids | None = None) -> None:
        """Records are done; failed ones after all. Those that are done already, or unknown, are ignored.

        With `ids` (one an ordinal) the acks are those of tuple trees: they are XORed into the value of the
        run that the record is in, and when that is zero the whole run is done. A run in which a record failed
        has no value any more: acks with ids are ignored there, its records are told one by one, without ids.
        """
        for block, rows, some in self._locate(ordinals, ids):
            if some is None:
                self._queue = None if block.has_waiting(rows) else self._queue
                block.close(rows)
                self._tidy(block)
            elif block.value is not None:
                self._xor(block, xor_of(some))

    def fail_many(self, ordinals: OrdinalArray, now_ms: int, reason: str, rng: random.Random) -> None:
        """Records failed: they wait for a retry; with none left they are dead (done, without dead letters).

        Those that wait already, are dead, done or unknown are ignored: a second fail costs no retry.
        """
        fates, failure = Fates(self._policy, now_ms, rng), Failure.said(reason)
        for block, rows, _ in self._locate(ordinals):
            block.fail(rows, lambda fate: fates.decide(failure, fate.attempt, fate.failures))
            self._queue = None
            self._tidy(block)

    def retry_many(self, now_ms: int) -> OrdinalArray:
        """Return the ordinals of failed records that are due, in shard order; they count as delivered again."""
        return np.concatenate([np.empty(0, np.int64), *[block.take_due(now_ms) for block in self._blocks]])

    def _stored_before(self, first: RecordPosition | None) -> list[RecordPosition]:
        at = 0 if first is None else bisect_left(self._stored, first)
        return self._stored[max(at - 1, 0) : at]

    def _rows_alone(self) -> OpenRows:
        """Return the rows to which a record comes that is emitted alone."""
        if not self._blocks or self._blocks[-1].is_array:
            self._blocks.append(OpenRows(self._next))
        return self._blocks[-1]

    def _find(self, position: RecordPosition, *, takes_done: bool = False) -> tuple[OpenRows, int] | None:
        """Return where an open record is, or any one of an array that is still here."""
        at = bisect_left(self._blocks, position, key=_LAST)
        block = self._blocks[at] if at < len(self._blocks) else None
        row = None if block is None else block.find(position, takes_done=takes_done)
        return None if block is None or row is None else (block, row)

    def _due(self, position: RecordPosition) -> int | None:
        """Return when a record that waits is due; None if it does not."""
        found = self._find(position)
        fate = found and found[0].fate(found[1])
        return fate.due if fate is not None and fate.state is State.WAITING else None

    def _locate(
        self, ordinals: OrdinalArray, ids: Ids | None = None
    ) -> Iterator[tuple[OpenRows, OrdinalArray, Ids | None]]:
        """Yield where the records of ordinals are, and their ids, a block at a time."""
        if not len(ordinals):
            return
        ends = int(ordinals.min()), int(ordinals.max())
        first, stop = (bisect_right(self._blocks, end, key=_BASE) for end in ends)
        blocks = self._blocks[max(first - 1, 0) : stop]
        parts: list[tuple[OrdinalArray, Ids | None]] = [(ordinals, ids)] * len(blocks)
        if len(blocks) > _FEW:
            order = order_of(ordinals)
            ordinals, ids = ordinals[order], None if ids is None else ids[order]
            cuts = np.searchsorted(ordinals, [block.base for block in blocks[1:]]).tolist()
            spans = pairwise((0, *cuts, len(ordinals)))
            parts = [(ordinals[at:end], None if ids is None else ids[at:end]) for at, end in spans]
        for block, (some, more) in zip(blocks, parts, strict=True):
            rows, kept = block.locate(some, more)
            if len(rows):
                yield block, rows, kept

    def _xor(self, block: OpenRows, xor: int) -> bool:
        """XOR ids into the value of an array; return whether all of it is done by that."""
        block.value = (block.value or 0) ^ xor
        if block.value == 0:
            block.close(np.arange(len(block)))
            self._tidy(block)
        return not block.value

    def _leave_neighbours(self, block: OpenRows, row: int) -> None:
        """Let what waits beside a record be found anew, which waits no more: each may be alone from here on."""
        if self._queue is not None and block.shares_wait(row):
            self._queue = None

    def _close(self, block: OpenRows, row: int, position: RecordPosition) -> None:
        """Mark one record as done."""
        self._leave_neighbours(block, row)
        block.close_one(row)
        self._tidy(block)
        if self._handler is not None:
            self._handler.acked(position)

    def _tidy(self, block: OpenRows) -> None:
        """Let go of what is done in a block."""
        self._is_at_rest = False
        # More records that come one at a time go into the last one.
        if block.open or (block is self._blocks[-1] and not block.is_array):
            block.compact()
        else:
            del self._blocks[bisect_left(self._blocks, block.last, key=_LAST)]
