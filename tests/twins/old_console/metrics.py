"""The metrics of an application, from its nodes in ZooKeeper and the time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from twins.old_console.facts import ShardFacts
from twins.old_console.lag import shard_facts, shard_skew, trend
from twins.old_console.status import find

from kinesis_trident.checkpoint.model.layout import PAST_RETENTION
from kinesis_trident.checkpoint.model.run_status import RunCounts
from kinesis_trident.checkpoint.model.standing import BLOCKED, REFUSED, Share
from kinesis_trident.console.metrics.table import Readings
from kinesis_trident.console.snapshot import Snapshot


def read_snapshot(readings: Readings, snapshot: Snapshot, now: int) -> None:
    """Add the metrics of a home. `now` is in epoch milliseconds."""
    home = _home_of(snapshot)
    facts, status = shard_facts(snapshot, now), snapshot.status
    readings.set("connected", snapshot.owner is not None, *home)
    end = snapshot.end(now)
    ended_well = end is not None and end.how in ("stopped", "finished")
    readings.set("run_ended_well", ended_well, *home)
    readings.set("epoch", snapshot.epoch, *home)
    readings.set("settled_txid", snapshot.settled.txid if snapshot.settled else 0, *home)
    # A query that was stopped in a batch is not slow, and nobody refuses what it does not ask for.
    readings.set("batch_age_seconds", _age(snapshot.planned_at if snapshot.owner else None, now), *home)
    readings.set("lag_growth", trend(snapshot), *home)
    readings.set("shard_skew_seconds", in_seconds(shard_skew(facts, snapshot)), *home)
    findings = Counter((one.level, one.code) for one in find(snapshot, now))
    for (level, code), count in findings.items():
        readings.set("findings", count, *home, level.value, code)
    for state in ("open", "closed", "drained"):
        number = sum(node.state == state for node in snapshot.shards.values())
        readings.set("shards", number, *home, state)
    if status is not None:
        readings.set("status_age_seconds", _age(status.time, now), *home)
        readings.set("losses_total", status.losses, *home)
        read_counts(readings, home, status.counts)
    _read_lags(readings, snapshot, facts, now)
    _read_records(readings, snapshot, facts, now)


def home_of(application: str, streams: tuple[str, ...]) -> tuple[str, str]:
    """Return the labels of an application and of the streams that are read together."""
    return application, ",".join(sorted(streams))


def _home_of(snapshot: Snapshot) -> tuple[str, str]:
    """Return the labels of a home: the streams that are read, as the query itself says them, not one that has left."""
    return home_of(snapshot.layout.application, snapshot.active or snapshot.streams)


def read_counts(readings: Readings, home: tuple[str, str], counts: RunCounts) -> None:
    """Add what a run has counted."""
    for name, value in (
        ("batches_total", counts.batches),
        ("acked_records_total", counts.acked),
        ("retried_records_total", counts.retried),
        ("exhausted_records_total", counts.exhausted),
        ("timed_out_records_total", counts.timed_out),
        ("read_bytes_total", counts.bytes),
        ("throttles_total", counts.throttles),
        ("iterator_refreshes_total", counts.renewals),
        ("settle_seconds_total", counts.settle_seconds),
        ("zookeeper_operations_total", counts.operations),
        ("zookeeper_written_bytes_total", counts.written),
    ):
        readings.set(name, value, *home)
    if counts.batches:
        readings.set("last_settle_seconds", counts.last_settle_seconds, *home)
        readings.set("last_batch_zookeeper_operations", counts.last_operations, *home)
        readings.set("last_batch_zookeeper_bytes", counts.last_written, *home)
    for reason, count in counts.failed.items():
        readings.set("failed_records_total", count, *home, reason)


def _read_lags(readings: Readings, snapshot: Snapshot, facts: Mapping[str, ShardFacts], now: int) -> None:
    for shard, one in facts.items():
        labels, lag, seen = _labels(snapshot, shard), one.lag, one.seen
        if one.standing.held_by:
            readings.set("shard_standing", True, *labels, one.standing.held_by)
        if one.standing.share is not Share.COUNTED:
            continue
        readings.set("lag_seconds", in_seconds(lag.ms), *labels)
        readings.set("lag_unknown", lag.ms is None, *labels)
        readings.set("look_age_seconds", _age(lag.seen_at, now), *labels)
        readings.set("retention_left_seconds", in_seconds(one.retention_left_ms), *labels)
        if REFUSED in one.standing.causes and snapshot.owner is not None:
            readings.set("refused_seconds", _age(seen.refused, now), *labels, seen.why)


def _read_records(readings: Readings, snapshot: Snapshot, facts: Mapping[str, ShardFacts], now: int) -> None:
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
        labels, one = _labels(snapshot, shard), facts.get(shard)
        inflight, pin = snapshot.inflight.get(shard), snapshot.pins.get(shard)
        # A batch in hand has pins of shards that are not shown, too.
        held, retrying, exhausted, unacked = (
            (one.held, one.retrying, one.exhausted, one.unacked) if one is not None else (0, 0, 0, 0)
        )
        readings.set("in_flight_records", held + (pin.fresh if pin else 0), *labels)
        readings.set("retrying_records", retrying, *labels)
        readings.set("exhausted_records", exhausted, *labels)
        readings.set("unacked_records", unacked, *labels)
        readings.set("shard_blocked", one is not None and BLOCKED in one.standing.causes, *labels)
        failed = (
            [run.failures[0].time for run in (*inflight.waiting, *inflight.dead) if run.failures]
            if inflight
            else []
        )
        delivered = snapshot.delivered_at.get(shard)
        oldest = min([*failed, *([delivered] if delivered is not None else [])], default=None)
        readings.set("oldest_unacked_seconds", _age(oldest, now), *labels)


def _labels(snapshot: Snapshot, shard: str) -> tuple[str, str, str]:
    try:
        key = snapshot.layout.key_of(shard)
    except ValueError:
        # A parent that was removed before its stream was read together with others.
        return *_home_of(snapshot), shard
    return snapshot.layout.application, key.stream, key.shard


def _age(at: int | None, now: int) -> float | None:
    return None if at is None else in_seconds(max(0, now - at))


def in_seconds(milliseconds: int | None) -> float | None:
    """Return milliseconds in seconds; None if they are unknown."""
    return None if milliseconds is None else milliseconds / 1000
