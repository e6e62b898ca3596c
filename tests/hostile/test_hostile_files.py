"""Arrow files of a state and of the retry spool: the records that were written, or a refusal that names the file."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from exploring import explore, explores
from hostility import read_bounded

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.spout.failed_records.retry_spool import RetrySpool
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA, position_at
from kinesis_trident.tracker.records import Run
from kinesis_trident.trident.errors import ForeignValueError
from kinesis_trident.trident.stores.files import FileByteStore

SHARD = "shardId-000000000000"
RECORDS = pa.RecordBatch.from_pylist(
    [
        {
            "partitionKey": f"key {at}",
            "data": b"payload %d" % at,
            "sequenceNumber": str(10**55 + at),
            "subSequenceNumber": at % 3 - 1,
            "approximateArrivalTimestamp": datetime(2026, 1, 2, tzinfo=UTC),
        }
        for at in range(5)
    ],
    schema=RECORD_SCHEMA,
)


@explores
def test_files_of_a_state(tmp_path: Path) -> None:
    store = FileByteStore(str(tmp_path))
    store.set_many(["a", "b"], [b"1", b"2" * 40])
    store.end_batch(1)
    store.set_many(["a", "c"], [None, b"3"])
    store.end_batch(2)
    files = {path: path.read_bytes() for path in sorted(tmp_path.iterdir())}

    for file, good in files.items():

        def read(data: bytes, file: Path = file) -> None:
            file.write_bytes(data)

            def call() -> Any:
                return FileByteStore(str(tmp_path)).get_many(["a", "b", "c"])

            found = read_bounded(call, len(data), ForeignValueError, file.name, "Restore it", least=50_000)
            for value in found[0] if found is not None else ():
                assert value is None or isinstance(value, bytes)

        explore(read, [good], times=0.5)
        file.write_bytes(good)


@explores
def test_files_of_the_spool(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    spool = RetrySpool(str(tmp_path), Layout("/r", "app", "orders", 1))
    spool.put(SHARD, 3, [RECORDS])
    [file] = tmp_path.rglob("*.arrow")
    runs = (Run(str(10**55), str(10**55 + 9), 5, None, 1, 0, ()),)

    def read(data: bytes) -> None:
        file.write_bytes(data)
        found = read_bounded(lambda: spool.get(SHARD, runs), len(data), (), least=50_000)
        for batch in found.batches() if found else []:
            batch.validate(full=True)
            for row in range(batch.num_rows):
                assert 10**55 <= position_at(batch, row).number <= 10**55 + 9

    explore(read, [file.read_bytes()])


def test_strange_names_in_the_spool(tmp_path: Path) -> None:
    spool = RetrySpool(str(tmp_path), Layout("/r", "app", "orders", 1))
    spool.put(SHARD, 3, [RECORDS])
    [file] = tmp_path.rglob("*.arrow")
    for name in ("000000000003-...-..-0123456789abcdef.arrow", "9" * 200 + "-1-2-0123456789abcdef.arrow"):
        (file.parent / name).write_bytes(b"x")
    strange = file.parent.parent / "100%" / file.name
    strange.parent.mkdir()
    strange.write_bytes(b"x")
    runs = (Run(str(10**55), str(10**55 + 9), 5, None, 1, 0, ()),)
    assert spool.get(SHARD, runs).counts.tolist() == [5]
    assert spool.clean(3, {}) == 1
    assert strange.exists()


@pytest.mark.parametrize("column", ["key", "value", "expires"])
def test_a_column_of_another_type(column: str, tmp_path: Path) -> None:
    kinds = {"key": pa.string(), "value": pa.binary(), "expires": pa.float64()} | {column: pa.int64()}
    table = pa.table({name: pa.array([None], kind) for name, kind in kinds.items()})
    with pa.ipc.new_file(tmp_path / "000001-000000000001.snapshot", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ForeignValueError, match=rf"snapshot is not a file of a state \(its .*{column} int64"):
        FileByteStore(str(tmp_path))
