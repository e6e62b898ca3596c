"""The commands as they are typed, against a real ZooKeeper."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from samples_console import (
    CHILD,
    NOW,
    PARENT,
    PLAN,
    SEQUENCE,
    SNAPSHOT,
    Dead,
    NoKinesis,
    letter,
    pin,
    records,
)
from servers import KinesisLocal
from thorough import cases

from kinesis_trident import __version__
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper, free_port
from kinesis_trident.checkpoint.model.layout import Layout, ShardKey
from kinesis_trident.checkpoint.model.nodes import (
    BatchOutcome,
    DeadLettersNode,
    SettledNode,
    ShardsNode,
    StreamsNode,
)
from kinesis_trident.checkpoint.model.run_status import StatusNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper import client as zookeeper_client
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig
from kinesis_trident.console import scope
from kinesis_trident.console.cli import main
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters
from kinesis_trident.spout.failed_records.letter_writer import DeadLetterWriter
from kinesis_trident.spout.kinesis import StreamInfo
from kinesis_trident.tracker.records import Run

ROOT = Path(__file__).resolve().parents[2]

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(client: KazooClient, app: str) -> SourceStore:
    """The application of the samples, in ZooKeeper."""
    return written(SourceStore(client, Layout("/kinesis-trident", app, "orders", 1)))


def written(store: SourceStore) -> SourceStore:
    epoch = store.epochs.raise_epoch("worker-7", 4711, NOW)
    store.shards.put_lineage(ShardsNode(shards=dict(SNAPSHOT.shards)), epoch)
    store.shards.settle(
        {shard: (node, SNAPSHOT.inflight.get(shard)) for shard, node in SNAPSHOT.checkpoints.items()},
        {
            CHILD: DeadLettersNode(
                count=2, target="/dead", last=(letter(f"orders/{CHILD}:1"), letter(f"orders/{CHILD}:2"))
            )
        },
        None,
        SettledNode(txid=7, plan="p7"),
        epoch,
    )
    store.batches.put(PLAN, epoch)
    store.batches.create_pin(CHILD, pin(CHILD, 10), epoch)
    return store


def test_checkpoints_are_read_from_zookeeper(command: Command, store: SourceStore, app: str) -> None:
    code, out, _ = command("checkpoints", app, "--json")
    assert code == 0
    document = json.loads(out)
    rows = {row["shard"]: row for row in document["rows"]}
    assert (rows[CHILD]["checkpoint"], rows[CHILD]["inflight"], rows[CHILD]["retrying"]) == (SEQUENCE, 15, 4)
    assert rows[CHILD]["owner"] == "worker-7:4711"
    assert "txid 8: being read, 1 of 2 shards so far" in document["note"]


def test_a_published_outcome_shows_as_finished(command: Command, store: SourceStore, app: str) -> None:
    store.batches.put_outcome(BatchOutcome(txid=8, plan="p8", epoch=1, not_done={}), 1)
    assert "txid 8: finished, not settled" in command("checkpoints", app)[1]


def test_a_settled_batch_is_not_under_way_any_more(command: Command, store: SourceStore, app: str) -> None:
    store.shards.settle({}, {}, None, SettledNode(txid=8, plan="p8"), 1)
    note = json.loads(command("checkpoints", app, "--json")[1])["note"]
    assert note.startswith("settled: txid 8; run:")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("checkpoints", "4965…123456789012"),
        ("inflight", "ValueError: bad amount"),
        ("retries", f"orders/{CHILD}:after 30..33"),
        ("dead-letters", f"orders/{CHILD}:2"),
        ("shards", "drained"),
    ],
)
def test_every_table_is_drawn(command: Command, store: SourceStore, app: str, name: str, shown: str) -> None:
    code, out, _ = command(name, app)
    assert code == 0
    assert shown in out


def test_each_stream_has_its_table_unless_one_is_chosen(
    command: Command, client: KazooClient, store: SourceStore, app: str
) -> None:
    written(SourceStore(client, Layout("/kinesis-trident", app, "refunds", 1)))
    titles = [json.loads(line)["title"] for line in command("shards", app, "--json")[1].splitlines()]
    assert titles == [f"shards of {app}, stream orders", f"shards of {app}, stream refunds"]
    (line,) = command("shards", app, "--json", "--stream", "refunds")[1].splitlines()
    assert json.loads(line)["title"].endswith("refunds")


def test_of_a_stream_that_was_made_again_the_newest_is_shown(
    command: Command, client: KazooClient, store: SourceStore, app: str
) -> None:
    SourceStore(client, Layout("/kinesis-trident", app, "orders", 2)).epochs.raise_epoch("worker-8", 1, NOW)
    (line,) = command("checkpoints", app, "--json")[1].splitlines()
    assert json.loads(line)["rows"] == []


def test_an_unknown_application_is_told_the_known_ones(
    command: Command, store: SourceStore, app: str
) -> None:
    code, out, err = command("checkpoints", "nobody")
    assert (code, out) == (1, "")
    assert err.startswith("kinesis-trident: there is no application 'nobody' below /kinesis-trident")
    assert "; the applications are " in err
    assert len(err.splitlines()) == 1


def test_an_unknown_stream_is_told_the_known_ones(command: Command, store: SourceStore, app: str) -> None:
    code, _, err = command("shards", app, "--stream", "invoices")
    assert (code, err) == (
        1,
        f"kinesis-trident: application {app!r} does not read stream 'invoices'; it reads orders. Choose one with "
        "--stream\n",
    )


def test_no_zookeeper_is_one_sentence(command: Command) -> None:
    hosts = f"127.0.0.1:{free_port()}"
    code, out, err = command("--timeout", "1", "checkpoints", "a", "--zookeeper", hosts)
    assert (code, out) == (1, "")
    assert err.startswith(f"kinesis-trident: cannot connect to ZooKeeper at {hosts}")
    assert len(err.splitlines()) == 1
    code, out, err = command("--timeout", "1", "check", "a", "--zookeeper", hosts)
    assert (code, err) == (3, "")
    assert out.startswith(f"UNKNOWN - a: cannot connect to ZooKeeper at {hosts}")


def test_a_corrupt_node_is_named(command: Command, client: KazooClient, store: SourceStore, app: str) -> None:
    layout = store.layout
    damaged = [layout.checkpoint_of(CHILD), layout.inflight_of(CHILD), layout.owner, f"{layout.batches}/foo"]
    damaged += [f"{layout.checkpoints}/%FF", layout.settled, layout.deadletters_of(CHILD), layout.batch_of(8)]
    damaged += [layout.status, f"{layout.fenced}/1"]
    for path in damaged:
        client.ensure_path(path)
        client.set(path, b'{"v":1,"position":"FOO","checkpoint":"abc","txid":1}')
    for view in ("checkpoints", "inflight", "retries", "shards", "dead-letters"):
        code, out, err = command(view, app)
        assert code == 1
        assert all(path in err and path in out for path in damaged), err
        assert "Traceback" not in err
    # What can be read is there.
    code, out, _ = command("checkpoints", app, "--json")
    rows = {row["shard"]: row for row in json.loads(out)["rows"]}
    assert rows.keys() == SNAPSHOT.shards.keys()
    assert rows[PARENT]["txid"] == SNAPSHOT.checkpoints[PARENT].txid
    assert rows[CHILD]["txid"] is None
    assert len(json.loads(out)["problems"]) == len(damaged)
    # The status names each, and says all that can be said.
    (status,) = map(json.loads, command("status", app, "--json")[1].splitlines())
    corrupt = [one for one in status["findings"] if one["code"] == "corrupt-node"]
    assert all(any(path in one["sentence"] for one in corrupt) for path in damaged)
    assert (status["level"], status["shards"], status["run"]["host"]) == ("critical", 3, "worker-7")
    code, out, _ = command("check", app)
    assert code == 2
    assert all(path in out for path in damaged)
    client.create(f"{layout.audit}/1", b"{}", makepath=True)
    code, out, err = command("owner", app)
    assert code == 1
    assert "epoch 1 on worker-7" in out
    assert f"{layout.audit}/1" in err
    client.create(f"/kinesis-trident/{app}-other/orders@1/epoch", b"{}", makepath=True)
    # Nor does one that only somebody else may read.
    closed = make_digest_acl("somebody", "secret", all=True)
    client.create(f"/kinesis-trident/{app}-closed", acl=[closed])
    code, out, err = command("apps")
    assert app in out, (code, err)
    assert f"{app}-closed" in out + err


def test_named_records_are_asked_for_again(command: Command, store: SourceStore, app: str) -> None:
    ids = [f"orders/{CHILD}:2", f"orders/{CHILD}:1", f"orders/{CHILD}:1"]
    code, out, _ = command("dead-letters", app, "replay", *ids)
    assert (code, out) == (0, "2 records will be delivered again with one of the next micro-batches\n")
    (asked,) = store.external.read().asked[CHILD].values()
    assert (asked.op, asked.records) == ("replay", ("1", "2"))


@pytest.mark.parametrize(
    ("name", "words"),
    [("dead-letters", "list, show"), ("retries", "reasons, list"), ("checkpoints", "show, set")],
)
def test_an_action_that_a_command_does_not_have_is_told_where_one_stands(
    command: Command, name: str, words: str
) -> None:
    """One that it has may stand before the application, too: tests/console/test_words.py."""
    code, _, err = command(name, "look", "orders")
    assert code == 2
    said = " ".join(err.split())
    assert f"'orders' is not one of {words}" in said
    assert "which stand before the application or after it" in said


def test_all_that_is_listed_is_asked_for_again(command: Command, store: SourceStore, app: str) -> None:
    assert command("dead-letters", app, "replay", "--all")[0] == 0
    (asked,) = store.external.read().asked[CHILD].values()
    assert asked.records == ("1", "2")


def test_without_a_run_the_next_start_is_announced(
    command: Command, client: KazooClient, store: SourceStore, app: str
) -> None:
    client.delete(store.layout.owner)
    _, out, _ = command("dead-letters", app, "replay", "--all")
    assert out == "2 records will be delivered again once the query is started: it is not running\n"


def test_a_folder_says_what_to_replay(
    command: Command, store: SourceStore, app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One written by the source itself, shared with another application, with an expired record in it."""
    for application, first in ((app, 100), ("another", 500)):
        writer = DeadLetterWriter(Dead(str(tmp_path / "dead"), application), kinesis=NoKinesis())
        found = [records(first, 3)]
        gone = Run(str(first + 90), str(first + 90), 1, attempt=4)
        run = Run(str(first), str(first + 2), 3, attempt=4)
        writer.write(stream="orders", txid=5, letters={CHILD: [(run, found, False), (gone, [], True)]})
    monkeypatch.chdir(tmp_path)

    code, out, err = command("dead-letters", app, "replay", "--from", "dead")
    assert (code, out.split()[0]) == (0, "3")
    assert "1 record is past the stream's retention" in err
    (asked,) = store.external.read().asked[CHILD].values()
    assert asked.records == ("100", "101", "102")


