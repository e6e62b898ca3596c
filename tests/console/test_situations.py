"""Test what a person sees when something is wrong: each situation is made to happen to a query, and looked at."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from by_hand import Lives, Query, Row, numbers
from command_line import Command
from model.sinks import FolderSink, Written
from rich.cells import cell_len
from situations import A, Clock, filled, looked, moved_clock
from thorough import cases

from kinesis_trident.checkpoint.errors import CheckpointError, StateMissingError
from kinesis_trident.checkpoint.model.nodes import InflightNode
from kinesis_trident.checkpoint.model.run_status import FRESH_MS
from kinesis_trident.checkpoint.store.shards import ShardStore
from kinesis_trident.checkpoint.zookeeper.operations import Delete, Op
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.spout.errors import ExhaustedError
from kinesis_trident.spout.kinesis import ThrottledError
from kinesis_trident.spout.testing import MemoryKinesis, ScriptedKinesis


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the query and of the command line."""
    return moved_clock(monkeypatch)


@pytest.fixture
def lives(make_lives: Callable[..., Lives], clock: Clock) -> Lives:
    made = make_lives(retryBackoff="1h..1h x1", retryLimit="3")
    made.clock = clock
    return made


def status(command: Command, app: str) -> dict[str, object]:
    code, out, _ = command("status", app, "--json")
    assert code == 0
    return json.loads(out)  # type: ignore[no-any-return]


def test_a_query_that_waits_is_well_until_it_is_killed(
    lives: Lives, app: str, command: Command, clock: Clock
) -> None:
    query = lives.begin(filled(clock=clock))
    query.batch()
    looked(query)
    code, out, _ = command("check", app, "--max-lag", "5m", "--max-retrying", "0", "--max-dead", "0")
    assert (code, out.partition(":")[0]) == (0, f"OK - {app}")
    assert " | lag=0ms inflight=0 retrying=0 dead=0" in out
    shown = command("status", app)[1]
    assert "none: everything is read" in shown
    assert "nothing" in shown.splitlines()[-2]
    # Spark does not ask any more, although the process is still there.
    clock.ahead += 2 * FRESH_MS / 1000
    seen = status(command, app)
    assert (seen["lag_ms"], seen["connected"]) == (None, True)
    assert isinstance(seen["seen_at"], int)
    assert command("check", app, "--max-lag", "5m")[0] == 3
    clock.ahead += 320
    assert "Spark has asked the run" in command("check", app)[1]
    # And then it is gone.
    query.end()
    code, out, _ = command("check", app, "--max-lag", "5m")
    assert code == 2
    assert "No run is connected to ZooKeeper; the last one was epoch 1" in out
    rows = json.loads(command("checkpoints", app, "--json")[1])
    assert (rows["connected"], rows["lag_ms"], rows["rows"][0]["lag_ms"]) == (False, None, None)


def test_an_application_that_is_gone_is_forgotten(
    lives: Lives, app: str, command: Command, tmp_path: Path
) -> None:
    kinesis, saved = filled(), str(tmp_path / "saved.jsonl")
    query = lives.begin(kinesis)
    query.batch(failing=[1])
    query.plan()
    code, _, err = command("forget", app, "--yes", "--backup", saved)
    assert (code, "is running" in err) == (1, True)
    query.end()
    assert "give --yes" in command("forget", app, "--backup", saved)[2]
    assert command("status", app)[0] == 0

    code, out, _ = command("forget", app, "--yes", "--backup", saved)
    assert (code, f"its checkpoints are in {saved}" in out) == (0, True)
    assert app not in command("apps")[1]
    # A new start begins anew; what was forgotten can be written back.
    lives.begin(kinesis).end()
    assert "exists. Give a new file" in command("forget", app, "--yes", "--backup", saved)[2]
    assert command("checkpoints", app, "import", saved, "--yes")[0] == 0
    query = lives.begin(kinesis)
    kinesis.put(A, b"9")
    assert numbers(query.batch()) == [9]


