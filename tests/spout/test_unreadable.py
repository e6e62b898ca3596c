"""A record that cannot be decoded fails alone: the others of its page are rows, and it ends in the dead letter."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from by_hand import Lives, Query, SparkCheckpoint, numbers

from kinesis_trident.checkpoint.model.nodes import Pin
from kinesis_trident.console.dead_letter_replay import LetterPlace, folder_ids, message_id_of
from kinesis_trident.console.redelivery import deliver_again, find_requests
from kinesis_trident.spout.batch.pushed_filters import ShardRange
from kinesis_trident.spout.batch.range_read import read_range
from kinesis_trident.spout.errors import ExhaustedError, TurnChangedError
from kinesis_trident.spout.failed_records.dead_letters import DeadLetter, read_dead_letters
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import TRIM_HORIZON, ShardEnd
from kinesis_trident.spout.reader.task import TurnReader
from kinesis_trident.spout.testing import MemoryKinesis, ScriptedKinesis

A = "shardId-000000000000"
ODD = {"Data": {"S3": "s3://bucket/key"}}


@pytest.fixture
def kinesis() -> MemoryKinesis:
    return MemoryKinesis("orders", created=1_600_000_000_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "letters"


def put(kinesis: MemoryKinesis, says: range, odd: range | tuple[int, ...] = ()) -> dict[int, int]:
    """Write records that say numbers, some of which cannot be decoded; their sequence numbers."""
    found = {number: kinesis.put(A, b"%d" % number) for number in says}
    for number in odd:
        kinesis.garble(A, found[number], ODD)
    return found


def letters(folder: Path) -> dict[str, DeadLetter]:
    """The letters of a folder by messageId, which each has once."""
    found = list(read_dead_letters(folder)) if folder.exists() else []
    assert len({letter.message_id for letter in found}) == len(found)
    return {letter.message_id: letter for letter in found}


def pins(query: Query) -> Pin:
    assert query.in_hand is not None
    [pin] = query.store.batches.get_pins(query.in_hand.txid, query.in_hand.shards).values()
    return pin


@pytest.mark.parametrize(
    ("odd", "spout"),
    [
        ((0,), "opaque"),
        ((9,), "opaque"),
        ((0, 1, 4, 6), "opaque"),
        (tuple(range(10)), "opaque"),
        ((3,), "transactional"),
        ((3,), "nontransactional"),
    ],
    ids=str,
)
def test_the_others_of_its_page_are_rows_and_it_goes_to_the_dead_letter(
    lives: Lives, kinesis: MemoryKinesis, folder: Path, odd: tuple[int, ...], spout: str
) -> None:
    found = put(kinesis, range(10), odd)
    query = lives.begin(kinesis, onExhausted="deadLetter", deadLetter=str(folder), spout=spout)
    rows = query.drain()
    assert numbers(rows) == [number for number in range(10) if number not in odd]
    written = letters(folder)
    assert set(written) == {f"orders/{A}:{found[number]}" for number in odd}
    for number in odd:
        letter = written[f"orders/{A}:{found[number]}"]
        assert letter.reasons[-1].reason.startswith("UNREADABLE: ")
        assert (letter.attempts, letter.partition_key, letter.sub_sequence_number) == (2, None, -1)
        assert letter.data is not None
        assert json.loads(letter.data)["SequenceNumber"] == letter.sequence_number == str(found[number])
        assert json.loads(letter.data)["Data"] == ODD["Data"]
    # Everything is done, and counted.
    [checkpoint] = query.store.shards.checkpoints().values()
    assert checkpoint.checkpoint == str(found[9])
    assert sum(node.count for node in query.store.shards.dead_letters().values()) == len(odd)
    assert query.plan() is None


@pytest.mark.parametrize("mode", ["polling", "efo"])
def test_a_real_client_meets_it(lives: Lives, folder: Path, mode: str) -> None:
    with ScriptedKinesis() as server:
        server.create_stream("orders")
        server.distribute("orders")
        found = [server.put("orders", A, b"%d" % number, None) for number in range(4)]
        server.garble("orders", A, found[2], {"Data": 7})
        options = {
            "onExhausted": "deadLetter",
            "deadLetter": str(folder),
            "retryLimit": "0",
            "consumerMode": mode,
        }
        query = lives.begin(endpointUrl=server.endpoint_url, maxFetchTime="1s", **options)
        assert numbers(query.batch()) == [0, 1, 3]
        query.drain()
    assert set(letters(folder)) == {f"orders/{A}:{found[2]}"}


def test_neighbours_that_fail_come_back_beside_it(lives: Lives, kinesis: MemoryKinesis, folder: Path) -> None:
    found = put(kinesis, range(10), (4, 5))
    query = lives.begin(
        kinesis, onExhausted="deadLetter", deadLetter=str(folder), retrySpool=str(folder.parent / "spool")
    )
    assert numbers(query.batch(failing=[3, 6])) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert [row[:3] for row in query.batch()] == [
        (number, f"orders/{A}:{found[number]}", 2) for number in (3, 6)
    ]
    assert query.drain() == []
    assert set(letters(folder)) == {f"orders/{A}:{found[number]}" for number in (4, 5)}


def test_a_record_that_can_be_decoded_by_then_comes_back_as_a_row(
    lives: Lives, kinesis: MemoryKinesis, folder: Path
) -> None:
    """A replay of the batch that could not decode it still has the same rows."""
    found = put(kinesis, range(6), (2,))
    checkpoint = SparkCheckpoint()
    options = {"onExhausted": "deadLetter", "deadLetter": str(folder), "spout": "transactional"}
    query = lives.begin(kinesis, checkpoint, **options)
    query.planned()
    before = query.rows()
    pinned = pins(query)
    assert (pinned.count, pinned.rows) == (6, 5)
    query.end()
    kinesis.garble(A, found[2], {})
    query = lives.begin(kinesis, checkpoint, **options)
    assert query.batch() == before
    assert [row[:3] for row in query.drain()] == [(2, f"orders/{A}:{found[2]}", 2)]
    assert letters(folder) == {}


def test_its_letter_is_delivered_again_once_it_can_be_decoded(
    lives: Lives, kinesis: MemoryKinesis, folder: Path
) -> None:
    found = put(kinesis, range(3), (1,))
    query = lives.begin(kinesis, onExhausted="deadLetter", deadLetter=str(folder), retryLimit="0")
    query.batch()
    assert query.batch() == []
    [letter] = letters(folder)
    layout = query.run.layout
    place = LetterPlace(str(folder))
    found_again = folder_ids(place, layout.application, {"orders": (layout.created, "")})
    assert ([*found_again.ids], found_again.expired, found_again.foreign) == ([letter], 0, [])
    for members in (ODD, {}):
        kinesis.garble(A, found[1], members)
        assert deliver_again(find_requests([query.store], [message_id_of(letter)]), what="replay") == 1
        rows = query.batch()
        if members:
            # It still cannot be, and is dead-lettered again.
            assert rows == query.batch() == []
    assert numbers(rows) == [1]


def test_a_row_that_a_replay_cannot_decode_stops_the_query(lives: Lives, kinesis: MemoryKinesis) -> None:
    found = put(kinesis, range(6))
    checkpoint = SparkCheckpoint()
    query = lives.begin(kinesis, checkpoint)
    query.planned()
    query.rows()
    query.end()
    kinesis.garble(A, found[2], ODD)
    query = lives.begin(kinesis, checkpoint)
    with pytest.raises(
        TurnChangedError, match=f"{A}, record {found[2]}: it was a row of batch 1, but a replay"
    ):
        query.rows()


def test_a_crash_between_letter_and_pin_writes_the_letter_again_in_its_place(
    lives: Lives, kinesis: MemoryKinesis, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = put(kinesis, range(4), (1,))
    checkpoint = SparkCheckpoint()
    options = {"onExhausted": "deadLetter", "deadLetter": str(folder), "retryLimit": "0"}
    query = lives.begin(kinesis, checkpoint, **options)
    assert numbers(query.batch()) == [0, 2, 3]
    assert letters(folder) == {}
    query.planned()
    with monkeypatch.context() as patched:
        patched.setattr(query.store.batches, "create_pin", _killed)
        with pytest.raises(KeyboardInterrupt):
            query.rows()
    query.end()
    assert set(letters(folder)) == {f"orders/{A}:{found[1]}"}
    # More has arrived since.
    put(kinesis, range(4, 6), (4,))
    query = lives.begin(kinesis, checkpoint, **options)
    query.drain()
    assert len(letters(folder)) == 2


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_without_a_dead_letter_the_query_stops_and_names_it(lives: Lives, kinesis: MemoryKinesis) -> None:
    found = put(kinesis, range(4), (1,))
    query = lives.begin(kinesis, onExhausted="fail")
    assert numbers(query.batch()) == [0, 2, 3]
    with pytest.raises(ExhaustedError, match=f"{A}, record {found[1]}: failed 2 times .*UNREADABLE: "):
        query.drain()


def test_skip_skips_it(lives: Lives, kinesis: MemoryKinesis) -> None:
    found = put(kinesis, range(4), (1,))
    query = lives.begin(kinesis, onExhausted="skip")
    assert numbers(query.drain()) == [0, 2, 3]
    [node] = query.store.shards.dead_letters().values()
    assert (node.count, node.target, node.last[0].message_id) == (1, "skip", f"orders/{A}:{found[1]}")


def test_a_turn_ends_where_its_pin_would_name_too_many(
    lives: Lives, kinesis: MemoryKinesis, folder: Path
) -> None:
    odd = tuple(random.Random(7).sample(range(2_000), 1_200))
    found = put(kinesis, range(2_000), odd)
    query = lives.begin(
        kinesis, onExhausted="deadLetter", deadLetter=str(folder), maxRetryingRecords="8000", retryLimit="0"
    )
    query.planned()
    rows = query.rows()
    pinned = pins(query)
    assert (sum(piece.count for piece in pinned.unreadable), pinned.rows) == (500, len(rows))
    query.publish()
    query.commit()
    rows += query.drain()
    assert numbers(rows) == sorted({*range(2_000)} - {*odd})
    assert set(letters(folder)) == {f"orders/{A}:{found[number]}" for number in odd}


def test_with_explicit_acks_it_fails_at_once(lives: Lives, kinesis: MemoryKinesis, folder: Path) -> None:
    found = put(kinesis, range(4), (1,))
    query = lives.begin(
        kinesis, ackMode="explicit", onExhausted="deadLetter", deadLetter=str(folder), retryLimit="0"
    )
    query.planned()
    assert numbers(query.rows()) == [0, 2, 3]
    query.commit()
    query.planned()
    query.rows()
    assert set(letters(folder)) == {f"orders/{A}:{found[1]}"}


@pytest.mark.parametrize("keyless", [True, False])
def test_rows_without_a_partition_key(
    lives: Lives, kinesis: MemoryKinesis, folder: Path, keyless: bool
) -> None:
    """They fail, come back and go to the dead letter like others, beside others."""
    kinesis.distribute()
    for number in range(6):
        kinesis.put(A, b"%d" % number, None if keyless or number % 2 else "key")
    query = lives.begin(
        kinesis, onExhausted="deadLetter", deadLetter=str(folder), retrySpool=str(folder.parent / "spool")
    )
    query.planned()
    [part] = query.run.partitions(query.committed, query.in_hand)  # type: ignore[arg-type]
    keys = []
    for batch in TurnReader(part, kinesis, query.store, look_first=False).rows():
        batch.validate(full=True)
        keys += batch.column("partitionKey").to_pylist()
    assert keys == [None if keyless or number % 2 else "key" for number in range(6)]
    bad = [row for row in query.rows() if row[0] in (2, 3)]
    query.publish(bad)
    query.commit()
    assert [row[0] for row in query.batch(failing=[2, 3])] == [2, 3]
    query.drain()
    assert {letter.partition_key for letter in letters(folder).values()} == {
        None,
        *([] if keyless else ["key"]),
    }
    assert [letter.data for letter in letters(folder).values()] == [b"2", b"3"]


def _batch_options(**more: str) -> SourceOptions:
    return SourceOptions.parse_batch({"streamName": "orders", "endpointUrl": "http://localhost:1", **more})


def test_a_batch_read_stops_names_it_and_takes_a_dead_letter(kinesis: MemoryKinesis, folder: Path) -> None:
    found = put(kinesis, range(4), (1, 2))
    kinesis.close(A)
    whole = ShardRange("orders", A, TRIM_HORIZON, ShardEnd(), closed=True)

    def read(**more: str) -> list[bytes]:
        batches = read_range(kinesis, _batch_options(**more), whole)
        return [data for batch in batches for data in batch.column("data").to_pylist()]

    with pytest.raises(ExhaustedError, match=f"{A}: 2 records cannot be decoded, the first is {found[1]} "):
        read()
    assert read(onExhausted="skip") == [b"0", b"3"]
    for _ in range(2):
        assert read(deadLetter=str(folder)) == [b"0", b"3"]
    assert [letter.reasons[0].reason[:11] for letter in letters(folder).values()] == ["UNREADABLE:"] * 2
