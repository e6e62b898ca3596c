"""Have a ZooKeeper with 256 MB of heap hold very many failed records at once, until all are done.

python -m benchmarks.small_server

Kinesis is held in memory; the server is a real one, as `checkpoint.embedded` starts all.
"""

from __future__ import annotations

import msgspec

from benchmarks.failures import Life
from benchmarks.report import Section, publish
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper

__all__ = ["Worked", "work_off"]

STREAMS = {
    "1 shard of 32,770": (1, 32_770),
    "1 shard of 131,074": (1, 131_074),
    "100 shards of 6,002": (100, 6_002),
}
"""Shards and records of each, every second of which fails; a shard holds 65,536 groups of failed neighbours at most."""


class Worked(msgspec.Struct, frozen=True):
    """The groups that waited at once; the batches until none did; the bytes written to ZooKeeper.

    `first`: those of the batch in which the records failed, and of its settling.
    """

    waiting: int
    batches: int
    first: int
    written: int


def work_off(hosts: str, shards: int, records: int) -> Worked:
    """Let every second record of each shard fail once, and return what it took until all were done."""
    life = Life(
        hosts,
        shards,
        maxFetchRecordsPerShard=str(records),
        retryBackoff="1s..1s x1",
        retryBytesPerShard="64KiB",
        maxRetryingRecords="65536",
    )
    life.kinesis.fill(records)
    begun = life.wrote
    while life.new < shards * records:
        life.batch(0.5)
        life.settle()
    first, batches = life.wrote - begun, life.batches
    while life.held:
        life.batch(0.0)
        life.settle()
    found = Worked(life.waiting, life.batches - batches, first, life.wrote - begun - first)
    life.end()
    return found


def row(what: str, hosts: str, shards: int, records: int) -> list[str]:
    """Return the row of a stream."""
    found = work_off(hosts, shards, records)
    written = (f"{size / 1000:,.0f} KB" for size in (found.first, found.written))
    return [what, f"{found.waiting:,}", *written, f"{found.batches:,}"]


def main() -> None:
    """Measure, each stream on a server of its own, and publish."""
    rows = []
    for what, (shards, records) in STREAMS.items():
        with EmbeddedZooKeeper() as zookeeper:
            rows.append(row(what, zookeeper.hosts, shards, records))
        print(rows[-1], flush=True)
    publish(
        Section(
            name="small-server",
            title="Failed records on a small ZooKeeper",
            command="python -m benchmarks.small_server",
            columns=[
                "records, of which every second fails once",
                "groups that wait at once",
                "written when they fail",
                "written until all are done",
                "batches until then",
            ],
            rows=rows,
            note="ZooKeeper is a real server with 256 MB of heap, a new one for each row: had it died, so would the "
            "query. Neighbouring sequence numbers differ in 27 digits at random, reasons have 200 characters.",
        )
    )


if __name__ == "__main__":
    main()
