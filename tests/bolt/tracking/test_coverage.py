"""Sums over reports: covered exactly when everything that was made was taken, in one run of each operator."""

from __future__ import annotations

import random

import numpy as np
from heard import told_by
from hypothesis import given, strategies as st

from kinesis_trident.bolt.tracking.anchors import Anchors, salt_of
from kinesis_trident.bolt.tracking.coverage import SOURCE, failures, find_lost, find_uncovered
from kinesis_trident.bolt.tracking.failed import Failed
from kinesis_trident.bolt.tracking.reports import OperatorLedger, ReportKey, Reports
from kinesis_trident.bolt.tracking.spans import Spans
from kinesis_trident.tracker.acker import Acker
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.ids import ordinal_of, roots, tuple_ids

CHAIN = {"split": (SOURCE,), "count": ("split",)}
TURNS = {0: (4, 0b1111)}


def key(operator: str, rows: int, consumed: int, emitted: int = 0, produced: int = 0, **at: int) -> ReportKey:
    return ReportKey(
        7,
        1,
        operator,
        at.get("shard", 0),
        rows,
        consumed,
        emitted,
        produced,
        at.get("stage", 0),
        at.get("partition", 0),
    )


SPLIT = key("split", 4, 0b1111, 9, 77)


def heard(*keys: ReportKey) -> Reports:
    return dict.fromkeys(keys, ())


def test_a_chain_is_covered_over_a_shuffle() -> None:
    halves = key("count", 5, 64, stage=1), key("count", 4, 13, stage=1, partition=1)
    assert find_uncovered(CHAIN, heard(SPLIT, *halves), TURNS) == []
    assert find_uncovered(CHAIN, heard(SPLIT, halves[0]), TURNS) == [("count", 0)]
    assert find_uncovered(CHAIN, heard(*halves), TURNS) == [("split", 0), ("count", 0)]


def test_a_lost_or_doubled_tuple_is_not_covered() -> None:
    for wrong in (key("count", 8, 64 ^ 13), key("count", 10, 64 ^ 13), key("count", 9, 64)):
        assert find_uncovered(CHAIN, heard(SPLIT, wrong), TURNS) == [("count", 0)]


def test_stages_that_share_a_cached_frame_make_one_run_if_they_took_every_tuple_once() -> None:
    halves = key("split", 2, 0b0011, 4, 13, stage=1), key("split", 2, 0b1100, 5, 64, stage=2, partition=1)
    count = key("count", 9, 77, stage=3)
    assert find_uncovered(CHAIN, heard(*halves, count), TURNS) == []
    assert find_uncovered(CHAIN, heard(*halves, key("count", 4, 13, stage=3)), TURNS) == [("count", 0)]
    # A third stage computed a part again: nobody knows which of both results the readers got.
    again = key("split", 2, 0b1100, 5, 65, stage=4, partition=1)
    assert find_uncovered(CHAIN, heard(*halves, again, count), TURNS) == [("split", 0), ("count", 0)]


def test_a_task_that_ran_twice_and_said_the_same_counts_once_else_its_stage_does_not() -> None:
    one, other = key("count", 5, 64, stage=1), key("count", 4, 13, stage=1, partition=1)
    assert find_uncovered(CHAIN, heard(SPLIT, one, other, one), TURNS) == []
    differs = key("count", 4, 12, stage=1, partition=1)
    assert find_uncovered(CHAIN, heard(SPLIT, one, other, differs), TURNS) == [("count", 0)]
    again = key("count", 9, 77, stage=5)
    assert find_uncovered(CHAIN, heard(SPLIT, one, other, differs, again), TURNS) == []


def test_a_frame_that_a_stage_computes_several_times_counts_once() -> None:
    splits = [SPLIT._replace(partition=number) for number in (0, 3)]
    halves = [key("count", 5, 64, partition=number) for number in (0, 2)]
    others = [key("count", 4, 13, partition=number) for number in (1, 3)]
    assert find_uncovered(CHAIN, heard(*splits, *halves, *others), TURNS) == []
    assert find_uncovered(CHAIN, heard(*splits, *halves, others[0]), TURNS) == [("count", 0)]


