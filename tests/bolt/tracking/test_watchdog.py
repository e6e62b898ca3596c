"""A call of a user's function that does not end is named to the console, and with a limit its record fails alone."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from heard import Heard
from test_fusion import rows

from kinesis_trident import BasicBolt, Tuple
from kinesis_trident.bolt.steps import watchdog
from kinesis_trident.bolt.steps.columns import Record
from kinesis_trident.bolt.steps.functions import ArrowStep, PandasStep, RowStep, Step
from kinesis_trident.bolt.steps.watchdog import Watch, function_in
from kinesis_trident.bolt.storm.bolt_task import BoltOperator
from kinesis_trident.bolt.tracking.isolation import Isolated
from kinesis_trident.bolt.tracking.operators import StepOperator, Tag
from kinesis_trident.checkpoint.model.nodes import SlowCall
from kinesis_trident.trident import BaseFilter, Function
from kinesis_trident.trident.steps.emitting_steps import FunctionStep
from kinesis_trident.trident.steps.tuple_steps import FilterStep, Pipeline

NUMBERS = pa.schema([("number", pa.int64())])
TEXTS = pa.schema([("sequenceNumber", pa.string())])
LIMIT = 0.5
POISON = "13"


def loops() -> None:
    while True:
        pass


def backtracks() -> None:
    re.fullmatch("(a+)+b", "a" * 64)


def waits() -> None:
    Event().wait()


def stand_at(number: str, end: Callable[[], None] = loops) -> None:
    if number == POISON:
        end()


def parse(record: Record) -> tuple[int]:
    stand_at(record.sequenceNumber)
    return (int(record.sequenceNumber),)


def match(record: Record) -> tuple[int]:
    stand_at(record.sequenceNumber, backtracks)
    return (int(record.sequenceNumber),)


def ask(record: Record) -> tuple[int]:
    stand_at(record.sequenceNumber, waits)
    return (int(record.sequenceNumber),)


def over_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    list(map(stand_at, batch.column("sequenceNumber").to_pylist()))
    return pa.RecordBatch.from_arrays([batch.column("sequenceNumber").cast(pa.int64())], ["number"])


def over_frames(frame: Any) -> Any:
    list(map(stand_at, frame.sequenceNumber))
    return frame.assign(number=frame.sequenceNumber.astype(int))


class Split(Function):
    def execute(self, tup: Any, collector: Any) -> None:
        stand_at(tup[0])
        collector.emit([int(tup[0])])


class Keeps(BaseFilter):
    def is_keep(self, tup: Any) -> bool:
        stand_at(tup[0])
        return True


class Count(BasicBolt):
    def execute(self, tup: Tuple, collector: Any) -> None:
        stand_at(tup["sequenceNumber"])
        collector.emit([int(tup["sequenceNumber"])])


def pipeline(step: Any) -> Pipeline:
    return Pipeline((step,))


FIELD = ("sequenceNumber",)
STEPS: dict[str, Step] = {
    "parse": RowStep(parse, NUMBERS),
    "match": RowStep(match, NUMBERS),
    "ask": RowStep(ask, NUMBERS),
    "over_arrow": ArrowStep(over_arrow, NUMBERS),
    "over_frames": PandasStep(over_frames, NUMBERS),
    "is_keep": pipeline(FilterStep("keep", Keeps(), FIELD, TEXTS)),
}
EXECUTE = "execute"


def operator_of(name: str, tag: Tag) -> Any:
    if name == "bolt":
        return BoltOperator(tag.operator, 7, Count(), {"in": ["sequenceNumber"]}, NUMBERS, tag)
    if name == "function":
        step = pipeline(FunctionStep("split", Split(), FIELD, NUMBERS, pa.schema([])))
        return StepOperator(tag, (step,), anchored=True)
    return StepOperator(tag, (STEPS[name],), anchored=True)


def isolate_again(name: str) -> tuple[int, dict[int, str]]:
    """Isolate in a worker in which calls have had a limit before."""
    operator = operator_of("ask", Tag("split", 7, Heard(), Watch(limit=60.0)))
    assert sum(batch.num_rows for batch in operator(iter([rows(12, 0)]))) == 12
    return isolate(name)


def isolate(name: str) -> tuple[int, dict[int, str]]:
    """Return the number of tuples that come out of 20, and the failures by ordinal."""
    # What a first call loads and makes is not a function's time: pandas may need longer for it than the limit.
    list(operator_of(name, Tag("warm", 7, Heard()))(iter([rows(1, 0)])))
    heard = Heard()
    tag = Tag("split", 7, heard, Watch(limit=LIMIT, operator="split"))
    out = Isolated(tag, operator_of(name, Tag("split", 7, Heard(), tag.watch)))(iter([rows(20, 0)]))
    return sum(batch.num_rows for batch in out), heard.failed


@dataclass
class Kept:
    """Notes in this process; the call that is noted is let go."""

    notes: list[SlowCall] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    is_noted: Event = field(default_factory=Event)

    def put(self, call: SlowCall) -> str:
        self.notes.append(call)
        self.is_noted.set()
        return "the note"

    def remove(self, name: str) -> None:
        self.removed.append(name)


KEPT = Kept()


def until_noted(record: Record) -> tuple[int]:
    number = int(record.sequenceNumber)
    while number == 13 and not KEPT.is_noted.is_set():
        re.fullmatch("(a+)+b", "a" * 20)
    if number == 14:
        # Its note goes as soon as the next call begins.
        assert KEPT.removed == ["the note"]
    return (number,)


def note() -> tuple[list[SlowCall], list[str], int, dict[int, str]]:
    heard = Heard()
    watch = Watch(KEPT, operator="map", noted_after=0.1)
    operator = StepOperator(Tag("map", 7, heard, watch), (RowStep(until_noted, NUMBERS),))
    out = list(operator(iter([rows(20, 3)])))
    return KEPT.notes, KEPT.removed, sum(batch.num_rows for batch in out), heard.failed


@pytest.fixture(scope="module")
def small_process() -> Iterator[Executor]:
    """A process with a timer of its own: here pytest's own limit has it."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("name", [*STEPS, "function", "bolt"])
