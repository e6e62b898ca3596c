"""Applies changes to shards between two batches: acks, fails and replays of other processes, and timeouts."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.codec import naming
from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.settled_records import Explicit, blocked_by, inflight_of, tracker_of
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.inflight.record_tracker import InflightRecordTracker
from kinesis_trident.tracker.position_keys import unpack
from kinesis_trident.tracker.reasons import TIMEOUT
from kinesis_trident.tracker.records import RecordPosition
from kinesis_trident.tracker.retry import RetryPolicy

__all__ = ["Amender", "Tally", "take_in"]

log = logging.getLogger(__name__)

_REQUESTS_AT_A_TIME = 1_000
"""The number of other processes' nodes that one multi applies and removes; more would not fit."""


class Amender:
    """Amends the shards of a source in ZooKeeper.

    Its methods are iterators that give each shard as it stands in ZooKeeper once it is amended there; the caller takes
    it over into `states` before it asks for the next one.

    Args:
        store: of the source.
        epoch: of this run.
        policy: of retries.
        rng: for their jitter.
        explicit: how long records wait for their acks.
        max_retrying: `maxRetryingRecords`.
        buries: dead records go somewhere; otherwise (`onExhausted=fail`) one would stop the query.

    Attributes:
        tally: the counts of all requests so far.
    """

    def __init__(
        self,
        store: SourceStore,
        epoch: int,
        policy: RetryPolicy,
        rng: random.Random,
        explicit: Explicit,
        max_retrying: int,
        *,
        buries: bool,
    ) -> None:
        self._store = store
        self._epoch = epoch
        self._policy = policy
        self._rng = rng
        self._explicit = explicit
        self._max_retrying = max_retrying
        self._buries = buries
        self.tally = Tally()
        self._ignored: set[str] = set()

    def take_in_requests(
        self, states: Mapping[str, ShardState], now: int
    ) -> Iterator[tuple[str, ShardState]]:
        """Take in what other processes ask for: replays, acks and fails."""
        requests = self._store.external.read()
        for path, why in requests.unreadable.items():
            self._put_aside(path, why)
        for shard, asked in requests.asked.items():
            state = states.get(shard)
            if state is None or state.checkpoint is None:
                log.warning("shard %s was never read: the requests for its records are dropped", shard)
                self._store.shards.amend(shard, self._epoch, consumed=list(asked))
                continue
            names = list(asked)
            for start in range(0, len(names), _REQUESTS_AT_A_TIME):
                some = {name: asked[name] for name in names[start : start + _REQUESTS_AT_A_TIME]}
                taken = some if self._buries else _without_burials(shard, some)
                tracker = self._tracker(shard, states[shard])
                tally, unreadable = take_in(shard, tracker, taken, now, self._rng, self._explicit.timeout)
                for name, why in unreadable.items():
                    del some[name]
                    path = f"{self._store.layout.external_of(shard)}/{name}"
                    self._put_aside(path, f"{path}: {why}")
                yield shard, self._amend(shard, states[shard], tracker, consumed=list(some))
                self.tally = self.tally.plus(tally)

    def _put_aside(self, path: str, why: str) -> None:
        """Move an unreadable request away: only its author can repair it."""
        if path in self._ignored:
            return
        try:
            place = self._store.external.reject(path, self._epoch)
        except CorruptNodeError as error:
            self._ignored.add(path)
            log.error("a request of another process cannot be read, and stays at %s; %s", why, error)
            return
        where = f"it is now at {place}" if place else f"it was removed: {self._store.layout.rejected} is full"
        log.error("a request of another process cannot be read, and was not applied: %s; %s", why, where)

    def _tracker(self, shard: str, state: ShardState) -> InflightRecordTracker:
        with naming(self._store.layout.inflight_of(shard)):
            return tracker_of(state, self._policy)

    def unblock(self, states: Mapping[str, ShardState]) -> Iterator[tuple[str, ShardState]]:
        """Judge the blocked shards anew, at a start: what bounds them may be higher than in the last run."""
        for shard, state in list(states.items()):
            if not state.blocked or state.inflight is None:
                continue
            retrying = len(state.dead) + len(state.waiting)
            blocked = blocked_by(retrying, state.held, self._max_retrying, self._explicit)
            if blocked != state.blocked:
                inflight = msgspec.structs.replace(state.inflight, blocked=blocked)
                self._store.shards.amend(shard, self._epoch, inflight=inflight)
                yield shard, replace(state, inflight=inflight)

    def time_out(self, states: Mapping[str, ShardState], now: int) -> Iterator[tuple[str, ShardState]]:
        """Fail the records of these shards that were not acked in time."""
        for shard, state in list(states.items()):
            if not any(run.due <= now for run in state.pending):
                continue
            tracker = self._tracker(shard, state)
            late = tracker.explicit.time_out(now, self._rng)
            log.warning("shard %s: %d records were not acked in time and fail (%s)", shard, late, TIMEOUT)
            yield shard, self._amend(shard, state, tracker)
            self.tally = self.tally.plus(Tally(timed_out=late))

    def _amend(
        self, shard: str, state: ShardState, tracker: InflightRecordTracker, consumed: Sequence[str] = ()
    ) -> ShardState:
        assert state.checkpoint is not None, "a shard that was read has a checkpoint"
        safe = tracker.checkpoint
        checkpoint = msgspec.structs.replace(
            state.checkpoint,
            checkpoint=str(safe.sequence) if safe else None,
            sub=safe.sub if safe else -1,
        )
        inflight = inflight_of(tracker, checkpoint.txid, self._max_retrying, self._explicit)
        self._store.shards.amend(
            shard, self._epoch, checkpoint=checkpoint, inflight=inflight, consumed=consumed
        )
        return ShardState(state.start, checkpoint, inflight, tracker.explicit.turns_in_use)


