"""Each line that a finding prints is typed in the state in which it is printed: large ones, and under hostile names."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from command_line import Command
from kazoo.client import KazooClient
from samples_console import NOW, Dead, NoKinesis, letter, records

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLettersNode,
    InflightNode,
    SettledNode,
    ShardLineage,
    ShardsNode,
)
from kinesis_trident.checkpoint.model.run_status import FailingNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.failed_records.letter_writer import DeadLetterWriter
from kinesis_trident.tracker.records import Noted, Run

FAILED = (Noted(NOW, "KeyError: 'customer'"),)


def run(number: int, attempt: int) -> Run:
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
        waiting=tuple(run(1_000 + number, 2) for number in range(each)),
        dead=tuple(run(1_000 + each + number, 4) for number in range(each)),
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
    some = [(run(number + 1, 4), [records(number + 1, 1)], False) for number in range(each)]
    writer.write(stream="orders", txid=6, letters=dict.fromkeys(names, some))
    store.client.delete(layout.owner)


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
    tmp_path: Path,
) -> None:
    application = name.format(app)
    store = SourceStore(client, Layout("/kinesis-trident", application, "orders", 1))
    make(store, tmp_path / "letters", shards, each)
    (status,) = map(json.loads, command("status", "--json", "--", application)[1].splitlines())
    codes = {one["code"] for one in status["findings"]}
    assert codes >= {"all-fail", "blocked", "dead-letters", "exhausted", "not-running", "retrying"}
    for one in status["findings"]:
        assert all(line in one["remedy"] for line in one["commands"])
        assert one["remedy"].count("kinesis-trident ") == len(one["commands"]), one
    lines = dict.fromkeys(line for one in status["findings"] for line in one["commands"])
    assert {shlex.split(line)[1] for line in lines} >= {"dead-letters", "retries"}
    for line in lines:
        words = shlex.split(line)[1:]
        # Whoever types it is asked.
        yes = ["--yes"] if "replay" in words else []
        code, out, said = command(words[0], *yes, *words[1:])
        assert code == 0, (line, said)
        if "replay" in words:
            count = shards * each
            assert f"{count:,} record{'s' if count > 1 else ''} will be delivered again" in out, line
