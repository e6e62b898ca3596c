"""The figures of a shard, as a run reports them and as they are seen from outside, from its nodes. Pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kinesis_trident.checkpoint.model.nodes import CheckpointNode, DeadLettersNode, InflightNode
from kinesis_trident.checkpoint.model.run_status import FRESH_MS, Lag, Seen, lag_of
from kinesis_trident.checkpoint.model.standing import PLAIN, Share, Standing

HOUR_MS = 3_600_000


class ShardFigures(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The figures of one shard: in JSON as a query's progress has them, for the console by their names here.

    Attributes:
        lag_ms: the age of its oldest unread record; None if it is unknown.
        seen_at: when its end was last looked at, in epoch milliseconds; None if it was not.
        retention_left_ms: until that record expires, 0 if it has; None if that is unknown, or would be no loss.
        unacked: the records that are not acked yet, with ackMode=explicit.
        retrying: those that failed and come back.
        exhausted: those that failed too often and are not dead-lettered yet.
        dead_lettered: those that were dead-lettered or skipped, ever.
        standing: why it is not read though it has not ended; empty if it is read.
        blocked: which limit of what failed, or is not acked, it is at, and so reads nothing new; empty if none.
    """

    lag_ms: int | None = msgspec.field(name="behindMs")
    seen_at: int | None
    retention_left_ms: int | None
    unacked: int
    retrying: int
    exhausted: int = msgspec.field(name="dead")
    dead_lettered: int
    standing: str = ""
    blocked: str = ""

    @property
    def held(self) -> int:
        """Return the number of records that are read and not done."""
        return self.retrying + self.exhausted + self.unacked

    def aged(self, age_ms: int) -> ShardFigures:
        """Return the figures `age_ms` later, as far as they are known without another look."""
        lag, left = self.lag_ms, self.retention_left_ms
        if lag:
            lag, left = lag + age_ms, None if left is None else max(0, left - age_ms)
        elif age_ms > FRESH_MS:
            lag = left = None
        return msgspec.structs.replace(self, lag_ms=lag, retention_left_ms=left)


class ShardFacts(NamedTuple):
    """What is known of one shard: how it stands, what a run saw of it, and its figures."""

    standing: Standing
    seen: Seen
    figures: ShardFigures

    @property
    def lag(self) -> Lag:
        """Return the lag, with the time of the last look."""
        return Lag(self.figures.lag_ms, self.figures.seen_at)


NO_FACTS = ShardFacts(PLAIN, Seen(), ShardFigures(None, None, None, 0, 0, 0, 0))


def facts_of(
    checkpoint: CheckpointNode | None,
    inflight: InflightNode | None,
    letters: DeadLettersNode | None,
    seen: Seen,
    standing: Standing,
    hours: int | None,
    now: int,
    *,
    is_looked_at: bool = True,
) -> ShardFacts:
    """Return the figures of a shard at `now`, in epoch milliseconds.

    Args:
        checkpoint: its node.
        inflight: its records in flight.
        letters: its dead letters.
        seen: what a run saw of it, at the position of `checkpoint`.
        standing: how it stands.
        hours: the retention of its stream; None if that is unknown.
        now: the time.
        is_looked_at: a run looks at what is unread: without one "nothing" holds no longer.
    """
    ms, seen_at = lag_of(checkpoint, seen, now, drained=standing.share is Share.ZERO)
    if ms == 0 and standing.share is not Share.ZERO and not is_looked_at:
        ms = None
    known = hours is not None and ms is not None and standing.expiry
    # Of very many shards most have nothing in flight.
    waiting, dead, pending = (inflight.waiting, inflight.dead, inflight.pending) if inflight else ((), (), ())
    figures = ShardFigures(
        ms,
        seen_at,
        max(0, (hours or 0) * HOUR_MS - (ms or 0)) if known else None,
        sum([run.count for run in pending]) if pending else 0,
        sum([run.count for run in waiting]) if waiting else 0,
        sum([run.count for run in dead]) if dead else 0,
        letters.count if letters else 0,
        standing.held_by,
        inflight.blocked if inflight else "",
    )
    return ShardFacts(standing, seen, figures)
