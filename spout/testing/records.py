"""Aggregates records as the Kinesis Producer Library does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kinesis_trident.spout.kinesis.packing import Pack
from kinesis_trident.spout.testing.shard import StoredRecord


def aggregate(records: Iterable[tuple[bytes, str]]) -> bytes:
    """Pack (data, partition key) pairs into the payload of one record, for `put` or PutRecords.

    The format is the one that `spout.kinesis.aggregation` reads; repeated keys are stored once, as the KPL
    does.
    """
    pack = Pack()
    for data, key in records:
        pack.add(data, key)
    return pack.pack()


def record_json(record: StoredRecord) -> dict[str, Any]:
    """Return a record as in GetRecords and SubscribeToShard, with bytes for base64."""
    found = {
        "SequenceNumber": str(record.sequence),
        "ApproximateArrivalTimestamp": record.arrival / 1000,
        "Data": record.data,
        "PartitionKey": record.key,
        **record.members,
    }
    return {name: value for name, value in found.items() if value is not None}
