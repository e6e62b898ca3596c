"""Random applications: each face of the console is, to the byte, what the functions before the tables have made."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
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
from test_golden import drawn
from thorough import examples
from twins.old_console import (
    lag as old_lag,
    metrics as old_metrics,
    page as old_page,
    progress as old_progress,
    status as old,
    views as old_views,
)
from twins.old_console.history import History as OldHistory

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
from kinesis_trident.checkpoint.model.run_status import FailedStartsNode, FailingNode, RunCounts, RunEnd, Seen
from kinesis_trident.checkpoint.zookeeper.client import NOWHERE, ZooKeeperConfig
from kinesis_trident.console.figures import HomeFacts
from kinesis_trident.console.finding import NO_LIMITS, Limits
from kinesis_trident.console.metrics.application import read_snapshot
from kinesis_trident.console.metrics.queries import read_report
from kinesis_trident.console.metrics.table import Readings
from kinesis_trident.console.render import json_line, to_json, to_table
from kinesis_trident.console.rules import RULES
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.status import lines_of, status_of, summary_of
from kinesis_trident.console.views import VIEWS
from kinesis_trident.console.web.history import History
from kinesis_trident.console.web.page import application_values, list_values
from kinesis_trident.console.web.watcher import ApplicationView, HomeView
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


def samples_of(families: Iterable[Family]) -> list[tuple[Any, ...]]:
    return [
        (
            one.name,
            one.type,
            one.documentation,
            *((at.name, sorted(at.labels.items()), at.value) for at in one.samples),
        )
        for one in families
    ]


def seen_by(status: Any, snapshot: Snapshot, history: Any) -> ApplicationView:
    history.add(snapshot, NOW - 2_000)
    history.add(snapshot, NOW)
    return ApplicationView(snapshot.layout.application, NOW, (HomeView(snapshot, history, status),))


def plain(values: dict[str, Any]) -> str:
    """Values for a template as text."""
    for part in values["parts"]:
        # A function of the snapshot.
        del part["command"]
    return json.dumps(
        values,
        default=lambda one: (
            sorted(one)
            if isinstance(one, set)
            else list(one)
            if isinstance(one, Sequence)
            else msgspec.to_builtins(one)
        ),
    )


@pytest.mark.parametrize("seed", range(examples(400)))
def test_an_application_looks_as_it_did(seed: int) -> None:
    r = random.Random(seed)
    snapshot, limits = draw_snapshot(r), draw_limits(r)
    before, after = old.status_of(snapshot, NOW, limits), status_of(snapshot, NOW, limits)
    ahead = re.compile(r"heard -\d+ ms")
    # A clock that was ahead of ours was heard a negative time ago.
    before = msgspec.json.decode(ahead.sub("heard 0 ms", json_line(before)), type=old.Status)
    assert json_line(after) == json_line(before)
    assert lines_of(after, NOW) == old.lines_of(before, NOW)
    assert summary_of(after) == old.summary_of(before)
    for name, view in VIEWS.items():
        was, shown = old_views.VIEWS[name](snapshot, NOW), view(snapshot, NOW)
        assert to_json(shown) == to_json(was)  # type: ignore[arg-type]
        if seed % 10 == 0:
            assert drawn(to_table(shown)) == drawn(to_table(was))  # type: ignore[arg-type]
    counted, was_counted = Readings(), Readings()
    read_snapshot(counted, snapshot, NOW)
    old_metrics.read_snapshot(was_counted, snapshot, NOW)
    assert samples_of(counted.families()) == samples_of(was_counted.families())
    look, looked = seen_by(after, snapshot, History()), seen_by(before, snapshot, OldHistory())
    page, was_page = application_values(look), old_page.application_values(looked)
    assert plain(page) == plain(was_page)
    assert list_values({"x": look}) == old_page.list_values({"x": looked})


@pytest.mark.parametrize("seed", range(examples(400)))
def test_the_progress_and_its_metrics_are_as_they_were(seed: int) -> None:
    r = random.Random(seed)
    snapshot = draw_snapshot(r)
    was, shown = old_lag.shard_facts(snapshot, NOW), HomeFacts(snapshot, NOW).shards
    reported = {}
    for shard, one in shown.items():
        letters, held = snapshot.dead_letters.get(shard), snapshot.inflight.get(shard)
        before = old_progress.figures_of(
            was[shard], letters.count if letters else 0, held.blocked if held else "", NOW
        )
        refused = {key: before[key] for key in before if key == f"{one.seen.why}Ms"}
        assert msgspec.to_builtins(one.figures) | refused == before
        reported[shard] = before
    report = {
        "application": "a",
        "streams": ["orders"],
        "txid": 7,
        "counts": {"batches": r.choice([0, 9]), "acked": 7, "lastWritten": 12, "failed": {"ValueError": 2}},
        "shards": reported,
    }
    for age in (0, 10_000, 10_001, 3 * HOUR, 25 * HOUR):
        counted, was_counted = Readings(), Readings()
        read_report(counted, report, age)
        old_progress.read_report(was_counted, report, age)
        assert samples_of(counted.families()) == samples_of(was_counted.families())


def test_the_draws_have_each_finding() -> None:
    """A rule that no draw meets would be compared with nothing."""
    found = set()
    for seed in range(400):
        r = random.Random(seed)
        snapshot = draw_snapshot(r)
        found |= {
            one.code for one in old.status_of(snapshot, NOW, Limits(r.choice([0, HOUR]), 0, 0)).findings
        }
    for blank in (Snapshot(Layout("/r", "a", "s", 1)), HEALTHY):
        found |= {one.code for one in old.status_of(blank, NOW).findings}
    assert {rule.code for rule in RULES} - found <= {"many-waiting"}
