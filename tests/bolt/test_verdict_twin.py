"""Verdicts against the mappings that they replace, `tests/twins/old_verdict`: stored, they are equal to the byte."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from model.story import play
from thorough import examples
from twins.old_runs.outcomes import join_outcomes
from twins.old_verdict import outcomes as old, topology_batches as old_batches

from kinesis_trident import (
    BasicBolt,
    BasicOutputCollector,
    KinesisSpout,
    TopologyBuilder,
    Tuple,
    string_scheme,
)
from kinesis_trident.bolt import foreach_batch
from kinesis_trident.bolt.errors import FailedShareError, NotOfThisBatchError
from kinesis_trident.bolt.storm import other_spouts
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.bolt.tracking.failed import Failed
from kinesis_trident.bolt.tracking.judged_facts import JudgedFacts
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.nodes import BatchOutcome, NotDone, Pin, Plan
from kinesis_trident.testing import Batches, run_topology
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.records import Run
from kinesis_trident.tracker.runs import Runs
from kinesis_trident.tracker.sums import XorSum
from kinesis_trident.trident import Count, Function, MemoryMapState, TridentTopology

SHARD = "shardId-000000000000"


def spans(r: random.Random, start: int, stop: int) -> list[tuple[int, int]]:
    """Disjoint ranges in order."""
    cuts = sorted(r.sample(range(start, stop), r.randint(1, (stop - start) // 2)))
    return [(a, r.randint(a, b - 1)) for a, b in zip(cuts, [*cuts[1:], stop], strict=True)]


def turn(r: random.Random, text: str) -> tuple[Plan, Pin]:
    """A turn that has delivered runs below 100 again, of which the last in part, and new records up to 200."""
    retries, dead, served = list[Run](), list[Run](), list[int]()
    through, end = None, 9
    for first, last in spans(r, 10, 99):
        at, end = max(end, first - r.randint(1, 3)), last
        begins = r.random() < 0.8
        prev = text.format(at) if not begins or r.random() < 0.6 else None
        run = Run(text.format(first) if begins else "", text.format(last), last - first + 1, prev)
        is_dead = r.random() < 0.2
        (dead if is_dead else retries).append(run)
        if through is not None:
            continue
        if run.count > 1 and not is_dead and r.random() < 0.1:
            served.append(r.randint(1, run.count - 1))
            through = text.format(first + served[-1] - 1)
        else:
            served.append(r.choice([run.count, run.count, 0, -1]))
    start = r.choice(
        ["TRIM_HORIZON", f"AFTER_SEQUENCE_NUMBER {text.format(99)}", f"AT_SEQUENCE_NUMBER {text.format(100)}"]
    )
    plan = Plan(
        txid=7,
        plan="p",
        streams={"orders": 1},
        positions={SHARD: start},
        read=(SHARD,),
        retries={SHARD: tuple(retries)} if retries else {},
        dead={SHARD: tuple(dead)} if dead else {},
    )
    last = text.format(r.randint(100, 200)) if r.random() < 0.8 else None
    return plan, Pin(
        txid=7,
        plan="p",
        epoch=1,
        start=start,
        end="AFTER_SEQUENCE_NUMBER 200",
        last=last,
        count=100,
        fresh=100,
        digest="",
        xor=0,
        served=tuple(served),
        through=through,
    )


def pieces(r: random.Random, text: str) -> list[NotDone]:
    """Failures in any order, each with the record before it or not."""
    made = [
        NotDone(
            text.format(first),
            text.format(last),
            last - first + 1,
            r.choice("AB"),
            text.format(first - 1) if r.random() < 0.3 else None,
        )
        for first, last in spans(r, 10, 210)
    ]
    r.shuffle(made)
    return made


def source_of(shard: str) -> str:
    return f"orders/{shard}"


def stored(not_done: old.NotDoneByShard, plan: Plan, epoch: int = 1) -> bytes:
    """The node as it was made of a mapping."""
    pieces = {shard: tuple(runs) for shard, runs in not_done.items()}
    return encode(BatchOutcome(txid=plan.txid, plan=plan.plan, epoch=epoch, not_done=pieces))


@settings(max_examples=examples(600))
@given(st.integers(0, 2**32))
def test_what_operators_failed_and_a_sink_refused_is_joined_as_before(seed: int) -> None:
    r = random.Random(seed)
    text = r.choice(["{}", "{:020d}", "4959{:052d}"])
    plan, pin = turn(r, text)
    failed = {SHARD: pieces(r, text)}
    refused = {
        f"orders/{SHARD}:{text.format(r.randint(10, 205))}": Failure.said("full")
        for _ in range(r.choice([0, 1, 5]))
    }
    found = list[object]()
    try:
        found.append(
            encode(Verdict.of(plan, {SHARD: pin}, failed, refused, source_of).limited().node(plan, 1))
        )
    except NotOfThisBatchError as error:
        found.append(str(error))
    try:
        found.append(
            stored(old.outcome(plan, {source_of(SHARD): SHARD}, {SHARD: pin}, failed, refused), plan)
        )
    except NotOfThisBatchError as error:
        found.append(str(error))
    assert found[0] == found[1]
    unreadable = sorted(pieces(r, text), key=lambda piece: int(piece.last))
    joined = Runs.sort(unreadable).union(failed[SHARD])
    assert list(joined) == join_outcomes(unreadable, failed[SHARD])


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32))
def test_verdicts_are_joined_compared_and_applied_as_before(seed: int) -> None:
    r = random.Random(seed)
    shards = [f"shardId-{number:012d}" for number in range(3)]
    one, other = dict[str, list[NotDone]](), dict[str, list[NotDone]]()
    for shard in shards:
        for piece in pieces(r, "{}"):
            r.choice([one, other, {}]).setdefault(shard, []).append(piece)  # type: ignore[attr-defined]
    joined = Verdict(one).union(Verdict(other))
    before = old_batches.join(one, other)
    assert joined.not_done == before
    for some in (one, other, before, {shard: [*reversed(runs)] for shard, runs in one.items()}):
        again = Verdict(some).same_records(joined)
        assert again == (old_batches.spans(some) == old_batches.spans(before))
    n = 300
    batch = pa.RecordBatch.from_pydict(
        {
            "shardId": [r.choice(shards) for _ in range(n)],
            "sequenceNumber": [str(r.randint(1, 220)) for _ in range(n)],
            "subSequenceNumber": pa.array([-1] * n, pa.int64()),
        }
    )
    excluded = old_batches.OutcomeFilter(before).find_excluded(batch)
    assert np.array_equal(joined.excluded_in(batch), excluded)
    (kept,) = joined.keep_done(iter([batch]))
    assert kept.num_rows == n - int(excluded.sum())


@settings(max_examples=examples(100))
@given(st.dictionaries(st.integers(0, 12), st.sets(st.integers(0, 30), min_size=1), max_size=5))
def test_rows_of_a_data_frame_are_judged_as_before(failed: dict[int, set[int]]) -> None:
    """Then their outcome was the failures by partition, as operators had told them."""
    pins = {f"{partition:08d}": other_spouts._counted(7, XorSum(31, 5)) for partition in range(13)}
    plan = Plan(txid=7, plan="", streams={}, positions={}, read=tuple(pins))
    told = {
        partition: Failed.over(
            sorted(rows),
            sorted(rows),
            [Failure.said(f"reason {row}") for row in sorted(rows)],
            [str(row) for row in sorted(rows)],
            [str(row) for row in sorted(rows)],
        )
        for partition, rows in failed.items()
    }
    found = JudgedFacts(plan, 0, 7, lambda: pins).judge(told, pins, {})
    assert {int(partition): runs for partition, runs in found.not_done.items()} == {
        partition: tuple(some.not_done()) for partition, some in told.items()
    }


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The outcomes of all batches that are published, each equal to what the mappings would have become."""
    published: list[bytes] = []
    judge, union, publish = JudgedFacts.judge, Verdict.union, CurrentBatch.publish
    same_records, excluded_in = Verdict.same_records, Verdict.excluded_in

    def judging(facts: JudgedFacts, failed: Any, pins: Any, refused: Any) -> Verdict:
        found = judge(facts, failed, pins, refused)
        shards = facts.plan.shards
        known = {shards[index]: some.not_done() for index, some in failed.items()}
        sources = {facts.source_of(shard): shard for shard in shards}
        before = old.outcome(facts.plan, sources, pins, known, refused)
        assert encode(found.limited().node(facts.plan, 1)) == stored(before, facts.plan)
        return found

    def joining(verdict: Verdict, other: Verdict) -> Verdict:
        found = union(verdict, other)
        before = old_batches.join(verdict.limited().not_done, other.limited().not_done)
        assert found.limited().not_done == before
        return found

    def comparing(verdict: Verdict, other: Verdict) -> bool:
        found = same_records(verdict, other)
        assert found == (old_batches.spans(verdict.not_done) == old_batches.spans(other.not_done))
        return found

    def excluding(verdict: Verdict, batch: pa.RecordBatch) -> np.ndarray:
        found = excluded_in(verdict, batch)
        assert np.array_equal(found, old_batches.OutcomeFilter(verdict.not_done).find_excluded(batch))
        return found

    def publishing(batch: CurrentBatch, verdict: Verdict) -> None:
        plan = batch.facts.plan
        published.append(encode(verdict.node(plan, batch.epoch)))
        assert published[-1] == stored(verdict.not_done, plan, batch.epoch)
        publish(batch, verdict)
        assert batch.verdict is not None

    def connecting(_: object) -> None:
        pytest.fail("no local run has a ZooKeeper")

    monkeypatch.setattr(foreach_batch, "open_store", connecting)
    monkeypatch.setattr(JudgedFacts, "judge", judging)
    monkeypatch.setattr(Verdict, "union", joining)
    monkeypatch.setattr(Verdict, "same_records", comparing)
    monkeypatch.setattr(Verdict, "excluded_in", excluding)
    monkeypatch.setattr(CurrentBatch, "publish", publishing)
    return published


