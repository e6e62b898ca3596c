"""Runs of many shards within a bound of bytes. A few of each are packed to learn how many fit. Pure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from kinesis_trident.tracker.packing import pack
from kinesis_trident.tracker.records import Run
from kinesis_trident.tracker.runs import lean

Key = TypeVar("Key", bound=Hashable)

_NAME = 64
"""Bytes of a shard's entry: its name of any kind, and the JSON around it."""

_SAMPLE = 32
"""The number of runs of a shard whose size tells that of the others."""

_AMPLE = 1.1
"""The part of an estimated size that is room enough."""

_MANY = 4_000
"""The number of runs that never fits, however well they compress."""


def clip(lists: Mapping[Key, Sequence[Run]], most_bytes: int, turn: int) -> dict[Key, tuple[Run, ...]]:
    """Return the first runs of each list, lean, as many as fit into so many bytes together.

    If not even one of each fits, lists take turns by the number `turn`.
    """
    held = {key: some for key, some in lists.items() if some}
    if sum(map(len, held.values())) > len(held) * _SAMPLE:
        # Most of thousands do not fit into an offset, or all of them into a node: they are not packed to learn that.
        share = most_bytes / _estimate_size(held)
        if share > _AMPLE:
            return {key: lean(some) for key, some in held.items()}
        held = {key: some[: max(_SAMPLE, math.ceil(len(some) * share))] for key, some in held.items()}
    kept = {key: lean(some) for key, some in held.items()}
    while (size := sum(map(size_of, kept.values()))) > most_bytes and (
        len(kept) > 1 or _max_length(kept) > 1
    ):
        share = 0.9 * most_bytes / size
        if _max_length(kept) > 1:
            kept = {key: some[: max(1, int(len(some) * share))] for key, some in kept.items()}
        else:
            keys = list(kept)
            count = max(1, int(len(keys) * share))
            first = turn * count % len(keys)
            kept = {key: kept[key] for key in (keys[first:] + keys[:first])[:count]}
    return kept


def clip_whole(lists: Mapping[str, Sequence[Run]], most_bytes: int) -> dict[str, tuple[Run, ...]]:
    """Return as many whole lists, lean, as fit into so many bytes together: the shortest ones."""
    kept: dict[str, tuple[Run, ...]] = {}
    for shard, some in sorted(lists.items(), key=lambda item: len(item[1])):
        if len(some) > _MANY:
            break
        named = lean(some)
        most_bytes -= size_of(named)
        if most_bytes < 0:
            break
        kept[shard] = named
    return dict(sorted(kept.items()))


def size_of(runs: Sequence[Run]) -> int:
    """Return the bytes that the runs of a shard take at most."""
    return _NAME + len(pack(runs))


def _estimate_size(held: Mapping[Key, Sequence[Run]]) -> float:
    """Return the bytes of all runs, estimated by some of each list, of which none is empty."""
    begins = size_of(lean(next(iter(held.values()))[:1]))
    size = 0.0
    for some in held.values():
        sample = lean(some[:: max(1, len(some) // _SAMPLE)])
        size += begins + (size_of(sample) - begins) * (len(some) - 1) / max(1, len(sample) - 1)
    return size


def _max_length(runs: Mapping[Key, Sequence[Run]]) -> int:
    return max(map(len, runs.values()), default=0)
