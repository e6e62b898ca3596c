"""Positions in a shard in the words of Kinesis' API, of which each call has its own. Pure."""

from __future__ import annotations

from typing import Any

from kinesis_trident.spout.kinesis import AfterShard, KinesisError, Since
from kinesis_trident.spout.positions import After, At, AtTimestamp, Position, ShardEnd, TrimHorizon

FROM_NOW = {"ShardIteratorType": "LATEST"}
"""The start of an iterator of what arrives from now on."""


def filter_of(since: Since) -> dict[str, Any]:
    """Return what ListShards expects."""
    match since:
        case TrimHorizon():
            return {"Type": "FROM_TRIM_HORIZON"}
        case AtTimestamp(time):
            return {"Type": "FROM_TIMESTAMP", "Timestamp": time / 1000}
        case AfterShard(shard):
            return {"Type": "AFTER_SHARD_ID", "ShardId": shard}


def start_of(position: Position) -> dict[str, Any]:
    """Return what GetShardIterator expects.

    Raises:
        KinesisError: there is nothing behind the position.
    """
    match position:
        case TrimHorizon():
            return {"ShardIteratorType": "TRIM_HORIZON"}
        case AtTimestamp(time):
            return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": time / 1000}
        case After(record):
            kind = "AFTER_SEQUENCE_NUMBER" if record.sub < 0 else "AT_SEQUENCE_NUMBER"
            return {"ShardIteratorType": kind, "StartingSequenceNumber": record.sequence}
        case At(record):
            return {
                "ShardIteratorType": "AT_SEQUENCE_NUMBER",
                "StartingSequenceNumber": record.sequence,
            }
        case ShardEnd():
            msg = "a shard that is read to its end has no iterator"
            raise KinesisError(msg)


def subscription_start_of(position: Position) -> dict[str, Any]:
    """Return a position as SubscribeToShard expects it: as GetShardIterator does, under other names."""
    found = start_of(position)
    names = {"ShardIteratorType": "Type", "StartingSequenceNumber": "SequenceNumber"}
    return {names.get(name, name): value for name, value in found.items()}
