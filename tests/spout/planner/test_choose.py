"""The rules of `choose`, each by moments in which it answers, and by what comes first where several would."""

from __future__ import annotations

import random
from dataclasses import replace as replace_fields
from typing import Any

import pytest
from msgspec.structs import replace

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, ShardLineage
from kinesis_trident.checkpoint.model.pauses import Pause
from kinesis_trident.spout.errors import ExhaustedError
from kinesis_trident.spout.kinesis import ShardMissingError
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.choose import (
    RULES,
    Course,
    LookAt,
    Moment,
    Next,
    Planned,
    Round,
    Wait,
    choose,
)
from kinesis_trident.spout.planner.pace import LookTimes
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.planner.tip.alignment import HOLD_MS, Alignment
from kinesis_trident.spout.planner.tip.looks import Look
from kinesis_trident.spout.positions import TRIM_HORIZON, After
from kinesis_trident.tracker.records import PendingRun, RecordPosition, Run

NOW, STEADY = 1_700_000_000_000, 5_000.0
HOUR_MS = 3_600_000
OPTIONS = {
    "streamName": "orders",
    "region": "us-east-1",
    "applicationName": "app",
    "zookeeper.hosts": "memory:1",
    "onExhausted": "skip",
}
MISSING = ShardMissingError("no such shard")


def after(number: int) -> After:
    return After(RecordPosition(number))


def state(number: int = 9, inflight: InflightNode | None = None, **node: Any) -> ShardState:
    found = CheckpointNode(checkpoint=None, txid=1, position=str(after(number)), **node)
    return ShardState(TRIM_HORIZON, found, inflight)


def run(due: int, last: str = "5") -> Run:
    return Run(first=last, last=last, due=due)


def waits(due: int) -> InflightNode:
    return InflightNode(txid=1, waiting=(run(due),))


def unacked(due: int) -> InflightNode:
    return InflightNode(txid=1, waiting=(), pending=(PendingRun(txid=1, due=due, open=(0, 1)),))


def shards(**states: ShardState) -> Shards:
    return Shards("parentFirst", states, {name: ShardLineage() for name in states}, settled=1)


def paused(until: int | None, *, everything: bool = False) -> Shards:
    """Return a shard that is paused, and was so at `NOW`."""
    one = Pause("", NOW - 1, "why", "me@here", until, everything)
    return replace_fields(shards(a=state()), pauses={one: one}, paused_at=NOW - 1)


def look_at(at: float, sights: Sights, **more: bool | None) -> Sights:
    """Return the sights after looks, at so many steady seconds."""
    looks = {
        name: Look(ShardCursor(after(9)), more=found, at=NOW, arrival=NOW if found else None)
        for name, found in more.items()
    }
    return sights.take(looks, {}, int(at * 1000))


def seen(**more: bool | None) -> Sights:
    """Return sights of looks that were made just now."""
    return look_at(STEADY, Sights(LookTimes.of()), **more)


LISTED = Course(STEADY, None, listing=STEADY + 1, listing_all=STEADY + 60)


def moment(options: dict[str, str] | None = None, **given: Any) -> Moment:
    """Return a moment in which there is nothing to do, but for what is given."""
    usual: dict[str, Any] = {
        "shards": shards(a=state()),
        "sights": seen(a=False),
        "course": LISTED,
        "requests": False,
        "stop": False,
        "drain": 0,
        "options": SourceOptions.parse(OPTIONS | (options or {})),
        "layout": Layout("/kinesis-trident", "app", "orders", 1),
        "epoch": 3,
        "created": {"orders": 1},
        "bound": NOW,
        "ended_open": 0,
        "max_records": None,
        "now": NOW,
        "steady": STEADY,
        "dice": random.Random(1),
    }
    return Moment(**usual | given)


EXPLICIT = {"ackMode": "explicit"}
MORE: dict[str, Any] = {"shards": shards(a=state()), "sights": seen(a=True)}
DRAINS = seen(a=False).stop_at_tip(NOW)
FAILED = replace(
    LISTED, round=Round(rule=RULES.index(next(r for r in RULES if r.__name__ == "_check_looks")))
)

