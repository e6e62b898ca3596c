"""Find what is wrong with an application, and what to do. Pure: from its nodes and the time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kinesis_trident.console.finding import Finding, Level, Limits
from kinesis_trident.console.lag import shard_lags
from kinesis_trident.console.run_findings import about_batch, about_nodes, about_run
from kinesis_trident.console.shard_findings import about_limits, about_records, about_shards
from kinesis_trident.console.snapshot import Snapshot


def find(snapshot: Snapshot, now: int, limits: Limits | None = None) -> list[Finding]:
    """Return what is wrong, the worst first. `now` is in epoch milliseconds."""
    lags = shard_lags(snapshot, now)
    parts: Iterable[Iterable[Finding]] = (
        about_nodes(snapshot),
        # A record that stopped the query says more than that the query has stopped.
        about_records(snapshot, now),
        about_run(snapshot, now),
        about_batch(snapshot, now),
        about_shards(snapshot, lags, now),
        about_limits(snapshot, lags, now, limits) if limits else (),
    )
    found = [replace(one, sentence=_sentence(one.sentence)) for part in parts for one in part]
    rank = {Level.CRITICAL: 0, Level.UNKNOWN: 1, Level.WARNING: 2, Level.NOTE: 3}
    return sorted(found, key=lambda one: rank[one.level])


def worst(findings: Sequence[Finding]) -> Level:
    """Return the level of all findings together: what is critical outweighs what is unknown."""
    levels = {one.level for one in findings}
    order = (Level.CRITICAL, Level.UNKNOWN, Level.WARNING)
    return next((level for level in order if level in levels), Level.NOTE)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
