"""Packs rows of one shard into aggregates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kinesis_trident.spout.kinesis.packing import ROUTED_KEY, Pack, hash_key
from kinesis_trident.spout.kinesis.put_entries import Entries, Entry
from kinesis_trident.spout.sink.shard_map import ShardMap

ROW_BYTES = 200
"""The memory of a row in addition to its payload and key."""


@dataclass(frozen=True, slots=True)
class Aggregation:
    """The settings of aggregates: the shards, and the maximum bytes of one.

    `is_off` tells whether rows have to go one by one now: the stream distributes records by itself, and the Kinesis
    Client Library drops, without a word, aggregates that are not in the shard of their hash keys.
    """

    shards: ShardMap
    most: int
    is_off: Callable[[], bool] = lambda: False


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
