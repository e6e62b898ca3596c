"""Test what an application's nodes give, by the samples; and that what nobody knows has none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from samples_console import CHILD, HEALTHY, NEW, NOW, PARENT, SNAPSHOT, apart

from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode
from kinesis_trident.checkpoint.model.run_status import RunCounts, Seen, StatusNode
from kinesis_trident.console.metrics.application import read_snapshot
from kinesis_trident.console.metrics.table import METRICS, Readings
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.tracker.records import PendingRun

HOME = ("billing", "orders")
STATUS = StatusNode(
    epoch=3,
    time=NOW - 2_000,
    settled=7,
    shards={
        CHILD: Seen(seen=NOW - 3_000, arrival=NOW - 9_000),
        NEW: Seen(refused=NOW - 20_000, why="throttled"),
    },
    retention={"orders": 24},
    losses=2,
    counts=RunCounts(
        batches=7, acked=190, failed={"ValueError": 5, "TIMEOUT": 1}, bytes=4096, settle_seconds=1.5
    ),
)


def samples(snapshot: Snapshot, now: int = NOW) -> dict[tuple[str, ...], float]:
    """The values, by the name without `kinesis_trident_` and the labels in their order."""
    readings = Readings()
    read_snapshot(readings, snapshot, now)
    return {
        (sample.name.removeprefix("kinesis_trident_"), *sample.labels.values()): sample.value
        for family in readings.families()
        for sample in family.samples
    }


def test_the_run_and_its_batch() -> None:
    found = samples(replace(SNAPSHOT, status=STATUS, planned_at=NOW - 4_500))
    assert found["connected", *HOME] == 1
    assert (found["epoch", *HOME], found["settled_txid", *HOME]) == (3, 7)
    assert (found["batch_age_seconds", *HOME], found["status_age_seconds", *HOME]) == (4.5, 2)
    assert [found["shards", *HOME, state] for state in ("open", "closed", "drained")] == [2, 0, 1]
    assert found["findings", *HOME, "critical", "data-loss"] == 1
    gone = samples(replace(SNAPSHOT, owner=None))
    assert gone["connected", *HOME] == 0
    assert gone["findings", *HOME, "critical", "not-running"] == 1


def test_labels_that_others_have_written_drive_no_terminal() -> None:
    found = samples(replace(SNAPSHOT, streams=("orders\x1b[31m",)))
    assert {key[2] for key in found if key[0] == "epoch"} == {r"orders\x1b[31m"}


def test_a_home_has_one_label_also_after_a_stream_has_left() -> None:
    """That of the streams that are read, as the query's own listener says it."""
    found = samples(replace(SNAPSHOT, streams=("clicks", "orders"), active=("orders",)))
    assert found["epoch", *HOME] == 3
    assert {labels[1] for name, *labels in found if name in ("connected", "shards")} == {"orders"}
    assert samples(replace(SNAPSHOT, streams=("orders",), active=()))["epoch", *HOME] == 3


def test_records_by_shard() -> None:
    found = samples(
        replace(
            SNAPSHOT,
            checkpoints=SNAPSHOT.checkpoints
            | {CHILD: CheckpointNode(checkpoint="9", txid=7, position="TRIM_HORIZON", read=205)},
        )
    )
    child = (*HOME, CHILD)
    assert (found["read_records_total", *child], found["read_records_total", *HOME, PARENT]) == (205, 0)
    assert (
        found["dead_lettered_records_total", *child],
        found["dead_lettered_records_total", *HOME, PARENT],
    ) == (
        5,
        0,
    )
    # The batch in hand has ten new records.
    assert (found["retrying_records", *child], found["exhausted_records", *child]) == (4, 1)
    assert (found["in_flight_records", *child], found["unacked_records", *child]) == (15, 0)
    assert found["oldest_unacked_seconds", *child] == 0
    assert found["shard_blocked", *child] == 0


def test_the_oldest_record_that_is_not_acked_counts_from_its_delivery() -> None:
    pending = InflightNode(txid=7, waiting=(), pending=(PendingRun(5, (0, 4)),), blocked="too many")
    found = samples(replace(SNAPSHOT, inflight={CHILD: pending}, pins={}, delivered_at={CHILD: NOW - 60_000}))
    child = (*HOME, CHILD)
    assert found["oldest_unacked_seconds", *child] == 60
    assert (found["unacked_records", *child], found["in_flight_records", *child]) == (4, 4)
    assert found["shard_blocked", *child] == 1


def test_a_lag_that_nobody_knows_has_no_sample() -> None:
    found = samples(replace(SNAPSHOT, status=STATUS, active=("orders",)))
    assert found["lag_seconds", *HOME, CHILD] == 9
    assert found["retention_left_seconds", *HOME, CHILD] == 24 * 3600 - 9
    assert found["look_age_seconds", *HOME, CHILD] == 3
    assert found["refused_seconds", *HOME, NEW, "throttled"] == 20
    missing = {("lag_seconds", *HOME, NEW), ("look_age_seconds", *HOME, NEW), ("lag_seconds", *HOME, PARENT)}
    assert not missing & found.keys()


def test_how_far_the_shards_are_apart() -> None:
    assert samples(apart(3_600_000))["shard_skew_seconds", *HOME] == 3600
    assert samples(HEALTHY)["shard_skew_seconds", *HOME] == 0


def test_what_a_run_has_counted() -> None:
    found = samples(replace(SNAPSHOT, status=STATUS))
    assert (found["batches_total", *HOME], found["acked_records_total", *HOME]) == (7, 190)
    assert found["failed_records_total", *HOME, "ValueError"] == 5
    assert found["failed_records_total", *HOME, "TIMEOUT"] == 1
    assert (found["read_bytes_total", *HOME], found["settle_seconds_total", *HOME]) == (4096, 1.5)
    assert found["losses_total", *HOME] == 2
    assert not [name for name, *_ in samples(SNAPSHOT) if name in {"batches_total", "losses_total"}]


def test_the_labels_of_a_value_are_those_of_its_metric() -> None:
    with pytest.raises(AssertionError):
        Readings().set("lag_seconds", 1.0, "billing")
    with pytest.raises(KeyError):
        Readings().set("lags", 1.0)


def test_counters_end_in_total_and_gauges_do_not() -> None:
    assert [one.name for one in METRICS if one.name.endswith("_total") is not (one.kind == "counter")] == []
    assert len({one.name for one in METRICS}) == len(METRICS)
