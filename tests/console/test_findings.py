"""Test what is wrong with an application, and what to do: from its nodes and the time alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples_console import CHILD, NEW, NOW, PARENT, SNAPSHOT, WAITING, pin

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, FencedNode, InflightNode
from kinesis_trident.checkpoint.model.run_status import Lag, Sight, StatusNode
from kinesis_trident.console.finding import Finding, Level, Limits
from kinesis_trident.console.findings import find, worst
from kinesis_trident.console.lag import shard_lags, totals
from kinesis_trident.console.run_findings import phase
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.status import lines_of, status_of, summary_of
from kinesis_trident.tracker.records import Failure

MINUTE, HOUR = 60_000, 3_600_000
STATUS = StatusNode(epoch=3, time=NOW - 1_000, settled=7, seen=NOW - 1_000, retention={"orders": 24})
TIP = CheckpointNode(checkpoint="9", txid=7, position="AFTER_SEQUENCE_NUMBER 9", read=1_204)
HEALTHY = replace(
    SNAPSHOT,
    active=("orders",),
    status=STATUS,
    batch=None,
    pins={},
    checkpoints={PARENT: SNAPSHOT.checkpoints[PARENT], CHILD: TIP, NEW: TIP},
    inflight={},
    dead_letters={},
)
BATCH = replace(HEALTHY, batch=SNAPSHOT.batch, planned_at=NOW - 11 * MINUTE)


def with_status(**changes: Any) -> Snapshot:
    return replace(HEALTHY, status=msgspec.structs.replace(STATUS, **changes))


def with_inflight(**changes: Any) -> Snapshot:
    return replace(HEALTHY, inflight={CHILD: InflightNode(txid=7, **changes)})


def codes(snapshot: Snapshot, now: int = NOW, **limits: int) -> dict[str, Level]:
    return {one.code: one.level for one in find(snapshot, now, Limits(**limits))}


def test_nothing_is_wrong_with_a_query_that_waits_for_records() -> None:
    assert find(HEALTHY, NOW) == []
    assert totals(HEALTHY, NOW).lag_ms == 0
    assert phase(HEALTHY, NOW) == ("no batch in hand; waits for records", None)
    assert codes(HEALTHY, lag_ms=5 * MINUTE, retrying=0, dead=0) == {}


REFUSED = {CHILD: Sight(NOW - HOUR, None, NOW - 2 * MINUTE, "throttled")}
FENCED = FencedNode(epoch=2, by_epoch=3, by_host="worker-7", by_pid=4711)


@pytest.mark.parametrize(
    ("snapshot", "found", "says"),
    [
        (Snapshot(Layout("/r", "a", "s", 1)), {"never-started": Level.WARNING}, "start the query"),
        (replace(HEALTHY, owner=None), {"not-running": Level.CRITICAL}, "epoch 3 on worker-7, pid 4711"),
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
            with_status(shards={CHILD: Sight(refused=NOW - HOUR, why="unavailable")}),
            {"unavailable": Level.CRITICAL},
            "does not answer",
        ),
        (
            with_status(shards={CHILD: Sight(NOW, NOW - 13 * HOUR)}),
            {"retention": Level.WARNING},
            "expires in 11h 00m",
        ),
        (
            with_status(shards={CHILD: Sight(NOW, NOW - 23 * HOUR)}),
            {"retention": Level.CRITICAL},
            "expires in 1h 00m",
        ),
        (
            with_status(shards={CHILD: Sight(NOW, NOW - 25 * HOUR)}),
            {"retention": Level.CRITICAL},
            "and has expired",
        ),
        (with_inflight(waiting=(WAITING,)), {"retrying": Level.NOTE}, "most often: ValueError: bad amount"),
        (
            with_inflight(blocked="3 failed runs wait: the shard reads nothing new"),
            {"blocked": Level.CRITICAL},
            f"Shard {CHILD} reads nothing new: 3 failed runs wait",
        ),
        (with_inflight(dead=(WAITING,)), {"exhausted": Level.NOTE}, "will be dead-lettered"),
        (
            replace(with_inflight(dead=(WAITING,)), owner=None),
            {"exhausted": Level.CRITICAL, "not-running": Level.CRITICAL},
            "dead-letters billing replay --exhausted",
        ),
        (
            replace(HEALTHY, dead_letters=SNAPSHOT.dead_letters),
            {"dead-letters": Level.NOTE},
            "5 records were",
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
    findings = find(snapshot, NOW)
    assert {one.code: one.level for one in findings} == found
    status = status_of(snapshot, NOW)
    text = "\n".join([status["batch"]["phase"], *(f"{one.sentence} {one.remedy}" for one in findings)])
    assert says in text
    assert all(one.sentence in summary_of(status) for one in findings if one.level is not Level.NOTE)
    # Labels and sentences for people, whatever is missing.
    assert [label for label, _ in lines_of(status, NOW)][-3:] == ["batch", "lag", "records"]


@pytest.mark.parametrize(
    ("snapshot", "limits", "level"),
    [
        (HEALTHY, {"lag_ms": 0}, Level.NOTE),
        (with_status(seen=NOW - HOUR), {"lag_ms": HOUR}, Level.UNKNOWN),
        (with_status(shards={CHILD: Sight(NOW, NOW - 6 * MINUTE)}), {"lag_ms": 5 * MINUTE}, Level.CRITICAL),
        (with_status(shards={CHILD: Sight(NOW, NOW - 6 * MINUTE)}), {"lag_ms": 7 * MINUTE}, Level.NOTE),
        (replace(HEALTHY, owner=None), {"lag_ms": HOUR}, Level.CRITICAL),
        (with_inflight(waiting=(WAITING,)), {"retrying": 0}, Level.CRITICAL),
        (with_inflight(waiting=(WAITING,)), {"retrying": 1}, Level.NOTE),
        (replace(HEALTHY, dead_letters=SNAPSHOT.dead_letters), {"dead": 4}, Level.CRITICAL),
        (replace(HEALTHY, dead_letters=SNAPSHOT.dead_letters), {"dead": 5}, Level.NOTE),
    ],
)
def test_limits_decide_the_exit_code(snapshot: Snapshot, limits: dict[str, int], level: Level) -> None:
    assert worst(find(snapshot, NOW, Limits(**limits))) is level


def test_a_batch_that_moved_a_shard_on_outdates_what_was_seen_of_it() -> None:
    seen = with_status(settled=6, shards={CHILD: Sight(NOW, NOW - HOUR, NOW - MINUTE, "throttled")})
    assert shard_lags(seen, NOW)[CHILD] == Lag(None)
    assert "throttled" in codes(seen)


def test_a_stream_that_is_left_out_lags_nobody() -> None:
    assert totals(replace(HEALTHY, active=()), NOW).lag_ms == 0
    assert totals(replace(HEALTHY, active=(), owner=None), NOW).connected is False


def test_the_worst_comes_first_and_critical_outweighs_unknown() -> None:
    some = [Finding(level, level.name, "", "") for level in (Level.NOTE, Level.UNKNOWN, Level.CRITICAL)]
    assert worst(some) is Level.CRITICAL
    stopped = replace(with_inflight(waiting=(WAITING,)), owner=None)
    levels = [one.level for one in find(stopped, NOW, Limits(lag_ms=1))]
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
    for one in find(snapshot, now, Limits(0, 0, 0)):
        assert not one.sentence[0].islower()
        assert one.remedy
        assert "None" not in one.sentence + one.remedy
    document = status_of(snapshot, now)
    assert msgspec.json.decode(msgspec.json.encode(document)) == document | {
        "findings": [one | {"shards": list(one["shards"])} for one in document["findings"]]
    }
    assert (document["level"] == "ok") == (not [o for o in document["findings"] if o["level"] != "note"])


def test_a_record_that_a_bolt_holds_has_not_failed() -> None:
    held = msgspec.structs.replace(WAITING, failures=(Failure(NOW, "HELD (bolt join)"),))
    (found,) = [one for one in find(with_inflight(waiting=(held,)), NOW) if one.code in ("held", "retrying")]
    assert (found.code, found.level) == ("held", Level.NOTE)
    assert "Bolts hold 1 record that wait for others: HELD (bolt join)" in found.sentence
    both = codes(with_inflight(waiting=(held, msgspec.structs.replace(WAITING, last="77", first="77"))))
    assert {"held", "retrying"} <= both.keys()
