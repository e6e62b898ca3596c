"""`reliable()` and topologies under Spark Connect: reports travel through ZooKeeper, batches run beside the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import fast_spark
from harness import HERE, PATIENCE, digest, eventually, kind, layout_of, options, put
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient


def test_records_fail_one_by_one_and_come_back_and_the_query_stops_when_asked(
    make_stream: Callable[..., str],
    kinesis: KinesisClient,
    kinesis_server: EmbeddedKinesis,
    zookeeper: EmbeddedZooKeeper,
    keeper: KazooClient,
    tmp_path: Path,
) -> None:
    stream = make_stream(2)
    put(kinesis, stream, range(40))
    letters = tmp_path / "letters"
    asked = tmp_path / "asked.json"
    given = {**options(stream, zookeeper, kinesis_server), "deadLetter": str(letters)}
    asked.write_text(json.dumps({"folder": str(tmp_path), "options": given}))
    with fast_spark.warm_python() as warm:
        ended = subprocess.run(
            [sys.executable, str(HERE / "connect_driver.py"), str(asked)],
            env=os.environ
            | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
            | warm,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
    assert ended.returncode == 0, digest(ended.stderr)
    written = [
        tuple(row) for path in (tmp_path / "out").glob("*.json") for row in json.loads(path.read_text())
    ]
    again = {i for i in range(40) if kind(i) == "flaky"} | {3}
    bad = {i for i in range(40) if kind(i) == "bad"}
    assert sorted(written) == sorted((i, 2 if i in again else 1) for i in range(40) if i not in bad)
    assert {json.loads(letter.data or b"")["i"] for letter in read_dead_letters(str(letters))} == bad

    # Then a topology ran, in which one record failed, and came again as a whole.
    files = list((tmp_path / "taken").glob("*.json"))
    kept = sorted(tuple(row) for path in files for row in json.loads(path.read_text()))
    assert kept == [("flaky", 2), ("four", 1), ("one", 1), ("three", 1), ("three", 2), ("two", 1)]
    # It was asked to stop: its last batch is settled, and nobody plans on.
    store = SourceStore(keeper, layout_of(kinesis, stream))
    settled = store.batches.settled()
    assert settled is not None
    assert settled.txid >= max(int(path.stem.partition("-")[0]) for path in files)
    assert not any(node.waiting for node in store.shards.inflight().values())
    eventually(lambda: store.epochs.owner() is None, "the end of the planning process")
    (said,) = json.loads((tmp_path / "stopped.json").read_text())
    assert "stop(query, stream=stream)" in said
