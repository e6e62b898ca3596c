"""A dead letter knows that it was replayed: neither a second command nor a double click delivers it once more."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import Lives, Query, numbers
from command_line import Command
from hypothesis import given, strategies as st
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import ZooKeeperUnavailableError
from kinesis_trident.checkpoint.model import replays
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import (
    DeadLetterRecord,
    DeadLettersNode,
    InflightNode,
    PendingRun,
    Replay,
)
from kinesis_trident.checkpoint.model.replays import are_in_flight, find_replayed, mark_asked, settle_replays
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig
from kinesis_trident.common.times import iso_time
from kinesis_trident.console import redelivery
from kinesis_trident.console.redelivery import find_requests
from kinesis_trident.console.snapshot import take_snapshot
from kinesis_trident.console.target import ConsoleError, Target
from kinesis_trident.console.text import now_ms
from kinesis_trident.console.views import VIEWS
from kinesis_trident.console.web.app import Site, _carry_out
from kinesis_trident.console.web.watcher import Watcher
from kinesis_trident.spout.errors import ExhaustedError
from kinesis_trident.testing import MemoryKinesis, ScriptedKinesis
from kinesis_trident.tracker import position_keys
from kinesis_trident.tracker.position_keys import counts, keys_of_texts, pack_in_parts
from kinesis_trident.tracker.records import Run

SHARD = "shardId-000000000000"


@pytest.fixture
def lives(zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path) -> Iterator[Lives]:
    held = Lives(
        zookeeper.hosts, app, retryLimit="0", onExhausted="deadLetter", deadLetter=str(tmp_path / "letters")
    )
    yield held
    held.end()


@pytest.fixture
def kinesis() -> MemoryKinesis:
    kinesis = MemoryKinesis()
    kinesis.put_records("orders", [(str(number).encode(), "k") for number in range(5)])
    return kinesis


@pytest.fixture
def query(lives: Lives, kinesis: MemoryKinesis) -> Query:
    """Records 1 and 3 are dead letters."""
    query = lives.begin(kinesis)
    failed(query, 1, 3)
    return query


def failed(query: Query, *bad: int) -> None:
    """The next batch fails with these, and the one after it dead-letters them."""
    query.batch(failing=bad)
    assert query.batch() == []
    assert query.plan() is None


def again(query: Query, *bad: int) -> list[int]:
    """What the next batch delivers, and settles."""
    query.store.external.read()
    query.run._on_request()
    rows = numbers(query.batch(failing=bad))
    while query.plan() is not None:
        query.batch()
    return rows


def replayed(query: Query) -> dict[str, str]:
    """What the list says of each letter."""
    return {
        row["message_id"]: row["replayed"]
        for row in VIEWS["dead-letters"](take_snapshot(query.store), 0).rows
    }


@pytest.mark.parametrize("from_folder", [False, True])
def test_a_second_replay_of_all_leaves_out_what_has_succeeded(
    query: Query,
    lives: Lives,
    kinesis: MemoryKinesis,
    command: Command,
    app: str,
    tmp_path: Path,
    from_folder: bool,
) -> None:
    which = ["--from", str(tmp_path / "letters")] if from_folder else ["--all"]
    assert command("dead-letters", app, "replay", *which)[0] == 0
    assert again(query) == [1, 3]
    assert set(replayed(query).values()) == {f"done in txid {query.run._state.shards.settled}"}
    code, _, err = command("dead-letters", app, "replay", *which)
    assert code == 1
    assert "--again" in err
    assert query.store.external.read().asked == {}
    assert command("check", app, "--max-dead", "0")[0] == 0
    # Also in the next life, and by its name.
    query.end()
    query = lives.begin(kinesis)
    one = next(iter(replayed(query)))
    assert "was replayed before" in command("dead-letters", app, "replay", one)[2]
    assert command("dead-letters", app, "replay", *which, "--again")[0] == 0
    assert again(query) == [1, 3]


def test_one_that_fails_again_is_a_letter_that_was_not_replayed(
    query: Query, command: Command, app: str
) -> None:
    assert command("dead-letters", app, "replay", "--all")[0] == 0
    assert again(query, 3) == [1, 3]
    said = sorted(row["replayed"] for row in VIEWS["dead-letters"](take_snapshot(query.store), 0).rows)
    assert [one.partition(" in ")[0] for one in said] == ["", "done", "failed again"]
    assert command("check", app, "--max-dead", "0")[0] == 2
    assert command("dead-letters", app, "replay", "--all")[0] == 0
    assert again(query) == [3]
    assert command("check", app, "--max-dead", "0")[0] == 0


def test_a_request_is_made_once_and_can_be_withdrawn_until_the_query_has_taken_it(
    query: Query, command: Command, app: str
) -> None:
    first, second = sorted(replayed(query))
    assert command("dead-letters", app, "replay", "--all")[0] == 0
    code, _, err = command("dead-letters", app, "replay", first)
    assert (code, "asked for already" in err) == (1, True)
    assert "1 record will not be delivered again" in command("dead-letters", app, "cancel", second)[1]
    assert again(query) == [1]
    code, _, err = command("dead-letters", app, "cancel", "--all")
    assert (code, "there is nothing to cancel" in err) == (1, True)
    assert replayed(query)[second] == ""


def test_a_double_click_on_the_page_replays_once(
    query: Query, zookeeper: EmbeddedZooKeeper, app: str
) -> None:
    watcher = Watcher(Target(ZooKeeperConfig(zookeeper.hosts), "/kinesis-trident", ""))
    click = {"action": "replay", "id": min(replayed(query))}
    try:
        assert "1 record will be delivered again" in _carry_out(Site(watcher), app, click)
        with pytest.raises(ConsoleError, match="asked for already"):
            _carry_out(Site(watcher), app, click)
        assert again(query) == [1]
        with pytest.raises(ConsoleError, match="was replayed before"):
            _carry_out(Site(watcher), app, click)
    finally:
        watcher.close()
    assert query.store.external.read().asked == {}


def test_a_request_that_is_withdrawn_while_the_query_takes_it_in_is_not_carried_out(
    query: Query, command: Command, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("dead-letters", app, "replay", "--all")[0] == 0
    store = query.run._store
    read = store.external.read
    calls = []

    def late() -> object:
        found = read()
        calls.append(found)
        if len(calls) == 1:
            assert command("dead-letters", app, "cancel", "--all")[0] == 0
        return found

    monkeypatch.setattr(store.external, "read", late)
    query.run._on_request()
    # News of the withdrawal, which may come at any time, asks for no look of its own.
    monkeypatch.setattr(query.run._planner, "note_request", lambda: None)
    assert query.plan() is None
    assert len(calls) == 2
    assert set(replayed(query).values()) == {""}


def test_two_requests_that_cross_deliver_a_record_once(query: Query) -> None:
    """As of two people at the page: each has looked before the other's request was there."""
    one = min(replayed(query))
    ((node,),) = (request.nodes for request in find_requests([query.store], [MessageId.parse(one)]))
    query.store.external.add(SHARD, node)
    assert again(query) == [1]
    query.store.external.add(SHARD, node)
    query.run._on_request()
    assert query.plan() is None


