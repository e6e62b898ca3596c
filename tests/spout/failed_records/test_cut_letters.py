"""A file of dead letters that was cut off at any byte: writer, reader and compaction leave it out, and go on.

Nothing of this release leaves such a file. A release before wrote in place on file systems that show a file from its
first byte, such as HDFS; and copies, disks and backups end early.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from file_systems import IN_MEMORY, KINDS, FolderKind, use

from kinesis_trident.common.folder import Folder
from kinesis_trident.spout.errors import DeadLetterError
from kinesis_trident.spout.failed_records.compacting import compact_letters
from kinesis_trident.spout.failed_records.dead_letters import (
    DeadLetter,
    letter_files,
    read_dead_letters,
    read_letters,
)
from kinesis_trident.spout.failed_records.letter_writer import DeadLetterWriter, Letter, reach
from kinesis_trident.tracker.records import Noted, Run

BELOW = "app/orders"
NOW = 1_700_000_000_000
EXPIRED = (Noted(NOW, "EXPIRED"),)
TURN: dict[str, list[Letter]] = {"s0": [(Run(str(n), str(n), failures=EXPIRED), [], True) for n in (5, 7)]}
IDS = Counter(["orders/s0:5", "orders/s0:7"])


@pytest.fixture
def in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Target:
    dead_letter: str
    application_name: str = "app"


def write(made: FolderKind, *, again: bool = True, clock: int = NOW) -> list[DeadLetter]:
    writer = DeadLetterWriter(Target(made.target), None, clock=lambda: clock)  # type: ignore[arg-type]
    return writer.write(stream="orders", txid=7, letters=TURN, plan="p", again=again)


def read(made: FolderKind) -> Counter[str]:
    return Counter(letter.message_id for letter in read_dead_letters(made.target))


def cut_off(made: FolderKind, name: str, data: bytes) -> Path:
    """Leave the beginning of a file under its name, and nothing else."""
    for path in (made.root / "letters").rglob("*.jsonl"):
        path.unlink()
    path = made.root / "letters" / BELOW / name
    path.write_bytes(data)
    return path


def whole(made: FolderKind) -> tuple[str, bytes]:
    """Return the file of both letters: its name and its bytes."""
    assert Counter(letter.message_id for letter in write(made, again=False)) == IDS
    [file] = Folder(made.target).files(BELOW)
    return file.base_name, Folder(made.target).read(file.name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_digest", [True, False])
def test_a_file_that_was_cut_off_at_any_byte_is_written_again_and_stops_nobody(
    kind: str,
    has_digest: bool,
    in_memory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = use(kind, in_memory, monkeypatch)
    name, data = whole(made)
    # The release before wrote the same name without a digest.
    older = f"000000000007-s0-p-{reach(TURN)}.jsonl"
    lines = data.splitlines(keepends=True)
    # Where a line has ended nobody sees a cut, without a digest; the end of the last line is no letter.
    unseen = {0, len(lines[0]) - 1, len(lines[0]), len(data) - 1, len(data)}
    for size in range(len(data) + 1):
        path = cut_off(made, name if has_digest else older, data[:size])
        is_whole = size == len(data) if has_digest else size in unseen
        caplog.clear()
        there = read(made)
        assert (read_letters(Folder(made.target), f"{BELOW}/{path.name}") is not None) == is_whole
        assert all(path.name in said and "was cut off or damaged" in said for said in caplog.messages)
        assert bool(caplog.messages) == (not is_whole)
        assert is_whole or not there
        # The batch begins once more, at any time.
        written = Counter(letter.message_id for letter in write(made, clock=NOW + size))
        assert written == IDS - there
        assert read(made) == IDS
        done = compact_letters(made.target, "app", "orders", lambda _: True, size=4096)
        left = [] if is_whole or has_digest else [path.name]
        assert [one.rpartition("/")[2] for one in done.strange] == left
        assert read(made) == IDS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_large", [False, True])
def test_a_merged_file_that_was_cut_off_is_left_out_and_its_parts_are_merged_again(
    kind: str, is_large: bool, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = use(kind, in_memory, monkeypatch)
    folder = Folder(made.target)

    def put(*txids: int) -> None:
        writer = DeadLetterWriter(Target(made.target), None, clock=lambda: NOW)  # type: ignore[arg-type]
        for txid in txids:
            writer.write(stream="orders", txid=txid, letters={"s0": TURN["s0"][:1]}, plan="p")

    def held() -> Counter[tuple[str, int]]:
        return Counter((one.message_id, one.txid) for one in read_dead_letters(made.target))

    put(1, 2)
    every = held()
    assert compact_letters(made.target, "app", "orders", lambda _: True).after == 1
    [merged] = folder.files(BELOW)
    data = folder.read(merged.name)
    # The parts are small files, and the merged one a large file, as far as it goes.
    bound = len(data) + 100 if is_large else 10**6
    for size in range(0, len(data), 7 if is_large else 1):
        # A compaction of the release before has ended within its write.
        cut_off(made, merged.base_name, data[:size])
        put(1, 2)
        assert held() == every
        done = compact_letters(made.target, "app", "orders", lambda _: True, size=bound)
        assert (done.before, done.after, done.strange) == (3, 1, ())
        assert folder.files(BELOW) == [merged]
        assert held() == every


def test_letters_that_two_tasks_write_at_one_time_are_read_once(in_memory: Path) -> None:
    """As each has looked before the other wrote; the time of an expiry is that of the task."""
    made = FolderKind("local", in_memory)
    runs: dict[str, list[Letter]] = {"s0": [(Run("5", "5"), [], True), (Run("7", "7"), [], True)]}
    for clock in (NOW, NOW + 1, NOW + 2):
        writer = DeadLetterWriter(Target(made.target), None, clock=lambda now=clock: now)  # type: ignore[arg-type, misc]
        writer.write(stream="orders", txid=7, letters=runs, plan="p")
    files = sorted((made.root / "letters").rglob("*.jsonl"))
    assert len(files) == 3
    assert read(made) == IDS
    # Any whole one of them counts.
    for path in files[:2]:
        path.write_bytes(path.read_bytes()[:-9])
        assert read(made) == IDS
    done = compact_letters(made.target, "app", "orders", lambda _: True)
    assert len(done.strange) == 2
    assert read(made) == IDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_that_is_cut_at_any_byte_leaves_no_file(
    kind: str, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = use(kind, in_memory, monkeypatch)
    _, data = whole(made)
    for size in range(len(data)):
        cut_off(made, "notes.txt", b"")
        with made.cut(size), pytest.raises(DeadLetterError, match="cannot write 2 dead letters"):
            write(made, again=bool(size % 2))
        assert letter_files(Folder(made.target), BELOW) == []
        assert read(made) == Counter()
    write(made)
    assert read(made) == IDS