class Fails(Function):
    """Fails each word that holds its letter, as often as the word says."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    def execute(self, tup: Any, collector: Any) -> None:
        word = tup[0]
        if self.letter in word:
            msg = f"{self.letter} in {len(word)} letters"
            raise ValueError(msg)
        collector.emit([len(word)])


class Refuses(BasicBolt):
    """The same as a bolt."""

    fields = "word string"

    def __init__(self, letter: str) -> None:
        self.letter = letter

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if self.letter in tup["word"]:
            msg = f"{self.letter} in {len(tup['word'])} letters"
            raise ValueError(msg)
        collector.emit([tup["word"]])


SPOUT = {
    "streamName": "words",
    "region": "us-east-1",
    "applicationName": "words",
    "zookeeper.hosts": "unused:2181",
    "retryBackoff": "1s..1s x1",
}


def drawn(r: random.Random) -> Batches:
    """Batches of words, most of which fail nowhere."""
    words = ["".join(r.choices("abcdefgh", k=r.randint(1, 4))) for _ in range(r.randint(1, 60))]
    cut = r.randint(0, len(words))
    return Batches(words[:cut], words[cut:])


@pytest.mark.parametrize("seed", range(12))
def test_topologies_of_trident_publish_what_they_did(judged: list[bytes], seed: int) -> None:
    r = random.Random(seed)
    topology = TridentTopology()
    words = topology.new_stream("s", KinesisSpout(scheme=string_scheme("word"), **SPOUT))
    for number in range(r.randint(1, 3)):
        branch = words.each(["word"], Fails(r.choice("abcd")), f"n{number} int")
        if r.random() < 0.5:
            branch = branch.shuffle().each(["word"], Fails(r.choice("abcd")), f"m{number} int")
        branch.group_by(["word"]).persistent_aggregate(
            MemoryMapState.opaque(f"counts-{seed}-{number}"), Count(), ["count"]
        )
    run_topology(topology, {"s": drawn(r)}, attempts=r.choice([1, 2, 3]))
    assert judged


@pytest.mark.parametrize("seed", range(12))
def test_topologies_of_bolts_publish_what_they_did(judged: list[bytes], seed: int) -> None:
    r = random.Random(seed)
    builder = TopologyBuilder()
    builder.set_spout("s", KinesisSpout(scheme=string_scheme("word"), **SPOUT))
    names = ["s"]
    for number in range(r.randint(1, 4)):
        bolt = builder.set_bolt(f"bolt {number}", Refuses(r.choice("abcd")), r.choice([None, 2]))
        above = r.choice(names)
        bolt.fields_grouping(above, "word") if r.random() < 0.5 else bolt.shuffle_grouping(above)
        names.append(f"bolt {number}")
    run_topology(builder, {"s": drawn(r)}, attempts=r.choice([1, 2, 3]))
    assert judged


def test_a_topology_of_trident_whose_records_mostly_fail_uses_up_no_delivery() -> None:
    """What several rounds of its tracked part have found counts together."""
    topology = TridentTopology()
    words = topology.new_stream("s", KinesisSpout(scheme=string_scheme("word"), maxFailedShare=0.5, **SPOUT))
    words.each(["word"], Fails("a"), "n int").group_by(["word"]).persistent_aggregate(
        MemoryMapState.opaque("mostly"), Count(), ["count"]
    )
    with pytest.raises(FailedShareError, match="11 of 20 new records failed"):
        run_topology(topology, {"s": ["a"] * 11 + ["b"] * 9})
    result = run_topology(topology, {"s": ["a"] * 10 + ["b"] * 10})
    assert len(result.failed) == 10


@pytest.mark.parametrize("bad", ["", "b"])
def test_a_topology_of_trident_counts_the_records_that_are_done(
    bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = TridentTopology()
    words = topology.new_stream("s", KinesisSpout(scheme=string_scheme("word"), **SPOUT))
    words.each(["word"], Fails(bad or "c"), "n int").group_by(["word"]).persistent_aggregate(
        MemoryMapState.opaque(f"counted{bad}"), Count(), ["count"]
    )
    counted: list[int] = []
    publish = CurrentBatch.publish

    def counting(batch: CurrentBatch, verdict: Verdict) -> None:
        counted.append(verdict.fresh)
        publish(batch, verdict)

    monkeypatch.setattr(CurrentBatch, "publish", counting)
    run_topology(topology, {"s": ["a"] * 10 + ["b"] * 2}, attempts=1)
    assert counted[0] == 12


@pytest.mark.parametrize("family", ["many", "sessions", "transactional", "older", "padded"])
def test_schedules_publish_what_they_did(judged: list[bytes], family: str) -> None:
    for seed in (3, 4):
        assert not play(family, seed).world.violations
    assert judged
