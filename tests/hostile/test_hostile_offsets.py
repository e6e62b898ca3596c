"""Offsets in Spark's checkpoint: a plan that can be stored and read, or an error that says which checkpoint."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import samples
from hostility import hostile, mutated, mutated_json, read_bounded
from hypothesis import given, strategies as st
from node_samples import MANY, SHARD, WIDE

from kinesis_trident.checkpoint.model import nodes
from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.spout.errors import OffsetError
from kinesis_trident.spout.planner.offsets import name_shards_in_home, offset_from_plan, plan_from_offset
from kinesis_trident.spout.positions import parse_position
from kinesis_trident.tracker.records import RecordPosition

PLANS = [
    samples.plan(),
    samples.plan(retries={SHARD: (samples.run(1, 4),)}, dead={SHARD: (samples.run(7),)}, limit=10),
    samples.plan(retries={SHARD: MANY}),
    samples.plan(read=(SHARD,), positions=WIDE),
]
OFFSETS = [offset_from_plan(plan) for plan in PLANS]
TEXTS = [json.dumps(offset).encode() for offset in OFFSETS]


def read(offset: Any) -> None:
    def call() -> nodes.Plan:
        return plan_from_offset(offset)

    # A zlib stream may be a thousand times as large as its text.
    plan = read_bounded(
        call, len(str(offset)), OffsetError, "Spark's checkpoint", "checkpointLocation", memory=2000
    )
    if plan is None:
        return
    plan = name_shards_in_home(plan, Layout("/r", "app", "orders", 1))
    for position in plan.positions.values():
        parse_position(position)
    for runs in (*plan.retries.values(), *plan.dead.values(), *plan.notDone.values()):
        for run in runs:
            assert isinstance(run.last_position, RecordPosition)
    stored = encode(nodes.BatchNode(epoch=1, plan=plan))
    assert decode("batch", stored, nodes.BatchNode).plan == plan
    assert plan_from_offset(json.loads(json.dumps(offset_from_plan(plan)))) == plan


@hostile
@given(mutated_json(OFFSETS))
def test_wrong_offsets(offset: Any) -> None:
    read(offset)


@hostile
@given(mutated(TEXTS))
def test_damaged_offsets(text: bytes) -> None:
    try:
        offset = json.loads(text)
    except (ValueError, RecursionError):
        # Spark's own log is damaged: it stops before it asks us.
        return
    read(offset)


@hostile
@given(st.binary(max_size=100), st.sampled_from(["retries", "positions"]))
def test_damaged_packed_fields(data: bytes, field: str) -> None:
    offset = json.loads(TEXTS[2 if field == "retries" else 3])
    assert isinstance(offset[field], str)
    for packed in (data, zlib.compress(data)):
        read({**offset, field: base64.b64encode(packed).decode()})


def test_the_samples_are_right() -> None:
    assert [plan_from_offset(json.loads(text)) for text in TEXTS] == PLANS