def test_records_of_a_folder_can_be_chosen(
    command: Command, store: SourceStore, app: str, tmp_path: Path
) -> None:
    writer = DeadLetterWriter(Dead(str(tmp_path), app), kinesis=NoKinesis())
    run = Run("100", "102", 3, attempt=4)
    writer.write(stream="orders", txid=5, letters={CHILD: [(run, [records(100, 3)], False)]})
    chosen, absent = f"orders/{CHILD}:101", f"orders/{CHILD}:109"

    code, _, err = command("dead-letters", app, "replay", chosen, absent, "--from", str(tmp_path))
    assert (code, store.external.read().asked) == (1, {})
    assert f"holds no replayable dead letter {absent}" in err

    assert command("dead-letters", app, "replay", chosen, "--from", str(tmp_path))[0] == 0
    (asked,) = store.external.read().asked[CHILD].values()
    assert asked.records == ("101",)


@pytest.mark.parametrize(
    ("made", "account"), [(None, None), (1, "1"), (1, "2"), (2, "1"), (2, None)], ids=str
)
def test_letters_of_another_stream_of_the_name_are_left_out(
    command: Command, store: SourceStore, app: str, tmp_path: Path, made: int | None, account: str | None
) -> None:
    """Those of earlier releases do not tell."""
    run = store.epochs.newest_run()
    assert run is not None
    store.status.put(StatusNode(epoch=run[0], time=NOW, accounts={"orders": "1"}), run[0])
    writer = DeadLetterWriter(Dead(str(tmp_path), app), kinesis=NoKinesis())
    for first, info in (
        (100, None if made is None else StreamInfo("orders", f"a:b:c:d:{account or ''}:e", made, 24, "", 0)),
        (200, StreamInfo("orders", "a:b:c:d:1:e", 1, 24, "", 0)),
    ):
        letters = [(Run(str(first), str(first), 1, attempt=4), [records(first, 1)], False)]
        writer.write(stream="orders", txid=first, letters={CHILD: letters}, info=info)
    is_own = made is None or (made, account) == (1, "1")
    code, out, err = command("dead-letters", app, "replay", "--from", str(tmp_path))
    assert (code, out.split()[0]) == (0, "2" if is_own else "1")
    assert ("left out, as of another stream" in err) is not is_own
    (asked,) = store.external.read().asked[CHILD].values()
    assert asked.records == (("100", "200") if is_own else ("200",))
    code, _, err = command("dead-letters", app, "replay", f"orders/{CHILD}:100", "--from", str(tmp_path))
    assert code == 1
    assert ("was created at another time, or in another account" in err) is not is_own


