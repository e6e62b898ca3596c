"""Verdicts of drawn batches: each record that failed or was refused is in them once, and no other."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from thorough import examples

from kinesis_trident import KinesisSpout, string_scheme
from kinesis_trident.bolt.errors import FailedShareError, NotOfThisBatchError
from kinesis_trident.bolt.storm import other_spouts
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.bolt.tracking.failed import Failed
from kinesis_trident.bolt.tracking.judged_facts import JudgedFacts
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.model.nodes import NotDone, Pin, Plan
from kinesis_trident.testing import run_topology
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.records import Run
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


def delivered(plan: Plan, pin: Pin, base: int, number: int) -> bool:
    """Whether a record can have been a row: a new one, or one of a run that came again, as far as it was served."""
    where = base + number
    if pin.last is not None and where <= int(pin.last) and (number >= 100 or pin.start == "TRIM_HORIZON"):
        return True
    for (run, is_dead), served in zip(plan.due(SHARD), pin.served, strict=False):
        last = pin.through if 0 < served < run.count and pin.through is not None else run.last
        first = int(run.first) if run.first else int(run.prev or 0) + 1
        if served > 0 and not is_dead and first <= where <= int(last):
            return True
    return False


@settings(max_examples=examples(600))
@given(st.integers(0, 2**32))
def test_each_record_that_failed_or_was_refused_is_in_a_verdict_once(seed: int) -> None:
    r = random.Random(seed)
    text = r.choice(["{}", "{:020d}", "4959{:052d}"])
    plan, pin = turn(r, text)
    base = int(text.format(0))
    failed, refused = pieces(r, text), [r.randint(10, 205) for _ in range(r.choice([0, 1, 5]))]

    def verdict() -> Verdict:
        said = {f"orders/{SHARD}:{text.format(where)}": Failure.said("full") for where in refused}
        return Verdict.of(plan, {SHARD: pin}, {SHARD: failed}, said, source_of)

    if not all(delivered(plan, pin, base, where) for where in refused):
        with pytest.raises(NotOfThisBatchError):
            verdict()
        return
    wanted = {
        where: piece.text
        for piece in failed
        for where in range(int(piece.first) - base, int(piece.last) - base + 1)
    }
    wanted = dict.fromkeys(refused, "full") | wanted
    found = dict[int, str]()
    runs = verdict().limited().node(plan, 1).not_done.get(SHARD, ())
    for run in runs:
        numbers = range(int(run.first) - base, int(run.last) - base + 1)
        assert len(numbers) == run.count
        assert not found.keys() & {*numbers}
        found |= dict.fromkeys(numbers, run.text)
    assert found == wanted
    assert list(found) == sorted(found)
    known = {piece.first: piece.prev for piece in failed if piece.prev is not None}
    assert {run.first: run.prev for run in runs if run.first in known} == known


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32))
def test_verdicts_are_united_compared_and_applied_record_by_record(seed: int) -> None:
    r = random.Random(seed)
    shards = [f"shardId-{number:012d}" for number in range(3)]
    one, other = dict[str, list[NotDone]](), dict[str, list[NotDone]]()
    for shard in shards:
        for piece in pieces(r, "{}"):
            r.choice([one, other, {}]).setdefault(shard, []).append(piece)  # type: ignore[attr-defined]
    both = Verdict(one).union(Verdict(other))
    held = {
        (shard, where)
        for some in (one, other)
        for shard, runs in some.items()
        for run in runs
        for where in range(int(run.first), int(run.last) + 1)
    }
    assert {shard: sorted(runs, key=lambda run: int(run.last)) for shard, runs in both.not_done.items()} == {
        shard: list(runs) for shard, runs in both.not_done.items()
    }
    again = {shard: [replace(run, text="C") for run in runs] for shard, runs in both.not_done.items()}
    assert both.same_records(Verdict(again | {"empty": []}))
    if held:
        shard = r.choice([shard for shard, runs in again.items() if runs])
        assert not both.same_records(Verdict(again | {shard: again[shard][1:]}))
    rows = [(r.choice(shards), r.randint(1, 220)) for _ in range(300)]
    batch = pa.RecordBatch.from_pydict(
        {
            "shardId": [shard for shard, _ in rows],
            "sequenceNumber": [str(where) for _, where in rows],
            "subSequenceNumber": pa.array([-1] * len(rows), pa.int64()),
        }
    )
    assert both.excluded_in(batch).tolist() == [row in held for row in rows]
    (kept,) = both.keep_done(iter([batch]))
    assert kept.num_rows == sum(row not in held for row in rows)


@settings(max_examples=examples(100))
@given(st.dictionaries(st.integers(0, 12), st.sets(st.integers(0, 30), min_size=1), max_size=5))
def test_rows_of_a_data_frame_are_judged_by_partition(failed: dict[int, set[int]]) -> None:
    """Their verdict has the failures as operators have told them."""
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


SPOUT = {
    "streamName": "words",
    "region": "us-east-1",
    "applicationName": "words",
    "zookeeper.hosts": "unused:2181",
    "retryBackoff": "1s..1s x1",
}


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