def test_a_stream_that_was_created_again_is_forgotten_as_a_whole(
    lives: Lives, app: str, command: Command, tmp_path: Path
) -> None:
    for created in (1, 2):
        kinesis = MemoryKinesis(created=created)
        kinesis.put(A, b"1")
        query = lives.begin(kinesis)
        query.batch()
        assert query.plan() is None
        query.end()
    assert command("forget", app, "--yes", "--backup", str(tmp_path / "saved"))[0] == 0
    assert app not in command("apps")[1]
    assert command("checkpoints", app, "import", str(tmp_path / "saved"), "--yes")[0] == 0
    kinesis.put(A, b"2")
    assert numbers(lives.begin(kinesis).batch()) == [2]


@pytest.mark.parametrize("is_started", [True, False])
def test_txids_and_epochs_go_on_above_those_of_an_imported_copy(
    lives: Lives, app: str, command: Command, tmp_path: Path, is_started: bool
) -> None:
    kinesis, saved, sink = filled(), str(tmp_path / "saved.jsonl"), FolderSink()

    def write(query: Query, rows: Sequence[Row]) -> None:
        (txid,) = {row[3] for row in rows}
        sink.write(Written(None, "", txid, query.run.epoch), numbers(rows), lambda: None)

    query = lives.begin(kinesis)
    write(query, [row for row in query.batch(failing=[1]) if row[0] != 1])
    kinesis.put(A, b"8")
    # The sink has txid 2, and nobody has settled it.
    assert query.planned().txid == 2
    write(query, query.rows())
    query.end()
    assert command("forget", app, "--yes", "--backup", saved)[0] == 0
    if is_started:
        lives.begin(kinesis).end()
    assert command("checkpoints", app, "import", saved, "--yes")[0] == 0
    assert command("retries", app, "now", "--all")[0] == 0
    query = lives.begin(kinesis)
    write(query, query.batch())
    assert sink.counts() == {0: 1, 1: 1, 2: 1, 8: 2}
    # The copy was made under epoch 2, which forget took, and import goes on above it.
    assert query.run.epoch == 4