def test_replay_and_cancel_are_of_the_named_shard_and_number(
    lives: Lives, command: Command, app: str, tmp_path: Path
) -> None:
    kinesis = MemoryKinesis(shards=2)
    kinesis.put_records("orders", [(str(number).encode(), f"k{number}") for number in range(12)])
    query = lives.begin(kinesis)
    failed(query, *range(12))
    counts = Counter(text.partition("/")[2].partition(":")[0] for text in replayed(query))
    assert counts[SHARD] < 12
    of_shard = ["--all", "--shard", SHARD]
    for more in ([], ["--from", str(tmp_path / "letters")]):
        which = of_shard if not more else [*of_shard[1:], *more]
        code, out, err = command("dead-letters", app, "replay", *which, "--json")
        assert (code, json.loads(out)["records"]) == (0, counts[SHARD]), err
        assert "has no shard x" in command("dead-letters", app, "cancel", "--all", "--shard", "x")[2]
        out = command("dead-letters", app, "cancel", *of_shard, "--json")[1]
        assert json.loads(out) == {"records": counts[SHARD], "late": 0, "taken_back": 0}
    assert "has no shard x" in command("dead-letters", app, "replay", "--all", "--shard", "x")[2]
    one = next(text for text in replayed(query) if SHARD not in text)
    assert f"of shard {SHARD}" in command("dead-letters", app, "replay", one, *of_shard[1:])[2]
    assert '"records":2' in command("dead-letters", app, "replay", *of_shard, "--limit", "2", "--json")[1]


