"""What `status` tells of starts that fail before there is a run, and of tools that have changed the state since."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from by_hand import Lives
from command_line import Command
from kazoo.client import KazooClient
from situations import scripted_options

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import FencedError, StateMissingError
from kinesis_trident.spout.kinesis import StreamMissingError
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.testing import MemoryKinesis, Quotas, ScriptedKinesis

A = "shardId-000000000000"


def test_a_tools_own_epoch_is_not_taken_for_the_query_s(
    make_lives: Callable[..., Lives], command: Command, app: str
) -> None:
    kinesis = MemoryKinesis("orders", created=1_600_000_000_000)
    kinesis.put(A, b"1")
    query = make_lives().begin(kinesis)
    query.batch()
    query.plan()
    query.run.note_end("failed", "AccessDeniedError: not authorized")
    query.end()
    for _ in range(2):
        assert command("checkpoints", app, "set", "TRIM_HORIZON", "--shard", A, "--yes")[0] == 0
    text = " ".join(command("status", app)[1].split())
    assert f"last run, epoch {query.run.epoch} on " in text
    assert "AccessDeniedError: not authorized" in text
    assert f": set shard {A} of {app}" in text
    assert "ended without a word" not in text


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("set", "TRIM_HORIZON", "--shard", A), f"set shard {A}"),
        (("import", "exported.json"), "write back 1 checkpoint"),
        (("abandon-batch",), "abandon"),
    ],
    ids=["set", "import", "abandon-batch"],
)
def test_a_run_that_a_tool_has_fenced_is_told_which(
    make_lives: Callable[..., Lives],
    command: Command,
    app: str,
    tmp_path: Path,
    words: tuple[str, ...],
    what: str,
) -> None:
    kinesis = MemoryKinesis("orders", created=1_600_000_000_000)
    kinesis.put(A, b"1")
    lives = make_lives()
    query = lives.begin(kinesis)
    query.batch()
    kinesis.put(A, b"2")
    query.planned()
    exported = tmp_path / "exported.json"
    said = json.loads(command("checkpoints", app, "export", str(exported), "--json")[1])
    assert said == {"homes": 1, "file": str(exported)}
    if words[0] == "abandon-batch":
        query.rows()
    else:
        query.batch()
        query.plan()
    given = [str(exported) if one.endswith(".json") else one for one in words]
    code, _, error = command("checkpoints", app, *given, "--yes", "--force")
    assert code == 0, error
    if query.in_hand is not None:
        query.commit()
    with pytest.raises(FencedError, match="Start the query again") as raised:
        query.plan()
    text = str(raised.value)
    assert what in text
    assert "newer run" not in text
    assert "applicationName" not in text


def test_a_start_that_fails_is_noted_until_one_succeeds(
    zookeeper: EmbeddedZooKeeper, command: Command, app: str, client: KazooClient
) -> None:
    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:
        options = scripted_options(kinesis, zookeeper, app)
        for times in (1, 2):
            with pytest.raises(StreamMissingError):
                SourceRun.open(options)
            code, _, error = command("status", app)
            assert code == 1
            assert (
                f"has never started: {times} of its starts failed, the last with StreamMissingError" in error
            )
        kinesis.create_stream("orders", 1)
        SourceRun.open(options).close()
        assert "start-fails" not in command("status", app, "--json")[1]
        assert client.exists(f"/kinesis-trident/{app}/@starts") is None
        kinesis.client().delete_stream(StreamName="orders")
        for _ in range(3):
            with pytest.raises(StreamMissingError):
                SourceRun.open(options)
        text = " ".join(command("status", app)[1].split())
        assert "he query does not start: 3 starts failed since" in text, text
        assert "StreamMissingError" in text


def test_a_start_that_fails_with_an_epoch_is_the_end_of_that_run_and_nothing_more(
    zookeeper: EmbeddedZooKeeper, command: Command, app: str, client: KazooClient
) -> None:
    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:
        kinesis.create_stream("orders", 1)
        options = scripted_options(kinesis, zookeeper, app)
        run = SourceRun.open(options)
        home = run.layout.base
        run.close()
        # One before an epoch is over as soon as a later one has an epoch.
        with pytest.raises(StreamMissingError):
            SourceRun.open(replace(options, stream_name="of-another-region"))
        client.delete(f"{home}/checkpoints", recursive=True)
        with pytest.raises(StateMissingError):
            SourceRun.open(options)
    (status,) = map(json.loads, command("status", app, "--json")[1].splitlines())
    (finding,) = status["findings"]
    assert (finding["code"], finding["level"]) == ("not-running", "critical")
    assert f"The last run, epoch {run.epoch + 1} on " in finding["sentence"]
    assert re.search(
        f"failed .* ago: StateMissingError: {home}/checkpoints does not exist", finding["sentence"]
    )
    assert client.exists(f"/kinesis-trident/{app}/@starts") is None
