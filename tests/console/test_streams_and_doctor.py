"""The commands that talk to Kinesis: records go in and come out, and what a query needs is tried."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ensemble import Ensemble
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper, free_port
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, SettledNode, ShardLineage, ShardsNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.console import examination
from kinesis_trident.spout.testing import Refuse, ScriptedKinesis

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def at(kinesis_server: EmbeddedKinesis) -> list[str]:
    return ["--endpoint", kinesis_server.endpoint_url, "--region", "us-east-1"]


def test_what_is_put_comes_out(command: Command, make_stream: Callable[..., str], at: list[str]) -> None:
    stream = make_stream(2)
    assert (
        command("put", stream, "one", "zwei\x1b[2J", "--key", "k", *at)[1] == f"wrote 2 records to {stream}\n"
    )
    tail = ("tail", stream, "--from", "TRIM_HORIZON", "--no-follow", *at)
    lines = command(*tail)[1].splitlines()
    assert [line.split(" k ")[1] for line in lines] == ["one", r"zwei\x1b[2J"]
    (line,) = command(*tail, "--json", "--limit", "1")[1].splitlines()
    record = json.loads(line)
    assert (record["data"], record["key"], record["sub"]) == ("b25l", "k", None)
    assert command(*tail, "--shard", record["shard"], "--limit", "2")[1].count("\n") == 2
    assert command(*tail, "--shard", f"{stream}/{record['shard']}", "--limit", "2")[1].count("\n") == 2
    assert "has no shard shardId-9" in command(*tail, "--shard", "shardId-9")[2]
    # From now on means from this second on, because the server says its time in seconds.
    code, out, err = command("tail", stream, "--no-follow", *at)
    assert (code, err) == (0, "")
    assert {line.split(" k ")[1] for line in out.splitlines()} <= {"one", r"zwei\x1b[2J"}


def test_tail_shows_records_without_a_key_and_those_that_cannot_be_decoded(command: Command) -> None:
    with ScriptedKinesis() as server:
        server.create_stream("orders")
        [shard] = server.shards("orders")
        sequences = [server.put("orders", shard, data, None) for data in (b"one", b"two")]
        server.garble("orders", shard, sequences[1], {"Data": 7})
        at = (
            "--from",
            "TRIM_HORIZON",
            "--no-follow",
            "--endpoint",
            server.endpoint_url,
            "--region",
            "us-east-1",
        )
        one, two = command("tail", "orders", *at)[1].splitlines()
        records = [json.loads(line) for line in command("tail", "orders", *at, "--json")[1].splitlines()]
    assert one.endswith(" - one")
    assert " UNREADABLE: " in two
    assert f'"SequenceNumber":"{sequences[1]}"' in two
    assert [record["key"] for record in records] == [None, None]
    assert ["unreadable" in record for record in records] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tail", "nope", "--no-follow"], "check the stream's name"),
        (["tail", "s", "--from", "soon"], "--from is 'soon'. Expected: LATEST"),
        (["put", "s", "x", "-o", "rôle"], "is not of the form name=value"),
        (["put", "s", "x", "-o", "rolArn=x"], "Did you mean roleArn?"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    command: Command, at: list[str], arguments: list[str], says: str
) -> None:
    code, out, err = command(*arguments, *at)
    assert (code, out) == (1, "")
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.fixture
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a request that takes some seconds on a busy machine be no sign of a slow server."""
    monkeypatch.setattr(examination, "_SLOW_MS", 120_000)


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        (1_000_000, "the clocks agree"),
        (1_030_000, "the clocks agree"),
        (995_001, "the clocks agree"),
        (994_000, "this machine is 6.0 s ahead"),
        (1_034_999, "the clocks agree"),
        (1_036_000, "this machine is 6.0 s behind"),
    ],
)
def test_a_slow_answer_is_no_wrong_clock(theirs: int, says: str) -> None:
    found = examination.clock_result("clock against Kinesis", 1_000_000, theirs, 1_030_000)
    assert found.says == says
    assert (found.state == "ok") == (says == "the clocks agree")


@contextmanager
def closing_client(hosts: str) -> Iterator[KazooClient]:
    client = connect(ZooKeeperConfig(hosts))
    yield client
    client.stop()
    client.close()


def results(out: str) -> dict[str, tuple[str, str]]:
    found = map(json.loads, out.splitlines())
    return {name: (state, says) for name, state, says, _ in found}


