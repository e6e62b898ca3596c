"""The figures of a shard in the progress of a query, and their metrics, as they were before one struct had them."""

from __future__ import annotations

from typing import Any

import msgspec
from twins.old_console.facts import ShardFacts
from twins.old_console.metrics import home_of, in_seconds, read_counts

from kinesis_trident.checkpoint.model.run_status import FRESH_MS, RunCounts
from kinesis_trident.console.metrics.table import Readings


def figures_of(facts: ShardFacts, dead_lettered: int, blocked: str, now: int) -> dict[str, Any]:
    """Return the figures of a shard for the progress."""
    seen = facts.seen
    return {
        "behindMs": facts.lag.ms,
        "seenAt": facts.lag.seen_at,
        "retentionLeftMs": facts.retention_left_ms,
        **({} if seen.refused is None else {f"{seen.why}Ms": max(0, now - seen.refused)}),
        "unacked": facts.unacked,
        "retrying": facts.retrying,
        "dead": facts.exhausted,
        **({"standing": facts.standing.held_by} if facts.standing.held_by else {}),
        "deadLettered": dead_lettered,
        **({"blocked": blocked} if blocked else {}),
    }


def read_report(readings: Readings, report: dict[str, Any], age: int) -> None:
    """Add what a source has reported `age` milliseconds ago."""
    home = home_of(report["application"], tuple(report["streams"]))
    readings.set("settled_txid", report["txid"], *home)
    readings.set("losses_total", report.get("losses", 0), *home)
    read_counts(readings, home, msgspec.convert(report["counts"], RunCounts))
    for name, shard in report["shards"].items():
        # Of several streams, a shard is named with its stream.
        stream, slash, shard_id = name.rpartition("/")
        labels = (home[0], stream if slash else home[1], shard_id)
        lag, left = shard["behindMs"], shard["retentionLeftMs"]
        fresh = age <= FRESH_MS
        if lag is not None and (lag or fresh):
            readings.set("lag_seconds", in_seconds(lag + age if lag else 0), *labels)
            if left is not None:
                readings.set(
                    "retention_left_seconds", in_seconds(max(0, left - age) if lag else left), *labels
                )
        reasons = ("throttled", "unavailable", "unreadable", "unusableKey")
        for reason in reasons if fresh else ():
            readings.set("refused_seconds", in_seconds(shard.get(f"{reason}Ms")), *labels, reason)
        readings.set("shard_blocked", "blocked" in shard, *labels)
        if "standing" in shard:
            readings.set("shard_standing", 1, *labels, shard["standing"])
        counts = {"retrying": shard["retrying"], "exhausted": shard["dead"], "unacked": shard["unacked"]}
        readings.set("in_flight_records", sum(counts.values()), *labels)
        for key, count in counts.items():
            readings.set(f"{key}_records", count, *labels)
        readings.set("dead_lettered_records_total", shard["deadLettered"], *labels)
