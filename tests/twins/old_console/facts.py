"""The figures of a shard, as a run reports them and as they are seen from outside, from its nodes. Pure."""

from __future__ import annotations

from typing import NamedTuple

from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode
from kinesis_trident.checkpoint.model.run_status import Lag, Seen, lag_of
from kinesis_trident.checkpoint.model.standing import PLAIN, Share, Standing

HOUR_MS = 3_600_000


class ShardFacts(NamedTuple):
    """What is known of one shard.

    Attributes:
        standing: why it is not read, and what follows from that.
        seen: what a run saw of it.
        lag: the age of its oldest unread record.
        retention_left_ms: until that record expires, 0 if it has; None if that is unknown, or would be no loss.
        retrying: the records that failed and come back.
        exhausted: those that failed too often and are not dead-lettered yet.
        unacked: those that are not acked yet, with ackMode=explicit.
    """

    standing: Standing
    seen: Seen
    lag: Lag
    retention_left_ms: int | None
    retrying: int
    exhausted: int
    unacked: int

    @property
    def held(self) -> int:
        """Return the number of records that are read and not done."""
        return self.retrying + self.exhausted + self.unacked


NO_FACTS = ShardFacts(PLAIN, Seen(), Lag(None), None, 0, 0, 0)


def facts_of(
    checkpoint: CheckpointNode | None,
    inflight: InflightNode | None,
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
        seen: what a run saw of it, at the position of `checkpoint`.
        standing: how it stands.
        hours: the retention of its stream; None if that is unknown.
        now: the time.
        is_looked_at: a run looks at what is unread: without one "nothing" holds no longer.
    """
    lag = lag_of(checkpoint, seen, now, drained=standing.share is Share.ZERO)
    if lag.ms == 0 and standing.share is not Share.ZERO and not is_looked_at:
        lag = Lag(None, lag.seen_at)
    known = hours is not None and lag.ms is not None and standing.expiry
    # Of very many shards most have nothing in flight.
    waiting, dead, pending = (inflight.waiting, inflight.dead, inflight.pending) if inflight else ((), (), ())
    return ShardFacts(
        standing,
        seen,
        lag,
        max(0, (hours or 0) * HOUR_MS - (lag.ms or 0)) if known else None,
        sum([run.count for run in waiting]) if waiting else 0,
        sum([run.count for run in dead]) if dead else 0,
        sum([run.count for run in pending]) if pending else 0,
    )
