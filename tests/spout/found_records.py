"""Records whose payload is their position, and those found for runs as lists that tests can compare."""

from __future__ import annotations

import pyarrow as pa

from kinesis_trident.spout.failed_records.run_records import RunRecords
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.tracker.records import RecordPosition


def records(positions: list[RecordPosition]) -> pa.RecordBatch:
    """A batch of such records."""
    columns = [
        ["k"] * len(positions),
        [str(position).encode() for position in positions],
        [str(position.sequence) for position in positions],
        [position.sub for position in positions],
        [0] * len(positions),
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RECORD_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def served(records: RunRecords) -> tuple[int, ...]:
    """How many records each run has that was reached: these are the first ones."""
    first = records.counts[: records.reached.sum()]
    assert (first >= 0).all()
    return tuple(first.tolist())


def payloads_by_run(records: RunRecords) -> list[list[bytes]]:
    """The payloads of each run that was reached."""
    return [
        [data for batch in records.of_run(index) for data in batch.column("data").to_pylist()]
        for index in range(len(served(records)))
    ]
