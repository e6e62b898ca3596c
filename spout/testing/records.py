"""Aggregates records as the Kinesis Producer Library does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from kinesis_trident.spout.kinesis.aggregate_messages import AggregatedRecord
from kinesis_trident.spout.kinesis.aggregation import MAGIC
from kinesis_trident.spout.testing.shard import StoredRecord

__all__ = ["aggregate", "record_json"]


def aggregate(records: Iterable[tuple[bytes, str]]) -> bytes:
    """Pack (data, partition key) pairs into the payload of one record, for `put` or PutRecords.

    The format is the one that `spout.kinesis.aggregation` reads; repeated keys are stored once, as the KPL
    does.
    """
    message = AggregatedRecord()
    keys: dict[str, int] = {}
    for data, key in records:
        message.records.add(partition_key_index=keys.setdefault(key, len(keys)), data=data)
    message.partition_key_table.extend(key.encode() for key in keys)
    packed: bytes = message.SerializeToString()
    return MAGIC + packed + hashlib.md5(packed, usedforsecurity=False).digest()


def record_json(record: StoredRecord) -> dict[str, Any]:
    """Return a record as in GetRecords and SubscribeToShard, with bytes for base64."""
    return {
        "SequenceNumber": str(record.sequence),
        "ApproximateArrivalTimestamp": record.arrival / 1000,
        "Data": record.data,
        "PartitionKey": record.key,
    }
