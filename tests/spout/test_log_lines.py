"""The log tells the life of a query: one line for each thing that happens, and never very many."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from by_hand import Lives
from settled import settled

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLetterRecord,
    InflightNode,
    Plan,
    ShardLineage,
)
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.log_lines import Seldom, configure_logging
from kinesis_trident.spout.planner.offsets import offset_from_plan
from kinesis_trident.spout.planner.pace import LookTimes
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.finished_batch import Committed
from kinesis_trident.spout.planner.settling.shard_events import ShardUnit
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.planner.tip.looks import Look
from kinesis_trident.spout.planner.watching.life_log import LifeLog
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.spout.source import KinesisTridentReader
from kinesis_trident.spout.testing import MemoryKinesis
from kinesis_trident.tracker.records import NotDone

A, B = "shardId-000000000000", "shardId-000000000001"
TREE = logging.getLogger("kinesis_trident")


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kinesis_trident")


def said(caplog: pytest.LogCaptureFixture) -> str:
    """The lines so far, which are then forgotten; none of those that other threads add meanwhile is."""
    lines = []
    while caplog.records:
        record = caplog.records.pop(0)
        lines.append(f"{record.levelname} {record.getMessage()}")
    return "\n".join(lines)


def test_the_life_of_a_query(lives: Lives, app: str, caplog: pytest.LogCaptureFixture) -> None:
    kinesis = MemoryKinesis()
    for number in range(4):
        kinesis.put(A, b"%d" % number)
    query = lives.begin(kinesis, maxRetryingRecords="1", retryBackoff="1h..1h x1")
    base = query.run.layout.base
    assert (
        f"INFO application '{app}' starts on orders: 1 shard, settled up to txid 0, epoch 1 of {base}"
        in said(caplog)
    )
    query.batch(failing=[1, 3])
    assert query.plan() is None
    lines = said(caplog)
    assert "WARNING up to txid 1: 2 failed attempts: 1 x ValueError: 1; 1 x ValueError: 3" in lines
    assert f"WARNING orders/{A}: 2 groups of failed neighbours wait for a retry" in lines
    kinesis.split(A)
    while "new shard" not in (lines := said(caplog)):
        query.plan()
    assert f"INFO orders/{B}: new shard, child of orders/{A}" in lines
    # Another run takes over, and both say so.
    newer = lives.begin(kinesis, query.checkpoint)
    lines = said(caplog)
    assert re.search(r"WARNING it takes over from epoch 1 on \S+, pid \d+, which is still connected", lines)
    query.until_replaced()
    with pytest.raises(Exception, match="taken over"):
        query.plan()
    assert f"WARNING a newer run has taken over {base}: this one, of epoch 1, ends" in lines + said(caplog)
    newer.end()
    assert f"INFO epoch 2 of {base} ends, settled up to txid 1" in said(caplog)


def test_a_restart_does_not_warn_of_the_process_before_it_which_has_ended(
    lives: Lives, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark ends the planning process with its query, and ZooKeeper notices when the session has expired."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: ended.pid)
        query = lives.begin(MemoryKinesis())
    said(caplog)
    lives.begin(MemoryKinesis(), query.checkpoint)
    before = f"epoch 1 on {socket.gethostname()}, pid {ended.pid}"
    assert f"INFO it takes over from {before}, which has ended" in said(caplog)


def test_a_run_that_was_asked_to_end_ends_without_a_warning(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    query = lives.begin(MemoryKinesis())
    base = query.run.layout.base
    query.store.stop.ask(query.run.epoch)
    while not query.run._takeover.stop_asked:
        query.plan()
    lives.begin(MemoryKinesis(), query.checkpoint)
    query.until_replaced()
    assert f"INFO a newer run has taken over {base}: this one, of epoch 1, ends, as it was asked to" in said(
        caplog
    )


def test_a_lost_zookeeper_is_said_and_its_return(caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedZooKeeper() as server:
        client = connect(ZooKeeperConfig(server.hosts))
        server.stop()
        wait_for(caplog, "WARNING lost the connection to ZooKeeper at")
        server.start()
        wait_for(caplog, f"INFO ZooKeeper at {server.hosts} is back after")
        client.stop()
        client.close()
    assert said(caplog) == ""


def wait_for(caplog: pytest.LogCaptureFixture, text: str) -> None:
    for _ in range(6000):
        if text in "\n".join(f"{one.levelname} {one.getMessage()}" for one in list(caplog.records)):
            caplog.clear()
            return
        threading.Event().wait(0.01)
    raise AssertionError(text)


class Steady:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Life:
    """A log of a run, the clock, and what the run saw of the shards."""

    def __init__(self, letters: str = "skipped") -> None:
        self.clock = Steady()
        self.log = LifeLog(Layout("/r", "a", "orders", 1), letters, self.clock)
        self.sights = Sights(LookTimes.of())

    def settle(self, blocked: Mapping[str, str], txid: int = 1, **facts: Any) -> None:
        """Settle a batch in which two records of a shard have failed; `blocked`: why, by shard, empty if it is not."""
        plan = Plan(txid=txid, plan="p", streams={}, positions={})
        not_done = {A: (NotDone("1", "2", 2, "KeyError: 'x'"),)} if "letters" in facts else {}
        node = CheckpointNode(checkpoint=None, txid=txid, position="TRIM_HORIZON")
        states = {
            shard: ShardState(TRIM_HORIZON, node, InflightNode(txid=txid, waiting=(), blocked=why))
            for shard, why in blocked.items()
        }
        units = [ShardUnit(shard, one, None, facts.pop("letters", ())) for shard, one in states.items()]
        finished = replace(settled(plan).finished, verdict=Committed(not_done))
        event = replace(settled(plan), finished=finished, units=units, **facts)
        shards = Shards("parentFirst")
        self.sights = self.log.watch(shards, event, shards, self.sights)

    def look(self, looks: Mapping[str, Look], now: int) -> None:
        self.sights = self.log.log_refused(looks, now, self.sights)

    def forget(self, *gone: str) -> None:
        """Forget shards, as a run does when they are listed no longer."""
        self.sights = self.sights.only({shard: 0 for shard in self.sights.by_shard if shard not in gone})


def test_failures_and_dead_letters_are_added_up(caplog: pytest.LogCaptureFixture) -> None:
    life = Life("written to /dead")

    def settle(txid: int, blocked: str = "", seconds: float = 0.0) -> str:
        letter = DeadLetterRecord(f"orders/{A}:{txid}", 4, "ValueError: bad", 0, txid)
        life.settle({A: blocked}, txid, letters=(letter,), seconds=seconds)
        return said(caplog)

    assert settle(1).splitlines() == [
        "WARNING up to txid 1: 2 failed attempts: 2 x KeyError: 'x'",
        "WARNING up to txid 1: 1 record failed for good: 1 x ValueError: bad (written to /dead), the first is "
        f"orders/{A}:1",
    ]
    assert settle(2) == ""
    assert settle(3, blocked="full") == f"WARNING orders/{A}: full"
    assert settle(4, blocked="full") == ""
    life.clock.now += 20
    lines = settle(5, seconds=7.25)
    assert "WARNING up to txid 5: 8 failed attempts: 8 x KeyError: 'x'" in lines
    assert f"(written to /dead), the first is orders/{A}:2" in lines
    assert f"INFO orders/{A}: new records are read again, after 20 s" in lines
    assert "WARNING txid 5: settling took 7.2 s" in lines
    settle(6)
    life.log.flush()
    assert "up to txid 6: 2 failed attempts" in said(caplog)


def test_many_blocked_shards_are_one_line_and_not_at_each_batch(caplog: pytest.LogCaptureFixture) -> None:
    life = Life()
    shards = [f"s{number}" for number in range(7)]

    def settle(**blocked: str) -> str:
        life.settle(dict.fromkeys(shards, "") | blocked)
        life.clock.now += 1
        return said(caplog)

    assert settle(**dict.fromkeys(shards, "1003 runs wait")) == (
        "WARNING orders/s0: 1003 runs wait; 6 other shards are blocked too"
    )
    assert settle(s0="900 runs wait") == (
        "INFO orders/s1, orders/s2, orders/s3, orders/s4, orders/s5 and 1 more: new records are read again, after 1 s"
    )
    # Shards that are blocked for a batch now and then: the line above tells of them.
    assert settle(s0="900 runs wait", s1="1000 runs wait") == ""
    assert settle() == "INFO orders/s0: new records are read again, after 3 s"
    assert settle(s2="1001 runs wait") == ""
    life.clock.now += 10
    assert settle(s2="1002 runs wait", s3="1000 runs wait") == (
        "WARNING orders/s2: 1002 runs wait; 1 other shard is blocked too"
    )


def test_nothing_is_said_of_a_shard_that_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """Neither that it is blocked, which was not said while it was there, nor that Kinesis answers again."""
    life = Life()
    life.settle({"s0": "1000 runs wait"})
    life.settle({"s1": "1001 runs wait"})
    life.look({"s1": Look(ShardCursor(TRIM_HORIZON), refused=1_000, why="throttled")}, 12_000)
    life.forget("s1")
    assert "s0" in life.sights.by_shard
    said(caplog)
    life.clock.now += 20
    life.settle({"s2": "1002 runs wait"})
    assert said(caplog) == "WARNING orders/s2: 1002 runs wait"
    life.look({}, 400_000)
    assert said(caplog) == ""


def test_a_refusal_is_said_when_it_lasts_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    life = Life()
    refused = {one: Look(ShardCursor(TRIM_HORIZON), refused=1_000, why="throttled") for one in (A, B)}
    life.look(refused, 5_000)
    assert said(caplog) == ""
    life.look(refused, 12_000)
    assert said(caplog) == f"WARNING orders/{A}, orders/{B}: Kinesis throttles the reads, for 11 s now"
    life.look(refused, 60_000)
    assert said(caplog) == ""
    life.look(refused, 312_000)
    assert "for 311 s now" in said(caplog)
    life.look({}, 401_000)
    assert said(caplog) == f"INFO orders/{A}, orders/{B}: Kinesis answers again after 400 s"


def test_many_new_shards_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    life = Life()
    life.log.log_resharded({f"shardId-{number:03}": ShardLineage() for number in range(1000)})
    assert said(caplog).splitlines()[-1] == "INFO 995 more new shards"
    life.settle({}, ended=[f"s{number:03}" for number in range(1000)])
    assert (
        said(caplog) == f"INFO {', '.join(f'orders/s00{n}' for n in range(5))} and 995 more: read to the end"
    )


@pytest.fixture
def _nobody_configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(TREE, "handlers", [])
    level = TREE.level
    TREE.setLevel(logging.NOTSET)
    yield
    TREE.setLevel(level)


@pytest.mark.usefixtures("_nobody_configured")
def test_lines_have_time_and_level_where_nobody_configured_logging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest has some by now.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log = logging.getLogger("kinesis_trident.spout.planner.run")
    configure_logging("text")
    configure_logging("text")
    log.info("one")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO kinesis-trident: one\n", capsys.readouterr().err
    )
    configure_logging("json")
    try:
        raise ValueError("bad")
    except ValueError:
        log.exception("two\nlines")
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    document = json.loads(line)
    assert (document["level"], document["logger"], document["message"]) == ("ERROR", log.name, "two\nlines")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", document["time"])
    assert document["error"].endswith("ValueError: bad")
    # Somebody configures logging after all.
    logging.getLogger().addHandler(logging.NullHandler())
    log.error("three")
    assert capsys.readouterr().err == ""


def test_a_line_is_let_through_once_a_period() -> None:
    clock = Steady()
    seldom = Seldom(60, clock)
    assert [seldom("a"), seldom("a"), seldom("b")] == [True, False, True]
    clock.now += 61
    assert seldom("a")


def test_an_error_of_ours_shows_no_frames_of_ours(lives: Lives) -> None:
    """Spark prints the traceback of the planning process: one sentence says more than twenty frames."""
    query = lives.begin(MemoryKinesis())
    reader = KinesisTridentReader(lives.parsed())
    reader._engine.opened = query.run
    newer = lives.begin(MemoryKinesis(), query.checkpoint)
    query.until_replaced()
    with pytest.raises(FencedError) as ended:
        reader.latestOffset(offset_from_plan(query.run.initial()))
    frames = traceback.extract_tb(ended.tb)
    assert [frame.name for frame in frames] == ["test_an_error_of_ours_shows_no_frames_of_ours", "call"]
    newer.end()
