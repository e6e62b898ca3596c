"""Operators that run in one worker say the same as apart, and know where what failed further down stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
from heard import Heard
from hypothesis import given, strategies as st

from kinesis_trident import Bolt
from kinesis_trident.bolt.steps.functions import ArrowStep
from kinesis_trident.bolt.storm.bolt_task import BoltOperator
from kinesis_trident.bolt.tracking.anchors import anchors_of
from kinesis_trident.bolt.tracking.fusion import Fused, current_task
from kinesis_trident.bolt.tracking.operators import StepOperator, Tag
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.reader.rows import ANCHORS, Segment, TurnRows

TAG = 5
NUMBERS = pa.schema([("number", pa.int64())])


def rows(count: int, *shards: int) -> pa.RecordBatch:
    columns = [
        pa.array(["k"] * count),
        pa.array([b"d"] * count),
        pa.array([str(n) for n in range(1, count + 1)]),
        pa.array([-1] * count, pa.int64()),
        pa.array([0] * count, pa.timestamp("us", tz="UTC")),
    ]
    records = pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)
    turns = [TurnRows("lines", f"shardId-{n}", n, 7, TAG, [Segment([records], 1)]) for n in shards]
    return pa.concat_batches([batch for turn in turns for batch in turn.record_batches()])


def cut(whole: pa.RecordBatch, cuts: list[int]) -> Iterator[pa.RecordBatch]:
    bounds = [0, *sorted(at % (whole.num_rows + 1) for at in cuts), whole.num_rows]
    return (whole.slice(start, stop - start) for start, stop in pairwise(bounds))


def numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pc.cast(batch.column("sequenceNumber"), pa.int64())], ["number"])


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    row = pa.array([n // 2 for n in range(2 * batch.num_rows)])
    return pa.RecordBatch.from_arrays([batch.column("number").take(row), row], ["number", "__row"])


def failing(bad: Mapping[int, str]) -> ArrowStep:
    def judge(batch: pa.RecordBatch) -> pa.RecordBatch:
        reasons = [bad.get(number) for number in batch.column("number").to_pylist()]
        return batch.append_column("__failed", pa.array(reasons, pa.string()))

    return ArrowStep(judge, NUMBERS)


def operators(heard: Heard, bad_first: Mapping[int, str], bad_last: Mapping[int, str]) -> list[StepOperator]:
    steps = [
        (ArrowStep(numbers, NUMBERS), failing(bad_first)),
        (ArrowStep(twice, NUMBERS),),
        (failing(bad_last),),
    ]
    return [
        StepOperator(Tag(f"step {at}", 7, heard), some, of_source=not at, anchored=True)
        for at, some in enumerate(steps)
    ]


def one_after_the_other(some: list[StepOperator], given: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
    out = [*given]
    for operator in some:
        out = [*operator(iter(out))]
    return out


BAD = st.dictionaries(st.integers(1, 30), st.sampled_from(["no", "never"]))


@given(st.integers(1, 30), BAD, BAD, st.lists(st.integers(0, 100), max_size=6))
def test_fused_operators_make_and_report_the_same_and_know_the_positions(
    count: int, bad_first: dict[int, str], bad_last: dict[int, str], cuts: list[int]
) -> None:
    whole = rows(count, 0, 1)
    apart, fused = Heard(), Heard()
    wanted = one_after_the_other(operators(apart, bad_first, bad_last), cut(whole, cuts))
    made = [*Fused(tuple(operators(fused, bad_first, bad_last)))(cut(whole, cuts))]
    assert [row for batch in made for row in batch.to_pylist()] == [
        row for batch in wanted for row in batch.to_pylist()
    ]
    assert fused.reports.keys() == apart.reports.keys()
    # All that failed, wherever, is told as if the first operator had judged it.
    alone = Heard()
    [*operators(alone, bad_last | bad_first, {})[0](cut(whole, cuts))]
    assert fused.failed == alone.failed
    assert all(failed.is_placed for failed in fused.reports.values())


class Last(Bolt):
    """Keeps its tuples, and fails them when all have come."""

    def prepare(self, context, collector):  # type: ignore[no-untyped-def]
        self.collector, self.held = collector, []

    def execute(self, tup):  # type: ignore[no-untyped-def]
        self.held.append(tup)

    def cleanup(self) -> None:
        for tup in self.held:
            self.collector.fail(tup, "late")


def test_what_fails_when_its_rows_have_gone_is_told_by_its_number() -> None:
    heard = Heard()
    first = operators(heard, {}, {})[0]
    last = BoltOperator("last", 7, Last(), {"step 0": ["number"]}, pa.schema([]), Tag("last", 7, heard))
    assert [*Fused((first, last))(cut(rows(6, 0), [3]))] == []
    assert heard.failed == dict.fromkeys(range(6), "late (bolt last)")


def test_a_batch_between_operators_is_no_longer_than_sparks() -> None:
    seen: list[int] = []

    def many(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pa.array(range(25_000)), _anchors(batch)], ["number", ANCHORS])

    def last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert current_task() is not None
        for batch in batches:
            seen.append(batch.num_rows)
            yield batch

    made = [*Fused((many, last))(iter([rows(1, 0)]))]
    assert seen == [10_000, 10_000, 5_000]
    assert sum(len(anchors_of(batch).roots) for batch in made) == 25_000
    assert current_task() is None


def _anchors(batch: pa.RecordBatch) -> pa.Array:
    return batch.column(ANCHORS).take(pa.array([0] * 25_000))
