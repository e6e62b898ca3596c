"""The in-flight records of one shard, and its safe checkpoint: `InflightRecordTracker`.

After the class of that name in awslabs/kinesis-storm-spout 1.1.1, without its defects: a limit of 0 still
moves the checkpoint, a record acked or failed twice or too late cannot block the shard, retries wait for
their time, memory follows what is not done, and records of one aggregate are told apart by their
sub-sequence.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from twins.old_face.retry_queue import RetryQueue
from twins.old_tracker.bulk import BulkTracking, Ids, OrdinalArray
from twins.old_tracker.entries import (
    Entry,
    Positions,
    Rows,
    load_entries,
    parse_place,
)
from twins.old_tracker.explicit import ExplicitAcks
from twins.old_tracker.places import PARSED, are_comparable
from twins.old_tracker.runs import OpenRuns
from twins.old_tracker.turns import TurnOutcomes

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.ids import to_signed
from kinesis_trident.tracker.position_keys import Keys
from kinesis_trident.tracker.records import PendingRun, RecordPosition, Run
from kinesis_trident.tracker.retry import RetryHandler, RetryPolicy, State, decide


class InflightRecordTracker:
    """The records of one shard that are delivered and not done, and the safe checkpoint below them.

    Records come and are acked or failed one at a time (`emit`, `ack`, `fail`: by position), in arrays (`emit_many`,
    `ack_many`, `fail_many`: by ordinal), by batches that judge their records (`turns`), and by batches whose records
    are acked later (`explicit`: by key). All work on the same entries. A stored run, which shares one fate, is
    addressed by the position of its last record. `handler` decides on the retries of single records; by default it is
    a `RetryQueue` driven by `policy`. Not thread-safe.

    Each entry has an ack value as an `Acker` has one for each root: the XOR of the ids outstanding. Acks XOR into it,
    and zero means done, unless a record failed.

    Attributes:
        turns: what batches say that judge their records.
        explicit: records that stay in flight after their batch.
    """

    def __init__(
        self,
        policy: RetryPolicy | None = None,
        checkpoint: RecordPosition | None = None,
        handler: RetryHandler | None = None,
    ) -> None:
        self._build(OpenRuns(policy or RetryPolicy(), checkpoint), handler)

    def _build(self, runs: OpenRuns, handler: RetryHandler | None = None) -> None:
        self._runs = runs
        self._bulk = BulkTracking(runs)
        self._handler = handler
        self.turns = TurnOutcomes(runs, self._bulk)
        self.explicit = ExplicitAcks(runs, self._bulk)

    @classmethod
    def restore(
        cls,
        checkpoint: RecordPosition | None,
        waiting: Sequence[Run],
        dead: Sequence[Run],
        policy: RetryPolicy | None = None,
        *,
        pending: Sequence[PendingRun] = (),
        turns: Mapping[int, Keys] | None = None,
        through: RecordPosition | None = None,
    ) -> InflightRecordTracker:
        """Return the tracker of a shard from what is stored of it.

        Between the checkpoint and the last position known, everything but the runs is done. `through` is the
        last record that was ever delivered, where that is known: the checkpoint can then reach it again.
        `turns` are the keys of the rows of past batches, by txid: of all that `pending` names. What waits can be
        acked one by one as far as they hold it, otherwise as whole runs only.

        Raises:
            OrderError: runs overlap each other or the checkpoint, one has no beginning, or a pending one is of none
                of the turns.
        """
        tracker = cls.__new__(cls)
        ends = [None if end is None else str(end) for end in (checkpoint, through)]
        texts = [end for end in ends if end is not None]
        for runs in (waiting, dead):
            if runs:
                texts += [run.last for run in runs]
                texts += [run.first for run in runs if run.first and run.first != run.last]
                texts += [run.prev for run in runs if run.prev is not None]
        are_texts = not (turns or pending) and are_comparable(texts)
        low, high = ends if are_texts else (checkpoint, through)
        tracker._build(OpenRuns(policy or RetryPolicy(), low, list if are_texts else PARSED))
        buried = load_entries(dead, State.DEAD, tracker._runs.places) if dead else []
        if are_texts:
            tracker._runs.load([*waiting, *buried], high)
            return tracker
        failed = load_entries(waiting, State.WAITING, PARSED) + buried
        entries = failed + tracker.explicit.read(failed, pending, turns or {})
        tracker._runs.load([*entries], high)
        for entry in entries if turns else ():
            tracker._bulk.register(entry)
        return tracker

    @property
    def checkpoint(self) -> RecordPosition | None:
        """Everything up to this record is done; None before the first."""
        return parse_place(self._runs.checkpoint)

    @property
    def high(self) -> RecordPosition | None:
        """The last record delivered or known to be done; None before the first."""
        return parse_place(self._runs.high)

    @property
    def waiting(self) -> tuple[Run, ...]:
        """The runs that failed and come again, in shard order."""
        return self._runs.runs(State.WAITING)

    @property
    def dead(self) -> tuple[Run, ...]:
        """The runs that are exhausted or expired, for the dead letter, in shard order."""
        return self._runs.runs(State.DEAD)

    @property
    def retrying(self) -> int:
        """The number of runs that wait or are dead: what `maxRetryingRecords` bounds."""
        return sum(entry.state in (State.WAITING, State.DEAD) for entry in self._runs)

    @property
    def held(self) -> int:
        """The number of records that are not done: what `maxInflightRecords` bounds."""
        return sum([one.count if one.bits is None else one.bits.count(0) for one in self._runs])

    def entries(self) -> Iterator[Entry]:
        """Return the runs above the checkpoint that are not done, in shard order; to look at, not to change."""
        checkpoint = self.checkpoint
        return (one for one in self._runs if checkpoint is None or one.last > checkpoint)

    def __len__(self) -> int:
        return sum(1 for _ in self._runs)

    def emit(self, position: RecordPosition, id: int = 0, retry: bool = False) -> bool:
        """Track a record that was delivered; `id` is the XOR of the ids of its first tuples, 0 when none are kept.

        Returns:
            Whether it is tracked by this call: not when it is tracked or done already, nor, with `retry`, when it
            does not wait for one.

        Raises:
            OrderError: a new record does not come after all emitted before, and is not behind the checkpoint.
        """
        runs = self._runs
        runs.parse()
        if retry:
            entry = self._find(position)
            if entry is None or entry.state is not State.WAITING:
                return False
            self._retries.emitted(position)
            entry.become(State.PENDING, entry.attempt + 1, entry.due, entry.failures)
            entry.value = to_signed(id)
            return True
        high = runs.high
        if high is not None and position <= high:
            done = runs.checkpoint is not None and position <= runs.checkpoint
            if not (done or self._find(position) or self._bulk.ordinal_of(position) is not None):
                msg = f"record {position} was emitted after {high}, which comes later in the shard"
                raise OrderError(msg)
            return False
        runs.append(Entry(position, position, 1, high, value=to_signed(id)))
        return True

    def ack(self, position: RecordPosition, id: int = 0) -> bool:
        """XOR an id into the record's value: done when that is zero, so at once where no ids are kept.

        A record that waits for a retry, or is dead, is done by an ack without an id; one with an id is of a
        tree that failed, and ignored. Returns whether the record is done by this call; unknown ones are
        ignored.
        """
        entry = self._find(position)
        if entry is None:
            return self._ack_ordinal(position, id)
        if entry.state is State.PENDING:
            entry.value = (entry.value or 0) ^ to_signed(id)
            if entry.value:
                return False
        elif id:
            return False
        if entry.state is not State.PENDING or self._handler is not None:
            self._retries.acked(position)
        self._runs.mark_done(entry)
        return True

    def fail(self, position: RecordPosition, now_ms: int, reason: str, rng: random.Random) -> bool:
        """A record failed, whatever its value is. Returns whether it will be retried.

        A record without retries left is dead until it is acked, once it has been dead-lettered; with a policy
        without dead letters it is done. Records that wait already, are dead, done or unknown are ignored.
        """
        entry = self._find(position)
        if entry is None:
            ordinal = self._bulk.ordinal_of(position)
            if ordinal is not None:
                self._bulk.fail(np.array([ordinal]), now_ms, Failure.said(reason), rng)
                entry = self._find(position)
            return entry is not None and entry.state is State.WAITING
        if entry.state is not State.PENDING:
            return False
        entry.value = 0
        fate = decide(
            Failure.said(reason),
            entry.attempt,
            entry.failures,
            self._runs.policy,
            now_ms,
            lambda attempt: self._retries.failed(position, attempt, now_ms, rng),
        )
        if fate.state is State.ACKED:
            self.ack(position)
            return False
        entry.become(*fate)
        return fate.state is State.WAITING

    def next_retry(self, now_ms: int) -> RecordPosition | None:
        """Return the record to deliver again now: the same one until it is emitted with `retry`, or acked."""
        stale: RecordPosition | None = None
        while (position := self._retries.next(now_ms)) is not None and position != stale:
            entry = self._find(position)
            if entry is not None and entry.state is State.WAITING:
                return position
            # Settled through another surface, or a handler that forgot an ack: it must not block the others.
            self._retries.acked(position)
            stale = position
        return None

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
        self._bulk.emit(Rows(positions, self._bulk.number(0)), 0, count, ids=ids)
        first = self._bulk.number(count)
        return range(first, first + count)

    def ack_many(self, ordinals: OrdinalArray, ids: Ids | None = None) -> None:
        """Records are done; failed ones after all. Those that are done already, or unknown, are ignored.

        With `ids` (one an ordinal) the acks are those of tuple trees: they are XORed into the value of the
        run that the record is in, and when that is zero the whole run is done. A run in which a record failed
        has no value any more: acks with ids are ignored there, its records are told one by one, without ids.
        """
        self._bulk.ack(ordinals, ids)

    def fail_many(self, ordinals: OrdinalArray, now_ms: int, reason: str, rng: random.Random) -> None:
        """Records failed: they wait for a retry; with none left they are dead (done, without dead letters).

        Those that wait already, are dead, done or unknown are ignored: a second fail costs no retry.
        """
        self._bulk.fail(ordinals, now_ms, Failure.said(reason), rng)

    def retry_many(self, now_ms: int) -> OrdinalArray:
        """Return the ordinals of failed records that are due, in shard order; they count as delivered again."""
        return self._bulk.take_due(now_ms)

    @property
    def _retries(self) -> RetryHandler:
        if self._handler is not None:
            return self._handler
        runs = self._runs
        runs.tidy()
        if runs.queue is None:
            runs.queue = RetryQueue(runs.policy)
            for entry in runs:
                if entry.state is State.WAITING:
                    runs.queue.schedule(entry.last, entry.due)
        return runs.queue

    def _find(self, position: RecordPosition) -> Entry | None:
        entry = self._runs.find(position)
        # The last record of an array is not the array.
        return entry if entry is None or entry.rows is None or entry.count == 1 else None

    def _ack_ordinal(self, position: RecordPosition, id: int) -> bool:
        ordinal = self._bulk.ordinal_of(position)
        if ordinal is None or not self._bulk.is_open(ordinal):
            return False
        self._bulk.ack(np.array([ordinal]), np.array([to_signed(id)]) if id else None)
        return not self._bulk.is_open(ordinal)
