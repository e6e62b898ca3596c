"""The demo, small: it kills its job, and ends well by itself; a wrong result it calls wrong."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fast_spark
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from breakable import Breakable
from doc_blocks import PAGES, blocks_of
from kazoo.client import KazooClient, KazooState
from rich.console import Console
from thorough import cases

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.codec import FEW, encode
from kinesis_trident.checkpoint.model.nodes import InflightNode
from kinesis_trident.tracker.records import Run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

from demo_view import Truth, _count, connect, show_result, take_progress  # noqa: E402


def without_numbers(line: str) -> str:
    """A line without what differs from run to run: numbers, names of streams, what the kill met, widths."""
    line = re.sub(r"; (batch \d+|no batch) was unfinished", "", line)
    line = re.sub(r"orders-[0-9a-f]+|[\d,.]*\d", "#", line)
    return " ".join(re.sub(r"[━╇]+", "-", line).split())


@pytest.mark.parametrize("runs", [FEW, FEW + 1])
def test_the_demo_counts_the_records_of_few_runs_and_of_many(runs: int) -> None:
    waiting = tuple(Run(str(10 * at), str(10 * at + 4), at) for at in range(1, runs + 1))
    stored = json.loads(encode(InflightNode(txid=1, waiting=waiting)))
    assert isinstance(stored["waiting"], str) is (runs > FEW)
    assert _count(stored["waiting"]) == sum(range(1, runs + 1))


# Of 8,000 so many fail that ZooKeeper holds them packed, and moto takes long to find them.
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("orders", cases(800, long=(8000,)))
def test_the_demo_ends_well_by_itself(monkeypatch: pytest.MonkeyPatch, orders: int) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--orders", str(orders)]
    with fast_spark.warm_python() as warm:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=1000, check=False, env=os.environ | warm
        )
    assert done.returncode == 0, done.stdout + done.stderr
    bad = orders // 100
    lines = [" ".join(line.replace("│", " ").split()) for line in done.stdout.splitlines()]
    for wanted in (
        "5. the same command again: the unfinished batch is replayed with the same rows",
        f"good orders written {orders - bad:,} {orders - bad:,} ok",
        "orders written more than once 0 0 ok",
        "orders missing 0 0 ok",
        f"bad records in the dead letter {bad} {bad} ok",
        "dead letters written more than once 0 0 ok",
        f"reasons in the dead letter: JSONDecodeError ({bad})",
    ):
        assert wanted in lines, done.stdout
    assert "everything is as expected" in lines[-1]
    (shown,) = (block.text for block in blocks_of(PAGES["examples.md"]) if "SIGKILL" in block.text)
    printed = {without_numbers(line) for line in done.stdout.splitlines()}
    assert {without_numbers(line) for line in shown.splitlines()} - printed <= {"", "..."}
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("written", "letters", "good"),
    [
        ({(1, 1): "a", (2, 1): "b"}, ["x"], True),
        # The job was killed when it had written txid 2, before its outcome was stored.
        ({(1, 1): "a", (2, 1): "b", (2, 2): "b"}, ["x"], True),
        ({(1, 1): "a"}, ["x"], False),
        ({(1, 1): "a", (2, 1): "b", (2, 2): "a"}, ["x"], False),
        ({(1, 1): "ab", (2, 2): "b"}, ["x"], False),
        ({(1, 1): "abb"}, ["x"], False),
        ({(1, 1): "ab"}, [], False),
        ({(1, 1): "ab"}, ["x", "x"], False),
    ],
    ids=[
        "right",
        "written before and after a kill",
        "one missing",
        "one missing in the newest epoch",
        "one twice in two batches",
        "one twice in a batch",
        "no dead letter",
        "a dead letter twice",
    ],
)
def test_a_wrong_result_is_called_wrong(
    written: dict[tuple[int, int], str], letters: list[str], good: bool, tmp_path: Path
) -> None:
    for (txid, epoch), orders in written.items():
        folder = tmp_path / "orders" / f"txid={txid}" / f"epoch={epoch}"
        folder.mkdir(parents=True)
        table = pa.table({"order_id": list(orders), "amount": [1.5] * len(orders)})
        pq.write_table(table, folder / "part.parquet")
    console = Console(file=io.StringIO(), width=80)
    truth = Truth({"a": 1.5, "b": 1.5}, bad=1)
    assert show_result(console, tmp_path, truth, [{"messageId": letter} for letter in letters]) is good


def test_the_demo_reads_on_where_its_connections_to_zookeeper_are_lost(
    zookeeper: EmbeddedZooKeeper, client: KazooClient
) -> None:
    base = f"/{uuid.uuid4().hex}"
    client.create(
        f"{base}/checkpoints/shardId-000000000000", b'{"read": 7, "checkpoint": "9"}', makepath=True
    )
    lost = threading.Semaphore(0)
    host, _, port = zookeeper.hosts.partition(":")
    with Breakable(host, int(port)) as proxy, ThreadPoolExecutor(1) as pool:
        reader = connect(f"127.0.0.1:{proxy.port}")
        reader.add_listener(lambda state: lost.release() if state == KazooState.SUSPENDED else None)
        # A session fits, no request does.
        proxy.shorten(60)
        progress = pool.submit(take_progress, reader, base)
        for _ in range(3):
            assert lost.acquire(timeout=60)
        proxy.mend()
        assert progress.result(timeout=60).read == 7
        reader.stop()
        reader.close()
