"""The ids of a turn's rows follow from its plan and pin: records that wait for their acks are those of the rows."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import reduce
from operator import xor

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from thorough import examples

from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import InflightNode, Pin
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.planner.plan import ShardState, make_plan
from kinesis_trident.spout.planner.settling.settlement import CommittedTurn, InflightRules, settle_shard
from kinesis_trident.spout.positions import After
from kinesis_trident.spout.reader.rows import ANCHORS, Segment, TurnRows
from kinesis_trident.tracker.acker import Acker, TreeOutcome
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.open_shard import OpenShard
from kinesis_trident.tracker.position_keys import keys_of_texts, merge_keys, pack_in_parts
from kinesis_trident.tracker.records import RecordPosition, Run, begin_of
from kinesis_trident.tracker.retry import Fates, RetryPolicy

STREAM, SHARD = "orders", "shardId-000000000000"
NOW = 1_700_000_000_000


def batch(sequences: range, subs: list[int] | None = None) -> pa.RecordBatch:
    count = len(sequences)
    columns = [
        pa.array(["k"] * count),
        pa.array([b"{}"] * count, pa.binary()),
        pa.array([str(one) for one in sequences]),
        pa.array(subs or [-1] * count, pa.int64()),
        pa.array([1] * count, pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


class DrawnTurn:
    """A turn as a task pins it: runs that are due, of which some are dead, gone or not reached, and new records."""

    def __init__(self, seed: int) -> None:
        r = random.Random(seed)
        sizes = [r.randint(1, 4) for _ in range(r.randint(0, 5))]
        runs = [Run(str(100 * at + 1), str(100 * at + size), size) for at, size in enumerate(sizes, 1)]
        is_dead = [r.random() < 0.3 for _ in runs]
        waiting = tuple(run for run, dead in zip(runs, is_dead, strict=True) if not dead)
        dead = tuple(run for run, dead in zip(runs, is_dead, strict=True) if dead)
        inflight = InflightNode(txid=41, waiting=waiting, dead=dead, counted=True)
        self.state = ShardState(After(RecordPosition(900)), None, inflight)
        plan = make_plan(
            txid=42,
            plan="mark",
            streams={STREAM: 1},
            states={SHARD: self.state},
            read=[SHARD],
            now=NOW,
            max_records=None,
        )
        assert plan is not None
        served, missing, segments = list[int](), list[int](), list[Segment]()
        for index, (run, skips) in enumerate(plan.due(SHARD)):
            if r.random() < 0.1:
                break
            count = run.count if skips or r.random() < 0.7 else r.randrange(run.count)
            if count < run.count:
                missing.append(index)
            served.append(count)
            if count and not skips:
                last = int(run.last)
                segments.append(Segment([batch(range(last - count + 1, last + 1))], run.attempt + 1))
        fresh = r.choice([0, 1, 7]) if segments else r.choice([1, 7])
        if fresh:
            subs = [-2 if r.random() < 0.2 else -1 for _ in range(fresh)]
            segments.append(Segment([batch(range(901, 901 + fresh), subs)], 1))
        self.rows = TurnRows(STREAM, SHARD, 5, 42, 77, segments)
        self.plan = plan
        last = str(900 + fresh)
        self.pin = Pin(
            txid=42,
            plan=plan.plan,
            epoch=1,
            start=plan.positions[SHARD],
            end=str(After(RecordPosition(last))),
            last=last if fresh else None,
            count=self.rows.count,
            fresh=fresh,
            digest="",
            xor=self.rows.xor(),
            served=tuple(served),
            missing=tuple(missing),
            through=plan.due(SHARD)[len(served) - 1][0].last if served else None,
            positions=pack_in_parts(self.rows.keys()),
            unreadable=self.rows.find_unreadable(),
        )

    def settle(self, pin: Pin) -> ShardState:
        rules = InflightRules(RetryPolicy(), random.Random(1), 1_000, timeout=30_000)
        turn = CommittedTurn(self.plan, SHARD, f"{STREAM}/{SHARD}", pin, pin.unreadable, NOW)
        return settle_shard(self.state, turn, rules)[0]


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_a_pin_and_its_positions_belong_together(seed: int, data: st.DataObject) -> None:
    turn = DrawnTurn(seed)
    pin = turn.pin
    assert delivered(turn.settle(pin)) == pin.rows
    edges = [edge for some in turn.rows.record_batches() for edge in edges_of(some)]
    if edges:
        acker = Acker()
        acker.init(1, pin.xor)
        said = [acker.ack(1, edge) for edge in data.draw(st.permutations(edges))]
        assert said == [None] * (len(edges) - 1) + [TreeOutcome.ACKED]
    bit = 1 << data.draw(st.integers(0, 62))
    with pytest.raises(OrderError, match="pin and positions do not belong together"):
        turn.settle(msgspec.structs.replace(pin, xor=pin.xor ^ bit))
    turn.settle(msgspec.structs.replace(pin, xor=pin.xor % 2**64))


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_the_rows_that_are_open_are_what_an_acker_of_their_turn_has_left(
    seed: int, data: st.DataObject
) -> None:
    """Zero and no row open are one: the ids follow from the rows, so that which of them are open says all."""
    turn = DrawnTurn(seed)
    edges = {
        MessageId.parse(name).last: edge
        for some in turn.rows.record_batches()
        for name, edge in zip(some.column("messageId").to_pylist(), edges_of(some), strict=True)
    }
    kept, acker, value = turn.settle(turn.pin).kept, Acker(), turn.pin.xor
    if not edges or kept is None:
        return
    shard, fates = kept.records, Fates(RetryPolicy(1), NOW, random.Random(1))
    acker.init(1, value)
    some = st.lists(st.sampled_from([*edges, RecordPosition(95)]), min_size=1, max_size=4)
    for what, named in [*data.draw(st.lists(st.tuples(st.sampled_from("aaf"), some))), ("a", list(edges))]:
        keys, before = merge_keys([keys_of_texts(list(map(str, named)))]), open_rows(shard, edges)
        if what == "a":
            shard, _ = shard.ack(keys)
        else:
            shard, _ = shard.fail(keys, "no", fates)
        left = open_rows(shard, edges)
        assert left <= before
        assert what == "f" or not left & {*named}
        said = [acker.ack(1, edges[one]) for one in before - left]
        for one in before - left:
            value ^= edges[one]
        assert value == reduce(xor, [edges[one] for one in left], 0)
        assert (value == 0) == (not left)
        assert said == [None] * (len(said) - 1) + [None if left else TreeOutcome.ACKED] * bool(said)


def open_rows(shard: OpenShard, rows: Iterable[RecordPosition]) -> set[RecordPosition]:
    """The rows that wait for their acks, or are in a run."""
    waits = {at for turn in shard.held.values() for at in turn.keys[turn.waits > 0].positions}
    runs = [*shard.waiting, *shard.dead]
    return {at for at in rows if at in waits or any(begin_of(run) <= at <= run.last_position for run in runs)}


def delivered(after: ShardState) -> int:
    """The number of records that wait for their acks."""
    return sum(run.count for run in after.pending)


def edges_of(rows: pa.RecordBatch) -> list[int]:
    edges: list[int] = rows.column(ANCHORS).flatten().field("edge").to_pylist()
    return edges


def test_positions_of_another_turn_are_refused_and_lost_ones_are_not_known() -> None:
    turn = next(turn for turn in map(DrawnTurn, range(100)) if turn.pin.rows > 2)
    keys = turn.rows.keys()
    fewer = msgspec.structs.replace(turn.pin, positions=pack_in_parts(keys[np.arange(1, len(keys))]))
    with pytest.raises(OrderError, match="pin and positions do not belong together"):
        turn.settle(fewer)
    fresh = next(turn for turn in map(DrawnTurn, range(100)) if not turn.pin.served and turn.pin.rows > 2)
    keys = fresh.rows.keys()
    positions = pack_in_parts(keys[np.arange(1, len(keys))])
    lost = msgspec.structs.replace(fresh.pin, positions=positions, lost=1)
    assert delivered(fresh.settle(lost)) > 0
