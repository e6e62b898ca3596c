"""A dead letter whose record has left the stream is delivered from the payload in the letter."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from by_hand import Lives, Query, numbers
from memory_streams import MemoryStreams

from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.checkpoint.store.application_names import rename_application
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.spout.errors import DeadLetterError
from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters
from kinesis_trident.spout.failed_records.letter_stream import read_stream_letters
from kinesis_trident.spout.kinesis import ThrottledError
from kinesis_trident.spout.testing import MemoryKinesis

A = "shardId-000000000000"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "letters"


@pytest.fixture
def lives(make_lives: Callable[..., Lives], folder: Path) -> Lives:
    return make_lives(retryLimit="0", onExhausted="deadLetter", deadLetter=str(folder))


def letters_in(folder: Path) -> list[tuple[bytes | None, int]]:
    return sorted((letter.data or b"", letter.count) for letter in read_dead_letters(folder))


def begun(lives: Lives) -> tuple[MemoryKinesis, list[int], Query]:
    """Return a query of three records, whose second one is dead-lettered."""
    kinesis = MemoryKinesis("orders", created=1_600_000_000_000)
    sequences = [kinesis.put(A, str(number).encode()) for number in range(3)]
    query = lives.begin(kinesis)
    query.batch(failing={1})
    query.batch()
    query.plan()
    return kinesis, sequences, query


@pytest.mark.parametrize("together", [False, True])
def test_what_has_left_the_stream_comes_from_its_letter(lives: Lives, folder: Path, together: bool) -> None:
    kinesis = MemoryKinesis("orders", created=1_600_000_000_000)
    sequences = [kinesis.put(A, str(number).encode()) for number in range(6)]
    query = lives.begin(kinesis)
    bad = {2, 3} if together else {1, 4}
    query.batch(failing=bad)
    # The exhausted ones are written.
    query.batch()
    query.plan()
    assert [data for data, _ in letters_in(folder)] == [str(number).encode() for number in sorted(bad)]
    kinesis.trim(A, sequences[-1])
    again = [str(sequences[number]) for number in sorted(bad)]
    query.store.external.add(A, ExternalNode(op="replay", records=tuple(again)))
    rows = query.batch()
    query.plan()
    assert numbers(rows) == sorted(bad)
    assert [attempt for *_, attempt, _ in rows] == [1, 1]
    # None is written a second time.
    assert len(letters_in(folder)) == 2


def test_a_batch_that_comes_again_has_the_same_rows(lives: Lives) -> None:
    kinesis, sequences, query = begun(lives)
    kinesis.trim(A, sequences[-1])
    query.store.external.add(A, ExternalNode(op="replay", records=(str(sequences[1]),)))
    query.planned()
    first = query.rows()
    query.end()
    later = lives.begin(kinesis, query.checkpoint)
    assert later.rows() == first
    assert numbers(first) == [1]


def test_a_folder_without_the_letter_leaves_it_expired(lives: Lives, folder: Path) -> None:
    kinesis, sequences, query = begun(lives)
    (file,) = folder.rglob("*.jsonl")
    assert json.loads(file.read_text())["data"]
    file.unlink()
    kinesis.trim(A, sequences[-1])
    query.store.external.add(A, ExternalNode(op="replay", records=(str(sequences[1]),)))
    assert query.batch() == []
    query.plan()
    query.batch()
    assert letters_in(folder) == [(b"", 1)]


def test_the_letters_of_a_renamed_application_are_found(lives: Lives, app: str) -> None:
    """They are in the folder of its first name, and so are those that it writes later."""
    kinesis, sequences, query = begun(lives)
    kinesis.trim(A, sequences[-1])
    for name in (f"{app}-later", f"{app}-last"):
        rename_application(Session(query.store.client, 10), query.run.layout, name)
        query.end()
        query = lives.begin(kinesis, query.checkpoint, applicationName=name)
        again = ExternalNode(op="replay", records=(str(sequences[1]),), again=True)
        query.store.external.add(A, again)
        assert numbers(query.batch()) == [1]
        query.plan()


def test_what_has_left_the_stream_comes_from_its_letter_in_another_stream(
    make_lives: Callable[..., Lives],
) -> None:
    kinesis = MemoryStreams("orders", "letters")
    lives = make_lives(retryLimit="0", onExhausted="deadLetter", deadLetter="kinesis://letters")
    kinesis.put("orders", *range(6))
    query = lives.begin(kinesis)
    query.batch(failing={1, 4})
    query.batch()
    query.plan()
    # Others write there, too.
    kinesis.held["letters"].put(A, b"no letter")
    letters = [*read_stream_letters(kinesis, "letters")]
    assert sorted(letter.data or b"" for letter in letters) == [b"1", b"4"]
    kinesis.held["orders"].trim(A, max(int(letter.sequence_number or 0) for letter in letters))
    again = tuple(str(letter.sequence_number) for letter in letters)
    query.store.external.add(A, ExternalNode(op="replay", records=again))
    assert numbers(query.batch()) == [1, 4]
    query.plan()
    assert len([*read_stream_letters(kinesis, "letters")]) == 2


def test_a_task_reads_the_letters_of_a_stream_once_for_all_its_turns(
    make_lives: Callable[..., Lives],
) -> None:
    kinesis = MemoryStreams("orders", "letters", shards=2)
    lives = make_lives(
        retryLimit="0", onExhausted="deadLetter", deadLetter="kinesis://letters", shardsPerTask="2"
    )
    orders, letters = kinesis.held["orders"], kinesis.held["letters"]
    shards = sorted(orders.open_shards)
    for number in range(6):
        orders.put(shards[number % 2], str(number).encode())
    query = lives.begin(kinesis)
    query.batch(failing={1, 2, 3})
    query.batch()
    query.plan()
    failed = [*read_stream_letters(kinesis, "letters")]
    for shard in shards:
        mine = [letter.sequence_number or "" for letter in failed if letter.shard_id == shard]
        orders.trim(shard, max(map(int, mine)))
        query.store.external.add(shard, ExternalNode(op="replay", records=tuple(mine)))
    query.end()
    # A start takes in both requests, a run that goes on what it has news of.
    query = lives.begin(kinesis, query.checkpoint)
    query.planned()
    before = Counter(letters.calls)
    assert numbers(query.rows()) == [1, 2, 3]
    called = Counter(letters.calls) - before
    assert [called["get_records", shard] for shard in shards] == [1, 1]


def test_a_stream_of_letters_that_refuses_calls_for_a_while_is_read_whole() -> None:
    kinesis = MemoryStreams("letters")
    kinesis.held["letters"].fail(A, ThrottledError("slower"), ThrottledError("slower"))
    waits: list[float] = []
    assert [*read_stream_letters(kinesis, "letters", waits.append)] == []
    assert len(waits) == 2
    with pytest.raises(DeadLetterError, match=r"from stream 'gone': there is no stream 'gone'\. Check"):
        [*read_stream_letters(kinesis, "gone")]


def test_what_killed_tasks_have_not_ended_of_their_letters_goes_once_it_is_a_day_old(
    lives: Lives, folder: Path, app: str
) -> None:
    kinesis, _, query = begun(lives)
    query.end()
    old, new, other = (
        folder / below / f".{one * 32}"
        for below, one in ((f"{app}/orders", "a"), (f"{app}/orders", "b"), ("another", "a"))
    )
    for part in (old, new, other):
        part.parent.mkdir(exist_ok=True)
        part.write_bytes(b"half of a")
    for part in (old, other):
        os.utime(part, (time.time() - 2 * 86_400,) * 2)
    lives.begin(kinesis, query.checkpoint).end()
    assert (old.exists(), new.exists(), other.exists()) == (False, True, True)
    assert letters_in(folder) == [(b"1", 1)]


def test_a_letter_that_cannot_be_read_keeps_no_other_back(
    lives: Lives, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither what a program of somebody else has written, nor a file that is away."""
    kinesis, sequences, query = begun(lives)
    (file,) = folder.rglob("*.jsonl")
    good = json.loads(file.read_text())
    bad = [{"messageId": "nonsense"}, {"approximateArrivalTimestamp": "yesterday"}]
    lines = [json.dumps(good | one) for one in bad] + [json.dumps(good)]
    # A name without a digest is one of release 1.0.0.
    name = file.name.partition("~")[0] + ".jsonl"
    file.unlink()
    (file.parent / name).write_text("\n".join(lines) + "\n")
    (file.parent / f"{10**11:012d}-other.jsonl").symlink_to(folder / "away")
    kinesis.trim(A, sequences[-1])
    query.store.external.add(A, ExternalNode(op="replay", records=(str(sequences[1]),)))
    assert numbers(query.batch()) == [1]
    assert "the dead letter nonsense cannot be read, and is left out" in caplog.text
