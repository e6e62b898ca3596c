"""A job that a signal ends says so: no run that was asked to end is told as one that was killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from kazoo.client import KazooClient
from lives import HERE, Lives, eventually
from thorough import cases

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.store.source_home import find_home
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.testing import ScriptedKinesis


@pytest.fixture
def kinesis() -> Iterator[ScriptedKinesis]:
    """A stream into which somebody puts records all the time."""
    over = threading.Event()
    with ScriptedKinesis() as kinesis:
        kinesis.create_stream("orders", 1)
        (shard,) = kinesis.shards("orders")

        def put() -> None:
            while not over.wait(0.02):
                kinesis.put("orders", shard, b"order")

        putting = threading.Thread(target=put)
        putting.start()
        try:
            yield kinesis
        finally:
            over.set()
            putting.join()


@pytest.mark.parametrize(
    ("number", "helper"),
    cases(
        (signal.SIGINT, False),
        (signal.SIGTERM, True),
        long=((signal.SIGINT, True), (signal.SIGTERM, False)),
    ),
)
def test_a_signal_under_steady_input_is_told_as_an_end(
    kinesis: ScriptedKinesis,
    zookeeper: EmbeddedZooKeeper,
    keeper: KazooClient,
    app: str,
    tmp_path: Path,
    number: signal.Signals,
    helper: bool,
) -> None:
    root = f"/signals-{app}"
    options = {
        "streamName": "orders",
        "region": "us-east-1",
        "endpointUrl": kinesis.endpoint_url,
        "applicationName": app,
        "zookeeper.hosts": zookeeper.hosts,
        "zookeeper.root": root,
        "startingPosition": "TRIM_HORIZON",
    }
    job = Lives(tmp_path, HERE / "signals_driver.py")
    job.launch({"options": options, "folder": str(tmp_path), "helper": helper}, {})
    try:
        job.until(lambda: keeper.exists(root) and keeper.exists(f"{root}/{app}"), "the application's home")
        created = kinesis.client().describe_stream_summary(StreamName="orders")
        at = int(created["StreamDescriptionSummary"]["StreamCreationTimestamp"].timestamp() * 1000)
        store = SourceStore(keeper, find_home(keeper, root, app, {"orders": at}))
        job.until(lambda: store.shards.checkpoints() and store.epochs.owner(), "a run that settles")
        owner = store.epochs.owner()
        assert owner is not None
        planner = psutil.Process(owner.pid)
        if number is signal.SIGINT:
            # The terminal sends Ctrl-C to all of them.
            os.killpg(job.pid, number)
        else:
            os.kill(job.pid, number)
        code = job.finish()
        eventually(lambda: not planner.is_running(), "the end of the planning process")
        ends = [end for end in store.ends.runs() if end.epoch >= owner.epoch]
        print(code, ends, job.tail()[-1500:])
        assert ends
        if helper:
            assert code == 0, job.tail()
            assert ends[-1].how == "stopped"
    finally:
        job.kill()
