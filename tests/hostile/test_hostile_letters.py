"""Files of dead letters: letters whose fields can be shown, or a file that is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hostility import hostile, mutated, mutated_json, read_bounded
from hypothesis import given

from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.common.folder import Folder
from kinesis_trident.console.dead_letter_replay import LetterPlace, letters_in, message_id_of, payload_text
from kinesis_trident.console.target import ConsoleError
from kinesis_trident.spout.failed_records.dead_letters import (
    DeadLetter,
    Reason,
    read_dead_letters,
    read_letters,
)

LETTERS = [
    DeadLetter(
        message_id="orders/shardId-000000000000:7:1",
        stream="orders",
        shard_id="shardId-000000000000",
        sequence_number="7",
        sub_sequence_number=1,
        partition_key="k",
        data=b"payload",
        approximate_arrival_timestamp="2026-01-02T03:04:05.678+00:00",
        attempts=4,
        reasons=(Reason("2026-01-02T03:04:06.000+00:00", "ValueError: bad"),),
        txid=3,
        application_name="app",
    ),
    DeadLetter(
        message_id="orders/shardId-000000000000:after 7..9",
        stream="orders",
        shard_id="shardId-000000000000",
        sequence_number=None,
        sub_sequence_number=-1,
        partition_key=None,
        data=None,
        approximate_arrival_timestamp=None,
        attempts=1,
        reasons=(),
        txid=3,
        application_name="app",
        count=3,
    ),
]
LINES = [msgspec.json.encode(letter) + b"\n" for letter in LETTERS]
FILES = [*LINES, b"".join(LINES)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("letters")


def read(folder: Path, data: bytes) -> list[DeadLetter] | None:
    (folder / "1.jsonl").write_bytes(data)

    def call() -> list[DeadLetter] | None:
        found = read_letters(Folder(str(folder)), "1.jsonl")
        return None if found is None else [letter for letter, _ in found]

    letters = read_bounded(call, len(data), ())
    assert [*read_dead_letters(folder)] == (letters or [])
    for letter in letters or ():
        assert payload_text(letter.data)
        assert msgspec.json.decode(msgspec.json.encode(letter), type=DeadLetter) == letter
        assert max(abs(number) for number in (letter.attempts, letter.txid, letter.count)) <= 2**63
    if letters is not None:
        assert [*letters_in(LetterPlace(str(folder)), "app", {"orders"})] == [
            letter for letter in letters if (letter.application_name, letter.stream) == ("app", "orders")
        ]
    return letters


@hostile
@given(data=mutated(FILES))
def test_damaged_files(folder: Path, data: bytes) -> None:
    read(folder, data)


@hostile
@given(letter=mutated_json([json.loads(line) for line in LINES]))
def test_wrong_letters(folder: Path, letter: Any) -> None:
    read(folder, json.dumps(letter).encode() + b"\n" + LINES[0])


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b'{"x":' * 100_000, b'{"messageId":"\xff"}', b'"' * 100_000]
)
def test_deep_and_long_lines(folder: Path, line: bytes) -> None:
    assert read(folder, LINES[0] + line) is None


def test_many_lines(folder: Path) -> None:
    assert len(read(folder, FILES[-1] * 300) or ()) == 600


IDS = [b"orders/shardId-000000000000:7:1", b"orders/shardId-000000000000:after 7..9", b"orders/s:5..9"]


@hostile
@given(text=mutated(IDS))
def test_damaged_message_ids(text: bytes) -> None:
    given_ = text.decode(errors="replace")
    found = read_bounded(lambda: message_id_of(given_), len(text), ConsoleError, "s")
    assert found is None or found.last.number >= 0
    # Whatever it names, it is read again as it is written.
    assert found is None or MessageId.parse(str(found)) == found or found.first is None
