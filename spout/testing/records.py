"""A record as the API gives it. Pure."""

from __future__ import annotations

from typing import Any

from spout.testing.shard import StoredRecord

__all__ = ["record_json"]


def record_json(record: StoredRecord) -> dict[str, Any]:
    """A record as GetRecords and SubscribeToShard give it, with bytes for base64."""
    return {
        "SequenceNumber": str(record.sequence),
        "ApproximateArrivalTimestamp": record.arrival / 1000,
        "Data": record.data,
        "PartitionKey": record.key,
    }
