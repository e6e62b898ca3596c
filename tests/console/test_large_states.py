"""Each line that a finding prints is typed in the state in which it is printed: large ones, and under hostile names."""

from __future__ import annotations

import inspect
import json
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import Command
from kazoo.client import KazooClient
from samples_console import NOW, Dead, NoKinesis, letter, records

from kinesis_trident.checkpoint.model import standing
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLettersNode,
    InflightNode,
    SettledNode,
    ShardLineage,
    ShardsNode,
)
from kinesis_trident.checkpoint.model.run_status import FailingNode, Seen, StatusNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.console.rules import RULES
from kinesis_trident.spout.failed_records.letter_writer import DeadLetterWriter
from kinesis_trident.spout.testing import ScriptedKinesis
from kinesis_trident.tracker.records import Noted, Run

KEPT = {"blocked", "dead-letters", "exhausted", "many-waiting", "retrying", "max-dead", "max-retrying"}
STOPPED, RUNNING, DAMAGED = {"unknown-lag"}, {"max-lag", "unavailable"}, {"corrupt-node"}
"""The findings that print a line: always, and besides in each state of the home."""

FAILED = (Noted(NOW, "KeyError: 'customer'"),)


def failed(number: int, attempt: int) -> Run:
    return Run(str(number), str(number), 1, attempt=attempt, due=NOW, failures=FAILED)


def make(store: SourceStore, folder: Path, shards: int, each: int) -> None:
    """Make a state: in each shard as many letters as wait for a retry, and as are exhausted."""
    layout = store.layout
    epoch = store.epochs.raise_epoch("worker-7", 4711, NOW)
    names = [f"shardId-{number:012d}" for number in range(shards)]
    last = 1_000 + 2 * each
    node = CheckpointNode(checkpoint="1", txid=7, position=f"AFTER_SEQUENCE_NUMBER {last}", read=last)
    held = InflightNode(
        txid=7,
        waiting=tuple(failed(1_000 + number, 2) for number in range(each)),
        dead=tuple(failed(1_000 + each + number, 4) for number in range(each)),
        blocked="too many groups of failed neighbours wait: the shard reads nothing new until some are done",
    )
    letters = {
        name: DeadLettersNode(
            count=each,
            target=str(folder),
            last=tuple(letter(f"orders/{name}:{number + 1}") for number in range(each))[-20:],
        )
        for name in names
    }
    nodes = dict.fromkeys(names, (node, held))
    lineage = ShardsNode(shards=dict.fromkeys(names, ShardLineage()))
    store.shards.settle(nodes, letters, lineage, SettledNode(txid=7, plan="p7"), epoch)
    store.failing.put(
        FailingNode(epoch=epoch, txid=7, at=NOW, records=20, failed=20, same=20, reason=FAILED[0].text), epoch
    )
    writer = DeadLetterWriter(Dead(str(folder), layout.application), kinesis=NoKinesis())
    some = [(failed(number + 1, 4), [records(number + 1, 1)], False) for number in range(each)]
    writer.write(stream="orders", txid=6, letters=dict.fromkeys(names, some))
    store.client.delete(layout.owner)


def run(store: SourceStore) -> None:
    """Have a run connected, to which Kinesis has given no answer for a minute."""
    now = int(time.time() * 1000)
    epoch = store.epochs.raise_epoch("worker-7", 4711, now)
    names = sorted(store.client.get_children(store.layout.checkpoints))
    seen = {
        name: Seen(seen=now, arrival=now - 600_000, refused=now - 60_000, why=why)
        for name, why in zip(names, ["unavailable", "unreadable"] * len(names), strict=False)
    }
    store.status.put(StatusNode(epoch=epoch, time=now, settled=7, shards=seen), epoch)


@pytest.fixture(scope="module")
def at() -> Iterator[list[str]]:
    """Where the environment of a user has its Kinesis."""
    with ScriptedKinesis() as kinesis:
        kinesis.create_stream("orders", 1)
        yield ["--region", "us-east-1", "--endpoint", kinesis.endpoint_url]


