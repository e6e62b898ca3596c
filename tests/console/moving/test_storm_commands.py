"""From a Storm spout's checkpoints to ours and back, as typed."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from kazoo.client import KazooClient
from moving_source import Source, at

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, SettledNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.console.cli import main

SHARD = "shardId-000000000000"
SEQUENCE = "49590338271490256608559692538361571095921575989136588898"


@pytest.fixture
def command(
    zookeeper: EmbeddedZooKeeper, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--zookeeper", zookeeper.hosts])
        code = ended.value.code
        return code if isinstance(code, int) else 0, *capsys.readouterr()

    return run


def storm(style: str, app: str) -> list[str]:
    topology = ["--topology", "counts"] if style == "kinesis-storm-spout" else []
    return ["--storm", style, "--prefix", f"/storm/{app}", *topology]


@pytest.mark.parametrize(
    ("style", "path", "content"),
    [
        ("kinesis-storm-spout", "/storm/{app}/counts/{stream}/{shard}/state", {"checkpoint": SEQUENCE}),
        ("storm-kinesis", "/storm/{app}/{stream}/{shard}", {"committedSequenceNumber": SEQUENCE}),
    ],
)
def test_what_storm_left_is_where_we_begin_and_what_we_hand_back(
    command: Callable[..., tuple[int, str, str]],
    client: KazooClient,
    source: Source,
    app: str,
    *,
    style: str,
    path: str,
    content: dict[str, str],
) -> None:
    path = path.format(app=app, stream=source.stream, shard=SHARD)
    client.create(path, json.dumps(content).encode(), makepath=True)

    code, out, err = command("import", app, *storm(style, app), *source.options)
    assert (code, out, err) == (0, f"{SHARD} begins after {SEQUENCE}\n", "")

    layout = Layout("/kinesis-trident", app, source.stream, source.created)
    store = SourceStore(client, layout)
    assert store.shards.checkpoints()[SHARD].position == f"AFTER_SEQUENCE_NUMBER {SEQUENCE}"
    assert store.epochs.owner() is None

    client.delete(path)
    code, out, _ = command("export", app, *storm(style, app))
    assert (code, out) == (0, f"{path}\n")
    assert json.loads(client.get(path)[0]) == content


def test_an_application_that_has_read_is_left_alone(
    command: Callable[..., tuple[int, str, str]],
    client: KazooClient,
    source: Source,
    app: str,
) -> None:
    client.create(f"/storm/{app}/{source.stream}/{SHARD}", b'{"committedSequenceNumber": "7"}', makepath=True)
    store = SourceStore(client, Layout("/kinesis-trident", app, source.stream, source.created))
    epoch = store.epochs.raise_epoch("worker-7", 4711, 1)

    code, _, err = command("import", app, *storm("storm-kinesis", app), *source.options)
    assert code == 1
    assert "is running (worker-7, pid 4711" in err

    node = CheckpointNode(checkpoint="99", txid=1, position="AFTER_SEQUENCE_NUMBER 99")
    store.shards.settle({SHARD: (node, None)}, {}, None, SettledNode(txid=1, plan="p"), epoch)
    client.delete(store.layout.owner)
    code, _, err = command("import", app, *storm("storm-kinesis", app), *source.options)
    assert code == 1
    assert "has already read stream" in err
    assert store.shards.checkpoints()[SHARD].checkpoint == "99"
    store.epochs.check_epoch(epoch)


def test_nothing_to_import_is_one_sentence(
    command: Callable[..., tuple[int, str, str]],
    client: KazooClient,
    source: Source,
    app: str,
) -> None:
    code, out, err = command("import", app, *storm("storm-kinesis", app), *source.options)
    assert (code, out) == (1, "")
    assert "there is no /storm/" in err
    assert client.exists(Layout.application_path("/kinesis-trident", app)) is None


def test_a_stream_that_kinesis_does_not_know_is_one_sentence(
    command: Callable[..., tuple[int, str, str]], kinesis_server: EmbeddedKinesis, app: str
) -> None:
    arguments = ["--stream", "nowhere", *at(kinesis_server)]
    code, out, err = command("import", app, *storm("storm-kinesis", app), *arguments)
    assert (code, out) == (1, "")
    assert "nowhere" in err
    assert len(err.splitlines()) == 1
