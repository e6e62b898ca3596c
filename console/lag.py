"""The lag of each shard as it is seen from outside, from an application's nodes and the time. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kinesis_trident.checkpoint.model.run_status import (
    Lag,
    Sight,
    StatusNode,
    lag_growth,
    lag_of,
    rates,
    total_lag,
)
from kinesis_trident.console.snapshot import Snapshot

HOUR_MS = 3_600_000


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


def is_read(snapshot: Snapshot, shard: str) -> bool:
    """Return whether the newest run reads the stream of a shard, and the shard is not read to its end."""
    lineage = snapshot.shards.get(shard)
    if lineage is not None and lineage.state == "drained":
        return False
    return _stream_of(snapshot, shard) in snapshot.active


def shard_lags(snapshot: Snapshot, now: int) -> dict[str, Lag]:
    """Return the lag of each shard at `now`, in epoch milliseconds."""
    return {shard: _lag(snapshot, shard, now) for shard in snapshot.shard_ids}


def shard_skew(snapshot: Snapshot) -> int:
    """Return by how many milliseconds the oldest unread record is older than the newest one that was read.

    A watermark with a shorter delay drops it. Only records of which the run or a turn has said that they are unread
    count; 0 if there are none.
    """
    nodes = snapshot.checkpoints
    newest = max((node.arrival for node in nodes.values() if node.arrival is not None), default=0)
    oldest = newest
    for shard in filter(lambda one: is_read(snapshot, one), snapshot.shard_ids):
        sight, node = sight_of(snapshot, shard), nodes.get(shard)
        at = node.arrival if node is not None and node.behind_ms > 0 else None
        oldest = min([oldest, *(one for one in (sight.arrival or at,) if one is not None)])
    return newest - oldest


def lag_of_stream(snapshot: Snapshot, stream: str, now: int) -> int | None:
    """Return the age of the oldest unread record of a stream, also of one that the newest run does not read."""
    if not snapshot.shards:
        return None
    lags = shard_lags(snapshot, now)
    return total_lag({shard: lag for shard, lag in lags.items() if _stream_of(snapshot, shard) == stream})


def retention_left(snapshot: Snapshot, shard: str, lag: Lag) -> int | None:
    """Return the milliseconds until the oldest unread record of a shard expires, 0 if it has; None if unknown."""
    hours = snapshot.status.retention.get(_stream_of(snapshot, shard)) if snapshot.status else None
    if hours is None or lag.ms is None or not is_read(snapshot, shard):
        return None
    return max(0, hours * HOUR_MS - lag.ms)


def sight_of(snapshot: Snapshot, shard: str) -> Sight:
    """Return what the run has said of a shard, as far as it still holds: a batch may have moved the shard on since."""
    status, node = snapshot.status, snapshot.checkpoints.get(shard)
    if status is None or not is_read(snapshot, shard):
        # A status says of all shards that it does not name that they are at their tips: it means those that are read.
        return Sight()
    sight = status.sight_of(shard)
    if node is not None and node.txid > status.settled:
        return Sight(refused=sight.refused, why=sight.why)
    return sight


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


def totals(snapshot: Snapshot, now: int, lags: Mapping[str, Lag] | None = None) -> Totals:
    """Return the numbers of an application; `lags` as of `shard_lags`."""
    lags = shard_lags(snapshot, now) if lags is None else lags
    to_read = {shard: lag for shard, lag in lags.items() if is_read(snapshot, shard)}
    seen = [lag.seen_at for lag in to_read.values()]
    left = [retention_left(snapshot, shard, lag) for shard, lag in to_read.items()]
    lag_ms = total_lag(to_read) if snapshot.shards else None
    status = _status(snapshot)
    read_rate, input_rate = rates(status.lags, status.reads) if status else (None, None)
    held = snapshot.inflight.values()
    pinned = snapshot.pins if snapshot.part is None else snapshot.part.intersection(snapshot.pins)
    retrying = sum(run.count for node in held for run in node.waiting)
    exhausted = sum(run.count for node in held for run in node.dead)
    unacked = sum(run.count for node in held for run in node.pending)
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
        inflight=retrying + exhausted + unacked + sum(snapshot.pins[shard].fresh for shard in pinned),
        retrying=retrying,
        exhausted=exhausted,
        unacked=unacked,
        dead_lettered=sum(node.count for node in snapshot.dead_letters.values()),
        dead_left=sum(node.left for node in snapshot.dead_letters.values()),
        read=sum(node.read for node in snapshot.checkpoints.values()),
    )


def _lag(snapshot: Snapshot, shard: str, now: int) -> Lag:
    lineage = snapshot.shards.get(shard)
    drained = lineage is not None and lineage.state == "drained"
    lag = lag_of(snapshot.checkpoints.get(shard), sight_of(snapshot, shard), now, drained=drained)
    # Nobody looks at the shard any more.
    return Lag(None, lag.seen_at) if lag.ms == 0 and not drained and snapshot.owner is None else lag


def _stream_of(snapshot: Snapshot, shard: str) -> str:
    try:
        return snapshot.layout.key_of(shard).stream
    except ValueError:
        return ""
