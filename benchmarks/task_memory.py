"""Measure what a task that reads takes of memory, beside the bound on the bytes that it holds (`maxFetchBytesPerTask`).

python -m benchmarks.task_memory

Planned here, read in a process of its own, as an executor's worker does, from the prepared endpoint and with a real
ZooKeeper. The rows are dropped as they come.
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
import uuid
from pathlib import Path

import msgspec

from benchmarks.endpoint import PreparedEndpoint, Records, pretend_credentials
from benchmarks.memory import peak
from benchmarks.report import Section, publish
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.reader.task import read_turns

__all__ = ["MIB", "Taken", "taken"]

ROOT = Path(__file__).resolve().parents[1]
MIB = 2**20
SHARDS = 8


class Taken(msgspec.Struct, frozen=True):
    """Bytes: resident before the first call of Kinesis or ZooKeeper, at most afterwards, and payload read."""

    base: int
    peak: int
    read: int


def taken(hosts: str, records: Records, bound: int) -> Taken:
    """Return what one task takes that reads as much of each shard as it may; `bound` bytes are held at a time."""
    pretend_credentials()
    with PreparedEndpoint(records) as endpoint:
        options = SourceOptions.parse(
            {
                "streamName": "s",
                "region": "us-east-1",
                "endpointUrl": endpoint.url,
                "applicationName": uuid.uuid4().hex,
                "zookeeper.hosts": hosts,
                "startingPosition": "TRIM_HORIZON",
                "maxPartitions": "1",
                "maxFetchBytesPerTask": str(bound),
                "maxFetchBytesPerShard": str(bound // 4),
                "maxFetchRecordsPerShard": "10000000",
                "maxFetchTime": "60s",
                "minFetchPeriod": "0ms",
                "maxFetchRate": "100000",
            }
        )
        run = SourceRun.open(options)
        try:
            start = run.initial()
            plan = run.latest(start, None)
            assert plan is not None
            [task] = run.partitions(start, plan)
            command = [sys.executable, "-m", "benchmarks.task_memory", "--task"]
            done = subprocess.run(
                command, cwd=ROOT, input=pickle.dumps(task), check=True, stdout=subprocess.PIPE
            )
        finally:
            run.close()
    return msgspec.json.decode(done.stdout, type=Taken)


def read_task() -> Taken:
    """Read the task given as input."""
    task = pickle.loads(sys.stdin.buffer.read())
    base, read = peak(), 0
    for batch in read_turns(task, first_attempt=True):
        read += batch.column("data").get_total_buffer_size()
    return Taken(base=base, peak=peak(), read=read)


def main() -> None:
    """Measure and publish; with `--task`, be the process that is measured."""
    parser = argparse.ArgumentParser(description="Measure the memory of a task that reads.")
    parser.add_argument("--task", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    if parser.parse_args().task:
        sys.stdout.buffer.write(msgspec.json.encode(read_task()))
        return
    rows = []
    with EmbeddedZooKeeper() as zookeeper:
        for size, page in ((200, 10_000), (1024, 10_000), (1024 * 1024, 10)):
            for bound in (32 * MIB, 128 * MIB):
                pages = 2 * bound // (4 * size * page) + 1
                found = taken(zookeeper.hosts, Records(SHARDS, pages, page, size), bound)
                rows.append(
                    [
                        f"records of {size:,} B, bound {bound // MIB} MiB",
                        f"{found.read / MIB:,.0f} MiB",
                        f"{found.base / MIB:,.0f} MiB",
                        f"{found.peak / MIB:,.0f} MiB",
                        f"{(found.peak - bound) / MIB:+,.0f} MiB",
                        f"{(found.peak - found.base - bound) / MIB:+,.0f} MiB",
                    ]
                )
    publish(
        Section(
            name="task-memory",
            title="Memory of a task",
            command="python -m benchmarks.task_memory",
            columns=[
                f"{SHARDS} shards, one task",
                "read",
                "before",
                "at most",
                "to the bound",
                "without before",
            ],
            rows=rows,
            note="Resident memory of the whole process; before: that of the interpreter and its libraries. "
            "A shard's turn may hold a quarter of the bound.",
        )
    )


if __name__ == "__main__":
    main()
