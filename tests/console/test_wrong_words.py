"""An error of the command line says what is wrong, where, and what to do: to whoever types a wrong name."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Command
from kazoo.client import KazooClient
from samples_console import CHILD, NOW, PARENT, SNAPSHOT, letter

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import DeadLettersNode, SettledNode, ShardLineage, ShardsNode
from kinesis_trident.checkpoint.store.source_store import SourceStore


@pytest.fixture(autouse=True)
def store(client: KazooClient, app: str) -> SourceStore:
    """An application with very many shards."""
    store = SourceStore(client, Layout("/kinesis-trident", app, "orders", 1))
    epoch = store.epochs.raise_epoch("worker-7", 4711, NOW)
    many = {f"shardId-{number:012d}": ShardLineage() for number in range(100, 400)}
    store.shards.put_lineage(ShardsNode(shards=many | dict(SNAPSHOT.shards)), epoch)
    nodes = {CHILD: (SNAPSHOT.checkpoints[CHILD], SNAPSHOT.inflight[CHILD])}
    letters = DeadLettersNode(count=1, target="/dead", last=(letter(f"orders/{CHILD}:1"),))
    store.shards.settle(nodes, {CHILD: letters}, None, SettledNode(txid=7, plan="p7"), epoch)
    return store


NO_SHARD = "application 'APP' has no shard nope; it has shardId-000000000000, shardId-000000000001,"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "status nobody",
            [
                "no application 'nobody' below /kinesis-trident in ZooKeeper at",
                "Choose one, or check --zookeeper and --root",
            ],
        ),
        (
            "status APP --stream nope",
            ["application 'APP' does not read stream 'nope'; it reads orders. Choose one with --stream"],
        ),
        ("status APP --shard nope", [NO_SHARD, "and 293 more. Choose one with --shard"]),
        ("checkpoints APP set LATEST --shard nope", [NO_SHARD, "and 293 more. Choose one with --shard"]),
        ("retries APP now --all --shard nope", [NO_SHARD]),
        ("dead-letters APP replay --all --shard nope", [NO_SHARD]),
        ("dead-letters APP cancel --all --shard nope", [NO_SHARD]),
        ("dead-letters APP export --shard nope", [NO_SHARD]),
        (
            "dead-letters APP replay nope/shardId-000000000001:5",
            [
                "application 'APP' does not read stream 'nope' of these records; it reads orders. Check the message ids"
            ],
        ),
        ("dead-letters APP replay orders/shardId-9:5", ["and 293 more. Check the message ids"]),
        ("checkpoints APP set", ["checkpoints set -", "Missing argument 'POSITION'"]),
        (f"checkpoints APP set --shard {PARENT}", ["Missing argument 'POSITION'"]),
        (
            "checkpoints APP set LATEST",
            ["set is about one shard. Name it with --shard: shardId-000000000000,"],
        ),
        (
            f"checkpoints APP set FOO --shard {CHILD}",
            ["Expected: a sequence number to go on after, or LATEST,"],
        ),
        ("checkpoints APP import", ["checkpoints import -", "Missing argument 'FILE'"]),
        (
            "checkpoints APP import FILE",
            ["FILE, line 1 does not hold", "Give a file that export has written"],
        ),
        ("checkpoints APP backups x", ["unexpected extra argument", "(x)"]),
        ("checkpoints APP abandon-batch x", ["unexpected extra argument", "(x)"]),
        ("--sasl bob status APP", ["--sasl is not of the form USER:PASSWORD"]),
        ("--timeout 0 status APP", ["'--timeout'"]),
    ],
)
def test_a_wrong_word_is_named_with_its_place_and_what_to_do(
    command: Command, app: str, tmp_path: Path, words: str, says: list[str]
) -> None:
    file = tmp_path / "notes"
    file.write_text("nothing of ours\n")
    names = {"APP": app, "FILE": str(file)}
    code, _, err = command(*(names.get(word, word) for word in words.split()))
    assert code != 0
    for text in says:
        assert text.replace("'APP'", repr(app)).replace("FILE,", f"{file},") in err
    assert len(err) < 1000 + len(app)
