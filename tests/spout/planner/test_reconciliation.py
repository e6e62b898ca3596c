"""Every way in which Spark's checkpoint and ZooKeeper can stand to each other, and its one outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from kinesis_trident.checkpoint.model.nodes import Plan, mark_of
from kinesis_trident.spout.errors import CheckpointMismatchError, SettledBatchError
from kinesis_trident.spout.planner.reconciliation import (
    Adopt,
    Agreement,
    Facts,
    Resume,
    Settle,
    Skip,
    Stop,
    compare_batch,
    decide,
    decide_replay,
    decide_without_outcome,
    find_highest_epoch,
)


def plan(txid: int, mark: str, resume: bool = False) -> Plan:
    return Plan(
        txid=txid,
        plan=mark,
        streams={"s": 1},
        positions={"a": "TRIM_HORIZON"},
        resume={"a": "TRIM_HORIZON"} if resume else {},
    )


def bare(txid: int, mark: str) -> Plan:
    """An offset of a stream that was recreated since: nothing of it counts but the txid."""
    return Plan(txid=txid, plan=mark, streams={"s": 2}, positions={})


def facts(settled: int, mark: str, stored: Plan | None = None, **given: Any) -> Facts:
    return Facts(settled, mark, stored, "/there", **given)


CASES = [
    ("the very first start", plan(0, ""), (0, "", None), Agreement.AGREES),
    ("a new Spark checkpoint goes on from ZooKeeper", plan(5, ""), (5, "E", None), Agreement.AGREES),
    (
        "a new Spark checkpoint while a plan is unsettled",
        plan(5, ""),
        (5, "E", plan(6, "F")),
        Agreement.AGREES,
    ),
    ("settled already, as after a crash just after settling", plan(5, "E"), (5, "E", None), Agreement.AGREES),
    ("adopted from Spark's offset before, mark not known", plan(5, "E"), (5, "", None), Agreement.AGREES),
    ("committed and not settled", plan(6, "F"), (5, "E", plan(6, "F")), Agreement.SETTLE),
    ("the first batch, committed and not settled", plan(1, "A"), (0, "", plan(1, "A")), Agreement.SETTLE),
    (
        "another checkpoint settled another batch as this txid",
        plan(5, "X"),
        (5, "E", None),
        Agreement.SPARK_BEHIND,
    ),
    ("another checkpoint has gone on", plan(4, "D"), (5, "E", None), Agreement.SPARK_BEHIND),
    (
        "a Spark checkpoint that never had a row, and another one has gone on",
        plan(4, ""),
        (5, "E", None),
        Agreement.AGREES,
    ),
    (
        "behind by far, even if a plan is unsettled",
        plan(1, "A"),
        (5, "E", plan(6, "F")),
        Agreement.SPARK_BEHIND,
    ),
    ("ZooKeeper's data is lost", plan(6, "F"), (0, "", None), Agreement.ZOOKEEPER_BEHIND),
    ("a start offset, and ZooKeeper's data is lost", plan(6, ""), (0, "", None), Agreement.ZOOKEEPER_BEHIND),
    ("ZooKeeper lost just the plan", plan(6, "F"), (5, "E", None), Agreement.ZOOKEEPER_BEHIND),
    (
        "ZooKeeper was restored, and holds another plan",
        plan(6, "F"),
        (5, "E", plan(6, "Y")),
        Agreement.ZOOKEEPER_BEHIND,
    ),
    (
        "ZooKeeper was restored to long before",
        plan(9, "I"),
        (5, "E", plan(6, "F")),
        Agreement.ZOOKEEPER_BEHIND,
    ),
    (
        "a start offset is never a stored plan",
        plan(6, ""),
        (5, "E", plan(6, "F")),
        Agreement.ZOOKEEPER_BEHIND,
    ),
]


@pytest.mark.parametrize(
    ("offset", "zookeeper", "agreement"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_each_case_has_one_outcome(
    offset: Plan, zookeeper: tuple[int, str, Plan | None], agreement: Agreement
) -> None:
    assert compare_batch(offset, *zookeeper) is agreement


@pytest.mark.parametrize(
    ("offset", "zookeeper", "agreement"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_each_standing_has_one_decision(
    offset: Plan, zookeeper: tuple[int, str, Plan | None], agreement: Agreement
) -> None:
    known = facts(*zookeeper)
    stored, going_on = known.stored, replace(known, may_go_on=True)
    decision, further = decide(offset, known), decide(offset, going_on)
    if agreement is Agreement.SETTLE:
        assert stored is not None
        assert decision == further == Settle(stored, offset)
    elif agreement is Agreement.AGREES:
        assert decision == further == Resume(stored)
    else:
        assert isinstance(decision, Stop)
        assert isinstance(decision.error, CheckpointMismatchError)
        assert f"stands at txid {offset.txid}" in str(decision.error)
        if agreement is Agreement.SPARK_BEHIND:
            assert isinstance(further, Resume)
            assert further.plan is stored
        else:
            assert isinstance(further, Adopt)
            assert (further.offset, further.settled) == (offset, offset.txid)
        assert "onCheckpointMismatch=continue" in further.warning
        # What the run itself has told Spark is not compared again.
        assert decide(offset, replace(known, agreed=True)) == Resume(None)


def test_a_batch_whose_outcome_is_missing_is_read_again_or_stops_the_query() -> None:
    stopped = decide_without_outcome(plan(6, "F"), "acks/6 does not exist", None, may_go_on=False)
    assert isinstance(stopped, Stop)
    assert str(stopped.error).startswith("acks/6 does not exist. ")
    assert stopped.unknown is None
    adopted = decide_without_outcome(plan(6, "F"), "acks/6 does not exist", None, may_go_on=True)
    assert isinstance(adopted, Adopt)
    assert (adopted.offset, adopted.settled) == (plan(6, "F"), 6)
    assert "txid 6 are READ AGAIN under txid 7" in adopted.warning


def test_a_batch_whose_pins_are_missing_does_not_come_under_its_txid_once_the_next_was_begun() -> None:
    later = plan(7, "G")
    stopped = decide_without_outcome(plan(6, "F"), "batches/6/s does not exist", later, may_go_on=False)
    assert isinstance(stopped, Stop)
    assert stopped.unknown == later
    assert "onCheckpointMismatch=continue: the records of txid 6 are READ AGAIN" in str(stopped.error)
    assert "new checkpointLocation" not in str(stopped.error)


@pytest.mark.parametrize(
    ("offset", "known", "decision"),
    [
        (bare(6, "F"), facts(0, ""), Adopt(bare(6, "F"), 6)),
        (bare(0, ""), facts(0, ""), Adopt(bare(0, ""), 0)),
        (bare(6, "F"), facts(6, "F", plan(7, "G")), Adopt(bare(6, "F"), 6)),
    ],
)
def test_a_recreated_stream_is_begun_anew_once(offset: Plan, known: Facts, decision: Adopt) -> None:
    assert decide(offset, replace(known, untouched=True)) == decision
    adopted = replace(known, settled=offset.txid, settled_plan=offset.plan)
    assert decide(offset, adopted) == Resume(known.stored)
    # What is settled is never taken back.
    assert decide(bare(0, ""), replace(adopted, settled=7, untouched=True)) == Resume(known.stored)


def test_a_batch_of_a_recreated_stream_that_is_started_over_is_begun_anew() -> None:
    end = bare(7, "G")
    begun = decide_replay(bare(6, "F"), end, facts(0, "", untouched=True), overtaken=False)
    assert begun == Adopt(end, 6)


STARTED_OVER = [
    ("never stored", (5, "E"), (6, "F"), facts(5, "E"), Resume(plan(6, "F"))),
    ("stored", (5, "E"), (6, "F"), facts(5, "E", plan(6, "F", True)), Resume(plan(6, "F", True))),
    ("stored, from another way", (4, "D"), (6, "F"), facts(5, "E", plan(6, "F")), Resume(plan(6, "F"))),
    ("planned over: storing it tells", (5, "E"), (6, "F"), facts(5, "E", plan(6, "Y")), Resume(plan(6, "F"))),
    ("after an adopted batch", (5, "E"), (6, "F"), facts(5, ""), Resume(plan(6, "F"))),
    (
        "one settling is missing",
        (6, "F"),
        (7, "G"),
        facts(5, "E", plan(6, "F")),
        Settle(plan(6, "F"), plan(6, "F"), plan(7, "G")),
    ),
]


@pytest.mark.parametrize(
    ("start", "end", "known", "decision"), [c[1:] for c in STARTED_OVER], ids=[c[0] for c in STARTED_OVER]
)
def test_a_batch_that_is_started_over(
    start: tuple[int, str], end: tuple[int, str], known: Facts, decision: Resume | Settle
) -> None:
    assert decide_replay(plan(*start), plan(*end), known, overtaken=False) == decision
    going_on = replace(known, may_go_on=True)
    assert decide_replay(plan(*start), plan(*end), going_on, overtaken=False) == decision


def test_a_batch_after_one_that_another_checkpoint_has_settled_stops_the_query() -> None:
    for go_on in (False, True):
        stopped = decide_replay(plan(5, "X"), plan(6, "F"), facts(5, "E", may_go_on=go_on), overtaken=False)
        assert isinstance(stopped, Stop)
        assert "txid 5 before it was settled in ZooKeeper (/there) by another" in str(stopped.error)


def test_a_settled_batch_is_skipped_or_stops_the_query() -> None:
    stopped = decide_replay(plan(4, "D"), plan(5, "E"), facts(5, "E"), overtaken=False)
    assert isinstance(stopped, Stop)
    assert isinstance(stopped.error, SettledBatchError)
    skipped = decide_replay(plan(4, "D"), plan(5, "E"), facts(5, "E", may_go_on=True), overtaken=False)
    assert isinstance(skipped, Skip)
    assert "txid 5 over, but it is settled in ZooKeeper (/there, settled: 5)" in skipped.warning


@pytest.mark.parametrize(
    ("resume", "overtaken", "settled"), [(False, False, 8), (False, True, 9), (True, False, 9)]
)
def test_a_batch_that_zookeeper_does_not_know_is_run_where_it_can_be_settled(
    resume: bool, overtaken: bool, settled: int
) -> None:
    start, end, known = plan(8, "H"), plan(9, "I", resume), facts(5, "E", plan(6, "F"))
    stopped = decide_replay(start, end, known, overtaken=overtaken)
    assert isinstance(stopped, Stop)
    assert "txid 9 over, but ZooKeeper (/there) knows nothing after txid 5" in str(stopped.error)
    adopted = decide_replay(start, end, replace(known, may_go_on=True), overtaken=overtaken)
    assert isinstance(adopted, Adopt)
    assert (adopted.offset, adopted.settled) == (end, settled)


@pytest.mark.parametrize("identical", [False, True])
def test_a_batch_of_a_run_that_zookeeper_has_lost_comes_only_where_a_person_says_so(identical: bool) -> None:
    start, end = plan(5, "E"), plan(6, "4-1700000000000-F")
    known = replace(facts(5, "E"), lost=4, identical=identical)
    stopped = decide_replay(start, end, known, overtaken=False)
    assert isinstance(stopped, Stop)
    assert stopped.unknown == end
    assert "newer copy of ZooKeeper's data" in str(stopped.error)
    going_on = decide_replay(start, end, replace(known, may_go_on=True), overtaken=False)
    if identical:
        assert isinstance(going_on, Skip)
        assert going_on.settled == end
        assert "READ AGAIN under txid 7" in going_on.warning
    else:
        assert isinstance(going_on, Resume)
        assert going_on.plan == end
        assert "txid 6 comes AGAIN" in going_on.warning
    # Known batches, and those of later runs, are as ever.
    assert decide_replay(start, end, replace(known, stored=end), overtaken=False) == Resume(end)
    assert decide_replay(start, end, replace(known, lost=3), overtaken=False) == Resume(end)


@pytest.mark.parametrize("made", ["9d2ee611707d070b8fdd480eb71a2a40", f"3-1700000000000-{7:032x}", "p"])
def test_no_plan_of_an_earlier_release_is_taken_for_another_application_s(made: str) -> None:
    assert not facts(0, "", whose="0123abcd").is_foreign(plan(6, made))
    assert facts(0, "", whose="0123abcd").is_foreign(plan(6, mark_of(3, 10**12, "0123abce", 7)))


def test_a_batch_agrees_by_its_mark_where_txids_were_left_out() -> None:
    assert compare_batch(plan(5, "E"), 9, "E", None) is Agreement.AGREES
    assert compare_batch(plan(9, "F"), 9, "E", None) is Agreement.SPARK_BEHIND


@given(st.integers(0, 10**6), st.integers(0, 10**15), st.integers(-(10**9), 10**12))
def test_starts_since_a_plan_may_have_used_epochs(epoch: int, made: int, later: int) -> None:
    begun = plan(6, mark_of(epoch, made, "0123abcd", 7))
    upto = find_highest_epoch(begun, made + later)
    assert epoch <= upto <= epoch + max(0, later // 30_000)
    assert (begun.epoch, begun.made_at, begun.whose) == (epoch, made, "0123abcd")
    assert find_highest_epoch(plan(6, "0123456789abcdef"), later) == 0


MARKS = st.sampled_from(["", "E", "F"])
TXIDS = st.integers(0, 5)
OFFSETS = st.builds(
    lambda txid, mark, is_bare: (bare if is_bare else plan)(txid, mark), TXIDS, MARKS, st.booleans()
)


@st.composite
def any_facts(draw: st.DrawFn) -> Facts:
    settled = draw(TXIDS)
    stored = draw(st.none() | st.builds(plan, st.just(settled + 1), st.sampled_from("EFG")))
    mark, go_on, untouched = draw(MARKS), draw(st.booleans()), draw(st.booleans())
    return facts(settled, mark, stored, may_go_on=go_on, untouched=untouched)


def carried_out(decision: Settle | Adopt, known: Facts) -> Facts:
    """Return what is known afterwards, as the run sees it."""
    if isinstance(decision, Settle):
        assert decision.plan == known.stored
        return replace(
            known, settled=decision.plan.txid, settled_plan=decision.plan.plan, stored=None, agreed=True
        )
    mark = decision.offset.plan if decision.settled == decision.offset.txid else ""
    return replace(known, settled=decision.settled, settled_plan=mark, stored=None, untouched=False)


@given(OFFSETS, any_facts())
def test_one_step_makes_zookeeper_s_state_that_after_the_offset(offset: Plan, known: Facts) -> None:
    decision = decide(offset, known)
    if isinstance(decision, Stop):
        assert not known.may_go_on
        return
    if isinstance(decision, Settle | Adopt):
        # A warning is given only where somebody has said that it is enough.
        assert isinstance(decision, Settle) or known.may_go_on or not decision.warning
        after = carried_out(decision, known)
        assert after.settled == offset.txid >= known.settled
        assert decide(offset, after) == Resume(None)
        return
    assert offset.txid <= known.settled
    assert decision.plan is known.stored


@given(OFFSETS, OFFSETS, any_facts(), st.booleans())
def test_rows_are_given_of_the_batch_after_the_newest_settled_one_alone(
    start: Plan, end: Plan, known: Facts, overtaken: bool
) -> None:
    assume(start.txid < end.txid and end.plan)
    first = known.settled
    decision = decide_replay(start, end, known, overtaken=overtaken)
    if isinstance(decision, Settle):
        assert decision.offset is start
        known = carried_out(decision, known)
        decision = decide_replay(start, end, known, overtaken=overtaken)
        assert decision == Resume(end)
    if isinstance(decision, Resume):
        assert decision.plan is not None
        assert (decision.plan.txid, decision.plan.plan) == (known.settled + 1, end.plan)
        assert end.txid == known.settled + 1
    elif isinstance(decision, Adopt):
        assert known.may_go_on or not decision.warning
        assert first <= decision.settled <= end.txid <= decision.settled + 1
    elif isinstance(decision, Skip):
        assert known.may_go_on
        assert end.txid <= known.settled
