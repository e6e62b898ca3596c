"""The metrics of an application, from its nodes in ZooKeeper and the time. Pure."""

from __future__ import annotations

from collections import Counter

from kinesis_trident.checkpoint.model.facts import NO_FACTS
from kinesis_trident.checkpoint.model.layout import PAST_RETENTION
from kinesis_trident.checkpoint.model.run_status import RunCounts
from kinesis_trident.checkpoint.model.standing import BLOCKED, REFUSED, Share
from kinesis_trident.console.figures import FIGURES, HomeFacts
from kinesis_trident.console.metrics.table import (
    APART,
    BY_NAME,
    HELD,
    LAG,
    LAST_BATCH,
    RUN,
    Readings,
    in_seconds,
)
from kinesis_trident.console.rules import find
from kinesis_trident.console.snapshot import Snapshot


def read_snapshot(readings: Readings, snapshot: Snapshot, now: int) -> None:
    """Add the metrics of a home. `now` is in epoch milliseconds."""
    home = _home_of(snapshot)
    known, status = HomeFacts(snapshot, now), snapshot.status
    for key in FIGURES.keys() & BY_NAME.keys():
        readings.set(key, getattr(known.figures, key), *home)
    end = snapshot.end(now)
    ended_well = end is not None and end.how in ("stopped", "finished")
    readings.set("run_ended_well", ended_well, *home)
    readings.set("epoch", snapshot.epoch, *home)
    readings.set("settled_txid", snapshot.settled.txid if snapshot.settled else 0, *home)
    # A query that was stopped in a batch is not slow, and nobody refuses what it does not ask for.
    readings.set("batch_age_seconds", _age(snapshot.planned_at if snapshot.owner else None, now), *home)
    readings.set("shard_skew_seconds", in_seconds(known.skew_ms), *home)
    findings = Counter((one.level, one.code) for one in find(known))
    for (level, code), count in findings.items():
        readings.set("findings", count, *home, level.value, code)
    for state in ("open", "closed", "drained"):
        number = sum(node.state == state for node in snapshot.shards.values())
        readings.set("shards", number, *home, state)
    if status is not None:
        readings.set("status_age_seconds", _age(status.time, now), *home)
        readings.set("losses_total", status.losses, *home)
        read_counts(readings, home, status.counts)
    _read_lags(readings, known)
    _read_records(readings, known)


def home_of(application: str, streams: tuple[str, ...]) -> tuple[str, str]:
    """Return the labels of an application and of the streams that are read together."""
    return application, ",".join(sorted(streams))


def _home_of(snapshot: Snapshot) -> tuple[str, str]:
    """Return the labels of a home: the streams that are read, as the query itself says them, not one that has left."""
    return home_of(snapshot.layout.application, snapshot.active or snapshot.streams)


def read_counts(readings: Readings, home: tuple[str, str], counts: RunCounts) -> None:
    """Add what a run has counted."""
    readings.show(RUN, counts, *home)
    if counts.batches:
        readings.show(LAST_BATCH, counts, *home)
    for reason, count in counts.failed.items():
        readings.set("failed_records_total", count, *home, reason)


def _read_lags(readings: Readings, known: HomeFacts) -> None:
    snapshot, now = known.snapshot, known.now
    for shard, one in known.shards.items():
        labels, figures, seen = _labels(snapshot, shard), one.figures, one.seen
        if figures.standing:
            readings.set("shard_standing", True, *labels, figures.standing)
        if one.standing.share is Share.APART:
            readings.show(APART, figures, *labels)
        if one.standing.share is not Share.COUNTED:
            continue
        readings.show(LAG, figures, *labels)
        readings.set("lag_unknown", figures.lag_ms is None, *labels)
        readings.set("look_age_seconds", _age(figures.seen_at, now), *labels)
        if REFUSED in one.standing.causes and snapshot.owner is not None:
            readings.set("refused_seconds", _age(seen.refused, now), *labels, seen.why)


def _read_records(readings: Readings, known: HomeFacts) -> None:
    snapshot = known.snapshot
    for shard, node in snapshot.checkpoints.items():
        readings.set("read_records_total", node.read, *_labels(snapshot, shard))
        # Prometheus sees a rise only of a counter that was there before.
        readings.set("dead_lettered_records_total", 0, *_labels(snapshot, shard))
    forgotten = 0
    for shard, letters in snapshot.dead_letters.items():
        labels = _labels(snapshot, shard)
        if labels[-1] == PAST_RETENTION:
            # In the counter they would be counted again as new: the series of their shard ends, and this one rises.
            forgotten += letters.count
        else:
            readings.set("dead_lettered_records_total", letters.count, *labels)
    readings.set("forgotten_dead_lettered_records", forgotten, *_home_of(snapshot))
    for shard in sorted({*snapshot.inflight, *snapshot.pins}):
        labels, one = _labels(snapshot, shard), known.shards.get(shard, NO_FACTS)
        inflight = snapshot.inflight.get(shard)
        readings.set("in_flight_records", known.inflight(shard), *labels)
        readings.show(HELD, one.figures, *labels)
        readings.set("shard_blocked", BLOCKED in one.standing.causes, *labels)
        runs = (*inflight.waiting, *inflight.dead) if inflight else ()
        begun = [run.failures[0].time for run in runs if run.failures]
        begun += [snapshot.delivered_at[shard]] if shard in snapshot.delivered_at else []
        readings.set("oldest_unacked_seconds", _age(min(begun, default=None), known.now), *labels)


def _labels(snapshot: Snapshot, shard: str) -> tuple[str, str, str]:
    key = snapshot.key_of(shard)
    return (
        (*_home_of(snapshot), shard) if key is None else (snapshot.layout.application, key.stream, key.shard)
    )


def _age(at: int | None, now: int) -> float | None:
    return None if at is None else in_seconds(max(0, now - at))
