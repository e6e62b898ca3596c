"""The lease table of a KCL application: its checkpoint of one stream, and the handing over to it.

Each item is the lease of one shard. The attributes are those of KCL's `DynamoDBLeaseSerializer` and, for an application
of several streams, `DynamoDBMultiStreamLeaseSerializer` (awslabs/amazon-kinesis-client, package
software.amazon.kinesis.leases.dynamodb); KCL 1, 2 and 3 write the same ones. Since 3.x KCL may keep other things in the
table too, under another `entityType` (its class `EntityType`): its leader, its workers' metrics, its streams.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kinesis_trident.checkpoint.errors import MigrationError
from kinesis_trident.console.moving.foreign import ForeignCheckpoint, OwnShard, System
from kinesis_trident.console.moving.tables import Table
from kinesis_trident.spout.kinesis import Shard, StreamInfo
from kinesis_trident.spout.options.starting_position import LATEST
from kinesis_trident.spout.positions import TRIM_HORIZON, After, At, AtTimestamp, ShardEnd, parse_position
from kinesis_trident.tracker.records import RecordPosition

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
    return str(After(RecordPosition(lease.checkpoint, max(lease.sub, 0))))


def checkpoint_of(text: str) -> tuple[str, int]:
    """Return the two attributes of a position: the inverse of `position_text`."""
    match parse_position(text):
        case After(record):
            return record.sequence, max(record.sub, 0)
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


_SCHEMA = {KEY: "HASH"}


def read_kcl(table: Table, info: StreamInfo, timestamp: int | None) -> ForeignCheckpoint:
    """Return the checkpoint that a KCL application has of a stream; changes nothing.

    KCL goes on from `checkpoint`, and only tells the application of `pendingCheckpoint`: so does this.

    Args:
        table: of the leases.
        info: of the stream.
        timestamp: where leases begin that are marked AT_TIMESTAMP, in epoch milliseconds; None if unknown.

    Raises:
        MigrationError: there is no such table, it is not a lease table, or not of this stream.
    """
    leases = _leases(table, table.known_keys())
    if not leases:
        msg = (
            f"{table.place} holds no lease. Check --table: it has the name of the KCL application by default"
        )
        raise MigrationError(msg)
    found = _of_stream(table, leases, info)
    notes = []
    held = sorted({lease.owner for lease in found if lease.owner})
    if held:
        notes.append(
            f"leases are held by {', '.join(held[:5])}. Make sure that these workers of KCL are stopped"
        )
    prepared = [lease.shard for lease in found if lease.pending]
    if prepared:
        notes.append(
            f"KCL has prepared a checkpoint of {', '.join(sorted(prepared))} and not completed it. Reading goes on "
            "after the last complete one, as in KCL"
        )
    return ForeignCheckpoint(
        System.KCL,
        table.place,
        {lease.shard: position_text(lease, timestamp) for lease in found},
        tuple(notes),
    )


class KclTarget:
    """A lease table to be written, so that a KCL application goes on from our checkpoint: a `Target`.

    A lease that exists keeps all but its checkpoint. A write fails if KCL has written the lease since it was read.

    The table of leases is created if there is none.
    """

    system = System.KCL

    def __init__(self, table: Table, info: StreamInfo, listed: Sequence[Shard]) -> None:
        self._table = table
        self._listed = {shard.id: shard for shard in listed}
        keys = table.keys()
        self._exists = keys is not None
        leases = _leases(table, keys) if keys is not None else []
        found = _of_stream(table, leases, info) if leases else []
        self._leases = {lease.shard: lease for lease in found}
        self._identifier = found[0].identifier if found else ""
        self.place = table.place if self._exists else f"{table.place}, which is created"

    def positions(self) -> Mapping[str, str]:
        """See `Target.positions`."""
        # A lease that begins at a time has no position in the table: nothing of its shard is done.
        known = {shard: lease for shard, lease in self._leases.items() if lease.checkpoint != AT_TIMESTAMP}
        return {shard: position_text(lease, None) for shard, lease in known.items()}

    def express(self, own: OwnShard) -> str | None:
        """Return the position of a lease; None for a shard that the stream no longer lists.

        Raises:
            MigrationError: nothing is done yet, and a lease has no position before a given record.
        """
        if own.shard not in self._listed:
            return None
        if own.ended:
            return str(ShardEnd())
        if own.done is not None:
            # KCL gives a record that is not aggregated the number 0.
            return str(After(RecordPosition(own.done.sequence, max(own.done.sub, 0))))
        if own.again or isinstance(own.position, At):
            msg = (
                f"{own.path} has no record that is done, and is at {own.position}; a lease names only the last record "
                "that is done, and nothing was written. Let the query go on until the first one is, stop it and "
                "export again"
            )
            raise MigrationError(msg)
        return str(own.position)

    def place_of(self, shard: str) -> str:
        """See `Target.place_of`."""
        lease = self._leases.get(shard)
        key = lease.key if lease else f"{self._identifier}:{shard}" if self._identifier else shard
        return f"lease {key} of {self._table.place}"

    def write(self, becoming: Mapping[str, str], known: Collection[str]) -> None:
        """See `Target.write`."""
        if not self._exists:
            self._table.create(
                KeySchema=[{"AttributeName": KEY, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": KEY, "AttributeType": "S"}],
            )
        children: dict[str, list[str]] = {}
        for shard in self._listed.values():
            for parent in shard.parents:
                children.setdefault(parent, []).append(shard.id)
        for count, (name, text) in enumerate(sorted(becoming.items())):
            lease = self._leases.get(name)
            written = (
                self._table.put_new(
                    item_of(text, self._listed[name], children.get(name, ()), self._identifier), KEY
                )
                if lease is None
                else self._move(lease, text)
            )
            if not written:
                msg = (
                    f"{self.place_of(name)} was written by somebody else at this moment, so a worker of KCL is "
                    f"running; {count} of {len(becoming)} leases were written before it. Stop all workers, and export "
                    "again"
                )
                raise MigrationError(msg)

    def _move(self, lease: Lease, text: str) -> bool:
        checkpoint, sub = checkpoint_of(text)
        # As KCL's own updates do, which expect the counter that they have read.
        return self._table.update(
            {KEY: {"S": lease.key}},
            "SET checkpoint = :checkpoint, checkpointSubSequenceNumber = :sub, leaseCounter = :next, "
            "ownerSwitchesSinceCheckpoint = :zero "
            "REMOVE pendingCheckpoint, pendingCheckpointSubSequenceNumber, pendingCheckpointState",
            "leaseCounter = :counter",
            {
                ":checkpoint": {"S": checkpoint},
                ":sub": {"N": str(sub)},
                ":counter": {"N": str(lease.counter)},
                ":next": {"N": str(lease.counter + 1)},
                ":zero": {"N": "0"},
            },
        )


def _leases(table: Table, keys: Mapping[str, str]) -> list[Lease]:
    if keys != _SCHEMA:
        said = ", ".join(f"{name} ({kind})" for name, kind in keys.items())
        msg = (
            f"{table.place} has the key {said}, so it is not a lease table of KCL, whose key is {KEY}. Give the "
            "table that has the name of the KCL application, not one with the suffix -CoordinatorState or "
            "-WorkerMetricStats"
        )
        raise MigrationError(msg)
    parsed = (Lease.parse(table.place, item) for item in table.scan())
    return [lease for lease in parsed if lease is not None]


def _of_stream(table: Table, leases: Sequence[Lease], info: StreamInfo) -> list[Lease]:
    """Return the leases of a stream; of several streams of this name, those of the one that exists.

    Raises:
        MigrationError: the table has other streams only.
    """
    several = [lease for lease in leases if lease.identifier]
    if not several:
        return list(leases)
    named = [lease for lease in several if lease.stream == info.name]
    if not named:
        names = ", ".join(sorted({lease.stream or lease.identifier for lease in several}))
        msg = f"{table.place} has leases of {names}, and none of stream {info.name!r}. Check --stream and --table"
        raise MigrationError(msg)
    # The time is what the application's owner told KCL: it need not be the stream's.
    right = info.created // 1000
    newest = max(named, key=lambda lease: (lease.epoch == right, lease.epoch))
    return [lease for lease in named if lease.identifier == newest.identifier]
