"""What the page shows of an application, without a server: the worst first, nothing unknown as 0, each look once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from samples_console import CHILD, NOW, SNAPSHOT
from web_site import busy_look, part_of, replace_node, site_of

from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, SettledNode, ShardLineage
from kinesis_trident.checkpoint.model.run_status import RunEnd, Seen
from kinesis_trident.console import views
from kinesis_trident.console.status import lines_of, status_of
from kinesis_trident.console.web import app as web_app
from kinesis_trident.console.web.history import History
from kinesis_trident.console.web.page import application_values, list_values
from kinesis_trident.console.web.watcher import ApplicationView
from kinesis_trident.tracker.records import Noted, Run


def test_a_batch_seen_between_its_plan_and_its_pins_shows_no_numbers() -> None:
    history = History()
    history.add(replace(SNAPSHOT, pins={}, planned_at=NOW), NOW)
    history.add(replace(SNAPSHOT, batch=None, pins={}, settled=SettledNode(txid=8, plan="p8")), NOW + 2_000)
    (part,) = application_values(ApplicationView("billing", NOW, (part_of(SNAPSHOT, history),)))["parts"]
    (row,) = [row for row in part["batches"] if row["txid"] == 8]
    assert (row["state"], row["records"], row["again"]) == ("settled", None, None)


def test_a_batch_of_a_query_that_has_stopped_does_not_grow() -> None:
    stopped = replace(
        SNAPSHOT,
        owner=None,
        pins={},
        planned_at=NOW,
        ends=(RunEnd(3, "worker-7", 4711, NOW - 60_000, NOW + 5_000, "failed", "KeyError: 'x'"),),
    )
    history = History()
    history.add(stopped, NOW)
    took = set()
    for later in (NOW + 6_000, NOW + 3_600_000):
        (part,) = application_values(ApplicationView("billing", later, (part_of(stopped, history),)))["parts"]
        (row,) = [row for row in part["batches"] if row["txid"] == 8]
        took.add(row["took"])
        assert row["state"] == "stopped while reading"
    assert took == {5_000}
    lines = [dict(lines_of(status_of(stopped, NOW + at), NOW + at))["batch"] for at in (6_000, 3_600_000)]
    assert lines[0] == lines[1]
    running = status_of(replace(SNAPSHOT, planned_at=NOW, pins={}), NOW + 9_000)
    assert ", for " in dict(lines_of(running, NOW + 9_000))["batch"]


def test_the_worst_shards_come_first_and_those_left_out_have_their_state() -> None:
    names = [f"shardId-{number:012d}" for number in range(1_000)]
    bad, late = names[998], names[997]
    status = busy_look()[0].parts[0].snapshot.status
    shards = {name: ShardLineage(state="drained" if name < names[100] else "open") for name in names}
    snapshot = replace(
        SNAPSHOT,
        active=("orders",),
        shards=shards,
        checkpoints={
            name: CheckpointNode(checkpoint="1", txid=7, position="AFTER_SEQUENCE_NUMBER 1") for name in names
        },
        inflight={},
        status=replace_node(
            status,
            settled=7,
            shards={name: Seen(seen=NOW) for name in names}
            | {
                bad: Seen(refused=NOW - 60_000, why="throttled"),
                late: Seen(seen=NOW, arrival=NOW - 60_000),
            },
        ),
    )
    (part,) = application_values(ApplicationView("billing", NOW, (part_of(snapshot),)))["parts"]
    assert [row["name"] for row in part["shards"]["rows"][:2]] == [bad, late]
    assert part["lineage"]["note"] == "100 drained shards and 780 open shards more, not drawn"
    assert f"…{bad[-4:]}" in part["lineage"]["svg"]


def test_a_look_is_judged_at_its_own_time() -> None:
    look, _ = busy_look()
    healthy = replace(
        SNAPSHOT,
        pins={},
        batch=None,
        inflight={},
        dead_letters={},
        status=replace_node(
            look.parts[0].snapshot.status,
            epoch=3,
            settled=7,
            shards={name: Seen(seen=NOW) for name in SNAPSHOT.shards},
        ),
        active=("orders",),
    )
    site = site_of(healthy)
    # Nobody watches it, and its next look is a quarter of a minute away.
    site.watcher.clock = lambda: NOW / 1000 + 14
    (row,) = list_values(site.watcher.looks)
    assert (row["level"], row["lag_ms"], row["wrong"]) == ("ok", 0, "")


def test_an_application_that_cannot_be_read_any_more_is_not_well() -> None:
    look, _ = busy_look()
    gone = replace(look, problem="/a/settled has no v")
    (row,) = list_values({"billing": gone})
    assert (row["level"], row["wrong"]) == ("unknown", "/a/settled has no v")


def test_rows_are_cut_before_they_are_formatted(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = [f"ValueError: {number}" for number in range(50)]
    runs = tuple(
        Run(f"{n}0", f"{n}0", due=NOW + n, failures=(Noted(NOW, reasons[n % 50]),)) for n in range(1, 3_001)
    )
    snapshot = replace(
        SNAPSHOT, inflight={CHILD: InflightNode(txid=7, waiting=runs, blocked="too many wait")}
    )
    named = []
    message_id = views._message_id
    monkeypatch.setattr(views, "_message_id", lambda *run: named.append(run) or message_id(*run))
    (part,) = application_values(ApplicationView("billing", NOW, (part_of(snapshot),)))["parts"]
    retries = [*part["retries"]["rows"]]
    assert len(named) == 100 + len(reasons)
    assert [row["message_id"] for row in retries[:2]] == [
        f"orders/{CHILD}:10",
        f"orders/{CHILD}:20",
    ]
    assert part["retries"]["more"] == 2_900


def test_the_values_of_a_look_are_made_once_for_all_who_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(web_app, "application_values", lambda look: made.append(look) or {"look": look})
    site = site_of(SNAPSHOT)
    look = site.watcher.looks["billing"]

    async def watch() -> None:
        found = await asyncio.gather(*(site.values_of(look) for _ in range(8)))
        assert found == [{"look": look}] * 8
        await site.values_of(replace(look, at=NOW + 1))

    asyncio.run(watch())
    assert [one.at for one in made] == [NOW, NOW + 1]
