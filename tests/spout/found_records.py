"""Records whose payload is their position, and those found for runs as lists that tests can compare."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from botocore.parsers import ResponseParserFactory
from botocore.session import get_session

from kinesis_trident.spout.failed_records.retry_ranges import RunRecords
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.tracker.records import RecordPosition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHAPE = get_session().get_service_model("kinesis").operation_model("GetRecords").output_shape
_PLAIN = ResponseParserFactory().create_parser("json")


def records(positions: list[RecordPosition]) -> pa.RecordBatch:
    """A batch of such records."""
    columns = [
        ["k"] * len(positions),
        [str(position).encode() for position in positions],
        [position.sequence for position in positions],
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


def as_botocore_reads(body: bytes) -> list[dict[str, Any]]:
    """Return the records of a GetRecords body that botocore's own parser finds, as rows of a page."""
    response = {"body": body, "headers": {}, "status_code": 200, "context": {"operation_name": "GetRecords"}}
    return [
        {
            "partitionKey": one.get("PartitionKey"),
            "data": one["Data"],
            "sequenceNumber": one["SequenceNumber"],
            "subSequenceNumber": -1,
            "approximateArrivalTimestamp": one.get("ApproximateArrivalTimestamp", _EPOCH),
        }
        for one in _PLAIN.parse(response, _SHAPE)["Records"]
    ]
