"""Applies changes to shards between two batches: acks, fails and replays of other processes, and timeouts."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.codec import naming
from kinesis_trident.checkpoint.model.nodes import DeadLettersNode, ExternalNode
from kinesis_trident.checkpoint.model.replays import held, mark_asked, marked, settle_replays
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.operations import Refused
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.settled_records import Explicit, blocked_by, inflight_of, tracker_of
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.inflight.record_tracker import InflightRecordTracker
from kinesis_trident.tracker.position_keys import KeyPositions, Keys, find, joined, keys_of_texts, unpack
from kinesis_trident.tracker.reasons import TIMEOUT
from kinesis_trident.tracker.records import RecordPosition
from kinesis_trident.tracker.retry import RetryPolicy

log = logging.getLogger(__name__)

Letters = MutableMapping[str, DeadLettersNode]

_REQUESTS_AT_A_TIME = 1_000
"""The number of other processes' nodes that one multi applies and removes; more would not fit."""


class Amender:
    """Amends the shards of a source in ZooKeeper.

    Its methods are iterators that give each shard as it stands in ZooKeeper once it is amended there; the caller takes
    it over into `states` before it asks for the next one. They change `letters`, the dead letters by shard, themselves.

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
        self, states: Mapping[str, ShardState], letters: Letters, now: int
    ) -> Iterator[tuple[str, ShardState]]:
        """Take in what other processes ask for: replays, acks and fails."""
        while True:
            try:
                yield from self._take_in_requests(states, letters, now)
            except Refused:
                # Somebody has withdrawn a request after we have read it.
                continue
            return

    def _take_in_requests(
        self, states: Mapping[str, ShardState], letters: Letters, now: int
    ) -> Iterator[tuple[str, ShardState]]:
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
                with naming(self._store.layout.deadletters_of(shard)):
                    taken, anew = sift_replays(shard, taken, states[shard], letters.get(shard))
                tracker = self._tracker(shard, states[shard])
                tally, unreadable = take_in(shard, tracker, taken, now, self._rng, self._explicit.timeout)
                for name, why in unreadable.items():
                    del some[name]
                    path = f"{self._store.layout.external_of(shard)}/{name}"
                    self._put_aside(path, f"{path}: {why}")
                after = self._amend(shard, states[shard], tracker, letters, anew, now, consumed=list(some))
                yield shard, after
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

    def time_out(
        self, states: Mapping[str, ShardState], letters: Letters, now: int
    ) -> Iterator[tuple[str, ShardState]]:
        """Fail the records of these shards that were not acked in time."""
        for shard, state in list(states.items()):
            if not any(run.due <= now for run in state.pending):
                continue
            tracker = self._tracker(shard, state)
            late = tracker.explicit.time_out(now, self._rng)
            log.warning("shard %s: %d records were not acked in time and fail (%s)", shard, late, TIMEOUT)
            yield shard, self._amend(shard, state, tracker, letters)
            self.tally = self.tally.plus(Tally(timed_out=late))

    def _amend(
        self,
        shard: str,
        state: ShardState,
        tracker: InflightRecordTracker,
        letters: Letters,
        anew: Keys | None = None,
        now: int = 0,
        consumed: Sequence[str] = (),
    ) -> ShardState:
        """Write what the tracker has made of a shard; `anew` are the done records that come again as of `now`."""
        assert state.checkpoint is not None, "a shard that was read has a checkpoint"
        safe = tracker.checkpoint
        checkpoint = msgspec.structs.replace(
            state.checkpoint,
            checkpoint=str(safe.sequence) if safe else None,
            sub=safe.sub if safe else -1,
        )
        inflight = inflight_of(tracker, checkpoint.txid, self._max_retrying, self._explicit)
        turns = tracker.explicit.turns_in_use
        node = letters.get(shard)
        if node is not None and node.replays:
            node = settle_replays(node, inflight, turns, (), checkpoint.txid)
        if anew is not None and len(anew):
            # A request may name records that never were.
            node = node or DeadLettersNode(count=0, target="")
            node = mark_asked(node, anew[held(anew, inflight, turns)], now)
        changed = node if node is not letters.get(shard) else None
        self._store.shards.amend(
            shard,
            self._epoch,
            checkpoint=checkpoint,
            inflight=inflight,
            dead_letters=changed,
            consumed=consumed,
        )
        if changed is not None:
            letters[shard] = changed
        return ShardState(state.start, checkpoint, inflight, turns)


def sift_replays(
    shard: str, asked: Mapping[str, ExternalNode], state: ShardState, letters: DeadLettersNode | None
) -> tuple[dict[str, ExternalNode], Keys]:
    """Leave out what was replayed before and is done since, unless somebody asks for it `again`.

    Returns:
        The requests that are left, by name, and the records of replays that are not in flight yet, sorted.
    """
    taken = dict(asked)
    anew: list[Keys] = []
    for name, node in asked.items():
        if node.op != "replay":
            continue
        keys = joined([keys_of_texts(node.records)])
        new = keys[~held(keys, state.inflight, state.turns)]
        if not node.again and letters is not None and letters.replays:
            known = find(marked(letters), new)[1]
            if known.any():
                log.warning(
                    "shard %s: %d of the records to replay were replayed before, and are left out: replay --again "
                    "delivers them once more",
                    shard,
                    int(known.sum()),
                )
                left = keys[~find(new[known], keys)[1]]
                taken[name] = msgspec.structs.replace(node, records=tuple(map(str, KeyPositions(left))))
                new = new[~known]
        anew.append(new)
    return taken, joined(anew)


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
