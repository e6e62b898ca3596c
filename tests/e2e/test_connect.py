"""`reliable()` under Spark Connect: reports travel through ZooKeeper, the batch function runs beside the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from harness import HERE, kind, options, put

from checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from spout.deadletter import read_dead_letters

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient


def test_records_fail_one_by_one_and_come_back(
    make_stream: Callable[..., str],
    kinesis: KinesisClient,
    kinesis_server: EmbeddedKinesis,
    zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
) -> None:
    stream = make_stream(2)
    put(kinesis, stream, range(40))
    letters = tmp_path / "letters"
    asked = tmp_path / "asked.json"
    given = {**options(stream, zookeeper, kinesis_server), "deadLetter": str(letters)}
    asked.write_text(json.dumps({"folder": str(tmp_path), "options": given}))
    ended = subprocess.run(
        [sys.executable, str(HERE / "connect_driver.py"), str(asked)],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-6000:]
    written = [
        tuple(row) for path in (tmp_path / "out").glob("*.json") for row in json.loads(path.read_text())
    ]
    again = {i for i in range(40) if kind(i) == "flaky"} | {3}
    bad = {i for i in range(40) if kind(i) == "bad"}
    assert sorted(written) == sorted((i, 2 if i in again else 1) for i in range(40) if i not in bad)
    assert {json.loads(letter.data or b"")["i"] for letter in read_dead_letters(str(letters))} == bad
