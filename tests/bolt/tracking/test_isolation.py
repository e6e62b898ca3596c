"""Records that end their worker are found among many, in child processes, and all other tuples go on."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from heard import Heard, told_by
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql import DataFrame
from test_fusion import rows
from thorough import examples

from kinesis_trident.bolt.errors import OperatorError, WorkerDiedError
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.tracking.carriers import Carrier
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.bolt.tracking.failed import Failed
from kinesis_trident.bolt.tracking.fusion import Operator
from kinesis_trident.bolt.tracking.isolation import Excluded, Isolated
from kinesis_trident.bolt.tracking.operators import Tag
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.reader.rows import ANCHORS, ARROW_SCHEMA
from kinesis_trident.tracker.failure import Failure, Kind

SOURCE = pa.schema([field for field in ARROW_SCHEMA if field.name != ANCHORS])


def deadly(numbers: set[int], end: object = lambda: os._exit(3)) -> Operator:
    """An operator that passes tuples on, and with one of these numbers ends its process."""

    def operate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if numbers.intersection(map(int, batch.column("sequenceNumber").to_pylist())):
                assert callable(end)
                end()
            yield batch

    return operate


def isolated(
    operator: Operator, *batches: pa.RecordBatch, most_trials: int = 1_000
) -> tuple[list[int], Heard]:
    """The numbers of the tuples that come out, and the reports."""
    heard = Heard()
    out = Isolated(Tag("parse", 7, heard), operator, most_trials)(iter(batches))
    return [int(number) for batch in out for number in batch.column("sequenceNumber").to_pylist()], heard


def found(heard: Heard) -> dict[int, Failed]:
    return {key.shard: failed for key, failed in heard.reports.items() if failed}


@pytest.fixture(scope="module")
def small_process() -> Iterator[Executor]:
    """A process with little memory: to fork the one of all tests a hundred times takes half a minute."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


def search(numbers: set[int], cuts: list[int]) -> tuple[list[int], set[int]]:
    """Return the tuples that come out of batches with deadly records, and the records that are found."""
    whole = rows(40, 0)
    bounds = [0, *sorted(cuts), 40]
    batches = [whole.slice(a, b - a) for a, b in pairwise(bounds)]
    out, heard = isolated(deadly(numbers), *batches)
    return out, {ordinal + 1 for ordinal in heard.failed}


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.integers(1, 40), max_size=3), st.lists(st.integers(0, 40), max_size=2))
def test_exactly_the_deadly_records_are_found(
    small_process: Executor, numbers: set[int], cuts: list[int]
) -> None:
    out, dead = small_process.submit(search, numbers, cuts).result()
    assert sorted(out) == sorted({*range(1, 41)} - numbers)
    assert dead == numbers


def fault() -> None:
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda: os._exit(0), "with exit code 0"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "by SIGKILL"),
        (fault, "by SIGSEGV"),
    ],
    ids=["exit", "killed", "fault"],
)
def test_the_reason_says_how_the_worker_ended(end: object, how: str) -> None:
    _, heard = isolated(deadly({3}, end), rows(4, 0))
    assert heard.failed == {2: f"WORKER_DIED: the Python worker ended {how} in parse"}


def test_an_error_of_the_operator_is_no_death() -> None:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        raise OperatorError("the schema does not fit")

    out, heard = isolated(fail, rows(4, 0))
    assert (out, found(heard)) == ([1, 2, 3, 4], {})


def test_trials_are_bounded_and_the_suspects_fail_together() -> None:
    out, heard = isolated(deadly({3}), rows(40, 0), most_trials=3)
    assert sorted(heard.failed) == [*range(10)]
    assert all(reason.endswith("in parse, at one of 10 records") for reason in heard.failed.values())
    assert sorted(out) == [*range(11, 41)]


def test_what_ends_a_worker_only_with_others_is_not_found() -> None:
    def together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = [*batches]
        if sum(batch.num_rows for batch in held) > 20:
            os._exit(1)
        yield from held

    out, heard = isolated(together, rows(40, 0))
    assert (len(out), found(heard)) == (40, {})


DIED = Failure(Kind.DIED, "x")


def test_excluded_records_fail_by_their_ordinals() -> None:
    batch = rows(5, 0, 1)
    judged = Excluded({1: Failed.over([1], [2], [DIED])}, SOURCE)(batch)
    assert judged.failed == {6: DIED, 7: DIED}
    assert judged.source.tolist() == [0, 1, 2, 3, 4, 5, 8, 9]
    assert judged.rows.schema.names == SOURCE.names
    assert judged.rows.column("sequenceNumber").to_pylist() == ["1", "2", "3", "4", "5", "1", "4", "5"]


def test_the_search_is_repeated_a_few_times_and_then_the_query_stops() -> None:
    """Each time another record is found, and the batch ends its workers all the same."""
    found = iter([{0: Failed.over([n], [n], [DIED])} for n in range(9)])
    batch = SimpleNamespace(
        txid=7, verdict=None, deadly={}, say_judging=lambda: None, check_epoch=lambda: None
    )

    def attempt(*_: object) -> None:
        raise RuntimeError("Python worker exited unexpectedly (crashed)")

    def isolate(*_: object) -> Any:
        return SimpleNamespace(deadly=lambda: next(found))

    options = SourceOptions.parse({"streamName": "s", "applicationName": "a", "zookeeper.hosts": "z"})
    handler = BatchHandler(options, attempt, 0, isolate=isolate, carrier=cast(Carrier, object()))
    with pytest.raises(WorkerDiedError, match="ended 5 times, and no single other record ends one by itself"):
        handler.process(cast(DataFrame, None), cast(CurrentBatch, batch))
    assert told_by(batch.deadly[0]) == dict.fromkeys([0, 1, 2], "WORKER_DIED: x")
