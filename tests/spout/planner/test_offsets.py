"""Plans as the offsets that Spark logs, and back."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, Plan
from kinesis_trident.spout.errors import OffsetError
from kinesis_trident.spout.planner.offsets import (
    Offsets,
    adopt_nodes,
    is_any_beyond,
    name_shards_in_home,
    offset_from_plan,
    plan_from_offset,
)
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.tracker.records import Noted, Run

NAMES = ["shardId-000000000000", "shardId-000000000001"]
SHARDS = st.sampled_from(NAMES)
POSITIONS = st.integers(0, 10**128).map(str)
RUNS = st.builds(
    Run,
    first=st.one_of(st.just(""), POSITIONS),
    last=POSITIONS,
    count=st.integers(1, 10**6),
    prev=st.none() | POSITIONS,
    attempt=st.integers(0, 100),
    due=st.integers(0, 2**43),
    failures=st.lists(st.builds(Noted, time=st.integers(0, 2**43), text=st.text(max_size=20))).map(tuple),
)
BY_SHARD = st.dictionaries(SHARDS, st.lists(RUNS, max_size=3).map(tuple))
PLANS = st.builds(
    Plan,
    txid=st.integers(0, 2**53),
    plan=st.text("0123456789abcdef", max_size=32),
    streams=st.dictionaries(st.text(max_size=5), st.integers(0, 2**43)),
    positions=st.fixed_dictionaries(
        dict.fromkeys(NAMES, st.just("TRIM_HORIZON") | POSITIONS.map("AFTER_SEQUENCE_NUMBER {}".format))
    ),
    read=st.sets(SHARDS).map(lambda shards: tuple(sorted(shards))),
    retries=BY_SHARD,
    dead=BY_SHARD,
    notDone=BY_SHARD,
    limit=st.none() | st.integers(1, 10**6),
)


@given(PLANS)
def test_a_plan_comes_back_from_sparks_log_as_it_was(plan: Plan) -> None:
    assert plan_from_offset(json.loads(json.dumps(offset_from_plan(plan)))) == plan


def offset(**changes: Any) -> dict[str, Any]:
    return {"v": 1, "txid": 3, "plan": "p", "streams": {"s": 1}, "positions": {}} | changes


def test_an_offset_that_comes_again_is_not_read_again_and_a_changed_one_is() -> None:
    """Spark passes the offset of a batch as its end, as the next one's start, and as what that one begins after."""
    offsets = [
        json.dumps(offset_from_plan(Plan(txid=txid, plan=f"p{txid}", streams={"s": 1}, positions={})))
        for txid in range(3)
    ]
    reader = Offsets()
    read = [reader.plan(json.loads(offset)) for offset in offsets]
    assert [plan.txid for plan in read] == [0, 1, 2]
    assert reader.plan(json.loads(offsets[2])) is read[2]
    assert reader.plan(json.loads(offsets[1])) is read[1]
    # As after a restart of the query without a batch of its own.
    assert reader.plan(json.loads(offsets[0])) == read[0]
    made = Plan(txid=3, plan="p3", streams={"s": 1}, positions={})
    assert reader.plan(json.loads(json.dumps(reader.offset(made)))) is made
    with pytest.raises(OffsetError):
        reader.plan({"v": 1})


def test_after_an_offset_of_another_process_all_further_ones_come_back_without_being_read() -> None:
    plans = [Plan(txid=txid, plan=f"p{txid}", streams={"s": 1}, positions={}) for txid in range(6)]
    logged = [json.dumps(offset_from_plan(plan)) for plan in plans]
    offsets = Offsets()
    offsets.offset(plans[0])
    # As if another process had made the start of the batch, after this one has made its end.
    offsets.offset(plans[2])
    offsets.plan(json.loads(logged[1]))
    for before, made in pairwise(plans[2:]):
        # What Spark calls in each batch: the next offset, and the partitions between the two.
        assert offsets.plan(json.loads(logged[before.txid])) is before
        offsets.offset(made)
        assert offsets.plan(json.loads(logged[before.txid])) is before
        assert offsets.plan(json.loads(logged[made.txid])) is made


