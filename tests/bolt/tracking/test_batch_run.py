"""The one memory of whether a driver is at the same batch again."""

from __future__ import annotations

from itertools import groupby
from typing import cast

from hypothesis import given, strategies as st

from kinesis_trident.bolt.storm.redelivery import Holds
from kinesis_trident.bolt.storm.ticks import Ticks
from kinesis_trident.bolt.testing.local_stream import LocalStore
from kinesis_trident.bolt.tracking.batch_run import BatchRuns
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.bolt.tracking.state_facts import StateNotes
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import BatchNode, NotDone, Pin, Plan
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.tracker.records import Run

BATCHES = st.tuples(st.sampled_from(["lines@1", "lines@2"]), st.integers(1, 2), st.integers(1, 3))


@given(st.lists(st.tuples(BATCHES, st.booleans()), max_size=12))
def test_attempts_at_one_batch_in_a_row_share_what_the_first_decided(
    attempts: list[tuple[tuple[str, int, int], bool]],
) -> None:
    runs, numbers, before = BatchRuns(), [], False
    for (home, epoch, txid), group in groupby(attempts, key=lambda one: one[0]):
        is_begun, decided = False, None
        for _, begins in group:
            run = runs.next(txid, epoch, home)
            numbers.append(run.attempt - (epoch << 32))
            decided = decided or numbers[-1]
            # Only the first batch of a run can be one that the run before has begun.
            assert run.again == (is_begun or (not before and epoch > 1))
            assert run.once("number", lambda: numbers[-1]) == decided
            if begins:
                runs.begin()
                is_begun = before = True
    assert numbers == [*range(1, len(attempts) + 1)]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(0, 9)), max_size=12).map(
        lambda given: sorted(given, key=lambda one: one[0])
    )
)
def test_a_further_attempt_gets_the_ticks_of_the_first(given: list[tuple[int, float]]) -> None:
    now, runs, due = 0.0, BatchRuns(), dict[int, set[bool]]()
    ticks = Ticks(lambda: now)
    for txid, later in given:
        now += later
        due.setdefault(txid, set()).add(ticks.is_due("a", 10.0, runs.next(txid, 1)))
    assert all(len(one) == 1 for one in due.values())


def test_a_further_attempt_finds_held_what_the_first_one_found() -> None:
    runs, holds = BatchRuns(), Holds()
    again = {"s": [Run(first="5", last="5", count=1, attempt=1)]}

    def bolts_in(txid: int) -> set[str]:
        known = holds.known_in(runs.next(txid, 1), again, ["join"])
        return {name for one, _ in known for name in one.bolts}

    holds.note(runs.next(7, 1), {}, {"s": [NotDone("5", "5", 1, "HELD (bolt join)")]})
    assert bolts_in(8) == {"join"}
    holds.note(runs.next(8, 1), again, {})
    assert (bolts_in(8), bolts_in(9)) == ({"join"}, set())


def test_what_states_hold_of_a_recreated_stream_is_read_anew() -> None:
    def batch(created: int, applied: int) -> CurrentBatch:
        layout = Layout("/local", "orders", "lines", created)
        store = LocalStore(
            layout,
            Pin(txid=1, plan="", epoch=1, start="", end="", last=None, count=0, fresh=0, digest="", xor=0),
            {"count": applied},
        )
        plan = Plan(txid=1, plan="plan-1", streams={"lines": created}, positions={}, read=())
        return CurrentBatch(cast(SourceStore, store), BatchNode(epoch=1, plan=plan))

    notes = StateNotes()
    assert notes.read(batch(1, 7000)) == {"count": 7000}
    # It has a home of its own, whose batches and epochs begin at 1.
    assert notes.read(batch(2, 0)) == {"count": 0}
