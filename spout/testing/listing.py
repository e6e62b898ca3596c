"""Lists and describes shards. Pure; times are epoch milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kinesis_trident.spout.kinesis import KinesisError
from kinesis_trident.spout.testing.requests import ShardFilter
from kinesis_trident.spout.testing.shard import HeldShard
from kinesis_trident.spout.testing.stream import HOUR_MS, HeldStream


def filter_shards(stream: HeldStream, wanted: ShardFilter | None, now: int) -> list[HeldShard]:
    """Return the shards that match a filter of ListShards, in the order of their ids.

    Raises:
        KinesisError: the filter lacks what its type needs.
    """
    shards = [stream.shards[name] for name in sorted(stream.shards)]
    kind = wanted.type if wanted is not None else "FROM_TRIM_HORIZON"
    horizon = now - stream.retention_hours * HOUR_MS
    time = horizon
    if wanted is not None and kind == "AFTER_SHARD_ID":
        if wanted.shard_id is None:
            msg = "ShardFilter AFTER_SHARD_ID needs a ShardId"
            raise KinesisError(msg)
        after = wanted.shard_id
        return [shard for shard in shards if shard.name > after]
    if wanted is not None and kind.endswith("TIMESTAMP"):
        if wanted.timestamp is None:
            msg = f"ShardFilter {kind} needs a Timestamp"
            raise KinesisError(msg)
        time = max(horizon, round(wanted.timestamp * 1000))
    if kind == "AT_LATEST":
        return [shard for shard in shards if shard.closed is None]
    # The trim horizon of a stream younger than the retention is its creation.
    time = max(time, stream.created)
    from_then = [shard for shard in shards if shard.closed is None or shard.closed >= time]
    if kind.startswith("FROM"):
        return from_then
    return [
        shard for shard in from_then if shard.opened <= time and (shard.closed is None or shard.closed > time)
    ]


def shard_json(shard: HeldShard) -> dict[str, Any]:
    """Describe a shard as ListShards and DescribeStream do."""
    numbers = {"StartingSequenceNumber": str(shard.first)}
    if shard.last is not None:
        numbers["EndingSequenceNumber"] = str(shard.last)
    described: dict[str, Any] = {
        "ShardId": shard.name,
        "HashKeyRange": _hashes(shard),
        "SequenceNumberRange": numbers,
    }
    for key, parent in zip(("ParentShardId", "AdjacentParentShardId"), shard.parents, strict=False):
        described[key] = parent
    return described


def children(shards: Sequence[HeldShard], parent: str) -> list[dict[str, Any]]:
    """Describe the children of a shard as GetRecords does at its end."""
    return [
        {"ShardId": shard.name, "ParentShards": list(shard.parents), "HashKeyRange": _hashes(shard)}
        for shard in shards
        if parent in shard.parents
    ]


def _hashes(shard: HeldShard) -> dict[str, str]:
    return {"StartingHashKey": str(shard.hashes[0]), "EndingHashKey": str(shard.hashes[1])}
