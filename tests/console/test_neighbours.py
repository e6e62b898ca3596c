"""Records that fail together are one run: each printed line and offered button brings them all, and says how many."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from by_hand import Lives, Query, numbers
from command_line import Command
from situations import A
from web_site import offered

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import BatchOutcome
from kinesis_trident.console.web.app import Site, _carry_out
from kinesis_trident.testing import MemoryKinesis
from kinesis_trident.tracker.records import NotDone

SIZES = [1, 2, 21, 500]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "the letters"


@pytest.fixture
def lives(zookeeper: EmbeddedZooKeeper, app: str, folder: Path) -> Iterator[Lives]:
    held = Lives(
        zookeeper.hosts, app, onExhausted="deadLetter", deadLetter=str(folder), retryBackoff="1h..1h x1"
    )
    yield held
    held.end()


def failed(lives: Lives, bad: list[int], retry_limit: int, kinesis: MemoryKinesis | None = None) -> Query:
    """A query with these records waiting or, without a retry, dead-lettered."""
    kinesis = kinesis or MemoryKinesis()
    kinesis.put_records("orders", [(str(number).encode(), "k") for number in range(bad[-1] + 3)])
    query = lives.begin(kinesis, retryLimit=str(retry_limit))
    plan = query.planned()
    names = [MessageId.parse(row[1]) for row in query.rows() if row[0] in bad]
    # As the tracking of bolts and functions reports them: neighbours that fail for one reason are one.
    cuts = [at for at in range(len(bad) + 1) if at in (0, len(bad)) or bad[at] - bad[at - 1] > 1]
    not_done = tuple(
        NotDone(str(names[begin].last), str(names[end - 1].last), end - begin, "ValueError: bad amount")
        for begin, end in pairwise(cuts)
    )
    epoch = query._say_judging(plan)
    outcome = BatchOutcome(txid=plan.txid, plan=plan.plan, epoch=epoch, not_done={A: not_done})
    query.store.batches.put_outcome(outcome, epoch)
    query.commit()
    if retry_limit == 0:
        assert query.batch() == []
    assert query.plan() is None
    return query


def again(query: Query) -> list[int]:
    """What the next batch delivers, and settles."""
    query.store.external.read()
    query.run._on_request()
    rows = numbers(query.batch())
    while query.plan() is not None:
        query.batch()
    return rows


def said(out: str) -> int:
    found = re.match(r"([\d,]+) records? will ", out)
    assert found, out
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize("size", SIZES)
def test_what_waits_comes_at_once_by_each_of_its_names(
    lives: Lives, command: Command, app: str, size: int
) -> None:
    bad = list(range(1, 1 + size))
    query = failed(lives, bad, retry_limit=9)
    (row,) = json.loads(command("retries", app, "list", "--json")[1])["rows"]
    assert row["count"] == size
    # As a list prints the run, by any record of it, and by what the list of reasons has.
    reasons = json.loads(command("retries", app, "--json")[1])["rows"]
    source = row["message_id"].partition(":")[0]
    inside = f"{source}:{query.store.shards.inflight()[source.partition('/')[2]].waiting[0].last}"
    for words in ([row["message_id"]], [inside], [reasons[0]["message_id"]], ["--all"]):
        code, out, err = command("retries", app, "now", *words)
        assert (code, said(out)) == (0, size), err
        code, out, err = command("dead-letters", app, "cancel", words[0])
        assert (code, said(out)) == (0, size), err
    assert said(command("retries", app, "now", "--reason", "Error")[1]) == size
    assert again(query) == bad


@pytest.mark.parametrize("action", ["retry", "dead-letter"])
@pytest.mark.parametrize("size", SIZES)
def test_each_button_of_what_waits_is_carried_out(
    lives: Lives, app: str, site: Site, size: int, action: str
) -> None:
    bad = list(range(1, 1 + size))
    query = failed(lives, bad, retry_limit=9)
    for fields in offered(site, app)[0]:
        if fields["action"] == action and "id" in fields:
            assert said(_carry_out(site, app, fields)) == size
    if action == "retry":
        assert again(query) == bad
    else:
        query.run._on_request()
        assert query.batch() == []
        assert query.plan() is None
        assert sum(node.count for node in query.store.shards.dead_letters().values()) == size


@pytest.mark.parametrize("apart", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_what_status_and_the_page_say_of_dead_letters_delivers_them_again(
    lives: Lives, command: Command, app: str, folder: Path, site: Site, size: int, apart: int
) -> None:
    bad = list(range(1, 1 + size * apart, apart))
    query = failed(lives, bad, retry_limit=0)
    (line,) = (
        one["remedy"]
        for one in json.loads(command("status", app, "--json")[1])["findings"]
        if one["code"] == "dead-letters"
    )
    (replay,) = re.findall(r"kinesis-trident (dead-letters \S+ replay .*?) delivers them again", line)
    assert ("--all" in replay) is (size == 1 or (apart == 2 and size <= 20))
    code, out, err = command(*shlex.split(replay))
    assert (code, said(out)) == (0, size), err
    assert said(command("dead-letters", app, "cancel", "--all")[1]) == size
    buttons, page = offered(site, app)
    ids = [fields["id"] for fields in buttons if fields["action"] == "replay"]
    lines = re.findall(r"kinesis-trident (dead-letters \S+ replay .*? --from FOLDER)", page)
    listed = json.loads(command("dead-letters", app, "--json")[1])["rows"]
    assert len(ids) + len(lines) == len(listed)
    for row in listed[:1]:
        out = command("dead-letters", app, "export", row["message_id"], "--from", str(folder))[1]
        assert len(out.splitlines()) == row["count"]
    come = [said(_carry_out(site, app, {"action": "replay", "id": one})) for one in ids]
    for text in lines:
        words = shlex.split(text.replace("FOLDER", shlex.quote(str(folder))))
        come.append(said(command(*words)[1]))
    if apart == 1:
        assert come == [size]
        # Without the folder, the error prints the line that works.
        assert command("dead-letters", app, "cancel", listed[0]["message_id"])[0] == 0
        code, _, err = command("dead-letters", app, "replay", listed[0]["message_id"])
        if size > 1:
            (text,) = re.findall("kinesis-trident (dead-letters .*)", err)
            code, out, err = command(*shlex.split(text))
            assert said(out) == size
        assert code == 0, err
    assert len(again(query)) == sum(come)


def test_a_run_of_dead_letters_is_not_the_few_of_it_that_wait_again(
    lives: Lives, command: Command, app: str, folder: Path
) -> None:
    query = failed(lives, [1, 2, 3], retry_limit=0)
    (row,) = json.loads(command("dead-letters", app, "--json")[1])["rows"]
    letters = ["--from", str(folder)]
    middle = json.loads(command("dead-letters", app, "export", *letters)[1].splitlines()[1])["messageId"]
    assert said(command("dead-letters", app, "replay", middle)[1]) == 1
    query.store.external.read()
    query.run._on_request()
    query.planned()
    code, _, err = command("dead-letters", app, "replay", row["message_id"])
    assert (code, "stands for several records" in err) == (1, True)
    code, out, err = command("dead-letters", app, "replay", row["message_id"], *letters)
    assert (code, said(out)) == (0, 3), err


@pytest.mark.parametrize(("apart", "come"), [(1, 0), (2, 20)])
def test_what_was_skipped_is_replayed_as_far_as_it_is_named(
    zookeeper: EmbeddedZooKeeper, command: Command, app: str, site: Site, apart: int, come: int
) -> None:
    """There is no folder, so nothing names one; what is lost to a replay is said with the way that is left."""
    lives = Lives(zookeeper.hosts, app, onExhausted="skip", retryBackoff="1h..1h x1")
    bad, kinesis = list(range(1, 1 + 25 * apart, apart)), MemoryKinesis()
    query = failed(lives, bad, retry_limit=0, kinesis=kinesis)
    (found,) = (
        one
        for one in json.loads(command("status", app, "--json")[1])["findings"]
        if one["code"] == "dead-letters"
    )
    left = 25 - come
    assert (
        f"of {left} records nothing has the name: onExhausted=skip has written no letter" in found["remedy"]
    )
    replays = [line for line in found["commands"] if " replay " in line]
    assert len(replays) == bool(come)
    code, out, err = command("dead-letters", app, "replay", "--all")
    assert (code, f"left out, because nothing names them: {left} records" in err) == (int(not come), True)
    assert not come or said(out) == come
    assert "FOLDER" not in offered(site, app)[1]
    first = json.loads(command("dead-letters", app, "--json")[1])["rows"][0]["message_id"]
    unnamed = re.sub(":.*", f":{'9' * 50}", first) if come else first
    code, _, err = command("dead-letters", app, "replay", unnamed)
    assert (code, "checkpoints set reads a shard again" in err, "--from" in err) == (1, True, False)
    query.end()
    # The way that is left.
    code, _, err = command("checkpoints", app, "set", "TRIM_HORIZON", "--shard", A, "--yes")
    assert code == 0, err
    later = lives.begin(kinesis, query.checkpoint, onCheckpointMismatch="continue")
    assert set(bad) <= set(numbers(later.drain()))
    lives.end()
