"""A batch that cannot finish is abandoned: the query goes on after it, and no record is lost or delivered twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from by_hand import Lives, numbers
from command_line import Command
from msgspec.structs import replace

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.console.dead_letter_replay import LetterPlace, letters_in
from kinesis_trident.testing import MemoryKinesis, SparkCheckpoint


@pytest.fixture
def lives(zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path) -> Iterator[Lives]:
    held = Lives(
        zookeeper.hosts,
        app,
        onExhausted="deadLetter",
        deadLetter=str(tmp_path),
        maxFetchRecordsPerShard="3",
    )
    yield held
    held.end()


@pytest.fixture
def kinesis() -> MemoryKinesis:
    kinesis = MemoryKinesis(shards=2)
    kinesis.put_records("orders", [(str(number).encode(), f"k{number}") for number in range(12)])
    return kinesis


@pytest.mark.parametrize("spout", ["transactional", "opaque", "nontransactional"])
@pytest.mark.parametrize("judges", [True, False])
@pytest.mark.parametrize("dead_letter", [False, True])
def test_the_query_goes_on_after_an_abandoned_batch(
    lives: Lives,
    kinesis: MemoryKinesis,
    command: Command,
    app: str,
    tmp_path: Path,
    spout: str,
    judges: bool,
    dead_letter: bool,
) -> None:
    checkpoint = SparkCheckpoint()
    query = lives.begin(kinesis, checkpoint, judges=judges, spout=spout)
    # With retries in the batch where that kind of query has any.
    done = numbers(query.batch(failing=[])) if not judges else []
    if judges:
        rows = query.batch(failing=range(12) if spout != "transactional" else ())
        done = numbers(rows) if spout == "transactional" else []
    query.planned()
    stuck = numbers(query.rows())
    assert stuck
    code, _, err = command("checkpoints", app, "abandon-batch", "--yes")
    assert (code, "is running" in err) == (1, True)
    how = ["--dead-letter"] if dead_letter else []
    code, out, err = command("checkpoints", app, "abandon-batch", "--yes", "--force", *how)
    assert code == 0, err
    assert f"{len(stuck)} records that it has read" in out
    query.until_replaced()
    query.end()
    # A second time there is nothing more in it.
    again = command("checkpoints", app, "abandon-batch", "--yes", *how)
    assert (again[0], f"txid {query.in_hand.txid} is empty already" in again[2]) == (1, True)

    query = lives.begin(kinesis, checkpoint, judges=judges, spout=spout)
    assert query.in_hand is not None
    assert query.batch() == []
    rest = numbers(query.drain())
    query.end()
    letters = sorted(
        int(letter.data or b"") for letter in letters_in(LetterPlace(str(tmp_path)), app, {"orders"})
    )
    assert letters == (stuck if dead_letter else [])
    assert sorted([*done, *rest, *letters]) == list(range(12))
    assert command("checkpoints", app, "abandon-batch", "--yes")[2].endswith("nothing to abandon\n")


@pytest.mark.parametrize("judges", [True, False])
@pytest.mark.parametrize("begun", [False, True])
def test_a_shard_is_moved_after_its_batch_was_abandoned(
    lives: Lives, kinesis: MemoryKinesis, command: Command, app: str, judges: bool, begun: bool
) -> None:
    """Where no batch can read its position, each start begins another one that cannot finish."""
    shard = "shardId-000000000000"
    checkpoint = SparkCheckpoint()
    query = lives.begin(kinesis, checkpoint, judges=judges)
    before = query.batch() if begun else []
    query.planned()
    query.rows()
    query.end()
    first = sorted(number for number, message_id, *_ in before if f"/{shard}:" in message_id)
    moved = ["checkpoints", app, "set", "TRIM_HORIZON", "--shard", shard, "--yes"]
    code, _, err = command(*moved)
    assert (code, f"checkpoints {app} abandon-batch" in err) == (1, True)
    assert command("checkpoints", app, "abandon-batch", "--yes")[0] == 0
    code, _, err = command(*moved)
    assert code == 0, err
    query = lives.begin(kinesis, checkpoint, judges=judges)
    assert query.batch() == []
    rest = numbers(query.drain())
    assert rest == sorted([*(set(range(12)) - {number for number, *_ in before}), *first])


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "AT_TIMESTAMP 0"])
@pytest.mark.parametrize("named", [2, 1, 0])
def test_the_very_first_turns_are_dead_lettered_if_their_pins_name_the_first_record(
    lives: Lives, kinesis: MemoryKinesis, command: Command, app: str, tmp_path: Path, start: str, named: int
) -> None:
    checkpoint = SparkCheckpoint()
    query = lives.begin(kinesis, checkpoint, judges=True, startingPosition=start)
    plan = query.planned()
    stuck: dict[str, list[int]] = {shard: [] for shard in plan.shards}
    for number, message_id, *_ in query.rows():
        stuck[message_id.partition(":")[0].partition("/")[2]].append(number)
    unnamed = [*stuck][named:]
    for shard, pin in query.store.batches.get_pins(plan.txid, unnamed).items():
        # As an earlier release pins them.
        query.store.batches.replace_pin(shard, replace(pin, first=None), pin.epoch)
    code, out, err = command("checkpoints", app, "abandon-batch", "--yes", "--force", "--dead-letter")
    if not named:
        assert (code, f"has read shard {', '.join(unnamed)}" in err) == (1, True)
        return
    assert code == 0, err
    dead = sorted(number for shard in [*stuck][:named] for number in stuck[shard])
    assert f"the {len(dead)} records that it has read go to the dead letter (or what onExhausted says)" in out
    assert all(f"{len(stuck[shard])} of shard {shard}" in out for shard in unnamed)
    query.until_replaced()
    query.end()
    query = lives.begin(kinesis, checkpoint, judges=True, startingPosition=start)
    rest = numbers([*query.batch(), *query.drain()])
    query.end()
    letters = sorted(
        int(letter.data or b"") for letter in letters_in(LetterPlace(str(tmp_path)), app, {"orders"})
    )
    assert letters == dead
    assert sorted([*rest, *letters]) == list(range(12))


def test_a_batch_whose_outcome_is_published_is_not_abandoned(
    lives: Lives, kinesis: MemoryKinesis, command: Command, app: str
) -> None:
    query = lives.begin(kinesis)
    query.planned()
    query.rows()
    query.publish()
    query.end()
    code, _, err = command("checkpoints", app, "abandon-batch", "--yes")
    assert (code, "would count them twice" in err) == (1, True)


def test_it_is_asked_for_and_can_be_taken_back(
    lives: Lives, kinesis: MemoryKinesis, command: Command, app: str
) -> None:
    query = lives.begin(kinesis)
    query.planned()
    query.rows()
    code, _, err = command("checkpoints", app, "abandon-batch", "--force")
    assert (code, "give --yes" in err) == (1, True)
    _, out, _ = command("checkpoints", app, "abandon-batch", "--yes", "--dead-letter", "--force")
    backup = out.strip().rpartition(" ")[2]
    assert backup in command("checkpoints", app, "backups")[1]
    assert "abandon txid 1" in command("owner", app)[1]
