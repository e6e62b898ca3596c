"""Hundreds of failing records a batch: packed wherever they are kept, and each succeeds in exactly one batch."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from by_hand import Lives, Query
from doc_blocks import PAGES, blocks_of
from kazoo.exceptions import NoNodeError
from lives import eventually

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.embedded.java import find_java, zookeeper_class_path
from kinesis_trident.spout.testing import MemoryKinesis

SHARD = "shardId-000000000000"
SHARDS = 3
RECORDS = 400


@pytest.fixture
def lives(make_lives: Callable[..., Lives]) -> Lives:
    return make_lives(retryLimit="9", describeShardInterval="10s")


@pytest.mark.parametrize("narrow", [False, True])
def test_each_record_succeeds_in_exactly_one_batch(
    lives: Lives, monkeypatch: pytest.MonkeyPatch, narrow: bool
) -> None:
    if narrow:
        # So little fits into an offset that most of what is due is in the stored plan alone.
        monkeypatch.setattr("kinesis_trident.spout.planner.plan.due_bytes", lambda _: 500)
        monkeypatch.setattr("kinesis_trident.spout.planner.plan.waiting_bytes", lambda _: 0)
    rng = random.Random(5)
    kinesis = MemoryKinesis(shards=SHARDS)
    for shard in kinesis.open_shards:
        for number in range(RECORDS):
            kinesis.put(shard, b"%d" % (number + 1000 * int(shard[-2:])))
    fails = {number: rng.choice([0, 0, 1, 2]) for number in range(1000 * SHARDS)}
    done: Counter[int] = Counter()
    beyond = 0
    wanted = SHARDS * RECORDS

    def some(query: Query) -> None:
        nonlocal beyond
        plan = query.in_hand or query.planned()
        rows = query.rows()
        named = sum(run.count for runs in plan.retries.values() for run in runs)
        beyond += max(0, sum(row[2] > 1 for row in rows) - named)
        bad = [row for row in rows if fails[row[0]] >= row[2]]
        query.publish(bad)
        query.commit()
        done.update(row[0] for row in rows if fails[row[0]] < row[2])

    query = lives.begin(kinesis)
    batches = 0
    while done.total() < wanted:
        some(query)
        batches += 1
        if batches % 3 == 0:
            # Killed, some times with a batch in hand, of which rows were read, or which only Spark knows.
            if (
                rng.random() < 0.7
                and done.total() < wanted
                and query.plan() is not None
                and rng.random() < 0.5
            ):
                query.rows()
            query.end()
            query = lives.begin(kinesis, query.checkpoint)
    assert set(done.values()) == {1}
    assert (beyond > 100) is narrow
    assert query.drain() == []
    report = query.run.report()
    assert (report["inflight"], report["retrying"], report["deadLettered"]) == (0, 0, 0)


def test_one_line_of_the_page_zookeeper_shows_the_failed_records_of_a_shard(
    lives: Lives, zookeeper: EmbeddedZooKeeper
) -> None:
    (block,) = (
        block.text
        for block in blocks_of(PAGES["zookeeper.md"])
        if block.kind == "sh" and "zlib" in block.text
    )
    kinesis = MemoryKinesis()
    sequences = [kinesis.put(SHARD, b"%d" % number) for number in range(40)]
    query = lives.begin(kinesis, retryBackoff="1h..1h x1")
    query.batch(failing=range(0, 40, 2))
    query.plan()
    java = shlex.join([str(find_java()), "-cp", zookeeper_class_path(), "org.apache.zookeeper.ZooKeeperMain"])
    path = query.run.layout.inflight_of(SHARD)
    command = re.sub(r"get \S+", f"get {shlex.quote(path)}", block.replace("zkCli.sh", java))
    done = subprocess.run(
        ["bash", "-c", command.replace("localhost:2181", zookeeper.hosts)],
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
    )
    shown = json.loads(done.stdout)
    head, firsts, lasts, counts, _, attempts, _, indexes = shown["columns"]
    assert [failures[0][1] for failures in shown["failures"]][:2] == ["ValueError: 0", "ValueError: 2"]
    assert (firsts.split(), counts, attempts) == (["="] * 20, [1] * 20, [1] * 20)
    assert [int(head + last) for last in lasts.split()] == sequences[::2]
    assert shown["failures"][indexes[3]][0][1] == "ValueError: 6"


def versions_of(query: Query) -> set[int]:
    """Return the versions of all nodes of a query, but for the copies that people write back."""
    client, found, folders = query.store.client, set(), [query.run.layout.base]
    while folders:
        folder = folders.pop()
        try:
            folders += [f"{folder}/{name}" for name in client.get_children(folder) if name != "backups"]
            data, _ = client.get(folder)
        except NoNodeError:
            continue
        found |= {json.loads(data)["v"]} if data else set()
    return found


def test_with_what_the_page_deploying_says_a_query_comes_to_nodes_that_release_1_0_0_reads(
    lives: Lives,
) -> None:
    kinesis = MemoryKinesis(shards=SHARDS)
    shards = sorted(kinesis.open_shards)

    def put(first: int, count: int) -> None:
        for number in range(first, first + count):
            kinesis.put(shards[number % SHARDS], b"%d" % number)

    rng, done = random.Random(7), Counter[int]()
    fails = [rng.choice([0, 1, 2]) for _ in range(600)]
    ahead = [0]
    lives.clock = lambda: time.time() + ahead[0]

    def some(query: Query) -> None:
        ahead[0] += 2
        if (query.in_hand or query.plan()) is None:
            return
        rows = query.rows()
        bad = [row for row in rows if row[2] <= fails[row[0]]]
        query.publish(bad)
        query.commit()
        done.update(row[0] for row in rows if row not in bad)

    put(0, 300)
    query = lives.begin(kinesis)
    some(query)
    query.plan()
    assert versions_of(query) == {1, 4}
    query.end()
    put(300, 300)
    text = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text()
    given = dict(re.findall(r"`(maxRetryingRecords|maxFetchRecordsPerShard)=(\d+)`", text))
    assert len(given) == 2
    query = lives.begin(kinesis, query.checkpoint, **given)

    def most() -> int:
        ahead[0] += 2
        _ = query.in_hand or query.plan()
        return max(max(len(node.waiting), len(node.dead)) for node in query.store.shards.inflight().values())

    assert most() > 16
    while most() > 16:
        some(query)
    for _ in range(4):
        some(query)
        assert most() <= 16
    some(query)
    assert done.total() < 600
    # As `kinesis_trident.stop` does.
    query.run.settle_finished(query.committed)
    query.run.purge()
    # A thread of its own removes the nodes.
    eventually(lambda: versions_of(query) == {1}, "only nodes of version 1 are left")
    query.end()
    # Nothing is left that is not settled, so a new checkpoint begins where this one ended.
    query = lives.begin(kinesis)
    for _ in range(20):
        some(query)
    assert done == Counter(range(600))
