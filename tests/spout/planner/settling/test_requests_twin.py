"""Drawn requests, timeouts and starts: the units of `step` are the amendments that were made before it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st
from thorough import examples
from twins.old_requests import amender as old
from twins.old_requests.shadow import Pairs, amend

from benchmarks.named_records import NOW, RULES, SHARD, held, text, waiting
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import DeadLetterRecord, DeadLettersNode, ExternalNode
from kinesis_trident.checkpoint.model.replays import mark_asked
from kinesis_trident.spout.planner.exhausted import letters_after
from kinesis_trident.spout.planner.plan import KeptShard, ShardState
from kinesis_trident.spout.planner.settling import external_requests as new
from kinesis_trident.spout.planner.settling.shard_events import (
    Amended,
    Requested,
    ShardUnit,
    TimedOut,
)
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.tracker.position_keys import keys_of_texts, merge_keys, pack, sort_keys
from kinesis_trident.tracker.records import Run
from kinesis_trident.tracker.retry import RetryPolicy

STATES = {
    "acks": held(40),
    "failed": held(40, slice(0, None, 4)),
    "waits": waiting(20),
    "new": ShardState(TRIM_HORIZON),
}
LAYOUT = Layout("/k", "app", "orders", 1)
AT_A_TIME = 3


@st.composite
def requests(draw: st.DrawFn) -> ExternalNode:
    """Draw one request; some of its records were never read, and one of named positions may not be readable."""
    op = draw(st.sampled_from(["replay", "replay", "cancel", "bury", "ack", "fail", "reset"]))
    rows = draw(st.lists(st.integers(0, 44), min_size=1, max_size=8))
    attempt = draw(st.sampled_from([None, None, 0, 1, 2]))
    if op in {"replay", "cancel", "bury"}:
        again = draw(st.booleans())
        return ExternalNode(op=op, records=tuple(map(text, rows)), attempt=attempt, again=again)
    packed = pack(sort_keys(keys_of_texts([text(row) for row in rows])))
    positions = draw(st.sampled_from([packed, packed, packed, "1x3:no"]))
    return ExternalNode(op=op, positions=positions, reason="no", attempt=attempt)


ASKED = st.dictionaries(
    st.sampled_from([*STATES, "gone"]),
    st.lists(requests(), min_size=1, max_size=8).map(
        lambda some: {f"{at}": one for at, one in enumerate(some)}
    ),
    min_size=1,
)
EVENTS = st.one_of(
    ASKED.map(Requested), ASKED.map(Requested), ASKED.map(Requested), st.just(TimedOut()), st.just(None)
)


@settings(max_examples=examples(400), deadline=None)
@given(
    events=st.lists(EVENTS, min_size=1, max_size=4),
    buries=st.booleans(),
    limit=st.sampled_from([0, 1, 5]),
    bound=st.sampled_from([1, 5, 100_000]),
    seed=st.integers(0, 9),
)
def test_units_are_what_amendments_were(
    events: list[Requested | TimedOut | None], buries: bool, limit: int, bound: int, seed: int
) -> None:
    rules = replace(
        RULES,
        policy=RetryPolicy(limit),
        rng=random.Random(seed),
        max_retrying=bound,
        max_inflight=bound * 10,
        buries=buries,
    )
    shards, now = Shards("none", states=STATES), NOW
    with pytest.MonkeyPatch.context() as patch:
        for module in (old, new):
            patch.setattr(module, "_REQUESTS_AT_A_TIME", AT_A_TIME)
        for event in events:
            pairs = Pairs(shards, event or shards, rules, LAYOUT, now)
            units = [unit for unit in pairs if isinstance(unit, ShardUnit)]
            after = Amended(units).after(shards)
            assert after == amend(shards, pairs.amendments)[0]
            shards, now = after, now + 400_000


def letter_of(row: int, count: int) -> DeadLetterRecord:
    run = Run(text(row), text(row + count - 1), count, None, 1, NOW)
    message_id = str(MessageId.of_run(LAYOUT.source_of(SHARD), run))
    return DeadLetterRecord(message_id=message_id, attempts=1, reason="no", time=NOW, txid=6, count=count)


LETTERS = st.lists(st.builds(letter_of, st.integers(0, 39), st.integers(1, 3)), max_size=30)


@settings(max_examples=examples(400), deadline=None)
@given(
    count=st.integers(0, 3),
    marked=st.lists(st.integers(0, 39), max_size=8),
    shard=st.sampled_from(["acks", "failed", "waits"]),
    letters=LETTERS,
    is_new=st.booleans(),
)
def test_the_dead_letters_of_a_batch_are_counted_and_marked_as_before(
    count: int, marked: list[int], shard: str, letters: list[DeadLetterRecord], is_new: bool
) -> None:
    state = STATES[shard]
    assert state.checkpoint is not None
    assert state.inflight is not None
    keys = merge_keys([keys_of_texts([text(row) for row in marked])])
    node = None if is_new else mark_asked(DeadLettersNode(count=count, target="old"), keys, NOW)
    kept = KeptShard(state.inflight, RULES.open_shard_of(state).stored(state.waiting, state.dead))
    after = ShardState(state.start, state.checkpoint, state.inflight, kept.records.held.records, kept)
    expected = old.letters_of_batch(node, after, letters, state.inflight.txid, "new")
    assert letters_after(node, after, letters, "new") == expected
