"""What a Python worker of Spark collects."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from kinesis_trident.bolt.tracking.fusion import Promptly
from kinesis_trident.common.worker_garbage import exempt_from_collections
from kinesis_trident.spout.options.sink import WriteOptions
from kinesis_trident.spout.sink.writer import KinesisWriter
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process be a worker of Spark that has run no task."""
    monkeypatch.setattr(TaskContext, "get", object)
    exempt_from_collections.cache_clear()
    gc.unfreeze()
    yield
    exempt_from_collections.cache_clear()
    # As tests/conftest.py has it.
    gc.freeze()


def is_collected(one: object) -> bool:
    """Tell whether collections look at an object. Counts of all objects change with what other threads hold."""
    return any(other is one for other in gc.get_objects())


@pytest.mark.usefixtures("worker")
def test_a_worker_exempts_what_it_holds_once_for_each_user() -> None:
    first: list[object] = [[]]
    exempt_from_collections("a user")
    assert not is_collected(first)
    later: list[object] = [[]]
    exempt_from_collections("a user")
    assert is_collected(later)
    exempt_from_collections("another user")
    assert not is_collected(later)


@pytest.mark.usefixtures("worker")
def test_a_worker_that_has_run_an_operator_does() -> None:
    rows = pa.RecordBatch.from_pylist([{"a": 1}])
    taken = Promptly(lambda batches: batches)(iter([rows]))
    assert next(taken) is rows
    assert gc.get_freeze_count() == 0
    assert list(taken) == []
    assert gc.get_freeze_count() > 0


@pytest.mark.usefixtures("worker")
def test_a_worker_that_has_written_does() -> None:
    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:
        kinesis.create_stream("s")
        options = WriteOptions.parse(
            {"streamName": "s", "region": "us-east-1", "endpointUrl": kinesis.endpoint_url}
        )
        schema = StructType([StructField("data", BinaryType())])
        rows = pa.RecordBatch.from_pylist([{"data": b"a"}])
        written = KinesisWriter(options, schema, overwrite=False).write(iter([rows]))
    assert written.sent.records == 1
    assert gc.get_freeze_count() > 0


def test_a_process_that_is_no_worker_stays_as_it_is() -> None:
    one: list[object] = [[]]
    exempt_from_collections(("a user", "in no task"))
    assert is_collected(one)