@dataclass(frozen=True)
class Typist:
    """Types each line of what is found, as whoever reads it does."""

    command: Command
    application: str
    at: list[str]
    count: int

    def check(self, *options: str) -> set[str]:
        """Type each line that a check prints; return the codes of the findings that print one."""
        findings = self.find(*options)
        for line in dict.fromkeys(line for lines in findings.values() for line in lines):
            self.type(line)
        # The next look finds the same, and nothing that was asked for.
        code, _, said = self.command("dead-letters", "--all", "--", self.application, "cancel")
        assert code == 0, said
        return set(findings)

    def find(self, *options: str) -> dict[str, list[str]]:
        """Return the lines that the findings of a check print, by code."""
        (status,) = map(
            json.loads, self.command("check", "--json", *options, "--", self.application)[1].splitlines()
        )
        for one in status["findings"]:
            assert all(line in one["remedy"] for line in one["commands"])
            assert one["remedy"].count("kinesis-trident ") == len(one["commands"]), one
        return {one["code"]: one["commands"] for one in status["findings"] if one["commands"]}

    def type(self, line: str) -> None:
        """Type a line, and look at what it says."""
        words = shlex.split(line)[1:]
        if words[0] == "doctor":
            out = self.command("doctor", "--json", *self.at, *words[1:])[1]
            found = {name: state for name, state, *_ in map(json.loads, out.splitlines())}
            assert {found[call] for call in ("DescribeStreamSummary", "GetRecords", "nodes")} == {"ok"}, out
            return
        # Whoever types it is asked.
        yes = ["--yes"] if "replay" in words else []
        code, out, said = self.command(words[0], *yes, *words[1:])
        assert code == 0, (line, said)
        if "replay" in words:
            assert f"{self.count:,} record{'s' if self.count > 1 else ''} will be delivered again" in out, (
                line
            )


@pytest.mark.parametrize(
    ("name", "shards", "each"),
    [
        ("{}", 1, 1),
        ("-x {}", 2, 3),
        ("--all {}", 1, 21),
        ("{} 'of' $(the) \"shop\"", 1, 2),
        ("{}/%2F|é", 1, 2),
        ("replay {}", 1, 2),
        pytest.param("-{}", 300, 34, id="10,200 letters in 300 shards"),
    ],
)
def test_each_line_of_a_finding_is_carried_out(
    name: str,
    shards: int,
    each: int,
    client: KazooClient,
    app: str,
    command: Command,
    at: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A state of so many groups takes minutes to make.
    monkeypatch.setattr(standing, "MANY_GROUPS", 1)
    application = name.format(app)
    store = SourceStore(client, Layout("/kinesis-trident", application, "orders", 1))
    make(store, tmp_path / "letters", shards, each)
    typist = Typist(command, application, at, shards * each)
    limits = ("--max-lag", "1m", "--max-retrying", "0", "--max-dead", "0")
    assert typist.check(*limits) == KEPT | STOPPED
    run(store)
    assert typist.check(*limits) == KEPT | RUNNING
    names = store.client.get_children(store.layout.checkpoints)
    store.client.set(store.layout.checkpoint_of(max(names)), b"{")
    # The others list what can be read, and end with the error.
    for code in DAMAGED:
        (line,) = typist.find(*limits)[code]
        typist.type(line)


@pytest.mark.parametrize(("view", "count"), [("inflight", 1_400), ("retries list", 1_100)])
def test_a_table_shows_the_first_rows_of_very_many_and_json_all(
    view: str, count: int, client: KazooClient, app: str, command: Command, tmp_path: Path
) -> None:
    each = count if view != "inflight" else count // 2
    make(SourceStore(client, Layout("/kinesis-trident", app, "orders", 1)), tmp_path / "letters", 1, each)

    def rows(*options: str) -> tuple[int, str]:
        code, out, said = command(*view.split(), app, *options)
        assert code == 0, said
        return out.count("KeyError"), out

    shown, out = rows()
    assert shown == 1_000
    assert f"and {count - 1_000:,} more (--limit 0 shows all)" in out
    shown, out = rows("--limit", "0")
    assert shown == count
    assert "more" not in out
    document = json.loads(rows("--json")[1])
    assert (len(document["rows"]), "more" in document["note"]) == (count, False)
    assert len(json.loads(rows("--json", "--limit", "7")[1])["rows"]) == 7


def test_each_finding_that_prints_a_line_is_among_them() -> None:
    printing = {rule.code for rule in RULES if ".line(" in inspect.getsource(rule.cases)}
    assert printing == KEPT | STOPPED | RUNNING | DAMAGED
