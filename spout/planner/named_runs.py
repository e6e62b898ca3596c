"""The failed records that an offset names, within bounds: Spark logs it with each batch, and shows it in its progress.

Why they failed stands in ZooKeeper alone. What a batch takes up again is named exactly, as much of it as fits; the rest
is due in the next plan. What waits besides matters only where ZooKeeper's data is lost: where it does not fit, it is
the position from which a shard is then read again. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import msgspec

from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.tracker.packing import pack_runs, packed_size
from kinesis_trident.tracker.records import RecordPosition, Run

__all__ = ["beginning_of", "due_bytes", "fitting", "lean", "remembered", "waiting_bytes", "with_failures"]

Key = TypeVar("Key", bound=Hashable)

_KIB = 1024
_NAME = 64
"""Bytes of a shard's name, of all its kinds, and what is around it."""

_MANY = 4_000
"""So many runs do not fit, however well they pack."""


def due_bytes(shards: int) -> int:
    """Bytes that a plan of so many shards has for what it takes up: some hundred runs a shard, at least."""
    return min(max(16 * _KIB, shards * _KIB), 128 * _KIB)


def waiting_bytes(shards: int) -> int:
    """Bytes that a plan of so many shards has for what waits besides."""
    return due_bytes(shards) // 2


def lean(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Runs (in shard order) without the reasons, and without what only tells their neighbours.

    Of the first one the record before it stays: there the safe checkpoint is.
    """
    return tuple(
        msgspec.structs.replace(run, failures=(), prev=None if index and run.first else run.prev)
        for index, run in enumerate(runs)
    )


def fitting(runs: Mapping[Key, tuple[Run, ...]], most: int, turn: int) -> dict[Key, tuple[Run, ...]]:
    """The first runs of each list, lean, as many as fit into so many bytes together.

    Where not even one of each fits, lists take turns: `turn` is another number each time.
    """
    kept = {key: lean(some) for key, some in runs.items() if some}
    while (size := sum(map(_size, kept.values()))) > most and (len(kept) > 1 or _longest(kept) > 1):
        share = 0.9 * most / size
        if _longest(kept) > 1:
            kept = {key: some[: max(1, int(len(some) * share))] for key, some in kept.items()}
        else:
            keys = list(kept)
            count = max(1, int(len(keys) * share))
            first = turn * count % len(keys)
            kept = {key: kept[key] for key in (keys[first:] + keys[:first])[:count]}
    return kept


def remembered(runs: Mapping[str, tuple[Run, ...]], most: int) -> dict[str, tuple[Run, ...]]:
    """The lists, lean, of those shards that fit into so many bytes together: of as many shards as possible."""
    kept: dict[str, tuple[Run, ...]] = {}
    for shard, some in sorted(runs.items(), key=lambda item: len(item[1])):
        if len(some) > _MANY:
            break
        named = lean(some)
        most -= _size(named)
        if most < 0:
            break
        kept[shard] = named
    return dict(sorted(kept.items()))


def with_failures(plan: Plan, exhausted: Mapping[str, tuple[Run, ...]]) -> Plan:
    """A plan whose exhausted runs say why they failed, as those known of each shard do: for the dead letter."""
    dead = {}
    for shard, runs in plan.dead.items():
        known = {run.last: run.failures for run in exhausted.get(shard, ())}
        dead[shard] = tuple(
            msgspec.structs.replace(run, failures=run.failures or known.get(run.last, ())) for run in runs
        )
    return msgspec.structs.replace(plan, dead=dead)


def beginning_of(run: Run) -> RecordPosition:
    """The first position that can be a run's."""
    if run.first:
        return RecordPosition.parse(run.first)
    before = RecordPosition.parse(run.prev or "0")
    return RecordPosition(before.sequence, before.sub + 1)


def _size(runs: tuple[Run, ...]) -> int:
    return _NAME + packed_size(pack_runs(runs))


def _longest(runs: Mapping[Key, tuple[Run, ...]]) -> int:
    return max(map(len, runs.values()), default=0)