def test_the_record_with_which_a_call_does_not_end_fails_alone(small_process: Executor, name: str) -> None:
    out, failed = small_process.submit(isolate, name).result()
    function = name if name in STEPS else EXECUTE
    assert failed == {12: f"TIMED_OUT: {function} in split did not end within {LIMIT} s"}
    assert out == 19


def test_a_worker_may_have_had_the_limit_before(small_process: Executor) -> None:
    _, failed = small_process.submit(isolate_again, "parse").result()
    assert failed == {12: f"TIMED_OUT: parse in split did not end within {LIMIT} s"}


def test_a_call_that_does_not_end_is_noted_until_it_ends(small_process: Executor) -> None:
    begun = int(time.time() * 1000)
    notes, removed, out, failed = small_process.submit(note).result()
    (call,) = notes
    assert (call.operator, call.function, call.shards) == ("map", "until_noted", {3: 20})
    assert begun <= call.since <= int(time.time() * 1000)
    assert removed == ["the note"]
    assert (out, failed) == (20, {})


def end_itself(record: Record) -> tuple[int]:
    number = int(record.sequenceNumber)
    # Nobody else's time runs.
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    if number == 13:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        # A signal that came just before a wait for one would not end the wait.
        while True:
            pass
    return (number,)


def time_out(_signal: int, _frame: object) -> None:
    raise TimeoutError


def own_timer(*, is_watched: bool) -> tuple[int, dict[int, str]]:
    heard = Heard()
    watch = Watch(KEPT, operator="map", noted_after=3600.0)
    if is_watched:
        list(StepOperator(Tag("map", 7, Heard(), watch), (RowStep(parse, NUMBERS),))(iter([rows(3, 3)])))
        assert signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0)
    else:
        # What another test has left ticking would end a call before the one that is meant.
        signal.setitimer(signal.ITIMER_REAL, 0)
    before = signal.signal(signal.SIGALRM, time_out)
    try:
        operator = StepOperator(Tag("map", 7, heard, watch), (RowStep(end_itself, NUMBERS),))
        out = list(operator(iter([rows(20, 3)])))
        return sum(batch.num_rows for batch in out), heard.failed
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("is_watched", [False, True])
def test_a_function_that_ends_its_own_calls_keeps_its_timer(
    small_process: Executor, is_watched: bool
) -> None:
    out, failed = small_process.submit(own_timer, is_watched=is_watched).result()
    assert (out, list(failed.values())) == (19, ["TimeoutError"])


def beside() -> tuple[int, object]:
    """Run an operator with a limit in a thread of a process."""
    tag = Tag("split", 7, Heard(), Watch(limit=LIMIT, operator="split"))
    with ThreadPoolExecutor(1) as pool:
        out = pool.submit(lambda: list(operator_of("parse", tag)(iter([rows(12, 0)])))).result()
    Event().wait(2 * LIMIT)
    return sum(batch.num_rows for batch in out), signal.getitimer(signal.ITIMER_REAL)


def test_in_another_thread_nothing_is_watched(small_process: Executor) -> None:
    assert small_process.submit(beside).result() == (12, (0.0, 0.0))


def test_the_function_is_the_one_that_an_operator_has_called() -> None:
    ours = watchdog.__file__.replace("watchdog", "functions")
    frames = [
        ("/jobs/site/regex.py", "search", "9"),
        ("/jobs/orders.py", "parse", "???"),
        (ours, "parts", "140"),
    ]
    lines = [
        f'  File "{file}", line {line} in {name}'
        for file, name, line in [*frames, ("/spark.py", "main", "1")]
    ]
    other = 'Thread 0x01 (most recent call first):\n  File "/kazoo.py", line 1 in run\n\n'
    assert (
        function_in(other + "Current thread 0x02 (most recent call first):\n" + "\n".join(lines)) == "parse"
    )
    assert function_in(other) == ""
