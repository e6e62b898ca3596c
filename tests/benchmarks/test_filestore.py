"""Tests of the source's state in files, which a benchmark compares with ZooKeeper."""

from __future__ import annotations

from pathlib import Path

from benchmarks.filestore import FileRun, FileStore, NoClient
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.reader.task import TurnReader
from kinesis_trident.spout.testing import MemoryKinesis


def test_the_source_runs_its_batches_on_files(tmp_path: Path) -> None:
    kinesis = MemoryKinesis(shards=1)
    [shard] = kinesis.open_shards
    options = SourceOptions.parse(
        {
            "streamName": "orders",
            "applicationName": "files",
            "zookeeper.hosts": "nobody:2181",
            "zookeeper.root": str(tmp_path),
            "startingPosition": "TRIM_HORIZON",
        }
    )
    run = FileRun(options, kinesis, NoClient())
    at, read = run.initial(), []
    for number in range(2):
        kinesis.put(shard, b"%d" % number)
        while (plan := run.latest(at, None)) is None:
            pass
        for part in run.partitions(at, plan):
            turns = TurnReader(part, kinesis, FileStore(tmp_path, part.layout), look_first=False)
            read += [data for rows in turns.rows() for data in rows.column("data").to_pylist()]
        at = plan
    assert read == [b"0", b"1"]
    run.settle_finished(at)
    assert run.settled == 2
    run.close()
