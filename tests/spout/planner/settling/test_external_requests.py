"""Requests that follow each other are taken in together, and do what they do one by one."""

from __future__ import annotations

from hypothesis import example, given, strategies as st

from benchmarks.named_records import NOW, RULES, held, text
from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.spout.planner.settling.external_requests import apply_requests
from kinesis_trident.spout.planner.settling.shard_events import Tally
from kinesis_trident.tracker.position_keys import keys_of_texts, pack, sort_keys

HELD = held(40, slice(0, None, 4))
"""Of 40 records each second is done, one waits for its ack, the next for its retry."""

# Some were never read; a request may name a record that another one names too.
ROWS = st.lists(st.integers(0, 44), min_size=1, max_size=12)


@example([([6], None), ([0, 2, 4], None)])
@given(st.lists(st.tuples(ROWS, st.sampled_from([None, None, 1, 2])), min_size=1, max_size=8))
def test_acks_do_together_what_they_do_one_by_one(some: list[tuple[list[int], int | None]]) -> None:
    asked = {
        f"{at}": ExternalNode(
            op="ack",
            positions=pack(sort_keys(keys_of_texts([text(row) for row in rows]))),
            attempt=attempt,
        )
        for at, (rows, attempt) in enumerate(some)
    }
    shard = RULES.open_shard_of(HELD)
    together, tally, *_ = apply_requests(shard, asked, NOW, RULES)
    summed = Tally()
    for name, node in asked.items():
        shard, one, *_ = apply_requests(shard, {name: node}, NOW, RULES)
        summed = summed.add(one)
    assert tally == summed
    assert together.pending == shard.pending
    assert [*together.waiting] == [*shard.waiting]
    # Of the record before the first open one, those of one request may know less.
    assert shard.safe is None or (together.safe is not None and together.safe >= shard.safe)
    assert together.at_rest().safe == together.safe