def test_a_tuple_that_comes_again_in_another_task_is_not_covered_by_the_task_that_had_all() -> None:
    count, again = key("count", 9, 77), key("count", 1, 5, partition=1)
    splits = [SPLIT, SPLIT._replace(partition=1)]
    assert find_uncovered(CHAIN, heard(*splits, count, again), TURNS) == [("count", 0)]
    # The same in spans, of which the second came again as a whole.
    spans = {(0, 0): (2, 0b0011), (0, 2): (2, 0b1100)}
    first = key("split", 2, 0b0011, 8, 72)._replace(span=0), key("count", 8, 72)._replace(span=0)
    second = key("split", 2, 0b1100, 1, 5)._replace(span=2), key("count", 1, 5)._replace(span=2)
    elsewhere = [one._replace(partition=1) for one in (first[0], *second)]
    assert find_lost(CHAIN, heard(*first, *second, *elsewhere), spans) == {(0, 2): "count"}


def test_an_operator_whose_runs_made_different_things_covers_what_took_either() -> None:
    second = key("split", 4, 0b1111, 8, 50, stage=3)
    assert find_uncovered(CHAIN, heard(SPLIT, second, key("count", 8, 50, stage=4)), TURNS) == []
    assert find_uncovered(CHAIN, heard(SPLIT, key("count", 8, 50, stage=4)), TURNS) == [("count", 0)]


def test_inputs_are_added_up() -> None:
    wiring = {"a": (SOURCE,), "b": (SOURCE,), "join": ("a", "b"), "twice": ("a", "a")}
    reports = heard(
        key("a", 4, 0b1111, 1, 3), key("b", 4, 0b1111, 2, 5), key("join", 3, 6), key("twice", 2, 0)
    )
    assert find_uncovered(wiring, reports, TURNS) == []


def test_what_nothing_came_to_needs_no_report() -> None:
    dropped = key("split", 4, 0b1111)
    assert find_uncovered(CHAIN, heard(dropped), TURNS) == []
    assert find_uncovered(CHAIN, {}, {0: (0, 0)}) == []


def test_each_shard_is_summed_by_itself() -> None:
    turns = {0: (4, 0b1111), 1: (2, 9)}
    reports = heard(SPLIT, key("count", 9, 77), key("split", 2, 9, 2, 8, shard=1))
    assert find_uncovered(CHAIN, reports, turns) == [("count", 1)]


def run(first: int, last: int, reason: str = "A") -> Failed:
    return Failed.over([first], [last], [Failure.said(reason)])


def test_failures_of_every_run_and_operator_count() -> None:
    reports: Reports = {
        SPLIT: run(1, 1),
        key("split", 2, 3, stage=9): run(0, 0),
        key("count", 1, 1, stage=2): run(2, 3, "B").union(run(3, 3)),
        key("elsewhere", 1, 1): run(0, 0),
    }
    found = failures(CHAIN, reports, TURNS)
    assert told_by(found[0]) == {0: "A", 1: "A", 2: "B", 3: "A"}


@given(st.integers(1, 12), st.integers(1, 3), st.randoms(use_true_random=False))
def test_those_records_are_lost_whose_trees_storms_acker_does_not_see_done(
    count: int, operators: int, r: random.Random
) -> None:
    """A chain of operators: some tuples do not come to the next one, some come twice."""
    numbers = np.arange(count)
    tuples = Anchors(roots(1, 0, numbers), tuple_ids("orders", 7, "shardId-0", numbers))
    totals = {(0, number): (1, edge) for number, edge in enumerate(tuples.edges.tolist())}
    acker = Acker()
    acker.init_many(tuples.roots, tuples.edges)
    names = [f"bolt {number}" for number in range(operators)]
    reports: Reports = {}
    for stage, name in enumerate(names):
        came = [row for row in range(len(tuples.roots)) for _ in range(r.choice([1, 1, 1, 1, 1, 1, 0, 2]))]
        taken = tuples.take(np.array(came, dtype=np.int64))
        most = 2 if name != names[-1] else 0
        parents = [row for row in range(len(came)) for _ in range(r.randint(0, most))]
        made = taken.children(np.array(parents, dtype=np.int64), salt_of(name))
        ledger = OperatorLedger(name, 7, Spans(1, {0: ((0, count),)}))
        ledger.consume(taken)
        ledger.produce(made)
        reports |= ledger.reports(stage)
        acker.ack_many(np.concatenate([taken.roots, made.roots]), np.concatenate([taken.edges, made.edges]))
        tuples = made
    wiring = dict(zip(names, [(SOURCE,), *((name,) for name in names)], strict=False))
    open_roots = np.array(acker.tick(60_000), dtype=np.int64)
    found = find_lost(wiring, reports, totals)
    assert sorted(span for _, span in found) == sorted(ordinal_of(open_roots).tolist())
