"""The rows of every table, from nodes alone."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from samples_console import CHILD, NEW, NOW, PARENT, SEQUENCE, SNAPSHOT, pin

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import InflightNode
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.views import VIEWS, checkpoints, dead_letters, inflight, retries, shards
from kinesis_trident.tracker.records import PendingRun


def test_checkpoints_count_what_is_under_way() -> None:
    view = checkpoints(SNAPSHOT, NOW)
    rows = {row["shard"]: row for row in view.rows}
    child = rows[CHILD]
    assert (child["checkpoint"], child["sub"], child["txid"], child["lag_ms"]) == (SEQUENCE, 2, 7, 4_200)
    # Waiting 1 + 3, dead 1, and 10 new ones in the batch under way; its redelivered ones count once.
    assert (child["retrying"], child["inflight"]) == (4, 15)
    assert child["owner"] == "worker-7:4711"
    assert rows[PARENT]["state"] == "drained"
    assert (rows[PARENT]["inflight"], rows[PARENT]["sub"]) == (0, None)


def test_a_shard_not_read_yet_shows_where_it_will_start() -> None:
    rows = {row["shard"]: row for row in checkpoints(SNAPSHOT, NOW).rows}
    assert rows[NEW]["position"] == "AT_TIMESTAMP 1700000000000"
    assert rows[NEW]["checkpoint"] is None


def test_sub_sequences_have_a_column_only_where_a_checkpoint_stands_inside_an_aggregate() -> None:
    assert "sub" in checkpoints(SNAPSHOT, NOW).columns
    whole = {shard: msgspec.structs.replace(node, sub=-1) for shard, node in SNAPSHOT.checkpoints.items()}
    assert "sub" not in checkpoints(replace(SNAPSHOT, checkpoints=whole), NOW).columns


def test_what_nobody_has_acked_yet_is_in_flight_until_it_times_out() -> None:
    run = PendingRun(txid=6, open=(0, 3, 7, 9), attempt=2, due=NOW + 5_000)
    snapshot = replace(
        SNAPSHOT, inflight={CHILD: InflightNode(txid=7, waiting=(), pending=(run,), turns=(6,))}
    )
    (row,) = [row for row in inflight(snapshot, NOW).rows if row["state"] == "not acked"]
    assert (row["first"], row["last"], row["count"]) == ("row 0 of txid 6", "row 8", 5)
    assert (row["attempts"], row["due_at"]) == (2, NOW + 5_000)
    rows = {row["shard"]: row for row in checkpoints(snapshot, NOW).rows}
    assert rows[CHILD]["inflight"] == 5 + 10


def test_a_blocked_shard_gets_a_column_that_says_why() -> None:
    assert "blocked" not in checkpoints(SNAPSHOT, NOW).columns
    blocked = replace(SNAPSHOT, inflight={CHILD: InflightNode(txid=7, waiting=(), blocked="1000 wait")})
    view = checkpoints(blocked, NOW)
    assert "blocked" in view.columns
    assert [row["blocked"] for row in view.rows] == ["", "1000 wait", ""]


@pytest.mark.parametrize(
    ("pins", "finished", "says"),
    [
        ({}, False, "txid 8: planned, nothing read yet"),
        ({CHILD: pin(CHILD, 10)}, False, "txid 8: being read, 1 of 2 shards so far"),
        ({CHILD: pin(CHILD, 10), NEW: pin(NEW, 1)}, False, "txid 8: read, not settled"),
        ({CHILD: pin(CHILD, 10), NEW: pin(NEW, 1)}, True, "txid 8: finished, not settled"),
    ],
)
def test_the_batch_under_way_is_said(pins: dict[str, object], finished: bool, says: str) -> None:
    snapshot = replace(SNAPSHOT, pins=pins, finished=finished)
    assert checkpoints(snapshot, NOW).note == (
        f"settled: txid 7; {says}; run: epoch 3 on worker-7, pid 4711, since 2023-11-14T22:13:20Z"
    )


def test_without_a_connected_run_the_last_one_is_named() -> None:
    note = checkpoints(replace(SNAPSHOT, owner=None, batch=None), NOW).note
    assert note == "settled: txid 7; no run is connected, the last was epoch 3 on worker-7, pid 4711"


def test_inflight_lists_runs_and_turns() -> None:
    rows = [row for row in inflight(SNAPSHOT, NOW).rows if row["shard"] == CHILD]
    assert [(row["state"], row["first"], row["count"]) for row in rows] == [
        ("waiting", "20", 1),
        ("waiting", "after 30", 3),
        ("dead", "40", 1),
        ("in txid 8", f"after {SEQUENCE}", 10),
    ]
    assert rows[2]["due_at"] is None
    assert rows[2]["reason"] == "EXPIRED"


def test_retries_come_in_the_order_in_which_they_are_due() -> None:
    rows = retries(SNAPSHOT, NOW).rows
    assert [row["message_id"] for row in rows] == [
        f"orders/{CHILD}:after 30..33",
        f"orders/{CHILD}:20",
    ]
    assert [row["due_in_ms"] for row in rows] == [0, 5_000]
    assert rows[1]["reason"] == "ValueError: bad amount"


def test_retries_show_the_keys_of_records_where_these_have_an_order() -> None:
    assert "keys" not in retries(SNAPSHOT, NOW).columns
    waiting = SNAPSHOT.inflight[CHILD].waiting
    keyed = (msgspec.structs.replace(waiting[0], keys=("gZQ1dlpEuzk", "hJ0")), *waiting[1:])
    snapshot = replace(SNAPSHOT, inflight={CHILD: InflightNode(txid=7, waiting=keyed)})
    view = retries(snapshot, NOW)
    assert "keys" in view.columns
    assert sorted(row["keys"] for row in view.rows) == ["", "gZQ1dlpEuzk hJ0"]


def test_dead_letters_say_how_many_are_not_listed_and_where_all_are() -> None:
    view = dead_letters(SNAPSHOT, NOW)
    assert [row["message_id"] for row in view.rows] == [f"orders/{CHILD}:2", f"orders/{CHILD}:1"]
    assert view.note == "5 in all, the last 2 are listed here; the records are in s3://bucket/dead"


def test_shards_show_parents_and_state() -> None:
    rows = {row["shard"]: row for row in shards(SNAPSHOT, NOW).rows}
    assert rows[CHILD]["parents"] == [PARENT]
    assert (rows[PARENT]["state"], rows[PARENT]["position"]) == ("drained", "SHARD_END")


@pytest.mark.parametrize("name", VIEWS)
def test_an_application_that_never_ran_is_no_error(name: str) -> None:
    view = VIEWS[name](Snapshot(Layout("/r", "a", "s", 1)), NOW)
    assert not view.rows


@pytest.mark.parametrize("name", VIEWS)
def test_every_row_has_every_column(name: str) -> None:
    view = VIEWS[name](SNAPSHOT, NOW)
    assert view.rows
    assert all(set(view.columns) <= set(row) for row in view.rows)