@pytest.mark.parametrize(
    "words",
    [
        "compact --from x --since 2026-01-01",
        "compact --from x --reason y",
        "compact --from x --again",
        "cancel --all --limit 1",
        "show orders/s:1 --limit 1",
        "--all --from x",
        "list --all",
    ],
)
def test_an_option_that_an_action_does_not_use_is_refused(command: Command, app: str, words: str) -> None:
    code, _, err = command("dead-letters", app, *words.split())
    assert (code, "No such option" in err, "' for help" in err) == (2, True, True)


@pytest.mark.parametrize(
    ("choice", "rows"),
    [
        (["--reason", "ValueError: 3"], [3]),
        (["--since", "2020-01-01"], [1, 3]),
        (["--since", "2999-01-01T00:00:00Z"], []),
    ],
)
def test_letters_are_chosen_by_their_reason_and_time(
    query: Query, command: Command, app: str, tmp_path: Path, choice: list[str], rows: list[int]
) -> None:
    code, _, err = command("dead-letters", app, "replay", *choice)
    assert code == (0 if rows else 1), err
    if rows:
        assert again(query) == rows
    else:
        assert command("dead-letters", app, "replay", "--from", str(tmp_path / "letters"), *choice)[0] == 1


def test_since_takes_the_time_that_a_letter_gives(
    query: Query, command: Command, app: str, tmp_path: Path
) -> None:
    letters = ["--from", str(tmp_path / "letters")]
    shown = command("dead-letters", app, "export", *letters)[1].splitlines()
    code, _, err = command("dead-letters", app, "replay", "--since", "soon", *letters)
    assert (code, "'soon' is not a time. Expected: a time in ISO 8601" in err) == (2, True)
    time = max(json.loads(line)["reasons"][-1]["time"] for line in shown)
    assert command("dead-letters", app, "replay", "--since", time, *letters)[0] == 0
    shown = json.loads(command("dead-letters", app, "--json")[1])["rows"]
    assert command("dead-letters", app, "cancel", "--all")[0] == 0
    time = iso_time(min(row["time_at"] for row in shown))
    assert command("dead-letters", app, "replay", "--since", time)[0] == 0
    assert again(query) == [1, 3]


def test_an_exported_file_is_for_its_user_alone(
    query: Query, command: Command, app: str, tmp_path: Path
) -> None:
    file = tmp_path / "out.jsonl"
    asked = ("dead-letters", app, "export", "--from", str(tmp_path / "letters"), "--to", str(file))
    assert command(*asked)[0] == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = file.read_bytes()
    # One that is there says itself who may read it, and is replaced whole.
    file.chmod(0o640)
    file.write_bytes(written * 2)
    assert command(*asked)[0] == 0
    assert (stat.S_IMODE(file.stat().st_mode), file.read_bytes()) == (0o640, written)
    said = json.loads(command(*asked, "--json")[1])
    assert said == {"letters": len(written.splitlines()), "file": str(file)}


