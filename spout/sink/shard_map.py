"""The shards of a stream that is written to: which of them takes a row, and how its rows become aggregates."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from kinesis_trident.spout.kinesis.packing import ROUTED_KEY, Pack, digests_of, hash_key
from kinesis_trident.spout.kinesis.put_entries import Entries, Entry

OpenShards = Callable[[], list[tuple[int, str]]]
"""Lists the last hash key and the id of each open shard, in the order of the hash keys."""


@dataclass(frozen=True, eq=False, slots=True)
class KnownShards:
    """The open shards as they were listed once: the last hash key of each, in order, and their ids."""

    lasts: list[bytes]
    names: list[str]

    @classmethod
    def of(cls, found: list[tuple[int, str]]) -> Self:
        """Return the shards of a listing."""
        # A stream that is being deleted has no open shards; then the service refuses what is written to it.
        return cls([last.to_bytes(16) for last, _ in found], [name for _, name in found] or [""])

    def __len__(self) -> int:
        return len(self.names)

    def homes(self, entries: Entries) -> list[str]:
        """Return for each record the id of the shard that takes it, empty for one without a key."""
        names, keys = self.names, entries.keys.tolist()
        if len(names) == 1:
            homes = names * len(keys)
        else:
            hashed = digests_of([key or "" for key in keys])
            if entries.hashes is not None:
                for at in np.flatnonzero(entries.hashes != None).tolist():  # noqa: E711
                    hashed[at] = int(entries.hashes[at]).to_bytes(16)
            names = [*names, names[-1]]
            homes = [names[bisect_left(self.lasts, one)] for one in hashed]
        if None not in keys:
            return homes
        return ["" if key is None else home for key, home in zip(keys, homes, strict=True)]


ROW_BYTES = 200
"""The memory of a row in addition to its payload and key."""


def pack_rows(rows: Entries, most: int) -> Iterator[tuple[Entry, int]]:
    """Pack the rows of one shard, in their order; yield each record to send, of `most` bytes, and its number of rows.

    A row that is alone in an aggregate, as one larger than that may be, is sent as it is.
    """
    users = zip(rows.data.tolist(), rows.keys.tolist(), strict=True)
    first = next(users, None)
    start = 0
    while first is not None:
        explicit = None if rows.hashes is None else rows.hashes[start]
        pack = Pack(explicit or str(hash_key(first[1])))
        pack.add(*first)
        count, first = pack.extend(users, most - len(ROUTED_KEY))
        aggregate = {"Data": pack.pack(), "PartitionKey": ROUTED_KEY, "ExplicitHashKey": pack.hash_key}
        yield (aggregate if count else rows[start]), 1 + count
        start += 1 + count
