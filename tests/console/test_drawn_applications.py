"""Random applications: all faces of the console say the same numbers, whatever is there or missing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from prometheus_client.metrics_core import Metric as Family
from samples_console import (
    CHILD,
    DEAD,
    HEALTHY,
    NEW,
    NOW,
    PARENT,
    RUN_OF_THREE,
    SNAPSHOT,
    STATUS,
    TIP,
    WAITING,
    pin,
)
from starlette.requests import Request
from test_golden import drawn
from thorough import examples

from kinesis_trident.checkpoint.model.layout import PAST_RETENTION, Layout
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLettersNode,
    FencedNode,
    InflightNode,
    Replay,
    ShardLineage,
    SlowCall,
)
from kinesis_trident.checkpoint.model.pauses import Pause
from kinesis_trident.checkpoint.model.run_status import FailedStartsNode, FailingNode, RunCounts, RunEnd, Seen
from kinesis_trident.checkpoint.model.standing import Share
from kinesis_trident.checkpoint.zookeeper.client import NOWHERE, ZooKeeperConfig
from kinesis_trident.console.figures import FIGURES, HomeFacts
from kinesis_trident.console.finding import NO_LIMITS, Limits, worst
from kinesis_trident.console.metrics.application import read_snapshot
from kinesis_trident.console.metrics.queries import read_report
from kinesis_trident.console.metrics.table import APART, BY_NAME, SHARD, Readings
from kinesis_trident.console.render import json_line, to_json, to_table
from kinesis_trident.console.rules import RULES
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.status import Status, lines_of, status_of, summary_of
from kinesis_trident.console.target import Target
from kinesis_trident.console.text import lag_text
from kinesis_trident.console.views import VIEWS
from kinesis_trident.console.web.app import Site
from kinesis_trident.console.web.history import History
from kinesis_trident.console.web.page import application_values, list_values
from kinesis_trident.console.web.watcher import ApplicationView, HomeView, Watcher
from kinesis_trident.tracker.records import Noted, PendingRun, Run

MINUTE, HOUR = 60_000, 3_600_000
SHARDS = (PARENT, CHILD, NEW)
REASONS = ("ValueError: bad amount", "HELD (bolt join)", "KeyError: {x}", "EXPIRED")
BLOCKED = (
    "",
    "",
    "9 records are read and not done, and maxInflightRecords is 9: the shard reads nothing new",
    "3 groups of failed neighbours wait for a retry, and maxRetryingRecords is 3",
    "5 groups of failed neighbours wait for a retry, and maxRetryingRecords is 3",
    "something else",
)


def ago(r: random.Random) -> int:
    """A time before now: just, a while or long ago, or at a border of a rule; sometimes by a clock that is ahead."""
    borders = (10_000, 15_000, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE)
    return NOW - r.choice(
        [
            r.randrange(-5_000, 30_000),
            r.choice(borders) + r.choice([-1, 0, 1, 30_000]),
            r.randrange(30 * HOUR),
        ]
    )


def sometimes(r: random.Random, make: Callable[[], Any], share: float = 0.5) -> Any:
    return make() if r.random() < share else None


def draw_run(r: random.Random) -> Run:
    run = r.choice([WAITING, RUN_OF_THREE, DEAD])
    failures = () if r.random() < 0.2 else (Noted(ago(r), r.choice(REASONS)),)
    return msgspec.structs.replace(run, failures=failures)


def runs(r: random.Random) -> tuple[Run, ...]:
    return tuple(draw_run(r) for _ in range(r.choice([0, 0, 1, 3])))


def draw_seen(r: random.Random) -> Seen:
    refused = sometimes(r, lambda: ago(r), 0.3)
    why = r.choice(["throttled", "unavailable", "unreadable", "unusableKey"]) if refused else ""
    standing = r.choice(["", "", "", "waits-for-parents", "ahead", "drain", "of another release"])
    return Seen(sometimes(r, lambda: ago(r)), sometimes(r, lambda: ago(r), 0.3), refused, why, standing)


def draw_pauses(r: random.Random) -> tuple[Pause, ...]:
    shards = r.choice([(), (), (), ("",), (CHILD,), (CHILD, NEW)])
    return tuple(
        Pause(
            shard, ago(r), "a {bad} deploy", "ops", sometimes(r, lambda: 2 * NOW - ago(r)), r.random() < 0.5
        )
        for shard in shards
    )


def draw_letters(r: random.Random) -> DeadLettersNode:
    node = SNAPSHOT.dead_letters[CHILD]
    return msgspec.structs.replace(
        node,
        count=r.choice([1, 2, 5]),
        target=r.choice([node.target, "skip", "kinesis"]),
        last=tuple(msgspec.structs.replace(one, time=ago(r), count=r.choice([1, 1, 2])) for one in node.last),
        replays=r.choice([(), (Replay(ago(r), ("5x1,",)),)]),
    )


def draw_end(r: random.Random) -> RunEnd:
    how = r.choice(["stopped", "finished", "failed", "interrupted"])
    return RunEnd(
        r.choice([1, 2, 3]), "worker-7", 4711, NOW - HOUR, ago(r), how, r.choice(["", "ValueError: {}"])
    )


def draw_snapshot(r: random.Random) -> Snapshot:
    """Draw an application of which anything may be there or missing."""
    lags = tuple((NOW - back * MINUTE, r.randrange(2 * HOUR)) for back in range(r.randrange(16), -1, -1))
    status = msgspec.structs.replace(
        STATUS,
        epoch=r.choice([2, 3, 3, 3]),
        time=ago(r),
        settled=r.choice([6, 7]),
        seen=sometimes(r, lambda: ago(r)),
        shards={shard: draw_seen(r) for shard in SHARDS if r.random() < 0.4},
        retention={} if r.random() < 0.2 else {"orders": 24},
        losses=r.choice([0, 0, 1, 2]),
        lost="shard s lost 9",
        counts=RunCounts(batches=r.choice([0, 9]), acked=7, failed={"ValueError": 2}, settle_seconds=1.5),
        lags=lags,
        reads=tuple(sorted(r.randrange(10**6) for _ in lags)),
        taken=sometimes(r, lambda: ago(r), 0.2),
    )
    states = ["open", "closed", "drained"]
    lineage = {
        PARENT: ShardLineage(state=r.choice(states)),
        CHILD: ShardLineage(parents=(PARENT,), state=r.choice(states), listed=r.choice([0, ago(r)])),
        NEW: ShardLineage(
            parents=(CHILD, PARENT, "gone")[: r.randrange(4)], listed=ago(r), start="TRIM_HORIZON"
        ),
    }
    checkpoints: dict[str, CheckpointNode] = {
        shard: msgspec.structs.replace(
            r.choice([TIP, SNAPSHOT.checkpoints[CHILD]]),
            txid=r.choice([0, 7]),
            behind_ms=r.choice([0, 0, 4_200, 3 * HOUR]),
            arrival=sometimes(r, lambda: ago(r)),
            seen=sometimes(r, lambda: ago(r), 0.3),
            read=r.randrange(2_000),
        )
        for shard in SHARDS
        if r.random() < 0.8
    }
    inflight = {
        shard: InflightNode(
            txid=7,
            waiting=runs(r),
            dead=runs(r),
            pending=r.choice([(), (PendingRun(txid=6, open=(0, 3, 7, 9), attempt=2, due=NOW + 5_000),)]),
            turns=(6,),
            blocked=r.choice(BLOCKED),
        )
        for shard in SHARDS
        if r.random() < 0.5
    }
    letters = {shard: draw_letters(r) for shard in (CHILD, NEW, PAST_RETENTION) if r.random() < 0.3}
    in_batch = r.random() < 0.5
    slow = SlowCall("sum", r.choice(["", "add"]), ago(r), {0: 2, 1: 3}, 3)
    failing = FailingNode(
        epoch=r.choice([2, 3]),
        txid=7,
        at=ago(r),
        records=2_000,
        failed=r.choice([0, 1_800]),
        same=r.choice([9, 1_800]),
        reason="ValueError: {y}",
        whole=r.random() < 0.5,
    )
    fenced = tuple(
        (ago(r), FencedNode(epoch=2, by_epoch=3, by_host="w", by_pid=1)) for _ in range(r.randrange(5))
    )
    starts = FailedStartsNode(
        count=r.choice([1, 2]), since=ago(r), at=ago(r), host="w", pid=1, why="OptionsError: x"
    )
    snapshot = replace(
        SNAPSHOT,
        layout=r.choice([SNAPSHOT.layout, replace(SNAPSHOT.layout, application="-x 'é' {0} $(b)|c")]),
        zookeeper=r.choice([NOWHERE, ZooKeeperConfig("zk1:2181")]),
        run=sometimes(
            r,
            lambda: msgspec.structs.replace(
                SNAPSHOT.run, since=ago(r), **r.choice([{}, {"tool": "moved", "last": 2}])
            ),
            0.9,
        ),
        failed_starts=sometimes(r, lambda: starts, 0.1),
        owner=sometimes(r, lambda: SNAPSHOT.owner, 0.7),
        settled=sometimes(r, lambda: SNAPSHOT.settled, 0.8),
        batch=SNAPSHOT.batch if in_batch else None,
        pins={shard: pin(shard, r.randrange(9)) for shard in (CHILD, NEW) if r.random() < 0.6}
        if in_batch
        else {},
        finished=in_batch and r.random() < 0.4,
        shards={name: one for name, one in lineage.items() if r.random() < 0.9} if r.random() < 0.9 else {},
        checkpoints=checkpoints,
        inflight=inflight,
        dead_letters=letters,
        pauses=draw_pauses(r),
        active=r.choice([(), ("orders",), ("orders",), ("orders",)]),
        status=sometimes(r, lambda: status, 0.9),
        failing=sometimes(r, lambda: failing, 0.2),
        planned_at=sometimes(r, lambda: ago(r)),
        read_at=sometimes(r, lambda: ago(r)),
        finished_at=sometimes(r, lambda: ago(r)),
        delivered_at={CHILD: ago(r)} if r.random() < 0.3 else {},
        settled_at=sometimes(r, lambda: ago(r)),
        takeovers=fenced,
        ends=tuple(draw_end(r) for _ in range(r.randrange(5))),
        rejected=r.choice([(), ("/a/rejected/x",), ("/a/rejected/{x}", "/b")]),
        problems=r.choice([(), ("/a/settled has no v. Nothing was changed. Restore", "b {x}")]),
        beside=r.random() < 0.2,
        slow=(slow,) if r.random() < 0.3 else (),
    )
    if r.random() < 0.2:
        return snapshot.only(frozenset(r.sample(SHARDS, 2)), ("orders",))
    return snapshot


def draw_limits(r: random.Random) -> Limits:
    return r.choice([NO_LIMITS, Limits(r.choice([0, HOUR]), r.choice([0, 3]), r.choice([0, 4]))])


def values_of(families: Iterable[Family]) -> dict[str, dict[tuple[str, ...], float]]:
    """The values of metrics by their names and labels."""
    return {
        # A counter of a name and a gauge of it differ in the ends of their samples' names.
        family.samples[0].name: {tuple(one.labels.values()): one.value for one in family.samples}
        for family in families
    }


@pytest.mark.parametrize("seed", range(examples(400)))
def test_all_faces_say_the_same(seed: int) -> None:
    r = random.Random(seed)
    snapshot, limits = draw_snapshot(r), draw_limits(r)
    status = status_of(snapshot, NOW, limits)
    assert msgspec.json.decode(json_line(status), type=Status) == status
    assert status.level is worst(one.level for one in status.findings)
    said = " ".join(text for _, text in lines_of(status, NOW))
    perf = dict(one.split("=") for one in summary_of(status).rpartition(" | ")[2].split())
    readings = Readings()
    read_snapshot(readings, snapshot, NOW)
    metrics = values_of(readings.families())
    for key, figure in FIGURES.items():
        value = getattr(status, key)
        if figure.said and value:
            assert f"{value:,} {figure.said}" in said
        if figure.perf:
            unit = "ms" if key.endswith("_ms") else ""
            assert perf[figure.perf] == ("U" if value is None else f"{value}{unit}")
        if key in BY_NAME:
            (shown,) = metrics.get(BY_NAME[key].name, {"": None}).values()
            assert shown == value
    tables = {name: view(snapshot, NOW) for name, view in VIEWS.items()}
    shards = tables["checkpoints"].rows
    if snapshot.part is None:
        for key in ("inflight", "retrying", "dead_lettered"):
            assert sum(row[key] for row in shards) <= getattr(status, key)
    assert tables["checkpoints"].facts == {key: getattr(status, key) for key in FIGURES}
    for table in tables.values():
        assert len(json.loads(to_json(table))["rows"]) == len(table.rows)
        if seed % 10 == 0:
            drawn(to_table(table))
    history = History()
    history.add(snapshot, NOW - 2_000)
    history.add(snapshot, NOW)
    look = ApplicationView(snapshot.layout.application, NOW, (HomeView(snapshot, history, status),))
    (part,) = application_values(look)["parts"]
    tiles = {tile["title"]: tile["value"] for tile in part["tiles"]}
    assert tiles["Lag"] == lag_text(status.lag_ms)
    assert tiles["Dead letters"] == f"{status.dead_lettered:,}"
    (row,) = list_values({"x": look})
    assert all(tiles[one["title"]] == one["value"] for one in row["numbers"])
    site = Site(
        Watcher(Target(NOWHERE, "/kinesis-trident", look.application, None), clock=lambda: NOW / 1000)
    )
    request = Request({"type": "http"})
    page = site.render("application.html", request, said=None, previews={}, **application_values(look))
    assert all(f"<dt>{title}</dt><dd>{text}</dd>" in page for title, text in tiles.items())


@pytest.mark.parametrize("seed", range(examples(400)))
def test_the_metrics_of_a_progress_are_its_figures(seed: int) -> None:
    snapshot = draw_snapshot(random.Random(seed))
    facts = HomeFacts(snapshot, NOW).shards
    report = {
        "application": "a",
        "streams": ["orders"],
        "txid": 7,
        "counts": {"batches": 9, "acked": 7, "lastWritten": 12, "failed": {"ValueError": 2}},
        "shards": {shard: msgspec.to_builtins(one.figures) for shard, one in facts.items()},
    }
    readings = Readings()
    read_report(readings, report, 0)
    metrics = values_of(readings.families())
    for key in SHARD:
        for shard, one in facts.items():
            # The lag of what people have paused is told by itself.
            names = SHARD | APART if one.standing.share is Share.APART else SHARD
            values = metrics.get(BY_NAME[names[key]].name, {})
            value = getattr(one.figures, key)
            shown = next((value for labels, value in values.items() if labels[-1] == shard), None)
            wanted = value / 1000 if value is not None and key.endswith("_ms") else value
            assert shown == wanted, (key, shard)


def test_the_draws_have_each_finding() -> None:
    """A rule that no draw meets would be seen by no face."""
    found = set()
    for seed in range(400):
        r = random.Random(seed)
        snapshot = draw_snapshot(r)
        found |= {one.code for one in status_of(snapshot, NOW, Limits(r.choice([0, HOUR]), 0, 0)).findings}
    for blank in (Snapshot(Layout("/r", "a", "s", 1)), HEALTHY):
        found |= {one.code for one in status_of(blank, NOW).findings}
    assert {rule.code for rule in RULES} - found <= {"many-waiting"}
