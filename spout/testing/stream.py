"""A stream in memory: routing by hash key, resharding, retention, positions, listing. Pure; times are epoch ms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from kinesis_trident.spout.kinesis import InvalidPositionError, KinesisError, ShardMissingError
from kinesis_trident.spout.kinesis.packing import hash_key
from kinesis_trident.spout.testing.requests import ShardFilter
from kinesis_trident.spout.testing.shard import Cursor, HeldShard, StoredRecord

HASH_KEYS = 2**128
"""The number of hash keys, which the open shards divide among themselves."""

HOUR_MS = 3_600_000

CALLER = "123456789012"
"""The account of all callers."""

_OF_SHARD, _MOST_SHARDS = 100, 10**6
"""A sequence number holds the number of its shard above its last two digits, and below those that rise."""

_FIRST_SEQUENCE = 49590338271490256608559692538361571095921575989100000000
_STEP = 104_729 * _MOST_SHARDS * _OF_SHARD


class HeldStream:
    """One stream. Sequence numbers have 56 digits, rise over all its shards, and start higher in later streams.

    With more `digits` it is a local server that fills its numbers up with zeros, and compares them as texts.

    Args:
        name: its name.
        shards: the initial number of shards, which divide the hash keys evenly.
        created: epoch milliseconds.
        retention_hours: the age at which `expire` drops records.
        owner: its account.

    Attributes:
        digits: the digits of its sequence numbers, at least.
        is_auto: it distributes records by itself, whatever their keys, and takes some without a key.
    """

    def __init__(
        self, name: str, shards: int, created: int, *, retention_hours: int = 24, owner: str = CALLER
    ) -> None:
        self.name = name
        self.owner = owner
        self.arn = f"arn:aws:kinesis:us-east-1:{owner}:stream/{name}"
        self.created = created
        self.retention_hours = retention_hours
        self.is_auto = False
        self.digits = 0
        self.shards: dict[str, HeldShard] = {}
        self._made = 0
        self._oldest: float = math.inf
        # A recreated stream has other numbers than the one before.
        self._sequence = _FIRST_SEQUENCE + created * 10**30
        for number in range(shards):
            self._open((), _share(number, shards), created)

    @property
    def open_shards(self) -> list[HeldShard]:
        """Return the open shards in the order of their hash keys."""
        return sorted((s for s in self.shards.values() if s.closed is None), key=lambda shard: shard.hashes)

    def tip(self, shard: HeldShard) -> Cursor:
        """Return the cursor of a shard after everything written so far."""
        return Cursor(self._latest(shard.name) + 1)

    def number_text(self, sequence: int) -> str:
        """Return a sequence number as the stream writes it."""
        return str(sequence).zfill(self.digits)

    def number_of(self, text: str) -> int:
        """Return the sequence number that a caller's text means.

        Raises:
            KinesisError: AWS refuses numbers with leading zeros.
        """
        if not self.digits and text != str(int(text)):
            msg = (
                f"Value '{text}' at 'startingSequenceNumber' failed to satisfy constraint: Member must satisfy "
                "regular expression pattern: 0|([1-9]\\d{0,128})"
            )
            raise KinesisError(msg)
        # As a text it comes after all that are filled up.
        return int(text) if len(text) >= self.digits else 10**129

    def shard(self, name: str) -> HeldShard:
        """Return a listed shard.

        Raises:
            ShardMissingError: no shard of that name exists.
        """
        if name not in self.shards:
            msg = f"Shard {name} in stream {self.name} under account 123456789012 does not exist"
            raise ShardMissingError(msg)
        return self.shards[name]

    def home_of(self, key: str | None, explicit: str | None = None) -> HeldShard:
        """Return the open shard that takes a record.

        Raises:
            KinesisError: it has no partition key, which the stream requires; or as `home`.
        """
        if self.is_auto:
            shards = self.open_shards
            return shards[self._sequence // _STEP % len(shards)] if shards else self.find_home(0)
        if key is None:
            msg = f"PartitionKey is required: stream {self.name} has the strategy USER_PARTITION_KEY"
            raise KinesisError(msg)
        return self.find_home(hash_key(key) if explicit is None else int(explicit))

    def find_home(self, key: int) -> HeldShard:
        """Return the open shard of a hash key.

        Raises:
            KinesisError: its shard was closed and has no children.
        """
        for shard in self.open_shards:
            if shard.hashes[0] <= key <= shard.hashes[1]:
                return shard
        msg = f"no open shard of stream {self.name} takes the hash key {key}"
        raise KinesisError(msg)

    def put(self, shard: HeldShard, data: bytes, key: str | None, now: int) -> StoredRecord:
        """Append a record to a shard.

        Raises:
            KinesisError: the shard is closed.
        """
        if shard.closed is not None:
            msg = f"shard {shard.name} is closed"
            raise KinesisError(msg)
        record = StoredRecord(self._next_sequence(shard.name), key, data, now, digits=self.digits)
        shard.records.append(record)
        self._oldest = min(self._oldest, now)
        return record

    def cursor_at(self, shard: HeldShard, sequence: int) -> Cursor:
        """Return the cursor before a record, which may have expired.

        Raises:
            InvalidPositionError: the shard never had this sequence number, or another one has it.
        """
        for other in self.shards.values():
            if other is not shard and other.has(sequence):
                msg = (
                    f"Invalid StartingSequenceNumber. It encodes {other.name}, while it was used in a call to a shard "
                    f"with {shard.name}"
                )
                raise InvalidPositionError(msg)
        last = self._latest(shard.name) if shard.last is None else shard.last
        is_own = sequence // _OF_SHARD % _MOST_SHARDS == _index(shard.name)
        if not self.digits and not (is_own and shard.first <= sequence <= last):
            msg = (
                f"StartingSequenceNumber {sequence} used in GetShardIterator on shard {shard.name} in stream "
                f"{self.name} under account 123456789012 is invalid because it did not come from this stream"
            )
            raise InvalidPositionError(msg)
        return Cursor(sequence)

    def split(self, name: str, now: int, at: int | None = None) -> tuple[str, str]:
        """Close a shard and open two children; the second begins at the hash key `at`, by default in the middle.

        Raises:
            KinesisError: the shard is closed, or `at` is not inside it.
        """
        shard = self._check_open(name)
        low, high = shard.hashes
        middle = (low + high + 1) // 2 if at is None else at
        if not low < middle <= high:
            msg = f"NewStartingHashKey {middle} is not inside shard {name}, which has {low} to {high}"
            raise KinesisError(msg)
        self.close(name, now)
        return self._open((name,), (low, middle - 1), now), self._open((name,), (middle, high), now)

    def merge(self, name: str, other: str, now: int) -> str:
        """Close two neighbours and open their child.

        Raises:
            KinesisError: one is closed, or they are not neighbours.
        """
        pair = [self._check_open(name), self._check_open(other)]
        low, high = sorted(shard.hashes for shard in pair)
        if low[1] + 1 != high[0]:
            msg = f"Shards {name} and {other} in stream {self.name} are not an adjacent pair of shards"
            raise KinesisError(msg)
        self.close(name, now)
        self.close(other, now)
        return self._open((name, other), (low[0], high[1]), now)

    def resize(self, count: int, now: int) -> None:
        """Split and merge until `count` shards divide the hash keys evenly."""
        for number in range(1, count):
            start = _share(number, count)[0]
            home = self.find_home(start)
            if home.hashes[0] != start:
                self.split(home.name, now, start)
        starts = {_share(number, count)[0] for number in range(count)}
        while len(self.open_shards) > count:
            for left, right in pairwise(self.open_shards):
                if right.hashes[0] not in starts:
                    self.merge(left.name, right.name, now)
                    break

    def close(self, name: str, now: int) -> None:
        """Close a shard for new records; existing ones can be read."""
        shard = self.shard(name)
        shard.closed = now
        shard.last = self._next_sequence(name)
        self._oldest = min(self._oldest, now)

    def forget(self, name: str) -> None:
        """Remove a shard as past retention: it is no longer listed."""
        self.shard(name)
        del self.shards[name]

    def gap(self, name: str, pages: int) -> None:
        """Put this many empty pages, behind the tip, before the next record of a shard."""
        self.shard(name).gaps[self._next_sequence(name)] = pages

    def expire(self, now: int) -> None:
        """Drop records past retention, and shards that were closed before it."""
        horizon = now - self.retention_hours * HOUR_MS
        if horizon <= self._oldest:
            # Each call comes here, and a stream may have thousands of shards.
            return
        for shard in list(self.shards.values()):
            shard.expire(horizon)
            if shard.closed is not None and shard.closed < horizon:
                del self.shards[shard.name]
        shards = self.shards.values()
        arrivals = [shard.records[0].arrival for shard in shards if shard.records]
        closings = [shard.closed for shard in shards if shard.closed is not None]
        self._oldest = min(arrivals + closings, default=math.inf)

    def _check_open(self, name: str) -> HeldShard:
        shard = self.shard(name)
        if shard.closed is not None:
            msg = f"Shard {name} in stream {self.name} is closed: it cannot be split or merged"
            raise KinesisError(msg)
        return shard

    def _open(self, parents: tuple[str, ...], hashes: tuple[int, int], now: int) -> str:
        name = f"shardId-{self._made:012d}"
        self._made += 1
        self.shards[name] = HeldShard(name, hashes, self._next_sequence(name), now, parents)
        return name

    def _next_sequence(self, shard: str) -> int:
        self._sequence += _STEP
        return self._latest(shard)

    def _latest(self, shard: str) -> int:
        """Return the number that a record of a shard has if it is the newest of the stream."""
        return self._sequence + _index(shard) * _OF_SHARD


def _index(shard: str) -> int:
    return int(shard.rpartition("-")[2]) % _MOST_SHARDS


def _share(number: int, of: int) -> tuple[int, int]:
    return HASH_KEYS * number // of, HASH_KEYS * (number + 1) // of - 1


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


def shard_json(stream: HeldStream, shard: HeldShard) -> dict[str, Any]:
    """Describe a shard as ListShards and DescribeStream do."""
    numbers = {"StartingSequenceNumber": stream.number_text(shard.first)}
    if shard.last is not None:
        numbers["EndingSequenceNumber"] = stream.number_text(shard.last)
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
