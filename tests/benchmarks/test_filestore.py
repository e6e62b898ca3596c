"""Tests of the source's state in files, which a benchmark compares with ZooKeeper."""

from __future__ import annotations

import pickle
from pathlib import Path

from benchmarks.filestore import FileReader, FileRun, NoClient
from kinesis_trident.spout.kinesis.client import kinesis_client
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.testing import ScriptedKinesis


def test_the_source_runs_its_batches_on_files(tmp_path: Path) -> None:
    with ScriptedKinesis() as kinesis:
        kinesis.create_stream("files", 1)
        run_two_batches(kinesis, tmp_path)


def run_two_batches(kinesis: ScriptedKinesis, folder: Path) -> None:
    [shard] = kinesis.shards("files")
    options = SourceOptions.parse(
        {
            "streamName": "files",
            "endpointUrl": kinesis.endpoint_url,
            "applicationName": "files",
            "zookeeper.hosts": "nobody:2181",
            "zookeeper.root": str(folder),
            "startingPosition": "TRIM_HORIZON",
        }
    )
    run = FileRun(options, kinesis_client(options), NoClient())
    reader = pickle.loads(pickle.dumps(FileReader(options)))
    at, read = run.initial(), []
    for number in range(2):
        kinesis.put("files", shard, b"%d" % number, "key")
        while (plan := run.latest(at, None)) is None:
            pass
        for part in run.partitions(at, plan):
            read += [data for rows in reader.read(part) for data in rows.column("data").to_pylist()]
        at = plan
    assert read == [b"0", b"1"]
    run.settle_finished(at)
    assert run.settled == 2
    run.close()
