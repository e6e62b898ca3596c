"""The lag of each shard as it is seen from outside, from an application's nodes and the time. Pure."""

from __future__ import annotations

from kinesis_trident.checkpoint.model.facts import ShardFacts, facts_of
from kinesis_trident.checkpoint.model.nodes import ShardLineage
from kinesis_trident.checkpoint.model.run_status import Seen, total_lag
from kinesis_trident.checkpoint.model.standing import REFUSED, Looks, cause_of, find_standing
from kinesis_trident.console.snapshot import Snapshot


def shard_facts(snapshot: Snapshot, now: int) -> dict[str, ShardFacts]:
    """Return the figures of each shard at `now`, in epoch milliseconds."""
    return {shard: _facts(snapshot, shard, now) for shard in snapshot.shard_ids}


def lag_of_stream(snapshot: Snapshot, stream: str, now: int) -> int | None:
    """Return the age of the oldest unread record of a stream, also of one that the newest run does not read."""
    if not snapshot.shards:
        return None
    keys = {shard: snapshot.key_of(shard) for shard in snapshot.shard_ids}
    shards = [shard for shard, key in keys.items() if key is not None and key.stream == stream]
    return total_lag({shard: _facts(snapshot, shard, now).lag for shard in shards})


def _facts(snapshot: Snapshot, shard: str, now: int) -> ShardFacts:
    node, held = snapshot.checkpoints.get(shard), snapshot.inflight.get(shard)
    seen, key = _seen_of(snapshot, shard), snapshot.key_of(shard)
    stream = key.stream if key is not None else ""
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