def test_the_files_of_settled_batches_are_compacted(
    command: Command, store: SourceStore, app: str, tmp_path: Path
) -> None:
    writer = DeadLetterWriter(Dead(str(tmp_path), app), kinesis=NoKinesis())
    for txid in range(3, 11):
        run = Run(str(txid), str(txid), 1, attempt=4)
        writer.write(stream="orders", txid=txid, letters={CHILD: [(run, [records(txid, 1)], False)]})
    put_letters(store, str(tmp_path), f"orders/{CHILD}:3")

    code, out, _ = command("dead-letters", app, "compact", "--from", str(tmp_path))
    assert (code, out) == (0, "orders: 6 files of settled batches, 1 after it\n")
    names = sorted(path.name for path in tmp_path.rglob("*.jsonl"))
    assert [name[:26] for name in names] == [
        "000000000003-000000000008-",
        *(f"{n:012d}-{CHILD}"[:26] for n in (9, 10)),
    ]
    assert [letter.txid for letter in read_dead_letters(tmp_path)] == list(range(3, 11))
    code, out, _ = command("dead-letters", app, "compact", "--from", str(tmp_path), "--json")
    assert (code, json.loads(out)) == (0, {"stream": "orders", "before": 1, "after": 1, "strange": []})
    code, _, err = command("dead-letters", app, "compact")
    assert (code, "--from FOLDER" in err) == (1, True)