def _without_burials(shard: str, asked: Mapping[str, ExternalNode]) -> dict[str, ExternalNode]:
    for node in asked.values():
        if node.op == "bury":
            log.warning(
                "shard %s: %s are not dead-lettered, because that would stop a query with onExhausted=fail. Set "
                "deadLetter, or onExhausted=skip, and ask again",
                shard,
                ", ".join(node.records),
            )
    return {name: node for name, node in asked.items() if node.op != "bury"}


class Tally(NamedTuple):
    """The counts of records that were acked or failed by id, and of records that timed out.

    `late`: acked while they waited for a retry, which is then cancelled. `done`: acked or failed although they were
    done, or had failed, before. `unknown`: beyond the last record ever read. `timed_out`: not acked in time.
    """

    acked: int = 0
    failed: int = 0
    late: int = 0
    done: int = 0
    unknown: int = 0
    timed_out: int = 0

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def take_in(
    shard: str,
    tracker: InflightRecordTracker,
    asked: Mapping[str, ExternalNode],
    now: int,
    rng: random.Random,
    timeout: int = 0,
) -> tuple[Tally, dict[str, str]]:
    """Apply requests in order. `now` is in epoch milliseconds; a reset makes a record wait for `timeout` again.

    Returns:
        The counts of records, and the errors of unreadable requests by name. Those were not applied.
    """
    tally = Tally()
    unreadable: dict[str, str] = {}
    for name, node in asked.items():
        if node.op == "replay":
            refused = tracker.turns.replay([RecordPosition.parse(text) for text in node.records], now)
            if refused:
                log.warning(
                    "shard %s: these records were not delivered: %s", shard, ", ".join(map(str, refused))
                )
            continue
        if node.op == "bury":
            refused = tracker.turns.bury([RecordPosition.parse(text) for text in node.records])
            if refused:
                log.warning("shard %s: no run that waits ends with %s", shard, ", ".join(map(str, refused)))
            continue
        try:
            keys = unpack(node.positions)
        except OrderError as error:
            unreadable[name] = str(error)
            continue
        if node.op == "ack":
            counts = tracker.explicit.ack(keys, node.attempt)
            tally = tally.plus(Tally(counts.changed, 0, counts.late, counts.known, counts.unknown))
        elif node.op == "reset":
            counts = tracker.explicit.reset(keys, now + timeout, node.attempt)
            tally = tally.plus(Tally(done=counts.known, unknown=counts.unknown))
        else:
            counts = tracker.explicit.fail(keys, now, node.reason, rng, node.attempt)
            tally = tally.plus(Tally(0, counts.changed, counts.late, counts.known, counts.unknown))
        if counts.unknown:
            log.warning(
                "shard %s: %d of the records to %s were never read: their positions are beyond %s",
                shard,
                counts.unknown,
                node.op,
                tracker.high,
            )
    return tally, unreadable
