"""What the findings and the figures make of shards that stand: blocked, refused, or of a stream that is not read."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from samples_console import CHILD, HEALTHY, NEW, NOW, STATUS, TIP, WAITING

from kinesis_trident.checkpoint.model.nodes import InflightNode, ShardLineage
from kinesis_trident.checkpoint.model.run_status import RunEnd, Seen
from kinesis_trident.console.examination import retention_result
from kinesis_trident.console.figures import HomeFacts
from kinesis_trident.console.rules import find
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.views import VIEWS
from kinesis_trident.spout.kinesis import StreamInfo

MINUTE, HOUR = 60_000, 3_600_000


def with_a_closed_parent(**seen: object) -> Snapshot:
    """A shard that was split; its child has waited for it for more than half an hour."""
    shards = {
        CHILD: ShardLineage(state="closed"),
        NEW: ShardLineage(parents=(CHILD,), listed=NOW - 41 * MINUTE),
    }
    status = msgspec.structs.replace(STATUS, shards={CHILD: Seen(**seen), NEW: Seen()})  # type: ignore[arg-type]
    return replace(HEALTHY, status=status, shards=shards, checkpoints={CHILD: TIP})


def blocked() -> Snapshot:
    node = InflightNode(txid=7, waiting=(WAITING,), blocked="1 failed run waits: the shard reads nothing new")
    return replace(with_a_closed_parent(), inflight={CHILD: node})


def refused() -> Snapshot:
    return with_a_closed_parent(refused=NOW - HOUR, why="throttled")


def parked() -> Snapshot:
    return replace(with_a_closed_parent(), active=())


def test_a_parent_that_reads_and_has_read_everything_is_said_not_to_end() -> None:
    assert "parent-does-not-end" in codes(with_a_closed_parent())


@pytest.mark.parametrize(
    "snapshot",
    [
        pytest.param(blocked(), id="blocked"),
        pytest.param(refused(), id="refused"),
        pytest.param(parked(), id="parked"),
        pytest.param(with_a_closed_parent(standing="drain"), id="drain"),
        pytest.param(with_a_closed_parent(standing="ahead"), id="ahead"),
    ],
)
def test_a_parent_that_does_not_read_is_not_blamed_on_kinesis(snapshot: Snapshot) -> None:
    assert "parent-does-not-end" not in codes(snapshot)


def codes(snapshot: Snapshot) -> set[str]:
    return {one.code for one in find(HomeFacts(snapshot, NOW))}


def test_a_cause_of_another_release_is_none_for_this_one() -> None:
    assert "parent-does-not-end" in codes(with_a_closed_parent(standing="of another release"))


def standings(snapshot: Snapshot) -> list[str]:
    return [row["standing"] for row in VIEWS["checkpoints"](snapshot, NOW).rows]


def test_the_table_of_checkpoints_says_why_a_shard_is_not_read() -> None:
    waits = "waits-for-parents"
    assert standings(with_a_closed_parent()) == ["", waits]
    assert standings(blocked()) == ["blocked", waits]
    assert standings(refused()) == ["", waits]
    assert standings(parked()) == ["not-read", "not-read"]
    assert standings(with_a_closed_parent(standing="ahead")) == ["ahead", waits]
    assert "standing" in VIEWS["checkpoints"](blocked(), NOW).columns
    assert "standing" not in VIEWS["checkpoints"](HEALTHY, NOW).columns
    # What the last run saw holds no longer; what is stored does.
    assert standings(replace(with_a_closed_parent(standing="ahead"), owner=None)) == ["", waits]
    ended = ShardLineage(state="drained")
    assert standings(replace(blocked(), shards={CHILD: ended})) == [""]


def test_a_drain_that_has_ended_holds_no_shard() -> None:
    """Whether its last status came before or after its end, which is a matter of moments, is not seen."""
    drained = with_a_closed_parent(standing="drain")
    assert drained.status is not None
    assert standings(drained)[0] == "drain"
    at = drained.status.time
    end = RunEnd(epoch=drained.epoch, host="driver", pid=1, since=at, at=at, how="finished")
    assert standings(replace(drained, ends=(end,)))[0] == ""
    asked = msgspec.structs.replace(drained.status, time=at + 1)
    assert standings(replace(drained, ends=(end,), status=asked))[0] == "drain"


def test_a_shard_that_retention_has_removed_does_not_hide_the_lag_of_the_others() -> None:
    """It has records in flight, and nothing more to read: that nobody looks at it is no news."""
    inflight = {"shardId-000000000007": InflightNode(txid=7, waiting=(WAITING,))}
    late = msgspec.structs.replace(STATUS, shards={"shardId-000000000007": Seen()})
    numbers = HomeFacts(replace(HEALTHY, inflight=inflight, status=late), NOW).figures
    assert (numbers.lag_ms, numbers.retrying) == (0, WAITING.count)
    # Where the lineage cannot be read, nobody knows what is there.
    assert HomeFacts(replace(HEALTHY, shards={}), NOW).figures.lag_ms is None


def unknown() -> Snapshot:
    """A shard that was refused, and not looked at lately."""
    status = msgspec.structs.replace(STATUS, shards={CHILD: Seen(refused=NOW - HOUR, why="unavailable")})
    return replace(HEALTHY, status=status)


def test_a_lag_that_nobody_knows_is_no_comfort() -> None:
    assert HomeFacts(unknown(), NOW).figures.lag_ms is None


def test_a_retention_that_nobody_knows_is_no_comfort() -> None:
    assert HomeFacts(unknown(), NOW).figures.retention_left_ms is None


def test_a_stream_that_is_not_read_has_no_part_in_the_lag() -> None:
    """It may stand for days: the sum is of what the run reads, and so is what expires next."""
    status = msgspec.structs.replace(STATUS, shards={CHILD: Seen(NOW, NOW - 23 * HOUR)})
    read = replace(HEALTHY, status=status)
    assert HomeFacts(read, NOW).figures.lag_ms == 23 * HOUR
    numbers = HomeFacts(replace(read, active=()), NOW).figures
    assert not numbers.lag_ms
    assert numbers.retention_left_ms is None
    assert not codes(replace(read, active=())) & {"retention", "falling-behind"}


def of_doctor(snapshot: Snapshot, stream: str = "orders", hours: int = 24) -> list[tuple[str, str]]:
    info = StreamInfo(stream, f"arn:aws:kinesis:eu-west-1:1:stream/{stream}", 0, hours, "ACTIVE", NOW)
    return [(one.state, one.says) for one in retention_result(snapshot, NOW, info)]


def test_the_doctor_knows_what_expires_of_a_stream_that_is_not_read_from_what_was_left() -> None:
    """The status speaks of what is read: a shard that it does not name is at its tip only there."""
    left_out = replace(HEALTHY, active=())
    assert of_doctor(HEALTHY) == [("ok", "24 h, and all is read")]
    assert of_doctor(left_out) == []
    left = msgspec.structs.replace(TIP, behind_ms=MINUTE, arrival=NOW - 23 * HOUR)
    left_out = replace(left_out, checkpoints={CHILD: left})
    old = "the oldest unread record is 23h 00m old"
    assert of_doctor(left_out) == [("warning", f"24 h, and {old}")]
    assert of_doctor(left_out, hours=23) == [("failed", f"23 h, and {old}")]
    assert of_doctor(left_out, hours=46) == [("ok", f"46 h, and {old}")]


def test_the_doctor_says_nothing_of_a_stream_of_which_no_shard_is_known() -> None:
    assert of_doctor(HEALTHY, "payments") == []


@pytest.mark.parametrize("hours", [12, 13, 14, 25, 26, 30])
def test_the_doctor_warns_of_what_the_status_says_expires(hours: int) -> None:
    """Also beside a shard whose lag nobody knows."""
    status = msgspec.structs.replace(
        STATUS, shards={CHILD: Seen(NOW, NOW - 13 * HOUR), NEW: Seen()}, retention={"orders": hours}
    )
    snapshot = replace(HEALTHY, status=status, checkpoints={CHILD: TIP})
    ((state, says),) = of_doctor(snapshot, hours=hours)
    assert says == f"{hours} h, and the oldest unread record is 13h 00m old"
    assert (state == "ok") == ("retention" not in codes(snapshot))
