"""A recommended command line works as it stands: it asks the ZooKeeper that the user's own command has asked."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from command_line import Command
from kazoo.client import KazooClient
from samples_console import CHILD, NOW, SNAPSHOT, letter

from kinesis_trident import status
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import DeadLettersNode, SettledNode, ShardsNode
from kinesis_trident.checkpoint.store.source_store import SourceStore


@pytest.fixture
def where(
    command: Command,
    zookeeper: EmbeddedZooKeeper,
    client: KazooClient,
    app: str,
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """The options that lead to an application with a letter and failed records, which nothing else names."""
    store = SourceStore(client, Layout(f"/{app} root", app, "orders", 1))
    epoch = store.epochs.raise_epoch("worker-7", 4711, NOW)
    store.shards.put_lineage(ShardsNode(shards=dict(SNAPSHOT.shards)), epoch)
    letters = DeadLettersNode(count=1, target="/dead", last=(letter(f"orders/{CHILD}:1"),))
    nodes = {CHILD: (SNAPSHOT.checkpoints[CHILD], SNAPSHOT.inflight[CHILD])}
    store.shards.settle(nodes, {CHILD: letters}, None, SettledNode(txid=7, plan="p7"), epoch)
    monkeypatch.delenv("KINESIS_TRIDENT_ZOOKEEPER")
    return ["--zookeeper", zookeeper.hosts, "--root", f"/{app} root"]


def commands_in(text: str, where: list[str]) -> list[list[str]]:
    """The words of the recommended command lines, without the options that they end with."""
    found = []
    end = " " + shlex.join(where)
    for line in re.findall(r"kinesis-trident (.*?)" + re.escape(end), text):
        found.append(shlex.split(line))
    assert len(found) == text.count("kinesis-trident ")
    return found


def test_what_status_recommends_asks_the_same_ensemble(command: Command, where: list[str], app: str) -> None:
    code, out, _ = command("status", app, *where, "--json")
    assert code == 0
    remedies = "\n".join(one["remedy"] for one in json.loads(out)["findings"])
    recommended = commands_in(remedies, where)
    assert ["dead-letters", app, "replay", "--all"] in recommended
    for words in recommended:
        assert command(*words, *where)[0] == 0, words
    seen = status(app, {"zookeeper.hosts": where[1], "zookeeper.root": where[3]})
    assert [one["remedy"] for one in seen.findings] == remedies.splitlines()


@pytest.mark.parametrize(
    ("given", "recommended"),
    [
        (["dead-letters", "APP", "show"], ["dead-letters", "APP"]),
        (["dead-letters", "APP", "replay", f"orders/{CHILD}:9999"], ["dead-letters", "APP"]),
        (["retries", "APP", "now", "--reason", "none has this"], ["retries", "APP"]),
        (
            ["checkpoints", "APP", "import", "no such file"],
            ["checkpoints", "APP", "backups", "--stream", "orders"],
        ),
    ],
)
def test_what_an_error_recommends_does_too(
    command: Command, where: list[str], app: str, given: list[str], recommended: list[str]
) -> None:
    code, _, err = command(*(app if word == "APP" else word for word in given), *where)
    assert code == 1
    words = [app if word == "APP" else word for word in recommended]
    assert commands_in(err.removeprefix("kinesis-trident: "), where) == [words]
    assert command(*words, *where)[0] == 0


def test_a_request_that_waits_is_withdrawn_with_the_command_that_the_error_names(
    command: Command, where: list[str], app: str
) -> None:
    one = f"orders/{CHILD}:1"
    assert command("dead-letters", app, "replay", one, *where)[0] == 0
    code, _, err = command("dead-letters", app, "replay", one, *where)
    [words] = commands_in(err.removeprefix("kinesis-trident: "), where)
    assert (code, words) == (1, ["dead-letters", app, "cancel", one])
    assert command(*words, *where)[0] == 0
