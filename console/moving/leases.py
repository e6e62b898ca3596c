"""The leases of the Kinesis Client Library: one item of its table each, for one shard. Pure.

The attributes are those of KCL's `DynamoDBLeaseSerializer` and, for an application of several streams,
`DynamoDBMultiStreamLeaseSerializer` (awslabs/amazon-kinesis-client, package software.amazon.kinesis.leases.dynamodb);
KCL 1, 2 and 3 write the same ones. Since 3.x KCL may keep other things in the table too, under another `entityType`
(its class `EntityType`): its leader, its workers' metrics, its streams.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from kinesis_trident.checkpoint.errors import MigrationError
from kinesis_trident.spout.kinesis import Shard
from kinesis_trident.spout.options.starting_position import LATEST
from kinesis_trident.spout.positions import TRIM_HORIZON, After, AtTimestamp, ShardEnd, parse_position
from kinesis_trident.tracker.records import RecordPosition

__all__ = ["AT_TIMESTAMP", "KEY", "Lease", "checkpoint_of", "item_of", "position_text"]

KEY = "leaseKey"

AT_TIMESTAMP = "AT_TIMESTAMP"
"""KCL's mark of a lease that begins at a time, which is only in the configuration of the application."""

_SHARD_END = "SHARD_END"
_SENTINELS = (_SHARD_END, str(TRIM_HORIZON), LATEST, AT_TIMESTAMP)
_STREAM = re.compile(r"(?P<account>[0-9]+):(?P<stream>[^:]+):(?P<epoch>[0-9]+)")
"""`account:stream:creation epoch` in seconds, as `StreamIdentifier.serialize` writes it for several streams."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One lease.

    Attributes:
        key: of its item.
        shard: the shard's id.
        identifier: of the stream, in an application of several; empty in one of a single stream.
        checkpoint: a sequence number, or one of KCL's marks.
        sub: of the user record within it; 0 also for a record that is not aggregated.
        counter: raised by each write of KCL.
        owner: the worker that holds it; empty if none does.
        pending: KCL has prepared a later checkpoint, and not completed it.
    """

    key: str
    shard: str
    identifier: str
    checkpoint: str
    sub: int
    counter: int
    owner: str
    pending: bool

    @property
    def stream(self) -> str:
        """The stream's name; empty in an application of a single stream."""
        found = _STREAM.fullmatch(self.identifier)
        return found["stream"] if found else ""

    @property
    def epoch(self) -> int:
        """The creation time that the stream's owner has told KCL, in seconds."""
        found = _STREAM.fullmatch(self.identifier)
        return int(found["epoch"]) if found else 0

    @classmethod
    def parse(cls, place: str, item: dict[str, Any]) -> Lease | None:
        """Parse an item; None if KCL keeps something else in it.

        Raises:
            MigrationError: it is not an item of KCL's.
        """
        if item.get("entityType", {}).get("S", "LEASE") != "LEASE":
            return None
        try:
            key = item[KEY]["S"]
            checkpoint = item["checkpoint"]["S"]
            sub = int(item.get("checkpointSubSequenceNumber", {}).get("N", "0"))
            counter = int(item["leaseCounter"]["N"])
            identifier = item.get("streamName", {}).get("S", "")
            shard = item["shardId"]["S"] if identifier else key
            known = checkpoint in _SENTINELS or re.fullmatch("[0-9]{1,129}", checkpoint) is not None
            known = known and sub <= 2**31
        except (KeyError, TypeError, ValueError, AttributeError):
            known = False
        if not known:
            said = {name: next(iter(value.values()), None) for name, value in sorted(item.items())}
            msg = (
                f"{place} holds {str(said)[:200]}, which is no lease: leaseKey, leaseCounter and a checkpoint are "
                "needed. Check that it is the lease table of KCL, which has the application's name by default"
            )
            raise MigrationError(msg)
        owner = item.get("leaseOwner", {}).get("S", "")
        return cls(key, shard, identifier, checkpoint, sub, counter, owner, "pendingCheckpoint" in item)


def position_text(lease: Lease, timestamp: int | None) -> str:
    """Return the position of a lease, as `ForeignCheckpoint.positions` has it; `timestamp` for AT_TIMESTAMP.

    KCL counts the user records of an aggregate from 0, as we do, and gives a record that is not aggregated the number
    0: reading on after `<sequence>:0` skips either.

    Raises:
        MigrationError: the lease begins at a time, which is not known.
    """
    match lease.checkpoint:
        case "SHARD_END" | "TRIM_HORIZON" | "LATEST":
            return lease.checkpoint
        case "AT_TIMESTAMP":
            if timestamp is None:
                msg = (
                    f"lease {lease.key} begins AT_TIMESTAMP, and the time is only in the configuration of the KCL "
                    "application. Give it with --timestamp"
                )
                raise MigrationError(msg)
            return str(AtTimestamp(timestamp))
    return str(After(RecordPosition(int(lease.checkpoint), max(lease.sub, 0))))


def checkpoint_of(text: str) -> tuple[str, int]:
    """Return the two attributes of a position: the inverse of `position_text`."""
    match parse_position(text):
        case After(record):
            return str(record.sequence), max(record.sub, 0)
        case ShardEnd():
            return _SHARD_END, 0
        case AtTimestamp():
            return AT_TIMESTAMP, 0
    return text, 0


def item_of(text: str, shard: Shard, children: Collection[str], identifier: str) -> dict[str, Any]:
    """Return the item of a new lease that nobody holds, as `DynamoDBLeaseSerializer.toDynamoRecord` writes it."""
    checkpoint, sub = checkpoint_of(text)
    item: dict[str, Any] = {
        KEY: {"S": f"{identifier}:{shard.id}" if identifier else shard.id},
        "leaseCounter": {"N": "0"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": checkpoint},
        "checkpointSubSequenceNumber": {"N": str(sub)},
        "entityType": {"S": "LEASE"},
    }
    if shard.parents:
        item["parentShardId"] = {"SS": sorted(shard.parents)}
    if children:
        item["childShardIds"] = {"SS": sorted(children)}
    if shard.hash_keys is not None:
        item["startingHashKey"], item["endingHashKey"] = ({"S": key} for key in shard.hash_keys)
    if identifier:
        item |= {"streamName": {"S": identifier}, "shardId": {"S": shard.id}}
    return item
