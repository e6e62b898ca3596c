"""What the benchmark of failing queries concludes from Spark's progress."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.failing_queries import drained


def batch(start: int, end: int) -> dict[str, Any]:
    """The progress of a batch that reads a shard from one position to another."""
    return {
        "sources": [
            {
                "startOffset": json.dumps({"positions": {"shard": start}, "txid": 1}),
                "endOffset": json.dumps({"positions": {"shard": end}, "txid": 2}),
            }
        ]
    }


def test_batches_after_the_last_new_record_are_counted() -> None:
    assert drained([batch(0, 1), batch(1, 2)]) == 0
    assert drained([batch(0, 1), batch(1, 1), batch(1, 2), batch(2, 2), batch(2, 2)]) == 2
