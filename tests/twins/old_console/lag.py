"""The lag of each shard as it is seen from outside, from an application's nodes and the time. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from twins.old_console.facts import ShardFacts, facts_of

from kinesis_trident.checkpoint.model.nodes import ShardLineage
from kinesis_trident.checkpoint.model.run_status import (
    Seen,
    StatusNode,
    lag_growth,
    rates,
    total_lag,
)
from kinesis_trident.checkpoint.model.standing import REFUSED, Looks, Share, cause_of, find_standing
from kinesis_trident.console.snapshot import Snapshot


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of an application, of all its shards together.

    Attributes:
        connected: its newest run holds its session with ZooKeeper.
        lag_ms: the age of the oldest unread record; None if it is unknown.
        lag_growth: the seconds by which it grows in a second, over the last minutes; None if that is unknown.
        read_rate: records read in a second, over the last minutes; None if that is unknown.
        input_rate: an estimate of the records that come in, in a second; None if there is none.
        unread: an estimate of the unread records, from the lag and that rate; None if there is none.
        seen_at: the oldest of the last looks at what is unread, in epoch milliseconds; None if a shard had none.
        retention_left_ms: until the oldest unread record expires; None if that is unknown.
        inflight: records that are read and not done.
        retrying: of these, failed ones that come back.
        exhausted: of these, failed too often and not dead-lettered yet.
        unacked: of these, not acked yet, with ackMode=explicit.
        dead_lettered: records that were dead-lettered or skipped, ever.
        dead_left: of these, not delivered again, or failed again since.
        read: records delivered for the first time, ever.
    """

    connected: bool
    lag_ms: int | None
    lag_growth: float | None
    read_rate: float | None
    input_rate: float | None
    unread: int | None
    seen_at: int | None
    retention_left_ms: int | None
    inflight: int
    retrying: int
    exhausted: int
    unacked: int
    dead_lettered: int
    dead_left: int
    read: int


def shard_facts(snapshot: Snapshot, now: int) -> dict[str, ShardFacts]:
    """Return the figures of each shard at `now`, in epoch milliseconds."""
    return {shard: _facts(snapshot, shard, now) for shard in snapshot.shard_ids}


def shard_skew(facts: Mapping[str, ShardFacts], snapshot: Snapshot) -> int:
    """Return by how many milliseconds the oldest unread record is older than the newest one that was read.

    A watermark with a shorter delay drops it. Only records of which the run or a turn has said that they are unread
    count; 0 if there are none.
    """
    nodes = snapshot.checkpoints
    newest = max((node.arrival for node in nodes.values() if node.arrival is not None), default=0)
    oldest = newest
    for shard, one in facts.items():
        node = nodes.get(shard)
        at = one.seen.arrival or (node.arrival if node is not None and node.behind_ms > 0 else None)
        if one.standing.share is Share.COUNTED and at is not None:
            oldest = min(oldest, at)
    return newest - oldest


def lag_of_stream(snapshot: Snapshot, stream: str, now: int) -> int | None:
    """Return the age of the oldest unread record of a stream, also of one that the newest run does not read."""
    if not snapshot.shards:
        return None
    facts = shard_facts(snapshot, now)
    return total_lag(
        {shard: one.lag for shard, one in facts.items() if _stream_of(snapshot, shard) == stream}
    )


def trend(snapshot: Snapshot) -> float | None:
    """Return the seconds by which the lag of the run that is connected grows in a second; None if that is unknown.

    Of a part of its shards it is.
    """
    status = _status(snapshot)
    return lag_growth(status.lags, status.reads) if status is not None else None


def _status(snapshot: Snapshot) -> StatusNode | None:
    status = snapshot.status
    if snapshot.part is not None:
        # A run says its lag and what it reads for all of its shards together.
        return None
    return status if snapshot.owner is not None and status and status.epoch == snapshot.epoch else None