def put_letters(store: SourceStore, target: str, *ids: str) -> None:
    """Let ZooKeeper say that these are dead letters, and where they are."""
    node = DeadLettersNode(count=len(ids), target=target, last=tuple(map(letter, ids)))
    checkpoint = msgspec.structs.replace(SNAPSHOT.checkpoints[CHILD], txid=8)
    store.shards.settle({CHILD: (checkpoint, None)}, {CHILD: node}, None, SettledNode(txid=8, plan="p8"), 1)


def test_a_folder_that_zookeeper_names_is_read_once_a_person_agrees(
    command: Command, store: SourceStore, app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "the letters")
    writer = DeadLetterWriter(Dead(folder, app), kinesis=NoKinesis())
    run = Run("100", "100", 1, attempt=4)
    writer.write(stream="orders", txid=5, letters={CHILD: [(run, [records(100, 1)], False)]})
    chosen = f"orders/{CHILD}:100"
    put_letters(store, folder, chosen)

    code, out, err = command("dead-letters", app, "show", chosen)
    assert (code, "payload" in out) == (0, False)
    # What the line names is read.
    (word,) = shlex.split(err.partition("names ")[2].partition(": read")[0])
    for more in (["--yes"], ["--from", word]):
        assert "data: payload" in command("dead-letters", app, "show", chosen, *more)[1]

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, is_read in (("n", False), ("y", True)):
        monkeypatch.setattr(
            "typer.confirm", lambda text, err, answer=answer: folder in text and answer == "y"
        )
        assert ("data: payload" in command("dead-letters", app, "show", chosen)[1]) == is_read


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/x?endpoint_override={host}&scheme=http",
        "s3://key:secret@bucket/x",
        # On a terminal only the last part is left.
        "hdfs://{host}/x\r\x1b[2Ks3://mine/letters",
    ],
)
def test_zookeeper_never_chooses_who_gets_a_signed_request(
    command: Command, store: SourceStore, app: str, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "of-the-operator")
    with socket.create_server(("127.0.0.1", 0)) as host:
        host.setblocking(False)
        put_letters(store, address.format(host=f"127.0.0.1:{host.getsockname()[1]}"), f"orders/{CHILD}:100")
        code, out, err = command("dead-letters", app, "show", f"orders/{CHILD}:100", "--yes")
        assert (code, "reason" in out) == (0, True)
        assert "which chooses who gets your credentials" in err
        assert all(map(str.isprintable, err.split("\n")))
        with pytest.raises(BlockingIOError):
            host.accept()