def test_many_are_asked_about_with_their_number(
    query: Query, command: Command, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", asked.append)
    code, _, err = command("dead-letters", app, "replay", "--all")
    assert (code, "nothing was changed" in err) == (1, True)
    assert asked == [f"{app}: deliver 2 records again, with a new count of attempts. Go on?"]
    assert query.store.external.read().asked == {}
    assert command("dead-letters", app, "replay", "--all", "--yes")[0] == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["fail", "replay", "again", "settle", "cancel"]),
            st.sets(st.integers(0, 9), min_size=1),
        ),
        max_size=30,
    )
)
def test_marks_are_those_of_a_plain_simulation(steps: list[tuple[str, set[int]]]) -> None:
    node, letters, left = DeadLettersNode(count=0, target="/dead"), dict[int, str](), 0
    done_before: set[int] = set()
    for txid, (what, some) in enumerate(steps, 1):
        flying = {one for one, state in letters.items() if state == "in flight"}
        records: list[DeadLetterRecord] = []
        if what == "fail":
            records = [DeadLetterRecord(f"orders/{SHARD}:{one}", 1, "x", txid, txid) for one in sorted(some)]
            letters |= dict.fromkeys(some, "letter")
            left += len(some)
            flying -= some
            done_before -= some
        elif what == "settle":
            letters |= dict.fromkeys(flying & some, "done")
            flying -= some
        elif what == "cancel":
            back = flying & some
            flying -= back
            letters |= {one: "done" if one in done_before else "letter" for one in back}
            left += len(back - done_before)
            waiting = tuple(Run(str(one), str(one)) for one in sorted(flying))
            keys = keys_of_texts([str(one) for one in sorted(some)])
            node = replays.take_back(node, keys, InflightNode(txid=txid, waiting=waiting), {})
        else:
            wanted = {
                one for one in some if letters.get(one) in {"letter", "done" if what == "again" else "letter"}
            }
            node = mark_asked(node, keys_of_texts([str(one) for one in sorted(wanted)]), txid)
            left -= sum(letters[one] == "letter" for one in wanted)
            done_before |= {one for one in wanted if letters[one] == "done"}
            done_before -= {one for one in wanted if letters[one] == "letter"}
            letters |= dict.fromkeys(wanted, "in flight")
            flying |= wanted
        waiting = tuple(Run(str(one), str(one)) for one in sorted(flying))
        node = settle_replays(node, InflightNode(txid=txid, waiting=waiting), {}, records, txid)
        node = DeadLettersNode(count=node.count + len(records), target="", replays=node.replays)
        known = {one for one, state in letters.items() if state in {"in flight", "done"}}
        assert {position.number for position in find_replayed(node).positions} == known
        assert node.left == left
        ended = [one for one in node.replays if one.outcome == ""]
        assert sum(one.count for one in ended) == len({o for o, s in letters.items() if s == "in flight"})
    marked = find_replayed(node).array
    assert np.all(marked[:-1] < marked[1:])


NUMBERS = st.integers(1, 30)
RUNS = st.builds(
    lambda first, more, known: Run(str(first) if known else "", str(first + more), prev=str(first - 1)),
    NUMBERS,
    st.integers(0, 5),
    st.booleans(),
)


@given(st.lists(RUNS, max_size=8), st.lists(RUNS, max_size=3), st.sets(NUMBERS), st.sets(NUMBERS))
def test_what_is_in_flight_is_found_as_one_by_one(
    waiting: list[Run], dead: list[Run], rows: set[int], wanted: set[int]
) -> None:
    turn, asked = sorted(rows), sorted(wanted)
    half = len(turn) // 2
    pending = (PendingRun(txid=3, open=(0, half), due=1),) if half else ()
    node = InflightNode(txid=4, waiting=tuple(waiting), dead=tuple(dead), pending=pending)
    flying = {*turn[:half]}
    for run in (*waiting, *dead):
        flying |= set(range(int(run.prev or 0) + 1, int(run.last) + 1))
    found = are_in_flight(keys_of_texts([*map(str, asked)]), node, {3: keys_of_texts([*map(str, turn)])})
    assert found.tolist() == [one in flying for one in asked]


def test_many_waiting_runs_are_looked_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal looked
        looked += 1
        return counts(*args, **kwargs)

    monkeypatch.setattr(position_keys, "counts", counted)
    waiting = tuple(Run(str(10 * one), str(10 * one)) for one in range(1, 1_001))
    marks = tuple(
        Replay(at, pack_in_parts(keys_of_texts([str(10 * at)])), 0, "done" if at > 1 else "")
        for at in range(1, 65)
    )
    node = DeadLettersNode(count=1, target="", replays=marks)
    after = settle_replays(node, InflightNode(txid=1, waiting=waiting), {}, (), 5)
    assert [one.outcome for one in after.replays] == [one.outcome for one in marks]
    assert looked < 10 * len(marks)