def test_an_offset_of_a_newer_release_is_named_as_such() -> None:
    says = r"written by a newer release .*\(version 7 of its format\).* versions 1, 4, 6\. Use that release again"
    with pytest.raises(OffsetError, match=says):
        plan_from_offset(offset(v=7))


@pytest.mark.parametrize("version", [0, -1, "1", None, 1.5])
def test_a_version_that_is_none_is_refused(version: object) -> None:
    with pytest.raises(OffsetError, match="not ours"):
        plan_from_offset(offset(v=version))


def test_an_offset_of_another_source_is_refused() -> None:
    with pytest.raises(OffsetError, match="missing required field `v`"):
        plan_from_offset({"shardId-0": "123"})


@pytest.mark.parametrize(
    "wrong",
    [
        offset(txid="3"),
        {key: value for key, value in offset().items() if key != "positions"},
        offset(retries={"s": [{"first": "1"}]}),
        offset(retries={"s": [{"last": 1}]}),
    ],
)
def test_what_is_no_offset_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OffsetError, match="not ours"):
        plan_from_offset(wrong)
    assert plan_from_offset(offset()).txid == 3


def test_a_plan_of_a_stream_read_alone_names_its_shards_as_the_home_of_several_does() -> None:
    by_shard = [
        field.name
        for field in msgspec.structs.fields(Plan)
        if field.name != "streams" and getattr(field.type, "__origin__", None) is dict
    ]
    assert {"positions", "retries"} < set(by_shard)
    alone = Plan(txid=1, plan="p", streams={"orders": 7}, positions={})
    filled = msgspec.structs.replace(alone, read=("s1",), **{name: {"s1": "x"} for name in by_shard})
    home = Layout("/", "app")
    moved = name_shards_in_home(filled, home)
    assert moved.read == ("orders@7/s1",)
    assert {shard for name in by_shard for shard in getattr(moved, name)} == {"orders@7/s1"}
    assert name_shards_in_home(moved, home) == moved
    assert name_shards_in_home(filled, Layout("/", "app", "orders", 7)) == filled


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"read": ["b", "a"]}, "read is not sorted"),
        ({"read": ["z"]}, "names shard 'z', which has no position"),
    ],
)
def test_an_offset_that_contradicts_itself_is_refused(changes: dict[str, Any], says: str) -> None:
    positions = {"a": "TRIM_HORIZON", "b": "TRIM_HORIZON"}
    with pytest.raises(OffsetError, match=says):
        plan_from_offset(offset(positions=positions, **changes))


@pytest.mark.parametrize(("at", "beyond"), [("4", True), ("5", False), ("6", False)])
def test_a_shard_that_stands_where_an_offset_starts_takes_what_the_offset_would_have_retried(
    at: str, beyond: bool
) -> None:
    """Beyond it, what is done stays done. Where both are at one record, nothing is done that the offset has open."""
    (shard, _), failed = NAMES, Run(first="3", last="3", count=1, prev="2", attempt=1, due=0, failures=())
    stands = ShardState(
        TRIM_HORIZON, CheckpointNode(checkpoint="5", txid=7, position="AFTER_SEQUENCE_NUMBER 5")
    )
    plan = Plan(
        txid=8,
        plan="p",
        streams={"s": 1},
        positions={shard: f"AFTER_SEQUENCE_NUMBER {at}"},
        read=(shard,),
        retries={shard: (failed,)},
    )
    assert is_any_beyond(plan, {shard: stands}) == beyond
    ((node, inflight),) = adopt_nodes(plan, {shard: stands}, 8).values()
    assert (inflight.waiting if inflight else ()) == (() if beyond else (failed,))
    assert node.position == f"AFTER_SEQUENCE_NUMBER {'5' if beyond else at}"
