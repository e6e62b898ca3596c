"""Trees on a cluster that loses an executor, computes a stage again, and runs a copy of a task: counted once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness import layout_of, options, run_script
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.store.source_store import SourceStore

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

pytestmark = pytest.mark.long


def noted(folder: Path) -> list[Any]:
    return [json.loads(path.read_text()) for path in folder.glob("*.json")]


def test_a_lost_executor_and_a_copied_task_change_no_count_and_no_outcome(
    make_stream: Callable[..., str],
    kinesis: KinesisClient,
    kinesis_server: EmbeddedKinesis,
    zookeeper: EmbeddedZooKeeper,
    keeper: KazooClient,
    tmp_path: Path,
) -> None:
    sentences = [
        [f"cow {n} over moon {n % 3} {'flaky' if n % 10 == 3 else 'good'}{n}" for n in range(40)]
        + ["kill me"],
        [f"fox {n} under {'flaky' if n % 10 == 7 else 'good'}{n}" for n in range(20)] + ["slow one"],
    ]
    stream = make_stream(2)
    given = options(stream, zookeeper, kinesis_server) | {
        "retryLimit": "1",
        "retryBackoff": "0ms..1ms x1",
        "shardsPerTask": "1",
        "minFetchPeriod": "10ms",
    }
    run_script("cluster_driver.py", tmp_path, {"options": given, "sentences": sentences})
    # The executor's files and memory went with it, so that what was split was split again; and Spark ran a copy.
    assert (tmp_path / "killed").exists()
    tasks = Counter((txid, task) for txid, task, _ in noted(tmp_path / "split"))
    assert any(times > 1 for (txid, _), times in tasks.items() if txid == 1), "no stage was computed again"
    assert (tmp_path / "slow").exists()
    assert (tmp_path / "copied").exists(), "Spark has run no copy of the task"

    # The counts are those of a naive run; what failed came back, once, and nothing else did.
    words = [row for rows in noted(tmp_path / "words") for row in rows]
    every = [sentence for some in sentences for sentence in some]
    assert Counter(word for word, _ in {(word, id_) for word, id_, _ in words}) == Counter(
        word for sentence in every for word in sentence.split()
    )
    assert {id_.rpartition(":")[0] for _, id_, attempt in words if attempt == 2} == {
        sentence for sentence in every if "flaky" in sentence
    }
    store = SourceStore(keeper, layout_of(kinesis, stream))
    assert not any(node.waiting for node in store.shards.inflight().values())
    assert sum(node.read for node in store.shards.checkpoints().values()) == len(every)