def totals(snapshot: Snapshot, now: int, facts: Mapping[str, ShardFacts] | None = None) -> Totals:
    """Return the numbers of an application; `facts` as of `shard_facts`."""
    facts = shard_facts(snapshot, now) if facts is None else facts
    counted = {shard: one.lag for shard, one in facts.items() if one.standing.share is Share.COUNTED}
    seen = [lag.seen_at for lag in counted.values()]
    left = [one.retention_left_ms for one in facts.values() if one.standing.expiry]
    lag_ms = total_lag(counted) if snapshot.shards else None
    status = _status(snapshot)
    read_rate, input_rate = rates(status.lags, status.reads) if status else (None, None)
    pinned = snapshot.pins if snapshot.part is None else snapshot.part.intersection(snapshot.pins)
    return Totals(
        connected=snapshot.owner is not None,
        lag_ms=lag_ms,
        lag_growth=trend(snapshot),
        read_rate=read_rate,
        input_rate=input_rate,
        unread=round(lag_ms / 1000 * input_rate) if lag_ms is not None and input_rate is not None else None,
        seen_at=min((at for at in seen if at is not None), default=None) if None not in seen else None,
        # Where one is unknown the least of the others would be a comfort; findings look at each shard.
        retention_left_ms=min((ms for ms in left if ms is not None), default=None)
        if None not in left
        else None,
        inflight=sum(one.held for one in facts.values())
        + sum(snapshot.pins[shard].fresh for shard in pinned),
        retrying=sum(one.retrying for one in facts.values()),
        exhausted=sum(one.exhausted for one in facts.values()),
        unacked=sum(one.unacked for one in facts.values()),
        dead_lettered=sum(node.count for node in snapshot.dead_letters.values()),
        dead_left=sum(node.left for node in snapshot.dead_letters.values()),
        read=sum(node.read for node in snapshot.checkpoints.values()),
    )


def _facts(snapshot: Snapshot, shard: str, now: int) -> ShardFacts:
    node, held = snapshot.checkpoints.get(shard), snapshot.inflight.get(shard)
    seen, stream = _seen_of(snapshot, shard), _stream_of(snapshot, shard)
    # Without any lineage it is not known which shards are listed.
    listed = snapshot.shards.get(shard) if snapshot.shards else ShardLineage()
    standing = find_standing(
        listed, held, is_read=stream in snapshot.active, waits=_waits_for_parents(snapshot, shard, seen)
    )
    if standing.looks is Looks.NEVER:
        # A status says of all shards that it does not name that they are at their tips: it means those that are read.
        seen = Seen()
    is_connected = snapshot.owner is not None
    # A run that has ended reads nothing, of whatever shard: why it read no more of this one is over.
    said = cause_of(seen.standing) if is_connected and snapshot.end(now) is None else None
    causes = (REFUSED if seen.refused is not None else None, said)
    return facts_of(
        node,
        held,
        seen,
        standing.also(*(cause for cause in causes if cause is not None)),
        snapshot.status.retention.get(stream) if snapshot.status is not None else None,
        now,
        is_looked_at=is_connected,
    )


def _seen_of(snapshot: Snapshot, shard: str) -> Seen:
    """Return what the run has said of a shard, as far as it still holds: a batch may have moved the shard on since."""
    status, node = snapshot.status, snapshot.checkpoints.get(shard)
    if status is None:
        return Seen()
    seen = status.seen_of(shard)
    is_past = node is not None and node.txid > status.settled
    return Seen(refused=seen.refused, why=seen.why) if is_past else seen


def _waits_for_parents(snapshot: Snapshot, shard: str, seen: Seen) -> bool:
    """Return whether a shard is not begun, and no run says that it has looked at it: it is read after its parents."""
    node, lineage = snapshot.checkpoints.get(shard), snapshot.shards.get(shard)
    is_begun = node is not None and (node.txid > 0 or node.checkpoint is not None)
    if lineage is None or is_begun or seen.seen is not None:
        return False
    parents = [snapshot.shards[parent] for parent in lineage.parents if parent in snapshot.shards]
    return any(parent.state != "drained" for parent in parents)


def _stream_of(snapshot: Snapshot, shard: str) -> str:
    try:
        return snapshot.layout.key_of(shard).stream
    except ValueError:
        return ""
