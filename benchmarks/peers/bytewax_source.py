"""bytewax: a dataflow of one worker from a small source, a partition for each shard, to a sink."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import boto3
import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.run import cli_main

from benchmarks.peers.counting import Count, report

Record = Mapping[str, Any]


class Shard(StatefulSourcePartition[Record, str]):
    """Reads a shard to its tip."""

    def __init__(self, shard: str, after: str | None) -> None:
        self._client = boto3.client("kinesis")
        start: Any = (
            {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": after}
            if after
            else {"ShardIteratorType": "TRIM_HORIZON"}
        )
        self._last = after or ""
        self._iterator = self._client.get_shard_iterator(StreamName="s", ShardId=shard, **start)[
            "ShardIterator"
        ]
        self._behind = True

    def next_batch(self) -> Sequence[Record]:
        if not self._behind:
            raise StopIteration
        answer = self._client.get_records(ShardIterator=self._iterator, Limit=10_000)
        self._iterator = answer["NextShardIterator"]
        self._behind = answer["MillisBehindLatest"] > 0
        records = answer["Records"]
        if records:
            self._last = records[-1]["SequenceNumber"]
        return records

    def snapshot(self) -> str:
        return self._last


class Stream(FixedPartitionedSource[Record, str]):
    """A stream, whose partitions are its shards."""

    def list_parts(self) -> list[str]:
        return [shard["ShardId"] for shard in boto3.client("kinesis").list_shards(StreamName="s")["Shards"]]

    def build_part(self, step_id: str, for_part: str, resume_state: str | None) -> Shard:
        return Shard(for_part, resume_state)


class Counted(StatelessSinkPartition[Record]):
    """Counts what comes."""

    def __init__(self, count: Count) -> None:
        self._count = count

    def write_batch(self, items: list[Record]) -> None:
        for item in items:
            self._count.add(item["Data"])


class Counting(DynamicSink[Record]):
    """A sink of one worker."""

    def __init__(self, count: Count) -> None:
        self._count = count

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Counted:
        return Counted(self._count)


def main() -> None:
    count = Count(int(sys.argv[1]))
    flow = Dataflow("count")
    op.output("counted", op.input("kinesis", flow, Stream()), Counting(count))
    cli_main(flow)
    report(count.outcome())


if __name__ == "__main__":
    main()
