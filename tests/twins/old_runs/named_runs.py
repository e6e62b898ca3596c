"""Bounds the failed records that an offset names: Spark logs offsets with each batch, and shows them in its progress.

Only ZooKeeper has the reasons of failures. An offset names the runs that a batch delivers again, as many as fit. The
plan that is stored in ZooKeeper has more of them: nobody has seen a row of a batch whose plan is not stored, so if only
Spark has it, the others come with a later one. Other waiting runs matter only if ZooKeeper's data is lost: if they do
not fit, the offset has the position from which a shard is then read again. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

import msgspec

from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.tracker.packing import pack
from kinesis_trident.tracker.records import RecordPosition, Run

Key = TypeVar("Key", bound=Hashable)

_KIB = 1024

STORED_BYTES = 400 * _KIB
"""The bytes for the runs that a plan in ZooKeeper delivers again."""

_NAME = 64
"""Bytes of a shard's entry: its name of any kind, and the JSON around it."""

_SAMPLE = 32
"""The number of runs of a shard whose size tells that of the others."""

_AMPLE = 1.1
"""The part of an estimated size that is room enough."""

_MANY = 4_000
"""The number of runs that never fits, however well they compress."""


def due_bytes(shards: int) -> int:
    """Return the bytes for the runs that a plan of so many shards delivers again: some hundred runs a shard."""
    return min(max(16 * _KIB, shards * _KIB), 128 * _KIB)


def waiting_bytes(shards: int) -> int:
    """Return the bytes for the other waiting runs in a plan of so many shards."""
    return due_bytes(shards) // 2


def drop_reasons(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return runs (in shard order) without their reasons and neighbours.

    The first run keeps the record before it, which is the safe checkpoint.
    """
    return tuple(
        [
            Run(
                run.first,
                run.last,
                run.count,
                None if index and run.first else run.prev,
                run.attempt,
                run.due,
            )
            for index, run in enumerate(runs)
        ]
    )


def take_fitting(runs: Mapping[Key, tuple[Run, ...]], most: int, turn: int) -> dict[Key, tuple[Run, ...]]:
    """Return the first runs of each list, lean, as many as fit into so many bytes together.

    If not even one of each fits, lists take turns by the number `turn`.
    """
    held = {key: some for key, some in runs.items() if some}
    if sum(map(len, held.values())) > len(held) * _SAMPLE:
        # Most of thousands do not fit into an offset, or all of them into a node: they are not packed to learn that.
        share = most / _estimate_size(held)
        if share > _AMPLE:
            return {key: drop_reasons(some) for key, some in held.items()}
        held = {key: some[: max(_SAMPLE, math.ceil(len(some) * share))] for key, some in held.items()}
    kept = {key: drop_reasons(some) for key, some in held.items()}
    while (size := sum(map(_size, kept.values()))) > most and (len(kept) > 1 or _max_length(kept) > 1):
        share = 0.9 * most / size
        if _max_length(kept) > 1:
            kept = {key: some[: max(1, int(len(some) * share))] for key, some in kept.items()}
        else:
            keys = list(kept)
            count = max(1, int(len(keys) * share))
            first = turn * count % len(keys)
            kept = {key: kept[key] for key in (keys[first:] + keys[:first])[:count]}
    return kept


def _estimate_size(held: Mapping[Key, tuple[Run, ...]]) -> float:
    """Return the bytes of all runs, estimated by some of each list, of which none is empty."""
    begins = _size(drop_reasons(next(iter(held.values()))[:1]))
    size = 0.0
    for some in held.values():
        sample = drop_reasons(some[:: max(1, len(some) // _SAMPLE)])
        size += begins + (_size(sample) - begins) * (len(some) - 1) / max(1, len(sample) - 1)
    return size


def take_fitting_shards(runs: Mapping[str, tuple[Run, ...]], most: int) -> dict[str, tuple[Run, ...]]:
    """Return the lean lists of as many shards as fit into so many bytes together."""
    kept: dict[str, tuple[Run, ...]] = {}
    for shard, some in sorted(runs.items(), key=lambda item: len(item[1])):
        if len(some) > _MANY:
            break
        named = drop_reasons(some)
        most -= _size(named)
        if most < 0:
            break
        kept[shard] = named
    return dict(sorted(kept.items()))


def add_reasons(plan: Plan, exhausted: Mapping[str, tuple[Run, ...]]) -> Plan:
    """Return a plan whose exhausted runs have the reasons of the known runs, for the dead letter."""
    dead = {}
    for shard, runs in plan.dead.items():
        known = {run.last: run.failures for run in exhausted.get(shard, ())}
        dead[shard] = tuple(
            msgspec.structs.replace(run, failures=run.failures or known.get(run.last, ())) for run in runs
        )
    return msgspec.structs.replace(plan, dead=dead)


def beginning_of(run: Run) -> RecordPosition:
    """Return the first possible position of a run."""
    if run.first:
        return RecordPosition.parse(run.first)
    before = RecordPosition.parse(run.prev or "0")
    return RecordPosition(before.sequence, before.sub + 1)


def _size(runs: tuple[Run, ...]) -> int:
    return _NAME + len(pack(runs))


def _max_length(runs: Mapping[Key, tuple[Run, ...]]) -> int:
    return max(map(len, runs.values()), default=0)