@pytest.mark.parametrize("folder", ["nowhere", "empty"])
def test_a_folder_without_dead_letters_is_an_error(
    command: Command, store: SourceStore, app: str, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "empty").mkdir()
    code, out, err = command("dead-letters", app, "replay", "--from", str(tmp_path / folder))
    assert (code, out) == (1, "")
    assert str(tmp_path / folder) in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["replay"], "Give message ids, or --all"),
        (["replay", "--all", "orders/s:1"], "--all cannot be combined"),
        (["replay", "orders:1"], "is not a message id"),
        (["replay", "refunds/s:1"], "does not read stream 'refunds' of these records; it reads orders"),
        (["replay", f"orders/{CHILD}:1", "orders/shardId-9:1"], "has no shard shardId-9"),
    ],
)
def test_a_replay_that_cannot_be_is_refused_and_writes_nothing(
    command: Command, store: SourceStore, app: str, arguments: list[str], says: str
) -> None:
    code, out, err = command("dead-letters", app, *arguments)
    assert (code, out) == (1, "")
    assert says in err
    assert store.external.read().asked == {}


@pytest.mark.parametrize("words", [["apps", "--json"], ["status", "APP", "--json", "--watch", "0.01"]])
def test_looks_share_one_session(
    words: list[str], command: Command, store: SourceStore, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, opened = itertools.count(), list[str]()
    take, connect = scope.take_snapshot, zookeeper_client.connect

    def look(one: SourceStore) -> Snapshot:
        if next(looks) == 3:
            raise KeyboardInterrupt
        return take(one)

    def connect_once(config: ZooKeeperConfig) -> KazooClient:
        opened.append(config.hosts)
        return connect(config)

    monkeypatch.setattr(scope, "take_snapshot", look)
    monkeypatch.setattr(zookeeper_client, "connect", connect_once)
    with suppress(KeyboardInterrupt):
        command(*[app if word == "APP" else word for word in words])
    assert next(looks) > 0
    assert len(opened) == 1


def test_watch_looks_again_until_ctrl_c(zookeeper: EmbeddedZooKeeper, store: SourceStore, app: str) -> None:
    with running("checkpoints", app, "--json", "--watch", "0.1", "--zookeeper", zookeeper.hosts) as watching:
        assert watching.stdout is not None
        assert "settled: txid 7" in watching.stdout.readline()
        store.shards.settle({}, {}, None, SettledNode(txid=8, plan="p8"), 1)
        assert any("settled: txid 8" in watching.stdout.readline() for _ in range(300))
        watching.send_signal(signal.SIGINT)
        assert watching.wait(300) == 0


@pytest.mark.parametrize(
    ("server", "end"),
    cases(
        ("kinesis", signal.SIGINT),
        long=(("zookeeper", signal.SIGTERM), ("zookeeper", signal.SIGINT), ("kinesis", signal.SIGTERM)),
    ),
)
def test_a_server_runs_until_it_is_told_to_end(server: str, end: signal.Signals) -> None:
    with running(server, "--port", "0") as serving:
        assert serving.stdout is not None
        line = serving.stdout.readline()
        assert line.startswith(f"{server} at ")
        assert line.endswith("; Ctrl-C stops it\n")
        serving.send_signal(end)
        assert serving.wait(300) == 0


def test_a_kinesis_that_can_reshard_is_started_where_it_is_installed(
    kinesis_local: KinesisLocal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node").symlink_to(kinesis_local.node)
    # As npm install -g leaves it.
    (tmp_path / "kinesis-local").symlink_to(kinesis_local.script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with running("kinesis", "--port", "0") as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline().startswith("kinesis-local at http://127.0.0.1:")
        serving.terminate()
        assert serving.wait(300) == 0


def test_a_kinesis_that_cannot_reshard_says_so(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinesis_trident.console.commands.servers.serve", lambda server, as_json: None)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "npm install -g kinesis-local" in command("kinesis", "--port", "0")[2]


def test_a_server_on_a_port_in_use_is_one_clear_error(zookeeper: EmbeddedZooKeeper, command: Command) -> None:
    code, _, err = command("zookeeper", "--port", str(zookeeper.port))
    assert code == 1
    assert f"127.0.0.1:{zookeeper.port}" in err
    assert "in use" in err


def running(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from kinesis_trident.console.cli import main; main()", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_streams_read_together_are_shown_together_or_one_by_one_and_replayed(
    client: KazooClient, app: str, command: Command
) -> None:
    store = SourceStore(client, Layout("/kinesis-trident", app))
    epoch = store.epochs.raise_epoch("worker-7", 4711, NOW)
    names = [store.layout.name_of(ShardKey(stream, 1, CHILD)) for stream in ("orders", "payments")]
    # What stands where the stream was read alone counts no more.
    written(SourceStore(client, Layout("/kinesis-trident", app, "orders", 1)))
    store.streams.put(StreamsNode(streams={"orders": 1, "payments": 1}, active=("orders", "payments")), epoch)
    store.shards.settle(
        dict.fromkeys(names, (SNAPSHOT.checkpoints[CHILD], SNAPSHOT.inflight[CHILD])),
        {
            name: DeadLettersNode(count=1, target="/dead", last=(letter(f"{stream}/{CHILD}:1"),))
            for name, stream in zip(names, ("orders", "payments"), strict=True)
        },
        ShardsNode(shards=dict.fromkeys(names, SNAPSHOT.shards[CHILD])),
        SettledNode(txid=7, plan="p7"),
        epoch,
    )
    shown = json.loads(command("checkpoints", app, "--json")[1])
    assert shown["title"] == f"checkpoints of {app}, streams orders, payments"
    assert [row["shard"] for row in shown["rows"]] == [f"orders/{CHILD}", f"payments/{CHILD}"]
    one = json.loads(command("retries", app, "--json", "--stream", "payments")[1])
    assert {row["message_id"].partition("/")[0] for row in one["rows"]} == {"payments"}
    assert len(one["rows"]) == len(SNAPSHOT.inflight[CHILD].waiting)
    assert command("dead-letters", app, "replay", f"payments/{CHILD}:1")[0] == 0
    assert {name: len(nodes) for name, nodes in store.external.read().asked.items()} == {names[1]: 1}
    assert "has no shard shardId-9" in command("dead-letters", app, "replay", "orders/shardId-9:1")[2]


def test_the_demo_gets_its_arguments(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--help"])
    assert ended.value.code == 0
    assert "--orders" in capfd.readouterr().out


def test_the_package_is_a_program_too() -> None:
    command = [sys.executable, "-m", "kinesis_trident", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout == f"kinesis-trident {__version__}\n"
