"""Large tuples pass through steps in parts: what comes out, and what is reported, is as of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from batch_in_hand import SHARDS, segment
from hypothesis import HealthCheck, given, settings, strategies as st
from judged_texts import texts_of

from kinesis_trident.bolt.steps import functions, parts
from kinesis_trident.bolt.steps.columns import FLUSH_BYTES
from kinesis_trident.bolt.steps.functions import ROW, ArrowStep, Judged, RowStep, Step, join_parts
from kinesis_trident.bolt.steps.parts import chain
from kinesis_trident.bolt.tracking.operators import StepOperator, Tag
from kinesis_trident.bolt.tracking.reports import Reports
from kinesis_trident.spout.reader.rows import TurnRows

TEXT = pa.schema([("text", pa.string())])


def batch(*texts: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"text": list(texts)}, schema=TEXT)


def row_step(record: Any) -> tuple[str] | None:
    """Fails an x, drops a d."""
    if "x" in record.text:
        raise ValueError(record.text)
    return None if "d" in record.text else (record.text * 2,)


class Letters:
    """A row for each letter of a text, as an ArrowStep."""

    def __call__(self, given: pa.RecordBatch) -> pa.RecordBatch:
        texts = given.column("text").to_pylist()
        letters = [letter for text in texts for letter in text]
        rows = [row for row, text in enumerate(texts) for _ in text]
        return pa.RecordBatch.from_pydict(
            {"text": pa.array(letters, pa.string()), ROW: pa.array(rows, pa.int64())}
        )


STEPS: dict[str, list[Step]] = {
    "row": [RowStep(row_step, TEXT)],
    "rows": [RowStep(lambda r: (r.text + "a",), TEXT), RowStep(row_step, TEXT)],
    "letters": [ArrowStep(Letters(), TEXT), RowStep(row_step, TEXT)],
    "letters twice": [
        ArrowStep(Letters(), TEXT),
        RowStep(row_step, TEXT),
        ArrowStep(Letters(), TEXT),
        RowStep(row_step, TEXT),
    ],
}


@pytest.fixture(params=[1, 3, 5])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(functions, "FLUSH_BYTES", request.param)
    return int(request.param)


def plain(judged: Judged) -> tuple[Any, ...]:
    return judged.rows.to_pydict(), judged.source.tolist(), texts_of(judged)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text("abdx", max_size=5), max_size=12))
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_parts_are_the_whole(small: int, steps: list[Step], texts: list[str]) -> None:
    found = list(chain(steps, batch(*texts)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functions, "FLUSH_BYTES", FLUSH_BYTES)
        [whole] = chain(steps, batch(*texts))
    assert plain(join_parts(found)) == plain(whole)
    # Each part has all rows of its input rows, and says how far it is.
    seen = [set(part.source.tolist()) | part.failed.keys() for part in found]
    assert sum(map(len, seen)) == len(set().union(*seen))
    ends = [part.end for part in found]
    assert ends[-1] is None
    assert [end for end in ends if end is not None] == sorted(end for end in ends if end is not None)
    for part in found:
        assert part.end is None or not len(part.source) or part.source[-1] < part.end


@pytest.mark.parametrize("small", [2], indirect=True)
def test_an_input_row_that_becomes_too_large_fails_alone(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_MOST_BYTES", 200)
    steps = STEPS["letters"]
    judged = join_parts(chain(steps, batch("ab", "a" * 200, "b")))
    assert (judged.rows.column("text").to_pylist(), judged.source.tolist()) == (["aa", "bb", "bb"], [0, 0, 2])
    assert list(judged.failed) == [1]
    assert texts_of(judged)[1].startswith("it became more than 0 MiB")


def test_what_is_large_is_not_held_as_a_whole() -> None:
    large = RowStep(lambda record: (record.text * 6_000_000,), TEXT)
    sizes = [part.rows.num_rows for part in large.parts(batch(*"abcdefg"))]
    assert sizes == [3, 3, 1]


class Heard:
    def __init__(self) -> None:
        self.reports: Reports = {}

    def add(self, reports: Reports) -> None:
        self.reports |= reports


class Repeated:
    """As many rows as the number says, of which that of 7 fails."""

    def __call__(self, given: pa.RecordBatch) -> pa.RecordBatch:
        times = np.array([int(data.split()[0]) for data in given.column("data").to_pylist()])
        rows = np.repeat(np.arange(len(times)), times)
        return pa.RecordBatch.from_pydict({"text": [str(times[row]) for row in rows], ROW: rows})


def test_an_operator_reports_the_same_of_parts(small: int) -> None:
    def run() -> tuple[list[dict[str, Any]], Reports]:
        heard = Heard()
        turns = [TurnRows("lines", shard, at, 7, 1, [segment()]) for at, shard in enumerate(SHARDS)]
        rows = [one for turn in turns for one in turn.record_batches()]
        steps = (ArrowStep(Repeated(), TEXT), RowStep(not_seven, TEXT))
        operator = StepOperator(Tag("op", 7, heard), steps, anchored=True)
        made = [one for part in operator(iter(rows)) for one in part.to_pylist()]
        return made, heard.reports

    def not_seven(record: Any) -> tuple[str]:
        if record.text == "7":
            raise ValueError(7)
        return (record.text,)

    cut = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functions, "FLUSH_BYTES", FLUSH_BYTES)
        whole = run()
    assert cut == whole
    assert len(cut[0]) == len(SHARDS) * (20 * 21 // 2 - 7)
    assert [start for failed in cut[1].values() for start in failed.starts] == ["7", "7"]
