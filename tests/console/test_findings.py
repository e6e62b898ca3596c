"""Test what is wrong with an application, and what to do: from its nodes and the time alone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from samples_console import CHILD, HEALTHY, NEW, NOW, PARENT, SNAPSHOT, STATUS, TIP, WAITING, apart, pin

from kinesis_trident.checkpoint.model import standing
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import (
    FencedNode,
    InflightNode,
    Replay,
    ShardLineage,
)
from kinesis_trident.checkpoint.model.pauses import Pause
from kinesis_trident.checkpoint.model.run_status import How, Lag, RunEnd, Seen, lag_growth
from kinesis_trident.console.figures import HomeFacts
from kinesis_trident.console.finding import Finding, Level, Limits, worst
from kinesis_trident.console.rules import find
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.status import Status, lines_of, status_of, summary_of
from kinesis_trident.console.views import checkpoints
from kinesis_trident.tracker.records import Noted

MINUTE, HOUR = 60_000, 3_600_000
BEHIND = msgspec.structs.replace(WAITING, attempt=0, due=0, failures=(Noted(NOW, "BEHIND"),))
BATCH = replace(HEALTHY, batch=SNAPSHOT.batch, planned_at=NOW - 11 * MINUTE)


def with_status(**changes: Any) -> Snapshot:
    return replace(HEALTHY, status=msgspec.structs.replace(STATUS, **changes))


def with_letters(ago: int = 0, **changes: Any) -> Snapshot:
    """Five dead letters, the last of them so long ago."""
    node = SNAPSHOT.dead_letters[CHILD]
    last = tuple(msgspec.structs.replace(one, time=NOW - ago) for one in node.last)
    return replace(HEALTHY, dead_letters={CHILD: msgspec.structs.replace(node, last=last, **changes)})


def with_inflight(**changes: Any) -> Snapshot:
    return replace(HEALTHY, inflight={CHILD: InflightNode(txid=7, **{"waiting": ()} | changes)})


def codes(snapshot: Snapshot, now: int = NOW, **limits: int) -> dict[str, Level]:
    return {one.code: one.level for one in find(HomeFacts(snapshot, now, Limits(**limits)))}


def test_nothing_is_wrong_with_a_query_that_waits_for_records() -> None:
    assert find(HomeFacts(HEALTHY, NOW)) == []
    assert HomeFacts(HEALTHY, NOW).figures.lag_ms == 0
    assert HEALTHY.phase(NOW) == ("no batch in hand; waits for records", None)
    assert codes(HEALTHY, lag_ms=5 * MINUTE, retrying=0, dead=0) == {}


def test_commands_take_the_name_of_any_application() -> None:
    layout = replace(HEALTHY.layout, application="bob's orders")
    (found,) = find(HomeFacts(replace(with_letters(), layout=layout), NOW))
    commands = found.remedy.split("kinesis-trident ")[1:]
    assert [shlex.split(one)[:2] for one in commands] == [["dead-letters", "bob's orders"]] * len(commands)
    assert commands


def lags_of(growth: float, minutes: int = 15) -> tuple[tuple[int, int], ...]:
    """Samples of a lag that grows by `growth` seconds a second, and within each batch of five minutes besides."""
    return tuple(
        (NOW - ago * MINUTE, 40 * MINUTE - int(growth * ago * MINUTE) + ago % 5 * 20_000)
        for ago in range(minutes, -1, -1)
    )


@pytest.mark.parametrize("growth", [-0.5, 0.8])
def test_a_query_that_settles_batches_shows_its_trend_within_three_minutes(growth: float) -> None:
    lags = tuple((NOW - ago * MINUTE, 3 * MINUTE - round(growth * ago * MINUTE)) for ago in (2, 1, 0))
    # Before that nobody was behind, which hides the trend in the least lags of halves.
    before = tuple((NOW - ago * MINUTE, 0) for ago in range(10, 2, -1))
    reads = tuple(range(100, 111))
    assert lag_growth(before + lags, reads) == pytest.approx(growth)
    # A long batch, in which nothing is settled, is no trend.
    assert lag_growth(before + lags, (*reads[:-1], reads[-2])) == 0
    assert lag_growth(lags, reads[:2] + reads[1:2]) is None


@given(st.floats(-1, 1).filter(lambda growth: abs(growth) > 0.2))
def test_the_trend_is_not_that_of_a_batch(growth: float) -> None:
    found = lag_growth(lags_of(growth))
    assert found is not None
    assert found == pytest.approx(growth, abs=0.15)
    assert lag_growth(lags_of(growth, minutes=4)) is None


def test_the_status_says_when_a_late_query_has_caught_up() -> None:
    for growth, says in (
        (-0.5, "last minutes it is caught up in"),
        (0.5, "; it does not shrink"),
    ):
        late = with_status(shards={CHILD: Seen(NOW, NOW - 11 * MINUTE)}, lags=lags_of(growth))
        assert says in dict(lines_of(status_of(late, NOW), NOW))["lag"]


@given(st.floats(1, 1000), st.floats(0.1, 2), st.integers(1, 15))
def test_rates_are_those_of_a_stream_that_is_read_so_fast(
    comes_in: float, share: float, minutes: int
) -> None:
    """`share`: what is read, of what comes in; the lag shrinks or grows by the rest."""
    lags = tuple(
        (NOW - ago * MINUTE, HOUR - round((1 - share) * ago * MINUTE)) for ago in range(minutes, -1, -1)
    )
    reads = tuple(10**6 - round(comes_in * share * ago * 60) for ago in range(minutes, -1, -1))
    late = HomeFacts(with_status(shards={CHILD: Seen(NOW, NOW - HOUR)}, lags=lags, reads=reads), NOW).figures
    assert late.read_rate == pytest.approx(comes_in * share, rel=0.05, abs=0.05)
    assert late.input_rate == pytest.approx(comes_in, rel=0.2, abs=0.2)
    assert late.unread == pytest.approx(comes_in * HOUR / 1000, rel=0.2, abs=800)
    # What a query that stands still cannot know, it does not say.
    stuck = HomeFacts(
        with_status(lags=tuple((at, HOUR + at - NOW) for at, _ in lags), reads=(5,) * len(lags)), NOW
    ).figures
    assert (stuck.read_rate, stuck.input_rate, stuck.unread) == (0, None, None)
    assert HomeFacts(with_status(lags=lags[:1], reads=reads[:1]), NOW).figures.read_rate is None


def test_the_status_shows_rates_and_how_the_runs_before_have_ended() -> None:
    lags = ((NOW - 2 * MINUTE, HOUR), (NOW, HOUR))
    late = with_status(shards={CHILD: Seen(NOW, NOW - HOUR)}, lags=lags, reads=(100, 1_300))
    ends = tuple(
        RunEnd(epoch, "worker-7", 11, NOW - HOUR, NOW - MINUTE, "failed", "ValueError: x") for epoch in (1, 2)
    )
    lines = lines_of(status_of(replace(late, ends=ends), NOW), NOW)
    assert dict(lines)["rates"] == (
        "10.0 records read a second; estimated: 10.0 a second come in, 36,000 records unread"
    )
    assert [text.partition(",")[0] for label, text in lines if label == "before"] == [
        "epoch 2 on worker-7",
        "epoch 1 on worker-7",
    ]
    assert "failed: ValueError: x" in lines[-1][1]


def ended(how: How, epoch: int = 3) -> Snapshot:
    why = "" if how == "finished" else "ValueError: the sink is down"
    end = RunEnd(epoch, "worker-7", 4711, NOW - HOUR, NOW - MINUTE, how, why)
    return replace(HEALTHY, owner=None, ends=(end,))


def drained(asked: int, ago: int = MINUTE) -> Snapshot:
    """A run that has read everything so long ago, is connected, and was last asked then."""
    end = msgspec.structs.replace(ended("finished").ends[0], at=NOW - ago)
    return replace(with_status(time=asked), ends=(end,))


def endless(since: int, parent: Seen | None = None, child: Seen | None = None) -> Snapshot:
    """A shard that was split, whose child was listed a while ago."""
    seen = {CHILD: parent or Seen(), NEW: child or Seen()}
    shards = {CHILD: ShardLineage(state="closed"), NEW: ShardLineage(parents=(CHILD,), listed=NOW - since)}
    status = msgspec.structs.replace(STATUS, shards=seen)
    return replace(HEALTHY, status=status, shards=shards, checkpoints={CHILD: TIP})


REFUSED = {CHILD: Seen(NOW - HOUR, None, NOW - 2 * MINUTE, "throttled")}
FENCED = FencedNode(epoch=2, by_epoch=3, by_host="worker-7", by_pid=4711)


@pytest.mark.parametrize(
    ("snapshot", "found", "says"),
    [
        (Snapshot(Layout("/r", "a", "s", 1)), {"never-started": Level.WARNING}, "start the query"),
        (replace(HEALTHY, owner=None), {"not-running": Level.CRITICAL}, "epoch 3 on worker-7, pid 4711"),
        (replace(HEALTHY, owner=None), {"not-running": Level.CRITICAL}, "ended without a word"),
        # By a clock that is ahead of ours.
        (
            replace(with_status(time=NOW + MINUTE), owner=None),
            {"not-running": Level.CRITICAL},
            "last heard 0 ms ago",
        ),
        (ended("stopped"), {"not-running": Level.NOTE}, "was stopped 1m 00s ago"),
        (ended("finished"), {"not-running": Level.NOTE}, "has read everything and finished 1m 00s ago"),
        # Spark asks it on, as other sources of the query are not drained; or may ask it again after their batch.
        (drained(NOW), {}, "has read everything that it was to read"),
        (
            drained(NOW - MINUTE),
            {"not-running": Level.NOTE},
            "and finished 1m 00s ago, unless another source of its query is still read",
        ),
        (
            drained(NOW - 2 * MINUTE, ago=10 * MINUTE),
            {"not-running": Level.NOTE},
            "10m 00s ago, unless another",
        ),
        (ended("failed"), {"not-running": Level.CRITICAL}, "failed 1m 00s ago: ValueError: the sink is down"),
        (ended("interrupted"), {"not-running": Level.CRITICAL}, "ended 1m 00s ago in the middle of a batch"),
        # Of the run before; and of the newest, whose process Spark has left behind.
        (ended("failed", epoch=2), {"not-running": Level.CRITICAL}, "ended without a word"),
        (replace(ended("failed"), owner=SNAPSHOT.owner), {"not-running": Level.CRITICAL}, "the sink is down"),
        (with_status(time=NOW - 6 * MINUTE), {"not-asked": Level.WARNING}, "nothing for 6m 00s"),
        (with_status(time=NOW - 2 * MINUTE), {}, "Spark asks for none"),
        (with_status(epoch=2), {}, ""),
        (
            with_status(epoch=3, losses=2, lost="shard s lost 9"),
            {"data-loss": Level.CRITICAL},
            "shard s lost 9",
        ),
        (
            with_status(shards=REFUSED),
            {"throttled": Level.WARNING},
            f"reads of shard {CHILD}, for 2m 00s now",
        ),
        (
            with_status(shards={CHILD: Seen(refused=NOW - HOUR, why="unavailable")}),
            {"unavailable": Level.CRITICAL},
            "does not answer",
        ),
        (
            with_status(shards={CHILD: Seen(refused=NOW - HOUR, why="unreadable")}),
            {"unavailable": Level.CRITICAL},
            f"Answers that are none of Kinesis come to the reads of shard {CHILD}",
        ),
        (
            with_status(shards={CHILD: Seen(NOW, NOW - 13 * HOUR)}),
            {"retention": Level.WARNING},
            "expires in 11h 00m",
        ),
        (
            with_status(shards={CHILD: Seen(NOW, NOW - 23 * HOUR)}),
            {"retention": Level.CRITICAL},
            "expires in 1h 00m",
        ),
        (
            with_status(shards={CHILD: Seen(NOW, NOW - 25 * HOUR)}),
            {"retention": Level.CRITICAL},
            "and has expired",
        ),
        (
            with_status(shards={CHILD: Seen(NOW, NOW - 11 * MINUTE)}, lags=lags_of(growth=0.5)),
            {"falling-behind": Level.WARNING},
            "at this rate it never catches up; unread records expire in 1d 16h",
        ),
        (
            endless(MINUTE * 41),
            {"parent-does-not-end": Level.WARNING},
            f"for 41m 00s: shard {NEW} waits for that",
        ),
        (endless(MINUTE * 4), {}, ""),
        (apart(3 * HOUR), {"shards-apart": Level.NOTE}, "The shards are 3h 00m apart"),
        (apart(10 * MINUTE), {}, ""),
        (
            with_status(taken=NOW - MINUTE),
            {"consumer-shared": Level.WARNING},
            "which reads by polling meanwhile; the last time 1m 00s ago",
        ),
        (with_status(taken=NOW - 16 * MINUTE), {}, ""),
        # Something of the parent is unread; the child is read.
        (endless(MINUTE * 41, parent=Seen(NOW, NOW - MINUTE)), {}, ""),
        (endless(MINUTE * 41, child=Seen(seen=NOW)), {}, ""),
        # It catches up; it is hardly behind; the trend is that of an older run.
        (with_status(shards={CHILD: Seen(NOW, NOW - 11 * MINUTE)}, lags=lags_of(growth=-0.5)), {}, ""),
        (with_status(shards={CHILD: Seen(NOW, NOW - MINUTE)}, lags=lags_of(growth=0.5)), {}, ""),
        (
            replace(
                with_status(shards={CHILD: Seen(NOW, NOW - 11 * MINUTE)}, epoch=2, lags=lags_of(growth=0.5)),
                run=msgspec.structs.replace(SNAPSHOT.run, since=NOW),
            ),
            {},
            "",
        ),
        (with_inflight(waiting=(WAITING,)), {"retrying": Level.NOTE}, "most often: ValueError: bad amount"),
        (
            with_inflight(waiting=(WAITING, BEHIND, BEHIND)),
            {"retrying": Level.NOTE},
            "bad amount; 2 records that follow with their keys, and have not failed, come after",
        ),
        (
            with_inflight(waiting=(msgspec.structs.replace(WAITING, attempt=0, failures=()),)),
            {"retrying": Level.NOTE},
            "most often: asked for again by hand",
        ),
        (
            with_inflight(blocked="3 failed runs wait: the shard reads nothing new"),
            {"blocked": Level.CRITICAL},
            f"Shard {CHILD} reads nothing new: 3 failed runs wait",
        ),
        (
            replace(HEALTHY, pauses=(Pause(CHILD, NOW - MINUTE, "why", "me@here", NOW + MINUTE),)),
            {"paused": Level.WARNING},
            f"PAUSED: shard orders/{CHILD} (1 shard now), for 1m 00s, until 2023-11-14T22:15:20Z, by me@here: why. ",
        ),
        (with_inflight(dead=(WAITING,)), {"exhausted": Level.NOTE}, "will be dead-lettered"),
        (
            replace(with_inflight(dead=(WAITING,)), owner=None),
            {"exhausted": Level.CRITICAL, "not-running": Level.CRITICAL},
            "dead-letters billing replay --exhausted",
        ),
        (
            replace(HEALTHY, dead_letters=SNAPSHOT.dead_letters),
            {"dead-letters": Level.WARNING},
            "5 records were dead-lettered or skipped so far, the last 0 ms ago: ValueError",
        ),
        # An hour later, or where all of them were delivered again, they are no alarm.
        (with_letters(ago=HOUR), {"dead-letters": Level.NOTE}, "5 records were"),
        (
            with_letters(replays=(Replay(NOW, ("5x1,",)),)),
            {"dead-letters": Level.NOTE},
            "5 were delivered again",
        ),
        (
            BATCH,
            {"slow-batch": Level.WARNING},
            "planned, nothing read yet, and nothing has moved for 11m 00s",
        ),
        (replace(BATCH, planned_at=NOW - MINUTE), {}, ""),
        (
            replace(BATCH, finished=True, finished_at=NOW - HOUR),
            {"slow-batch": Level.WARNING},
            "finished, not settled, and nothing has moved for 1h 00m",
        ),
        (
            replace(BATCH, pins={CHILD: pin(CHILD, 1)}, read_at=NOW - HOUR),
            {"slow-batch": Level.WARNING},
            "1 of 2 shards so far",
        ),
        (
            replace(HEALTHY, takeovers=((NOW - MINUTE, FENCED),)),
            {"takeover": Level.WARNING},
            "give each its own",
        ),
        (replace(HEALTHY, takeovers=((NOW - MINUTE, FENCED),) * 3), {"takeover": Level.CRITICAL}, "3 runs"),
        (replace(HEALTHY, takeovers=((NOW - HOUR, FENCED),)), {}, ""),
        (
            replace(HEALTHY, rejected=("/a/rejected/x",)),
            {"rejected-requests": Level.WARNING},
            "/a/rejected/x",
        ),
        (
            replace(HEALTHY, problems=("/a/settled has no v. Nothing was changed. Restore",)),
            {"corrupt-node": Level.CRITICAL},
            "cannot be read: /a/settled has no v",
        ),
    ],
)
def test_each_situation_has_its_finding(snapshot: Snapshot, found: Mapping[str, Level], says: str) -> None:
    findings = find(HomeFacts(snapshot, NOW))
    assert {one.code: one.level for one in findings} == found
    status = status_of(snapshot, NOW)
    text = "\n".join([status.batch.phase, *(f"{one.sentence} {one.remedy}" for one in findings)])
    assert says in text
    assert all(one.sentence in summary_of(status) for one in findings if one.level is not Level.NOTE)
    # Labels and sentences for people, whatever is missing.
    labels = [label for label, _ in lines_of(status, NOW) if label not in ("before", "paused")]
    assert labels[-3:] == ["batch", "lag", "records"]


def test_shards_that_are_blocked_for_two_reasons_are_told_both() -> None:
    failed = "{} groups of failed neighbours wait for a retry, and maxRetryingRecords is 3"
    held = "9 records are read and not done, and maxInflightRecords is 9"
    blocked = {PARENT: failed.format(3), CHILD: f"{held}: the shard reads nothing new", NEW: failed.format(5)}
    nodes = {shard: InflightNode(txid=7, waiting=(), blocked=why) for shard, why in blocked.items()}
    found = [one for one in find(HomeFacts(replace(HEALTHY, inflight=nodes), NOW)) if one.code == "blocked"]
    assert {one.shards: one.sentence.partition("nothing new: ")[2] for one in found} == {
        (PARENT, NEW): failed.format(3),
        (CHILD,): held,
    }


def test_very_many_failed_records_are_told_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "MANY_GROUPS", 4)
    why = "{} groups of failed neighbours wait for a retry, and maxRetryingRecords is 1"

    def found(waiting: int, dead: int) -> dict[str, str]:
        nodes = {
            PARENT: InflightNode(txid=7, waiting=(WAITING,) * waiting, blocked=why.format(waiting)),
            CHILD: InflightNode(txid=7, waiting=(), dead=(WAITING,) * dead),
        }
        return {
            one.code: f"{one.sentence} {one.remedy}"
            for one in find(HomeFacts(replace(HEALTHY, inflight=nodes), NOW))
        }

    few, many = found(2, 1), found(2, 2)
    assert "many-waiting" not in few
    assert "raise maxRetryingRecords, or set retrySpool" in few["blocked"]
    assert "4 groups of failed neighbours wait in ZooKeeper" in many["many-waiting"]
    assert "a lower maxFetchRecordsPerShard" in many["many-waiting"]
    assert "raise maxRetryingRecords" not in many["blocked"]
    assert "lower maxFetchRecordsPerShard, or set retrySpool" in many["blocked"]


def test_a_shard_that_is_blocked_says_that_all_together_have_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standing, "MANY_GROUPS", 4)

    def blocked(waiting: int) -> list[str]:
        nodes = {
            PARENT: InflightNode(txid=7, waiting=(WAITING,) * waiting, blocked="full"),
            CHILD: InflightNode(txid=7, waiting=(), dead=(WAITING,) * 2),
        }
        rows = checkpoints(replace(HEALTHY, inflight=nodes), NOW).rows
        return [row["blocked"] for row in rows if row["blocked"]]

    assert blocked(1) == ["full"]
    (told,) = blocked(2)
    assert told.startswith("full. 4 groups of failed neighbours wait in ZooKeeper; ")
    assert "maxFetchRecordsPerShard bounds those of a batch" in told


def test_the_first_bar_of_a_summary_is_that_before_its_numbers() -> None:
    run = msgspec.structs.replace(WAITING, failures=(Noted(NOW, "ValueError: a|b | c"),))
    status = status_of(replace(with_inflight(dead=(run,)), owner=None), NOW)
    said, _, numbers = summary_of(msgspec.structs.replace(status, application="a|b")).partition(" | ")
    assert "a/b: " in said
    assert "ValueError: a/b / c" in said
    assert re.fullmatch(r"lag=\w+ inflight=1 retrying=0 dead=0", numbers)


@pytest.mark.parametrize(
    ("snapshot", "limits", "level"),
    [
        (HEALTHY, {"lag_ms": 0}, Level.OK),
        (with_status(seen=NOW - HOUR), {"lag_ms": HOUR}, Level.UNKNOWN),
        (with_status(shards={CHILD: Seen(NOW, NOW - 6 * MINUTE)}), {"lag_ms": 5 * MINUTE}, Level.CRITICAL),
        (with_status(shards={CHILD: Seen(NOW, NOW - 6 * MINUTE)}), {"lag_ms": 7 * MINUTE}, Level.OK),
        (replace(HEALTHY, owner=None), {"lag_ms": HOUR}, Level.CRITICAL),
        (with_inflight(waiting=(WAITING,)), {"retrying": 0}, Level.CRITICAL),
        (with_inflight(waiting=(WAITING,)), {"retrying": 1}, Level.OK),
        (replace(HEALTHY, dead_letters=SNAPSHOT.dead_letters), {"dead": 4}, Level.CRITICAL),
        (replace(HEALTHY, dead_letters=SNAPSHOT.dead_letters), {"dead": 5}, Level.WARNING),
    ],
)
def test_limits_decide_the_exit_code(snapshot: Snapshot, limits: dict[str, int], level: Level) -> None:
    assert worst(one.level for one in find(HomeFacts(snapshot, NOW, Limits(**limits)))) is level


def test_a_batch_that_moved_a_shard_on_outdates_what_was_seen_of_it() -> None:
    seen = with_status(settled=6, shards={CHILD: Seen(NOW, NOW - HOUR, NOW - MINUTE, "throttled")})
    assert HomeFacts(seen, NOW).shards[CHILD].lag == Lag(None)
    assert "throttled" in codes(seen)


def test_a_stream_that_is_left_out_lags_nobody() -> None:
    assert HomeFacts(replace(HEALTHY, active=()), NOW).figures.lag_ms == 0
    assert HomeFacts(replace(HEALTHY, active=(), owner=None), NOW).figures.connected is False


def test_the_worst_comes_first_and_critical_outweighs_unknown() -> None:
    some = [Finding(level, level.name, "", "") for level in (Level.NOTE, Level.UNKNOWN, Level.CRITICAL)]
    assert worst(one.level for one in some) is Level.CRITICAL
    stopped = replace(with_inflight(waiting=(WAITING,)), owner=None)
    levels = [one.level for one in find(HomeFacts(stopped, NOW, Limits(lag_ms=1)))]
    assert levels == [Level.CRITICAL, Level.UNKNOWN, Level.NOTE]


@given(st.data())
def test_whatever_is_missing_there_is_an_answer(data: st.DataObject) -> None:
    """Any part of a snapshot may be absent, and any time may have passed."""
    fields = ("run", "owner", "settled", "batch", "status", "checkpoints", "inflight", "shards", "pins")
    blank = Snapshot(SNAPSHOT.layout)
    whole = replace(SNAPSHOT, status=STATUS, active=("orders",))
    missing = data.draw(st.sets(st.sampled_from(fields)))
    snapshot = replace(whole, **{name: getattr(blank, name) for name in missing})
    now = NOW + data.draw(st.integers(0, 100 * HOUR))
    for one in find(HomeFacts(snapshot, now, Limits(0, 0, 0))):
        assert not one.sentence[0].islower()
        assert one.remedy
        assert "None" not in one.sentence + one.remedy
    status = status_of(snapshot, now)
    assert msgspec.json.decode(msgspec.json.encode(status), type=Status) == status
    assert (status.level is Level.OK) == (not status.wrong)


def test_a_record_that_a_bolt_holds_has_not_failed() -> None:
    held = msgspec.structs.replace(WAITING, failures=(Noted(NOW, "HELD (bolt join)"),))
    (found,) = [
        one
        for one in find(HomeFacts(with_inflight(waiting=(held,)), NOW))
        if one.code in ("held", "retrying")
    ]
    assert (found.code, found.level) == ("held", Level.NOTE)
    assert "Bolts hold 1 record that wait for others: HELD (bolt join)" in found.sentence
    both = codes(with_inflight(waiting=(held, msgspec.structs.replace(WAITING, last="77", first="77"))))
    assert {"held", "retrying"} <= both.keys()