@pytest.mark.parametrize("moment", ["changes.confirm", "commands.forget.write_copies"])
def test_a_query_that_starts_while_its_application_is_forgotten_goes_on(
    lives: Lives, app: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    kinesis, begun = filled(), list[Query]()
    lives.begin(kinesis).end()

    def start(*_: object, **__: object) -> None:
        begun.append(lives.begin(kinesis))

    monkeypatch.setattr(f"kinesis_trident.console.{moment}", start)
    code, _, err = command("forget", app, "--yes", "--backup", str(tmp_path / "saved"))
    assert (code, "is running" in err or "taken over" in err) == (1, True), err
    assert numbers(begun[0].batch()) == [0, 1, 2]
    assert begun[0].plan() is None


def test_a_query_that_goes_on_while_its_position_is_to_be_set_repeats_nothing(
    lives: Lives, app: str, command: Command, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinesis = filled()
    query = lives.begin(kinesis)
    last = max(query.batch(failing=[1]), key=lambda row: int(row[1].rpartition(":")[2]))
    query.plan()
    query.end()
    to_the_end = ("checkpoints", app, "set", last[1].rpartition(":")[2], "--shard", A, "--yes")
    retried = []

    def go_on(*_: object, **__: object) -> None:
        clock.ahead += 7200
        life = lives.begin(kinesis, query.checkpoint)
        retried.extend(numbers(life.batch()))
        assert life.plan() is None
        life.end()

    with monkeypatch.context() as asked:
        asked.setattr("kinesis_trident.console.changes.confirm", go_on)
        code, _, err = command(*to_the_end)
    assert (code, "has gone on" in err) == (1, True), err
    assert retried == [1]
    assert command(*to_the_end)[0] == 0
    kinesis.put(A, b"8")
    assert numbers(lives.begin(kinesis).batch()) == [8]


def test_a_copy_of_a_query_that_goes_on_meanwhile_can_be_written_back(
    lives: Lives, app: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinesis, saved, read = filled(), str(tmp_path / "saved.jsonl"), ShardStore.inflight
    query = lives.begin(kinesis)
    query.batch()
    query.plan()
    kinesis.put(A, b"7")
    kinesis.put(A, b"8")

    def go_on(store: ShardStore) -> dict[str, InflightNode]:
        if query.plan() is not None:
            query.batch(failing=[7])
            query.plan()
        return read(store)

    with monkeypatch.context() as reading:
        reading.setattr(ShardStore, "inflight", go_on)
        assert command("checkpoints", app, "export", saved)[0] == 0
    query.end()
    assert command("checkpoints", app, "import", saved, "--yes")[0] == 0
    assert command("retries", app, "now", "--all")[0] == 0
    assert numbers(lives.begin(kinesis).drain()) == [7]


def test_what_an_interrupted_forget_left_is_removed_by_the_next(
    lives: Lives, app: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = lives.begin(filled())
    query.batch()
    query.end()
    commit = Session.commit

    def interrupt(session: Session, ops: Sequence[Op]) -> bool:
        if isinstance(ops[0], Delete):
            raise CheckpointError("it ends here")
        return commit(session, ops)

    monkeypatch.setattr("kinesis_trident.checkpoint.store.changes.PACK_SIZE", 1)
    with monkeypatch.context() as patch:
        patch.setattr(Session, "commit", interrupt)
        code, _, err = command("forget", app, "--yes", "--backup", str(tmp_path / "first"))
    assert (code, "it ends here" in err) == (1, True)
    with pytest.raises(StateMissingError, match="a part of the application's nodes"):
        lives.begin(filled())
    assert command("forget", app, "--yes", "--backup", str(tmp_path / "second"))[0] == 0
    assert app not in command("apps")[1]


def test_the_worst_stream_comes_first(lives: Lives, app: str, command: Command) -> None:
    for stream in ("a-orders", "b-orders"):
        query = lives.begin(MemoryKinesis(stream), streamName=stream)
        looked(query)
    query.end()
    first, second = command("check", app)[1].splitlines()
    assert "no run is connected" in first.lower()
    assert first.startswith("CRITICAL")
    assert second.startswith("OK")


def test_how_a_run_ended_is_known_from_outside(lives: Lives, app: str, command: Command) -> None:
    kinesis = filled()
    query = lives.begin(kinesis)
    query.batch()
    query.plan()
    query.stop()
    assert "epoch 1 on" in status(command, app)["findings"][0]["sentence"]
    assert "was stopped" in command("status", app)[1]
    # Nobody has to get up for it.
    assert command("check", app)[0] == 0

    kinesis.put(A, b"8")
    query = lives.begin(kinesis, query.checkpoint)
    assert status(command, app)["run"]["ended"] is None
    query.planned()
    query.rows()
    query.stop()
    code, out, _ = command("check", app)
    assert (code, "in the middle of a batch: txid 2 was not finished, or not settled" in out) == (2, True)
    # A note that comes later does not replace it.
    query = lives.begin(kinesis, query.checkpoint)
    query.run.note_end("failed", "ValueError: the first one")
    query.stop()
    said = status(command, app)
    assert [one["how"] for one in said["ends"]] == ["stopped", "interrupted", "failed"]
    assert "failed" in command("check", app)[1]
    assert "ValueError: the first one" in said["findings"][0]["sentence"]


def test_a_throttled_stream_is_said_and_its_lag_is_unknown_or_ages(
    lives: Lives, app: str, command: Command, clock: Clock
) -> None:
    kinesis = filled(clock=clock)
    query = lives.begin(kinesis, pace={"hold": 0.01, "look_period": 0.0})
    query.batch()
    looked(query)
    kinesis.fail(A, *[ThrottledError("Rate exceeded for shard")] * 100_000)
    looked(query)
    clock.ahead += 60
    looked(query)
    report = query.run.report()["shards"][A]
    assert report["throttledMs"] >= 60_000
    assert report["behindMs"] is None
    code, out, _ = command("check", app, "--max-lag", "5m")
    assert code == 3
    assert re.search(f"Kinesis throttles the reads of shard {A}, for 1m [0-9]+s now", out)
    assert "no look at the end of the stream has succeeded for 1m" in out
    assert "consumerMode=efo" in command("status", app)[1].replace("\n", " ")
    kinesis.clear()
    looked(query)
    assert command("check", app, "--max-lag", "5m")[0] == 0


def test_a_blocked_shard_says_why_and_its_lag_grows(
    lives: Lives, app: str, command: Command, clock: Clock
) -> None:
    kinesis = filled(clock=clock)
    query = lives.begin(kinesis, maxRetryingRecords="2")
    query.batch(failing=[0, 2])
    kinesis.put(A, b"9")
    looked(query)
    clock.ahead += 3 * 3600
    seen = status(command, app)
    assert (seen["level"], seen["retrying"]) == ("critical", 2)
    assert isinstance(seen["lag_ms"], int)
    assert seen["lag_ms"] >= 3 * 3_600_000
    code, out, _ = command("check", app, "--max-lag", "5m", "--max-retrying", "1")
    assert code == 2
    assert "2 groups of failed neighbours wait for a retry, and maxRetryingRecords is 2" in out
    assert "2 records wait for a retry, more than 1" in out
    reasons = json.loads(command("retries", app, "--json")[1])["rows"]
    assert [(row["reason"], row["count"]) for row in reasons] == [("ValueError: 0", 1), ("ValueError: 2", 1)]


def test_a_takeover_is_named(lives: Lives, app: str, command: Command) -> None:
    kinesis = filled()
    first = lives.begin(kinesis)
    first.batch()
    second = lives.begin(kinesis, first.checkpoint)
    with pytest.raises(Exception, match="taken over"):
        first.plan()
    second.plan()
    code, out, _ = command("check", app)
    assert code == 1
    assert "1 run had to stop for a newer one in the last 5 minutes, the last for epoch 2" in out
    assert "give each its own" in re.sub(r"\s+", " ", command("status", app)[1])
    runs = json.loads(command("owner", app, "--json")[1])
    assert (runs["epoch"], runs["connected"], runs["runs"][0]["epoch"]) == (2, True, 1)


def test_records_about_to_expire_are_critical(lives: Lives, app: str, command: Command, clock: Clock) -> None:
    kinesis = filled(clock=clock)
    query = lives.begin(kinesis, maxRetryingRecords="1")
    query.batch(failing=[0])
    kinesis.put(A, b"9")
    looked(query)
    clock.ahead += 21 * 3600
    (row,) = json.loads(command("shards", app, "--json")[1])["rows"]
    assert row["retention_left_ms"] <= 3 * 3_600_000
    assert "old and expires in 2h 59m" in command("check", app)[1]
    clock.ahead += 4 * 3600
    assert "and has expired" in command("check", app)[1]


def test_the_command_in_the_error_puts_back_the_record_that_stopped_the_query(
    lives: Lives, app: str, command: Command
) -> None:
    kinesis = filled()
    query = lives.begin(kinesis, retryLimit="0", onExhausted="fail")
    query.batch(failing=[1])
    with pytest.raises(ExhaustedError) as stopped:
        query.plan()
    query.end()
    assert "stopped the query if onExhausted=fail" in command("check", app)[1]
    # Word for word, as somebody copies it.
    said = re.search(r"`kinesis-trident ([^`]*)`", str(stopped.value))
    assert said is not None
    code, out, _ = command(*shlex.split(said[1]))
    assert (code, out) == (
        0,
        "1 record will be delivered again once the query is started: it is not running\n",
    )
    again = lives.begin(kinesis, query.checkpoint, retryLimit="0", onExhausted="fail")
    assert numbers(again.batch()) == [1]
    assert again.plan() is None
    again.end()
    assert json.loads(command("owner", app, "--json")[1])["changes"][0]["what"].startswith("replay: orders/")


def test_what_is_exhausted_is_replayed_without_naming_it(lives: Lives, app: str, command: Command) -> None:
    kinesis = filled()
    query = lives.begin(kinesis, retryLimit="0", onExhausted="fail")
    query.batch(failing=[0, 2])
    query.end()
    # The batch is settled by the next start.
    begun = lives.begin(kinesis, query.checkpoint, retryLimit="0", onExhausted="fail")
    with pytest.raises(ExhaustedError):
        begun.plan()
    begun.end()
    assert "--exhausted replays what has stopped" in command("dead-letters", app, "replay", "--all")[2]
    code, out, _ = command("dead-letters", app, "replay", "--exhausted", "--json")
    assert (code, json.loads(out)) == (0, {"records": 2, "running": False})
    again = lives.begin(kinesis, begun.checkpoint, retryLimit="0", onExhausted="fail")
    assert numbers(again.batch()) == [0, 2]


def test_records_are_retried_now_by_reason(lives: Lives, app: str, command: Command) -> None:
    query = lives.begin(filled(4))
    query.batch(failing=[0, 2, 3])
    assert query.plan() is None
    assert (
        "no record waits for a retry for a reason with 'KeyError'"
        in command("retries", app, "now", "--reason", "KeyError")[2]
    )
    assert "now needs message ids" in command("retries", app, "now")[2]
    assert "has no shard shardId-9" in command("retries", app, "now", "--all", "--shard", "shardId-9")[2]
    assert command("retries", app, "now", "--reason", "ValueError: 2")[0] == 0
    assert numbers(query.batch()) == [2]
    assert query.plan() is None
    rows = json.loads(command("retries", app, "list", "--json")[1])["rows"]
    assert len(rows) == 2
    assert command("retries", app, "now", rows[0]["message_id"])[0] == 0
    assert numbers(query.batch()) == [0]


def test_an_id_that_does_not_exist_is_an_error(lives: Lives, app: str, command: Command) -> None:
    query = lives.begin(filled())
    rows = query.batch(failing=[1])
    query.plan()
    done = next(row[1] for row in rows if row[0] == 2)
    for action in (("dead-letters", app, "replay"), ("retries", app, "now")):
        code, _, err = command(*action, done)
        assert code == 1
        assert f"{done}: no such dead letter, and no such record waits" in err
    assert query.store.external.read().asked == {}


def test_a_shard_is_set_back_backed_up_noted_and_restored(
    lives: Lives, app: str, command: Command, tmp_path: Path
) -> None:
    kinesis = filled(4)
    query = lives.begin(kinesis)
    query.batch(failing=[3])
    assert query.plan() is None
    sets = ("checkpoints", app, "set", "TRIM_HORIZON", "--shard", A)
    assert "is running" in command(*sets, "--yes")[2]
    query.end()
    assert "give --yes" in command(*sets)[2]
    assert command("checkpoints", app, "export", str(tmp_path / "saved"))[0] == 0
    code, out, _ = command(*sets, "--yes", "--json")
    assert code == 0
    changed = json.loads(out)
    assert "no longer retry 1 failed records" in changed["what"]
    again = lives.begin(kinesis, query.checkpoint)
    assert numbers(again.batch()) == [0, 1, 2, 3]
    assert again.plan() is None
    again.end()
    # What stood there before comes back: from the file, or from the backup.
    for source in (str(tmp_path / "saved"), changed["backup"]):
        assert command("checkpoints", app, "import", source, "--yes")[0] == 0
        (row,) = json.loads(command("checkpoints", app, "--json")[1])["rows"]
        assert (row["retrying"], row["inflight"]) == (1, 1)
    last = lives.begin(kinesis, again.checkpoint)
    kinesis.put(A, b"4")
    assert numbers(last.batch()) == [4]
    notes = json.loads(command("owner", app, "--json")[1])["changes"]
    assert len(notes) == 3
    assert notes[-1]["backup"] == changed["backup"]
    assert changed["backup"] in command("checkpoints", app, "backups")[1]


def test_a_shard_that_skips_ahead_still_retries_what_failed(
    lives: Lives, app: str, command: Command, clock: Clock
) -> None:
    kinesis = filled(4, clock)
    query = lives.begin(kinesis)
    query.batch(failing=[1])
    assert query.plan() is None
    query.end()
    kinesis.put(A, b"4")
    clock.ahead += 1
    now = f"AT_TIMESTAMP {int(clock() * 1000)}"
    skip = json.loads(command("checkpoints", app, "set", now, "--shard", A, "--yes", "--json")[1])
    assert "no longer" not in skip["what"]
    assert command("retries", app, "now", "--all")[0] == 0
    kinesis.put(A, b"5")
    again = lives.begin(kinesis, query.checkpoint)
    came = again.batch()
    while numbers(came) != [1, 5]:
        came += again.batch()
    assert again.plan() is None
    (row,) = json.loads(command("checkpoints", app, "--json")[1])["rows"]
    assert (row["inflight"], row["checkpoint"]) == (0, row["position"].split()[1])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["set", "TRIM_HORIZON"], "Name it with --shard"),
        (["set", "TRIM_HORIZON", "--shard", "shardId-9"], "has no shard shardId-9"),
        (["set", "soon", "--shard", A], "'soon' is not a position"),
        (["set", "9" * 130, "--shard", A], "is not a position"),
        (["set", "7:9999999999", "--shard", A], "is not a position"),
        (["set", "\u0663", "--shard", A], "is not a position"),
        (["import", "nowhere"], "neither a backup"),
        (["set", "TRIM_HORIZON", "--shard", A, "--yes"], "txid 1 is not settled"),
    ],
)
def test_a_change_that_cannot_be_is_refused(
    lives: Lives, app: str, command: Command, arguments: list[str], says: str
) -> None:
    query = lives.begin(filled())
    query.batch()
    query.end()
    before = query.checkpoint.offsets[:]
    code, _, err = command("checkpoints", app, *arguments)
    assert code == 1
    assert says in err
    assert query.checkpoint.offsets == before


def test_a_drained_source_of_a_query_that_still_reads_another_has_not_finished(
    lives: Lives, app: str, command: Command
) -> None:
    query = lives.begin(filled())
    query.drain()
    # Spark asks each source of a query before each batch.
    looked(query)
    status = json.loads(command("status", app, "--json")[1])
    assert (status["connected"], status["run"]["ended"], status["findings"]) == (True, None, [])
    assert status["batch"]["phase"] == "no batch in hand; has read everything that it was to read"
    assert " for " in command("status", app)[1].partition("run ")[2]
    query.end()
    assert json.loads(command("status", app, "--json")[1])["run"]["ended"] == "finished"


def test_latest_is_the_time_by_the_clock_of_kinesis(
    lives: Lives, app: str, command: Command, clock: Clock
) -> None:
    """The query stops at its start for a position after that: with the clock of a console ten minutes ahead."""
    with ScriptedKinesis() as server:
        server.create_stream("orders")
        server.put("orders", A, b"1")
        given = {"endpointUrl": server.endpoint_url}
        query = lives.begin(None, **given)
        assert numbers(query.drain()) == [1]
        query.end()
        server.put("orders", A, b"2")
        # Its answers have the time in whole seconds.
        server.advance(2)
        clock.ahead += 600
        words = ["set", "LATEST", "--shard", A, "--yes", "--region", "us-east-1"]
        code, _, said = command("checkpoints", app, *words, "--endpoint", server.endpoint_url)
        assert code == 0, said
        clock.ahead -= 600
        server.advance(1)
        server.put("orders", A, b"3")
        assert numbers(lives.begin(None, query.checkpoint, **given).drain()) == [3]
    # Nobody else's clock takes its place.
    code, _, said = command(
        "checkpoints", app, *words, "--endpoint", "http://127.0.0.1:1", "-o", "awsAccessKeyId=a"
    )
    assert (code, "awsSecretAccessKey" in said) == (1, True)


def test_a_run_that_is_connected_is_stopped_by_force_alone(lives: Lives, app: str, command: Command) -> None:
    query = lives.begin(filled())
    query.batch()
    assert query.plan() is None
    code, out, _ = command("checkpoints", app, "set", "TRIM_HORIZON", "--shard", A, "--yes", "--force")
    assert code == 0, out
    with pytest.raises(Exception, match="taken over"):
        query.plan()


@pytest.mark.parametrize("width", cases(40, long=(80,)))
def test_everything_fits_a_narrow_terminal(
    lives: Lives, app: str, command: Command, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    query = lives.begin(filled(5), maxRetryingRecords="2")
    query.batch(failing=[0, 2])
    looked(query)
    monkeypatch.setenv("COLUMNS", str(width))
    for arguments in (
        ["apps"],
        ["status", app],
        ["owner", app],
        *([name, app] for name in ("checkpoints", "inflight", "retries", "shards", "dead-letters")),
        ["retries", app, "list", "--limit", "1"],
    ):
        out = command(*arguments)[1]
        assert max(map(cell_len, out.splitlines())) <= width, out
        assert out.strip()
        # A list of names is words, not as Python writes one.
        assert "('orders'" not in out
    assert "1 more (--limit 0 shows all)" in out
    assert "has no shard shardId-9" in command("inflight", app, "--shard", "shardId-9")[2]
