"""`pause` and `resume` as they are typed, and what all faces say of what is paused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from by_hand import Lives, numbers
from command_line import Command
from memory_streams import MemoryStreams
from samples_console import CHILD, HEALTHY, NEW, NOW, STATUS, TIP
from situations import A, Clock, filled, looked, moved_clock

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import InflightNode, ShardLineage
from kinesis_trident.checkpoint.model.pauses import Pause
from kinesis_trident.checkpoint.model.run_status import RunEnd, Seen
from kinesis_trident.console.examination import retention_result
from kinesis_trident.console.figures import HomeFacts
from kinesis_trident.console.finding import Finding, Level, Limits
from kinesis_trident.console.metrics.application import read_snapshot
from kinesis_trident.console.metrics.queries import read_report
from kinesis_trident.console.metrics.table import Readings
from kinesis_trident.console.rules import find
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.status import lines_of, status_of, summary_of
from kinesis_trident.console.views import VIEWS
from kinesis_trident.spout.kinesis import StreamInfo

MINUTE, HOUR = 60_000, 3_600_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return moved_clock(monkeypatch)


@pytest.fixture
def lives(make_lives: Callable[..., Lives], clock: Clock) -> Lives:
    found = make_lives()
    found.clock = clock
    return found


def why(found: tuple[int, str, str]) -> str:
    assert found[:2] == (1, ""), found
    return found[2].removeprefix("kinesis-trident: ").rstrip()


def test_what_is_paused_is_read_once_it_is_resumed(
    lives: Lives, app: str, command: Command, clock: Clock
) -> None:
    kinesis = filled(1, clock)
    query = lives.begin(kinesis)
    assert numbers(query.batch()) == [0]
    code, out, _ = command("pause", app, "--for", "30m", "--reason", " a bad deploy ")
    assert (code, out.startswith(f"all shards of {app}: paused until 20")) == (0, True)
    kinesis.put(A, b"1")
    looked(query)
    assert query.in_hand is None
    code, out, _ = command("check", app)
    assert (code, out.startswith(f"WARNING - {app}: PAUSED: all shards (1 shard now), for ")) == (1, True)
    assert " a bad deploy. Nothing new of it is read" in out
    (shard,) = json.loads(command("checkpoints", app, "--json")[1])["rows"]
    assert shard["standing"] == "paused"
    (found,) = json.loads(command("status", app, "--json")[1])["findings"]
    # What is recommended is done.
    assert command(*shlex.split(found["commands"][0])[1:])[:2] == (0, f"all shards of {app}: resumed\n")
    assert numbers(query.batch()) == [1]
    assert "paused" not in command("status", app)[1].lower()
    changes = json.loads(command("owner", app, "--json")[1])["changes"]
    assert [one["what"] for one in changes] == ["resume all shards", "pause all shards:  a bad deploy "]


def test_a_pause_is_of_a_shard_or_a_stream_and_its_end_is_seen(
    lives: Lives, app: str, command: Command, clock: Clock
) -> None:
    kinesis = MemoryStreams("orders", "payments", shards=2)
    kinesis.put("orders", 1)
    query = lives.begin(kinesis, streamName="orders,payments")
    query.batch()
    assert command("pause", app, "--shard", A, "--stream", "orders", "--reason", "r", "--for", "1m")[0] == 0
    assert command("pause", app, "--stream", "payments", "--reason", "r", "--all")[0] == 0
    looked(query)
    found = json.loads(command("status", app, "--json")[1])
    assert [one["shards"] for one in found["findings"]] == [
        [f"orders/{A}"],
        [f"payments/{A}", "payments/shardId-000000000001"],
    ]
    assert found["paused_shards"] == 3
    for one in found["findings"]:
        assert one["commands"][0].startswith(f"kinesis-trident resume {app} ")
    clock.ahead = 61
    looked(query)
    (left,) = json.loads(command("status", app, "--json")[1])["findings"]
    assert "PAUSED: stream payments" in left["sentence"]
    assert "nothing that has failed comes again" in left["sentence"]
    assert command(*shlex.split(left["commands"][0])[1:])[0] == 0
    assert why(command("resume", app)) == f"nothing of application {app!r} is paused"


def test_a_batch_in_hand_is_named(lives: Lives, app: str, command: Command) -> None:
    query = lives.begin(filled())
    query.plan()
    query.rows()
    found = json.loads(command("pause", app, "--reason", "r", "--json")[1])
    assert found == {"application": app, "paused": "all shards", "until_at": None, "txid": 1}
    assert "; the batch in hand, txid 1, is done first" in command("pause", app, "--reason", "r")[1]
    assert json.loads(command("resume", app, "--json")[1]) == {"application": app, "resumed": "all shards"}


def test_what_cannot_be_meant_is_refused(lives: Lives, app: str, command: Command) -> None:
    kinesis = filled(1)
    query = lives.begin(kinesis)
    query.batch()
    assert "there is no application 'nobody'" in why(command("pause", "nobody", "--reason", "r"))
    assert "has no shard shardId-7; it has" in why(
        command("pause", app, "--shard", "shardId-7", "--reason", "r")
    )
    assert "does not read stream 'ordres'" in why(
        command("pause", app, "--stream", "ordres", "--reason", "r")
    )
    for wrong in (["--for", "0s"], ["--for", "soon"], ["--reason", " "], []):
        given = wrong if "--reason" in wrong else [*wrong, *(["--reason", "r"] if wrong else [])]
        assert command("pause", app, *given)[0] == 2
    assert why(command("resume", app)) == f"nothing of application {app!r} is paused"
    assert why(command("resume", app, "--shard", A)) == (
        f"nothing of shard {A} of application {app!r} is paused"
    )
    assert query.store.pauses.get() is None


def test_a_shard_of_what_is_paused_is_not_resumed_alone(lives: Lives, app: str, command: Command) -> None:
    query = lives.begin(filled(1))
    query.batch()
    assert command("pause", app, "--reason", "a bad deploy")[0] == 0
    assert command("pause", app, "--shard", A, "--reason", "more")[0] == 0
    said = command("resume", app, "--shard", A)
    assert said[0] == 1
    assert said[1] == f"shard orders/{A} of {app}: resumed\n"
    assert "what is named stays paused with all shards" in said[2]
    line = said[2].partition("kinesis-trident resume")[2].partition(" resumes")[0]
    assert command("resume", *shlex.split(line))[0] == 0
    node = query.store.pauses.get()
    assert node is not None
    assert node.pauses == ()


def test_a_shard_that_was_read_to_its_end_is_refused_with_its_children(
    lives: Lives, app: str, command: Command
) -> None:
    kinesis = filled(1)
    query = lives.begin(kinesis)
    query.batch()
    first, second = kinesis.split(A)
    kinesis.put(first, b"5")
    while "5" not in map(str, numbers(query.batch())):
        pass
    said = why(command("pause", app, "--shard", A, "--reason", "r"))
    assert said.endswith(f"Pause its children: orders/{first}, orders/{second}")
    assert command("pause", app, "--shard", A, "--reason", "r", "--all")[0] == 0
    # It goes with its shard, and is resumed by its name all the same.
    query.store.shards.forget([A], {}, query.run.epoch)
    assert command("resume", app, "--shard", A)[0] == 0


def paused(shards: str = "", snapshot: Snapshot = HEALTHY, **more: object) -> Snapshot:
    one = Pause(shards, NOW - 12 * MINUTE, "a bad deploy", "ops@desk")
    return replace(snapshot, pauses=(msgspec.structs.replace(one, **more),))


def late(snapshot: Snapshot, age: int) -> Snapshot:
    seen = Seen(NOW - HOUR, NOW - age, standing="paused", since=NOW - HOUR)
    return replace(snapshot, status=msgspec.structs.replace(STATUS, shards={CHILD: seen}))


def findings(snapshot: Snapshot, **limits: int) -> dict[str, Finding]:
    return {one.code: one for one in find(HomeFacts(snapshot, NOW, Limits(**limits)))}


def test_a_pause_is_a_warning_that_names_who_and_why() -> None:
    (found,) = findings(paused()).values()
    assert (found.code, found.level) == ("paused", Level.WARNING)
    assert found.sentence == (
        "PAUSED: all shards (2 shards now), for 12m 00s, until somebody resumes it, by ops@desk: a bad deploy. "
        "Nothing new of it is read"
    )
    (line,) = found.commands
    assert line.startswith("kinesis-trident resume billing")
    unknown = replace(HEALTHY, status=msgspec.structs.replace(STATUS, seen=NOW - HOUR))
    assert findings(paused(snapshot=unknown))["paused"].sentence.endswith(
        "oldest unread record is of unknown age"
    )
    assert findings(paused(until=NOW - 1)) == {}


def test_what_is_paused_expires_as_an_alarm() -> None:
    snapshot = late(paused(CHILD), 13 * HOUR)
    found = findings(snapshot)
    assert (found["retention"].level, found["paused"].level) == (Level.CRITICAL, Level.WARNING)
    assert any(
        line.startswith("kinesis-trident resume billing --shard") for line in found["retention"].commands
    )
    assert "its oldest unread record is 13h 00m old" in found["paused"].sentence
    # A shard that is read has time until less is left.
    assert findings(replace(snapshot, pauses=()))["retention"].level is Level.WARNING


def test_the_lag_of_what_is_paused_is_told_apart() -> None:
    snapshot = late(paused(CHILD), 13 * HOUR)
    status = status_of(snapshot, NOW)
    assert (status.lag_ms, status.paused_shards, status.paused_lag_ms) == (0, 1, 13 * HOUR)
    assert dict(lines_of(status, NOW))["paused"] == (
        "1 shard, which the lag leaves out; the oldest unread record: 13h 00m old"
    )
    assert "max-lag" not in findings(snapshot, lag_ms=HOUR)
    assert summary_of(status_of(late(paused(CHILD), HOUR), NOW)).startswith(
        "WARNING - billing: PAUSED: shard"
    )
    rows = VIEWS["checkpoints"](snapshot, NOW).rows
    assert [(row["shard"], row["standing"], row["lag_ms"]) for row in rows][1] == (CHILD, "paused", 13 * HOUR)
    readings = Readings()
    read_snapshot(readings, snapshot, NOW)
    values = {
        (one.name, sample.labels.get("shard")): sample.value
        for one in readings.families()
        for sample in one.samples
    }
    assert values["kinesis_trident_paused_lag_seconds", CHILD] == 13 * 3600
    assert values["kinesis_trident_retention_left_seconds", CHILD] == 11 * 3600
    assert ("kinesis_trident_lag_seconds", CHILD) not in values
    assert values["kinesis_trident_shard_standing", CHILD] == 1


def test_nothing_is_a_comfort_while_all_is_paused() -> None:
    snapshot = paused()
    status = status_of(snapshot, NOW)
    assert (status.lag_ms, status.paused_shards) == (None, 2)
    assert dict(lines_of(status, NOW))["lag"] == "unknown: nobody has looked yet at what is not paused"
    # What is paused is named, so nobody is told of an unknown lag besides.
    assert list(findings(snapshot, lag_ms=HOUR)) == ["paused"]


def test_a_progress_names_the_lag_of_what_is_paused_apart() -> None:
    shard = {
        "behindMs": 7_000,
        "retentionLeftMs": 9_000,
        "seenAt": None,
        "unacked": 0,
        "retrying": 0,
        "dead": 0,
    }
    report = {
        "application": "billing",
        "streams": ["orders"],
        "txid": 1,
        "counts": {},
        "shards": {
            CHILD: {**shard, "deadLettered": 0, "standing": "paused"},
            NEW: {**shard, "deadLettered": 0},
        },
    }
    readings = Readings()
    read_report(readings, report, 1_000)
    values = {
        (one.name.removeprefix("kinesis_trident_"), sample.labels.get("shard")): sample.value
        for one in readings.families()
        for sample in one.samples
    }
    assert values["paused_lag_seconds", CHILD] == values["lag_seconds", NEW] == 8
    assert ("lag_seconds", CHILD) not in values
    assert ("paused_lag_seconds", NEW) not in values


def test_a_child_that_waits_for_what_is_paused_is_told_with_it() -> None:
    shards = {
        CHILD: ShardLineage(state="closed"),
        NEW: ShardLineage(parents=(CHILD,), listed=NOW - 41 * MINUTE),
    }
    status = msgspec.structs.replace(STATUS, shards={CHILD: Seen(), NEW: Seen()})
    snapshot = paused(CHILD, replace(HEALTHY, shards=shards, checkpoints={CHILD: TIP}, status=status))
    (found,) = findings(snapshot).values()
    assert (found.code, found.shards) == ("paused", (CHILD, NEW))
    held = InflightNode(txid=7, waiting=(), blocked="too many")
    both = findings(replace(snapshot, inflight={CHILD: held}))
    assert {"paused", "blocked"} <= both.keys()
    assert "parent-does-not-end" not in both


def test_a_run_that_has_drained_all_but_what_is_paused_says_so() -> None:
    end = RunEnd(
        3, "worker-7", 4711, NOW - HOUR, NOW - MINUTE, "finished", f"not read, because it is paused: {CHILD}"
    )
    found = findings(paused(CHILD, replace(HEALTHY, owner=None, ends=(end,))))
    assert found["not-running"].level is Level.NOTE
    assert (
        f"has finished 1m 00s ago: not read, because it is paused: {CHILD}" in found["not-running"].sentence
    )


def test_doctor_compares_the_retention_with_what_is_paused_too() -> None:
    info = StreamInfo("orders", "arn:aws:kinesis:eu-west-1:1:stream/orders", 0, 24, "ACTIVE", NOW)
    snapshot = late(paused(CHILD), 13 * HOUR)
    (result,) = retention_result(snapshot, NOW, info)
    assert result.state == "warning"
    assert "the oldest unread record is 13h 00m old; 1 shard is paused" in result.says


def test_a_pause_of_shards_that_are_gone_can_be_resumed_too() -> None:
    (found,) = findings(paused("shardId-000000000099")).values()
    assert "PAUSED: shard orders/shardId-000000000099 (no shard now)" in found.sentence
    assert "--shard shardId-000000000099" in found.commands[0]


def test_the_line_that_resumes_a_stream_means_that_stream_alone() -> None:
    several = replace(
        HEALTHY,
        layout=Layout("/kinesis-trident", "billing"),
        streams=("orders", "payments"),
        active=("orders", "payments"),
        shards={f"orders@1/{CHILD}": ShardLineage(), f"payments@1/{CHILD}": ShardLineage()},
        checkpoints={},
        beside=True,
    )
    (found,) = findings(paused("payments@1/", several)).values()
    assert shlex.split(found.commands[0])[:5] == [
        "kinesis-trident",
        "resume",
        "billing",
        "--stream",
        "payments",
    ]
    assert found.shards == (f"payments/{CHILD}",)
