"""What the benchmark of failing queries concludes from Spark's progress."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.failing_queries import drained


def batch(end: int) -> dict[str, Any]:
    """The progress of a batch that reads a shard up to a position."""
    return {"sources": [{"endOffset": json.dumps({"positions": {"shard": end}, "txid": 2})}]}


def test_batches_after_the_last_new_record_are_counted() -> None:
    assert drained([batch(1), batch(2)]) == 0
    assert drained([batch(1), batch(1), batch(2), batch(2), batch(2)]) == 2
