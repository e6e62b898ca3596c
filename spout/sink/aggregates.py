"""Rows that are written as aggregates: each is packed, sent, and if refused, packed anew, with all others left."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kinesis_trident.spout.kinesis.packing import ROUTED_KEY, Pack, hash_key
from kinesis_trident.spout.kinesis.put_entries import Entries, Entry
from kinesis_trident.spout.kinesis.put_pools import RequestBound, is_refused
from kinesis_trident.spout.sink.shard_map import ShardMap

__all__ = ["AggregatePool"]


@dataclass(frozen=True, slots=True)
class _Packed:
    """Rows that travel together to the shard `home`, as far as the map knows; `rows` are their indexes in the pool."""

    home: str
    pack: Pack
    rows: list[int]

    @property
    def size(self) -> int:
        return self.pack.size + len(ROUTED_KEY)

    def entry(self, left: Entries) -> Entry:
        """Return the record to send: an aggregate, or the row itself if it is the only one."""
        if len(self.rows) == 1:
            return left[self.rows[0]]
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
        self._left = Entries.of(rows)
        self._shards = shards
        self._most = most
        self._sent: list[_Packed] = []

    def __len__(self) -> int:
        return len(self._left)

    def take(self, bound: RequestBound) -> Entries:
        """See `Pool.take`."""
        self._sent = []
        size = 0
        for packed in self._packed(min(self._most, bound.bytes) - len(ROUTED_KEY)):
            size += packed.size
            if self._sent and (len(self._sent) == bound.records or size > bound.bytes):
                break
            self._sent.append(packed)
        return Entries.of(packed.entry(self._left) for packed in self._sent)

    def is_cut(self) -> bool:
        """See `Pool.is_cut`."""
        return len(self._sent) == 1 and len(self._sent[0].rows) == 1

    def settle(self, results: Sequence[dict[str, Any]]) -> None:
        """See `Pool.settle`."""
        is_left = np.ones(len(self._left), dtype=np.bool_)
        is_elsewhere = False
        for packed, result, refused in zip(self._sent, results, is_refused(results), strict=True):
            is_left[packed.rows] = refused
            is_elsewhere |= not refused and result.get("ShardId") != packed.home
        self._left = self._left.pick(is_left)
        if is_elsewhere:
            self._shards.refresh()

    def _packed(self, most: int) -> Iterator[_Packed]:
        """Pack the rows, in the order of the first row of each aggregate, as far as the caller goes on."""
        rows: dict[str, list[int]] = defaultdict(list)
        for row, home in enumerate(self._shards.homes(self._left)):
            rows[home].append(row)
        packs = [self._packed_for(home, of_home, most) for home, of_home in rows.items()]
        return heapq.merge(*packs, key=lambda packed: packed.rows[0])

    def _packed_for(self, home: str, rows: list[int], most: int) -> Iterator[_Packed]:
        """Pack the rows of one shard, in their order."""
        entries = self._left.pick(np.array(rows))
        users = zip(entries.data.tolist(), entries.keys.tolist(), strict=True)
        first = next(users, None)
        start = 0
        while first is not None:
            explicit = None if entries.hashes is None else entries.hashes[start]
            pack = Pack(explicit or str(hash_key(first[1])))
            pack.add(*first)
            count, first = pack.extend(users, most)
            end = start + 1 + count
            yield _Packed(home, pack, rows[start:end])
            start = end
