"""Rows of Arrow as bytes, and back. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def to_stream(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return rows, of one schema, as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def from_stream(stream: bytes) -> pa.Table:
    """Return the rows of an Arrow stream."""
    return pa.ipc.open_stream(stream).read_all()
