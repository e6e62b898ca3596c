"""Rows that are written as aggregates: each is packed, sent, and if refused, packed anew, with all others left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kinesis_trident.spout.kinesis.packing import ROUTED_KEY, Pack, hash_key
from kinesis_trident.spout.kinesis.put_pools import Entry, RequestBound
from kinesis_trident.spout.sink.shard_map import ShardMap

__all__ = ["AggregatePool"]


@dataclass(slots=True)
class _Packed:
    """Rows that travel together to the shard `home`, as far as the map knows."""

    home: str
    pack: Pack
    rows: list[Entry] = field(default_factory=list)

    def entry(self) -> Entry:
        """Return the record to send: an aggregate, or the row itself if it is the only one."""
        if len(self.rows) == 1:
            return self.rows[0]
        return {"Data": self.pack.packed(), "PartitionKey": ROUTED_KEY, "ExplicitHashKey": self.pack.hash_key}


class AggregatePool:
    """A pool (`spout.kinesis.put_pools.Pool`) whose records are sent in aggregates, each for the shard of one range.

    A row that is larger than an aggregate may be is sent as it is. Rows of one hash key are packed in their order, into
    one aggregate after the other. Those of a refused aggregate return to their place in the pool.

    Args:
        rows: the entries to write.
        shards: the shards by hash key; listed again when a record arrives in another one.
        most: the maximum bytes of an aggregate.
    """

    def __init__(self, rows: Sequence[Entry], shards: ShardMap, most: int) -> None:
        self._left = list(rows)
        self._shards = shards
        self._most = most
        self._sent: list[_Packed] = []

    def __len__(self) -> int:
        return len(self._left)

    def take(self, bound: RequestBound) -> list[Entry]:
        """See `Pool.take`."""
        self._sent = self._packed(min(self._most, bound.bytes) - len(ROUTED_KEY), bound)
        return [packed.entry() for packed in self._sent]

    def is_cut(self) -> bool:
        """See `Pool.is_cut`."""
        return len(self._sent) == 1 and len(self._sent[0].rows) == 1

    def settle(self, results: Sequence[dict[str, Any]]) -> None:
        """See `Pool.settle`."""
        refused: list[Entry] = []
        is_elsewhere = False
        for packed, result in zip(self._sent, results, strict=True):
            if result.get("ErrorCode"):
                refused += packed.rows
            elif result.get("ShardId") != packed.home:
                is_elsewhere = True
        self._left[: sum(len(packed.rows) for packed in self._sent)] = refused
        if is_elsewhere:
            self._shards.refresh()

    def _packed(self, most: int, bound: RequestBound) -> list[_Packed]:
        """Pack the first rows, until the request is full."""
        found: list[_Packed] = []
        filling: dict[str, _Packed] = {}
        homes: dict[str, str] = {}
        size = 0
        for row in self._left:
            data, key, explicit = row["Data"], row["PartitionKey"], row.get("ExplicitHashKey")
            home = homes.get(key) if explicit is None else None
            if home is None:
                home = self._shards.home(row)
                if explicit is None:
                    homes[key] = home
            packed = filling.get(home)
            taken = 0
            if packed is not None:
                pack = packed.pack
                taken = pack.add(data, key, min(most - pack.size, bound.bytes - size))
            if packed is None or not taken:
                packed = _Packed(home, Pack(explicit or str(hash_key(key))))
                packed.pack.add(data, key)
                taken = packed.pack.size + len(ROUTED_KEY)
                if found and (len(found) == bound.records or size + taken > bound.bytes):
                    break
                found.append(packed)
                filling[home] = packed
            packed.rows.append(row)
            size += taken
        return found