def test_a_skipped_record_is_listed_and_replayed_from_the_stream(
    zookeeper: EmbeddedZooKeeper,
    kinesis: MemoryKinesis,
    command: Command,
    app: str,
    request: pytest.FixtureRequest,
) -> None:
    lives = Lives(zookeeper.hosts, app, retryLimit="0", onExhausted="skip")
    request.addfinalizer(lives.end)
    query = lives.begin(kinesis)
    failed(query, 1, 3)
    assert set(replayed(query).values()) == {""}
    assert command("dead-letters", app, "replay", "--all")[0] == 0
    assert again(query) == [1, 3]
    assert set(replayed(query).values()) == {f"done in txid {query.run._state.shards.settled}"}


def test_a_letter_that_nothing_can_deliver_is_refused_with_the_number(
    zookeeper: EmbeddedZooKeeper,
    kinesis: MemoryKinesis,
    command: Command,
    app: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    lives = Lives(zookeeper.hosts, app, retryLimit="0", onExhausted="skip")
    request.addfinalizer(lives.end)
    query = lives.begin(kinesis)
    query.batch(failing={1, 3})
    query.batch()
    query.plan()
    status = query.store.status.get()
    assert status is not None
    assert status.retention == {"orders": 24}
    later = now_ms() + 25 * 3_600_000
    monkeypatch.setattr("kinesis_trident.console.redelivery.now_ms", lambda: later)
    code, _, error = command("dead-letters", app, "replay", "--all", "--yes")
    assert code == 1
    assert "2 of these records have left the stream: " in error
    assert "Nothing keeps them: " in error
    assert query.store.external.read().asked == {}


def test_letters_of_another_folder_are_refused_with_the_one_from_which_they_come(
    query: Query, command: Command, app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records have left the stream, and the query does not know the folder that is named."""
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "letters", copy)
    # As long as they are in the stream, it does not matter where their letters are.
    assert command("dead-letters", app, "replay", "--from", str(copy))[0] == 0
    assert command("dead-letters", app, "cancel", "--all")[0] == 0
    later = now_ms() + 25 * 3_600_000
    monkeypatch.setattr("kinesis_trident.console.redelivery.now_ms", lambda: later)
    code, _, error = command("dead-letters", app, "replay", "--from", str(copy))
    assert (code, "2 of these records have left the stream: " in error) == (1, True)
    assert query.store.external.read().asked == {}
    line = error.rpartition("kinesis-trident ")[2]
    code, out, error = command(*shlex.split(line))
    assert (code, "2 records will be delivered again" in out) == (0, True), error


@pytest.fixture
def scripted() -> Iterator[ScriptedKinesis]:
    with ScriptedKinesis() as server:
        yield server


def test_letters_in_a_stream_are_replayed_from_there(
    zookeeper: EmbeddedZooKeeper,
    scripted: ScriptedKinesis,
    command: Command,
    app: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """There are more than ZooKeeper lists, and the stream no longer has their records."""
    server = scripted
    for stream in ("orders", "letters"):
        server.create_stream(stream)
    [shard] = server.shards("orders")
    sequences = [server.put("orders", shard, str(number).encode()) for number in range(26)]
    server.put("letters", server.shards("letters")[0], b"no letter")
    at = {"endpointUrl": server.endpoint_url, "onExhausted": "deadLetter", "deadLetter": "kinesis://letters"}
    lives = Lives(zookeeper.hosts, app, retryLimit="0", **at)
    request.addfinalizer(lives.end)
    query = lives.begin()
    failed(query, *range(25))
    server.trim("orders", shard, sequences[-1])
    later = now_ms() + 25 * 3_600_000
    monkeypatch.setattr("kinesis_trident.console.redelivery.now_ms", lambda: later)
    (status,) = map(json.loads, command("status", app, "--json")[1].splitlines())
    (remedy,) = (one["remedy"] for one in status["findings"] if one["code"] == "dead-letters")
    (line,) = re.findall(r"kinesis-trident (dead-letters \S+ replay .*?) delivers them", remedy)
    assert line.endswith("--from kinesis://letters")
    one = sorted(replayed(query))[0]
    refused = command("dead-letters", app, "replay", one)[2]
    assert "1 of these records has left the stream" in refused
    assert line.replace("--from", f"{one} --from") in refused
    of_query = ["--region", "us-east-1", "--endpoint", server.endpoint_url]
    code, out, error = command(*shlex.split(line), *of_query)
    assert (code, "25 records will be delivered again" in out) == (0, True), error
    # A shard that is throttled gives them with a later batch.
    query.run._on_request()
    assert numbers(query.drain()) == list(range(25))
    shown = command("dead-letters", app, "show", one, "--from", "kinesis://letters", *of_query)[1]
    assert f"messageId: {one}" in shown


@pytest.mark.parametrize(
    ("state", "running"),
    [("asked", True), ("asked", False), ("waits", True), ("waits", False), ("dead", False)],
)
def test_what_was_asked_for_is_taken_back_in_every_state(
    query: Query,
    make_lives: Callable[..., Lives],
    kinesis: MemoryKinesis,
    command: Command,
    app: str,
    state: str,
    running: bool,
) -> None:
    """It is a letter as before, which can be asked for once more; also where it has stopped the query."""
    query.end()
    more = {"retryLimit": "0"} if state == "dead" else {"retryLimit": "5", "retryBackoff": "1h..1h x1"}
    lives = make_lives(onExhausted="fail", **more)
    query = lives.begin(kinesis, query.checkpoint)
    assert query.plan() is None
    assert command("dead-letters", app, "replay", "--all")[0] == 0
    if state != "asked":
        query.store.external.read()
        query.run._on_request()
        assert numbers(query.batch(failing={1, 3})) == [1, 3]
        with pytest.raises(ExhaustedError) if state == "dead" else nullcontext():
            query.plan()
    if not running:
        query.end()
    code, said, _ = command("dead-letters", app, "cancel", "--all")
    assert code == 0
    assert said.startswith("2 records")
    if not running:
        query = lives.begin(kinesis, query.checkpoint)
    query.store.external.read()
    query.run._on_request()
    assert query.plan() is None
    assert set(replayed(query).values()) == {""}
    assert not query.store.shards.inflight()[SHARD].size
    assert query.store.external.read().asked == {}
    code, _, err = command("dead-letters", app, "cancel", "--all")
    assert (code, "there is nothing to cancel" in err) == (1, True)
    assert command("dead-letters", app, "replay", "--all")[0] == 0
    assert again(query) == [1, 3]


def test_what_was_done_before_stays_done_when_another_replay_is_taken_back(
    query: Query, command: Command, app: str
) -> None:
    assert command("dead-letters", app, "replay", "--all")[0] == 0
    assert again(query) == [1, 3]
    done = replayed(query)
    assert command("dead-letters", app, "replay", "--all", "--again")[0] == 0
    query.store.external.read()
    query.run._on_request()
    assert command("dead-letters", app, "cancel", "--all")[0] == 0
    query.store.external.read()
    query.run._on_request()
    assert query.plan() is None
    assert (replayed(query), len(done)) == (done, 2)
    code, _, err = command("dead-letters", app, "replay", "--all")
    assert (code, "--again delivers those once more" in err) == (1, True)


def test_what_was_withdrawn_before_zookeeper_went_away_is_in_the_audit(
    query: Query, command: Command, app: str, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.end()
    assert command("dead-letters", app, "replay", "--all")[0] == 0

    def lost(*_: object) -> int:
        msg = "the connection to ZooKeeper was closed"
        raise ZooKeeperUnavailableError(msg)

    monkeypatch.setattr(redelivery, "take_back", lost)
    code, _, err = command("dead-letters", app, "cancel", "--all")
    assert (code, "was closed" in err) == (1, True)
    notes = SourceStore(client, query.run.layout).changes.notes()
    assert notes[0].what == "cancel the replay of all"


def test_a_letter_that_is_being_delivered_comes_although_it_is_taken_back(
    query: Query, lives: Lives, kinesis: MemoryKinesis, command: Command, app: str
) -> None:
    assert command("dead-letters", app, "replay", "--all")[0] == 0
    query.store.external.read()
    query.run._on_request()
    query.planned()
    query.end()
    assert command("dead-letters", app, "cancel", "--all")[0] == 0
    query = lives.begin(kinesis, query.checkpoint)
    assert numbers(query.batch()) == [1, 3]
    assert query.plan() is None
    assert {one.partition(" in ")[0] for one in replayed(query).values()} == {"done"}
    assert query.store.external.read().asked == {}