CASES: dict[str, tuple[Moment, Next | str]] = {
    "nothing": (moment(), Wait(0.4)),
    "a request to drain": (moment(stop=True, drain=1, requests=True), "drain"),
    "the same request": (
        moment(stop=True, drain=1, course=replace(LISTED, drain=1), sights=DRAINS),
        Wait(0.4),
    ),
    "another request": (moment(stop=True, drain=2, course=replace(LISTED, drain=1), sights=DRAINS), "drain"),
    "one that drains by itself": (moment(stop=True, drain=1, sights=DRAINS), Wait(0.4)),
    "nobody asks any longer": (moment(course=replace(LISTED, drain=1), sights=DRAINS), "go on"),
    "a request to stop": (moment(stop=True, requests=True), Wait(0.4, "stopped")),
    "what was read ahead": (moment({"prefetch": "true"}, requests=True), "take looks"),
    "a listing": (moment(course=Course(STEADY, None, listing_all=STEADY + 1), requests=True), "list new"),
    "a full listing": (moment(course=Course(STEADY, None), requests=True), "list all"),
    "an open shard that has ended": (moment(ended_open=1), "list new"),
    "a request": (moment(requests=True), "take requests"),
    "a pause": (moment(pauses=True, requests=True), "take pauses"),
    "the end of a pause": (moment(shards=paused(NOW), sights=seen(a=True)), "take pauses"),
    "a pause that ends later": (moment(shards=paused(NOW + 200), sights=seen(a=True)), Wait(0.2)),
    "a paused shard with more": (moment(shards=paused(None), sights=seen(a=True)), Wait(0.4)),
    "a drain of what is paused": (
        moment(shards=paused(None), sights=DRAINS),
        Wait(0.0, "drained", left=("a",)),
    ),
    "a retry of what is paused": (
        moment(shards=replace_fields(paused(None), states={"a": state(inflight=waits(NOW))})),
        "plan",
    ),
    "a retry where all is paused": (
        moment(
            shards=replace_fields(paused(None, everything=True), states={"a": state(inflight=waits(NOW))})
        ),
        Wait(0.4),
    ),
    "a retry": (moment(shards=shards(a=state(inflight=waits(NOW)))), "plan"),
    "a retry of explicit acks": (
        moment(EXPLICIT, shards=shards(a=state(inflight=waits(NOW)))),
        "take requests",
    ),
    "a retry that is not due": (moment(shards=shards(a=state(inflight=waits(NOW + 100)))), Wait(0.1)),
    "a time-out": (moment(EXPLICIT, shards=shards(a=state(inflight=unacked(NOW)))), "take requests"),
    "a shard of which nothing is known": (moment(sights=Sights(LookTimes.of())), "look"),
    "a machine that has stood still": (moment(bound=NOW - 2 * HOUR_MS), "check retention"),
    "new records": (moment(**MORE), "plan"),
    "a failed look": (moment(course=FAILED.note(error=MISSING), **MORE), "explain"),
    "one that reads from the start": (
        moment(
            shards=shards(a=ShardState(TRIM_HORIZON)),
            sights=seen(a=True).take({"a": Look(ShardCursor(TRIM_HORIZON), more=True)}, {}),
        ),
        "describe",
    ),
    "all is drained": (
        moment(sights=look_at(STEADY, DRAINS, a=False)),
        Wait(0.0, "drained"),
    ),
    "all is drained, but for a retry": (
        moment(
            shards=shards(a=state(inflight=waits(NOW + 100))),
            sights=look_at(STEADY, DRAINS, a=False),
        ),
        Wait(0.1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_rule_that_applies_answers(name: str) -> None:
    at, expected = CASES[name]
    found, _, course = choose(at)
    if isinstance(expected, Wait):
        assert found == expected
    else:
        kinds = {LookAt: "look", Planned: "plan"}
        assert kinds.get(type(found), found) == expected
    # A round ends with a plan or a wait.
    assert (course.round == Round()) is isinstance(found, Planned | Wait)


def follow(at: Moment, **then: Any) -> tuple[Next, Sights, Course]:
    """Return the answer after the first one, in a moment in which more is known."""
    _, sights, course = choose(at)
    for name, value in {"sights": sights, "course": course, **then}.items():
        setattr(at, name, value)
    return choose(at)


def test_an_ack_that_came_in_time_is_not_timed_out() -> None:
    held = {"shards": shards(a=state(inflight=unacked(NOW)))}
    assert choose(moment(EXPLICIT, **held))[0] == "take requests"
    assert follow(moment(EXPLICIT, **held))[0] == "time out"
    assert follow(moment(EXPLICIT, **held), shards=shards(a=state()))[0] == Wait(0.4)


def test_looks_that_were_left_out_come_after_a_plan() -> None:
    at = moment(shards=shards(a=state(), b=state()), sights=Sights(LookTimes.of()))
    asked, _, _ = choose(at)
    assert isinstance(asked, LookAt)
    assert list(asked.questions) == ["a", "b"]
    planned, sights, course = follow(at, sights=seen(a=True))
    assert isinstance(planned, Planned)
    assert planned.plan.read == ("a",)
    again, _, _ = choose(moment(shards=at.shards, sights=sights, course=course))
    assert isinstance(again, LookAt)
    assert list(again.questions) == ["b"]


@pytest.mark.parametrize("changed", [True, False, None])
def test_a_look_that_fails_is_made_again_where_a_listing_explains_it(changed: bool | None) -> None:
    at = moment(course=FAILED.note(error=MISSING), sights=Sights(LookTimes.of()))
    found, sights, course = choose(at)
    assert found == "explain"
    at = moment(course=course.note(changed=changed), sights=sights)
    if changed is False:
        with pytest.raises(ShardMissingError):
            choose(at)
    else:
        found, _, _ = choose(at)
        # Where nobody knows, what is due besides is still planned.
        assert isinstance(found, LookAt if changed else Wait)


def test_an_exhausted_record_ends_a_query_that_may_not_bury_it() -> None:
    dead = shards(a=state(inflight=InflightNode(txid=1, waiting=(), dead=(run(0),))))
    with pytest.raises(ExhaustedError):
        choose(moment({"onExhausted": "fail"}, shards=dead))
    assert isinstance(choose(moment(shards=dead))[0], Planned)


def test_who_waits_for_whom_is_known_after_the_choice() -> None:
    """A shard whose reads are refused holds the one that is ahead of it, and for five minutes."""
    behind, ahead = state(arrival=NOW - 5 * HOUR_MS), state(arrival=NOW - HOUR_MS)
    sights = seen(a=True, b=True)
    known = {name: replace(sights.of(name), look=None, unmoved=name == "a") for name in "ab"}
    sights = sights.put(known)
    course = replace(LISTED, alignment=Alignment(HOUR_MS))
    given: dict[str, Any] = {"shards": shards(a=behind, b=ahead)}
    planned, sights, course = choose(moment(sights=sights, course=course, **given))
    assert isinstance(planned, Planned)
    assert (planned.plan.read, planned.plan.upto) == (("a",), NOW - 4 * HOUR_MS)
    assert (course.read.stuck, course.read.waits) == ({"a": int(STEADY * 1000)}, {"b"})
    later = STEADY + HOLD_MS / 1000
    course = replace(course, listing=later + 1, described=later)
    at = moment(sights=sights, course=course, steady=later, now=NOW + HOLD_MS, **given)
    said, sights, course = choose(at)
    assert (said, course.read.passed) == ("say", ["a"])
    assert (course.read.told, course.read.waits) == ({"a"}, set())
    planned, _, course = choose(
        moment(sights=sights, course=course, steady=later, now=NOW + HOLD_MS, **given)
    )
    assert isinstance(planned, Planned)
    assert planned.plan.read == ("a", "b")
    assert course.alignment is not None
    assert course.alignment.planned == (int(STEADY * 1000), int(later * 1000))


def test_the_last_rule_always_answers() -> None:
    last = replace(LISTED, round=Round(rule=len(RULES) - 1))
    assert choose(moment(course=last))[0] == Wait(0.4)