@pytest.mark.usefixtures("_slow_machine")
def test_the_doctor_tries_everything(
    command: Command,
    make_stream: Callable[..., str],
    at: list[str],
    zookeeper: EmbeddedZooKeeper,
    app: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    stream = make_stream()
    client = connect(ZooKeeperConfig(zookeeper.hosts))
    SourceStore(client, Layout("/kinesis-trident", app, stream, 1)).epochs.raise_epoch("here", 1, 1)
    client.stop()
    client.close()
    code, out, _ = command("doctor", app, *at, "--json")
    found = results(out)
    assert code == 0, out
    assert {name: state for name, (state, _) in found.items()} == dict.fromkeys(
        [
            *("versions", "spark", "java", "python of workers"),
            *("zookeeper", "zookeeper's health", "write", "write to the application"),
            *("write to its home", "nodes"),
            *(
                "DescribeStreamSummary",
                "ListShards",
                "GetShardIterator",
                "GetRecords",
                "clock against Kinesis",
            ),
        ],
        "ok",
    ) | {"acl": "warning", "positions": "skipped"}
    assert "may be changed by everyone" in found["acl"][1]
    assert found["ListShards"][1] == "1 shard"


@pytest.mark.usefixtures("_slow_machine")
def test_the_doctor_compares_the_retention_of_a_stream_with_its_own_lag(
    command: Command, zookeeper: EmbeddedZooKeeper, app: str
) -> None:
    """Payments were read to their end, orders were not: what is unread there expires first."""
    shard = "shardId-000000000000"
    with ScriptedKinesis() as server, closing_client(zookeeper.hosts) as client:
        for stream, behind in (("orders", 20 * 3_600_000), ("payments", 60_000)):
            server.create_stream(stream)
            store = SourceStore(client, Layout("/kinesis-trident", app, stream, 1))
            epoch = store.epochs.raise_epoch("here", 1, 1)
            store.shards.put_lineage(ShardsNode(shards={shard: ShardLineage()}), epoch)
            node = CheckpointNode(
                checkpoint="1", txid=1, position="AFTER_SEQUENCE_NUMBER 1", behind_ms=behind
            )
            store.shards.settle({shard: (node, None)}, {}, None, SettledNode(txid=1, plan="p1"), epoch)
        at = ["--endpoint", server.endpoint_url, "--region", "us-east-1"]
        said = [
            results(command("doctor", app, "--stream", stream, *at, "--json")[1])["retention"]
            for stream in ("orders", "payments")
        ]
    assert said == [
        ("warning", "24 h, and the oldest unread record is 20h 00m old"),
        ("ok", "24 h, and the oldest unread record is 1m 00s old"),
    ]


@pytest.mark.usefixtures("_slow_machine")
def test_the_doctor_tries_to_write_with_the_login_it_is_given(
    command: Command, zookeeper: EmbeddedZooKeeper, app: str, at: list[str]
) -> None:
    root = f"/{app}"
    owner = connect(ZooKeeperConfig(zookeeper.hosts, digest="orders:secret"))
    layout = Layout(root, app, "orders", 1)
    SourceStore(owner, layout).epochs.raise_epoch("here", 1, 1)
    folder = Layout.application_path(root, app)
    for login, state in [("orders:secret", "ok"), ("others:secret", "failed")]:
        out = command("--digest", login, "doctor", app, "--root", root, *at, "--json")[1]
        found = results(out)
        # Whatever is refused, what was found before is told.
        assert found["zookeeper's health"][0] == found["write"][0] == "ok"
        assert found["write to the application"][0] == state, out
    assert found["write to the application"][1] == f"cannot create a node below {folder}: NoAuthError"
    # Who may create nodes there and not delete them is told that, too.
    some = make_digest_acl("others", "secret", read=True, write=True, create=True)
    owner.set_acls(folder, [*owner.get_acls(folder)[0], some])
    out = command("--digest", "others:secret", "doctor", app, "--root", root, *at, "--json")[1]
    says = results(out)["write to the application"][1]
    assert says == f"cannot delete a node below {folder}: NoAuthError"
    # Its node ends with its session, however it ended.
    retry_until(lambda: owner.get_children(folder) == ["orders@1"])
    owner.stop()
    owner.close()


def retry_until(is_so: Callable[[], bool]) -> None:
    waiting = retry_if_result(lambda seen: not seen)
    Retrying(stop=stop_after_delay(120), wait=wait_fixed(0.05), retry=waiting)(is_so)


def test_the_doctor_names_what_fails(
    command: Command, at: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "no-such-python")
    hosts = f"127.0.0.1:{free_port()}"
    code, out, _ = command(
        "--timeout", "1", "doctor", "--zookeeper", hosts, "--stream", "nope", *at, "--json"
    )
    failed = {name for name, (state, _) in results(out).items() if state == "failed"}
    servers = {"zookeeper", f"server {hosts}", "quorum"}
    assert (code, failed) == (1, {"python of workers", "DescribeStreamSummary", "ListShards"} | servers)


@pytest.mark.parametrize("records", [1, 2])
def test_the_doctor_finds_a_server_that_loses_its_own_positions(command: Command, records: int) -> None:
    with ScriptedKinesis() as server:
        server.create_stream("orders")
        server.pad("orders", 60)
        (shard,) = server.shards("orders")
        numbers = [server.put("orders", shard, b"x") for _ in range(records)]
        at = ("--stream", "orders", "--endpoint", server.endpoint_url, "--region", "us-east-1", "--json")
        found = results(command("doctor", *at)[1])
        assert found["positions"][0] == "ok"
        # It writes a number in another form than it compares.
        server.garble("orders", shard, numbers[0], {"SequenceNumber": str(numbers[0])})
        code, out, _ = command("doctor", *at)
        state, says = results(out)["positions"]
        assert (code, state) == (1, "failed")
        assert f"SEQUENCE_NUMBER {numbers[0]} of {shard} gives no record" in says


def test_the_version_is_that_of_the_package(command: Command) -> None:
    from kinesis_trident import __version__

    assert command("--version") == (0, f"kinesis-trident {__version__}\n", "")


def test_dry_runs_say_what_kinesis_would_refuse() -> None:
    """The endpoint plays AWS's answers; that a dry run writes nothing is Kinesis's promise, so only AWS is asked."""
    with ScriptedKinesis() as server:
        server.create_stream("letters")
        client = server.client()
        asked = {"StreamName": "letters", "Records": [{"Data": b"{}", "PartitionKey": "k"}]}

        def said(code: str) -> tuple[str, str]:
            server.script("PutRecords", Refuse(code, "User is not authorized"))
            result = examination.dry_run(client, "PutRecords", "letters", trusted=True, **asked)
            return result.state, result.remedy

        assert said("DryRunOperationException") == ("ok", "")
        assert said("AccessDeniedException") == ("failed", "allow kinesis:PutRecords on letters")
        assert said("ResourceNotFoundException") == ("failed", "")
        before = server.calls["PutRecords", None]
        skipped = examination.dry_run(client, "PutRecords", "letters", **asked)
        assert (skipped.state, server.calls["PutRecords", None]) == ("skipped", before)
        assert examination.dry_run(client, "DescribeLimits", "x", trusted=True).state == "skipped"


def test_the_doctor_names_what_it_does_not_try(command: Command) -> None:
    with ScriptedKinesis() as server:
        server.create_stream("orders")
        server.create_stream("letters")
        client = server.client()
        arn = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
        fast = client.register_stream_consumer(StreamARN=arn, ConsumerName="fast")["Consumer"]["ConsumerARN"]
        at = ("--stream", "orders", "--endpoint", server.endpoint_url, "--region", "us-east-1", "--json")
        found = command("doctor", *at, "--option", "deadLetter=kinesis://letters", "--consumer", "fast")[1]
        results = {name: says for name, _, says, _ in map(json.loads, found.splitlines())}
        assert "not tried on letters: only AWS" in results["PutRecords"]
        assert "not tried on fast: only AWS" in results["SubscribeToShard"]
        assert f"not tried on {fast}: only AWS" in command("doctor", *at, "--consumer", fast)[1]
        missing = command("doctor", *at, "--consumer", "slow")[1]
        assert '"SubscribeToShard","failed"' in missing
    assert not any(call in ("PutRecords", "SubscribeToShard") for call, _ in server.calls)


@pytest.mark.long
def test_the_doctor_tries_each_server_of_a_quorum_that_is_lost_and_goes_on(
    command: Command, tmp_path: Path
) -> None:
    with Ensemble(tmp_path) as ensemble, ScriptedKinesis() as kinesis:
        kinesis.create_stream("orders")
        first, second, third = ensemble.members
        first.stop()
        second.stop()
        hosts = ",".join(one.hosts for one in ensemble.members)
        words = [
            "doctor",
            "--zookeeper",
            f"{hosts}/chroot",
            "--stream",
            "orders",
            "--region",
            "us-east-1",
            "--json",
        ]
        code, out, _ = command(*words, "--endpoint", kinesis.endpoint_url, "--timeout", "2")
        found = {name: (state, says) for name, state, says, _ in map(json.loads, out.splitlines())}
        assert code == 1
        for gone in (first, second):
            assert "does not answer: Connection refused" in found[f"server {gone.hosts}"][1]
        assert found[f"server {third.hosts}"] == ("failed", "runs, and has no quorum")
        assert "1 of those in --zookeeper can be reached" in found["quorum"][1]
        # What needs no ZooKeeper is tried all the same.
        assert found["ListShards"][0] == "ok"
