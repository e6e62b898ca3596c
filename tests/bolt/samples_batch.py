"""The records of a small batch of two shards."""

from __future__ import annotations

import pyarrow as pa

from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.reader.rows import Segment

SHARDS = ("shardId-000000000000", "shardId-000000000001")
EACH = 20


def segment() -> Segment:
    numbers = range(1, EACH + 1)
    columns = [
        pa.array(["k"] * EACH),
        pa.array([f"{n} x {n % 4}".encode() for n in numbers]),
        pa.array([str(n) for n in numbers]),
        pa.array([-1] * EACH, pa.int64()),
        pa.array([0] * EACH, pa.timestamp("us", tz="UTC")),
    ]
    return Segment([pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)], 1)
