"""Record and tuple ids: derived, never random, because Spark may compute any stage again.

A record's *root* names it within its batch; the acker XORs its *tuple id* (edge). Both are 64-bit and travel as
signed integers, the type that Arrow, Spark and the JVM have. A root packs, from the high end: 12 bits of the epoch
and 12 bits of the plan that read it (so that a report shows the run of its rows), 14 bits for the index of the
shard in the plan and 26 bits for the record's ordinal in its turn.

The tuple id is mix64(xxh3(stream/txid/shard) + ordinal), with the finalizer of MurmurHash3 (Austin Appleby, public
domain) as mix64. Ordinals are consecutive exactly where records are neighbours in the shard.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import xxhash

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

_ORDINAL_BITS = 26
_SHARD_BITS = 14
_TAG_SHIFT = _ORDINAL_BITS + _SHARD_BITS
MAX_ORDINAL = (1 << _ORDINAL_BITS) - 1
MAX_SHARDS = 1 << _SHARD_BITS


def to_signed(number: int) -> int:
    """Return a 64-bit number as the signed one of the same bits."""
    return (number + 2**63) % 2**64 - 2**63


def xor_of(ids: Int64s | UInt64s) -> int:
    """Return the XOR of 64-bit ids, signed: the value of a tree that nothing but these is known of."""
    return to_signed(int(np.bitwise_xor.reduce(ids)))


def mix64(values: UInt64s) -> UInt64s:
    """Apply MurmurHash3's 64-bit finalizer to an array: a bijection with random-looking output."""
    x = values ^ (values >> np.uint64(33))
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    x ^= x >> np.uint64(33)
    return x


def tuple_ids(stream: str, txid: int, shard: str, ordinals: Int64s) -> Int64s:
    """Return the tuple ids of records by their ordinals in the turn, as signed 64-bit integers of the same shape."""
    base = np.uint64(xxhash.xxh3_64_intdigest(f"{stream}/{txid}/{shard}".encode()))
    return mix64(ordinals.astype(np.uint64) + base).view(np.int64)


def number_segments(counts: Sequence[int] | Int64s) -> Int64s:
    """Return the ordinals of the records of segments: they count up within one, and skip one between two.

    So they are consecutive exactly where records are neighbours in the shard.
    """
    return np.arange(int(np.sum(counts))) + np.repeat(np.arange(len(counts)), counts)


def tag(epoch: int, plan: str) -> int:
    """Return 24 bits that identify the run and plan for which a row was read."""
    return ((epoch & 0xFFF) << 12) | (xxhash.xxh3_64_intdigest(plan.encode()) & 0xFFF)


def roots(batch_tag: int, shard_index: int, ordinals: Int64s) -> Int64s:
    """Return the roots of records of one shard.

    Raises:
        ValueError: more than `MAX_SHARDS` shards in a plan or `MAX_ORDINAL` records in a turn.
    """
    if not 0 <= shard_index < MAX_SHARDS or (len(ordinals) and int(ordinals[-1]) > MAX_ORDINAL):
        msg = (
            f"a plan holds at most {MAX_SHARDS} shards of {MAX_ORDINAL} records each; got shard index "
            f"{shard_index} with {len(ordinals)} records. Lower maxFetchRecordsPerShard"
        )
        raise ValueError(msg)
    high = np.uint64((batch_tag << _TAG_SHIFT) | (shard_index << _ORDINAL_BITS))
    return (ordinals.astype(np.uint64) | high).view(np.int64)


def tag_of(roots_: Int64s) -> Int64s:
    """Return the tags within roots."""
    return (roots_.view(np.uint64) >> np.uint64(_TAG_SHIFT)).view(np.int64)


def turn_of(roots_: Int64s) -> Int64s:
    """Return the tag and shard index within roots as one number, which identifies the records' turn."""
    return (roots_.view(np.uint64) >> np.uint64(_ORDINAL_BITS)).view(np.int64)


def of_turn(turn: int) -> tuple[int, int]:
    """Return the tag and the shard index of one turn."""
    return turn >> _SHARD_BITS, turn & (MAX_SHARDS - 1)


def ordinal_of(roots_: Int64s) -> Int64s:
    """Return the ordinals within roots."""
    return roots_ & np.int64(MAX_ORDINAL)


@lru_cache(65_536)
def hash_of(key: str) -> str:
    """Return the hash of a partition key: 11 characters. Of two keys with one hash the later waits for a stranger."""
    return base64.urlsafe_b64encode(xxhash.xxh3_64_digest(key.encode("utf-8", "surrogatepass")))[:11].decode()


def hashes_of(keys: Iterable[str | None]) -> list[str]:
    """Return the hashes of partition keys; records without one have one in common."""
    return [hash_of(key or "") for key in keys]
