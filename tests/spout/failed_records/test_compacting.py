"""Files of dead letters that are merged: whenever the compaction ends, each letter is there, and at its end once."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyarrow import fs

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.common.folder import Folder, FolderError
from kinesis_trident.spout.errors import DeadLetterError
from kinesis_trident.spout.failed_records import dead_letters, kept_letters
from kinesis_trident.spout.failed_records.compacting import compact_letters
from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters
from kinesis_trident.spout.failed_records.letter_writer import DeadLetterWriter
from kinesis_trident.tracker.records import Run

Key = tuple[str, int]


@dataclass(frozen=True)
class Target:
    dead_letter: str | None
    application_name: str = "app"


class Interrupted(Exception):
    """The process ends."""


class Breakable:
    """A file system whose process ends before one of the removals."""

    def __init__(self, system: Any, removals: int) -> None:
        self._system = system
        self._left = removals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def delete_file(self, path: str) -> None:
        if not self._left:
            raise Interrupted
        self._left -= 1
        self._system.delete_file(path)


def put(folder: str, txid: int, *shards: int) -> None:
    """Write letters of a batch, one of each shard, whose record is past retention."""
    letters = {f"s{shard}": [(Run(str(txid), str(txid), attempt=4), [], True)] for shard in shards}
    DeadLetterWriter(Target(folder), None).write(stream="orders", txid=txid, letters=letters, plan="p")  # type: ignore[arg-type]


def test_letters_are_read_once_while_a_compaction_merges_their_files(tmp_path: Path) -> None:
    folder = str(tmp_path)
    for txid in range(1, 9):
        put(folder, txid, 0, 1)
    reading = read_dead_letters(folder)
    found = [next(reading) for _ in range(5)]
    assert compact_letters(folder, "app", "orders", lambda _: True).after == 1
    found += reading
    assert Counter((letter.message_id, letter.txid) for letter in found) == held(folder)
    assert len(found) == 16


@pytest.mark.parametrize("removed", [0, 3])
def test_letters_are_read_once_beside_the_parts_that_a_compaction_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    folder = str(tmp_path)
    for txid in range(1, 9):
        put(folder, txid, 0, 1)
    opened = Folder.open

    def open_breakable(given: Folder) -> Any:
        system, path = opened(given)
        return Breakable(system, removed), path

    with monkeypatch.context() as broken, contextlib.suppress(Interrupted):
        broken.setattr(Folder, "open", open_breakable)
        compact_letters(folder, "app", "orders", lambda _: True)
    assert len([*tmp_path.rglob("*.jsonl")]) == 9 - removed
    assert len([*read_dead_letters(folder)]) == 16


def test_letters_that_are_kept_are_found_while_a_compaction_merges_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = str(tmp_path)
    for txid in range(1, 9):
        put(folder, txid, 0)
    files = dead_letters.letter_files
    listed = []

    def list_and_merge(*given: Any) -> Any:
        found = files(*given)
        if not listed:
            listed.append(found)
            compact_letters(folder, "app", "orders", lambda _: True)
        return found

    monkeypatch.setattr(kept_letters, "letter_files", list_and_merge)
    runs = [Run("1", "8", 8, attempt=4)]
    layout = Layout("/root", "app", "orders", 1)
    kept = kept_letters.KeptLetters(folder, layout, None, {"s0": runs})  # type: ignore[arg-type]
    kept.get("s0", runs)
    assert (len(listed[0]), caplog.messages) == (8, [])


def test_what_killed_tasks_have_not_ended_goes_once_it_is_a_day_old(tmp_path: Path) -> None:
    folder = str(tmp_path)
    put(folder, 1, 0)
    old, new = (tmp_path / "app" / "orders" / f".{one * 32}" for one in "ab")
    for part in (old, new):
        part.write_bytes(b"half of a")
    os.utime(old, (time.time() - 2 * 86_400,) * 2)
    compact_letters(folder, "app", "orders", lambda _: True)
    assert (old.exists(), new.exists(), len(held(folder))) == (False, True, 1)


def held(folder: str) -> Counter[Key]:
    return Counter((letter.message_id, letter.txid) for letter in read_dead_letters(folder))


def files(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).rglob("*.jsonl"))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rounds=st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 8), st.sampled_from([1, 700, 2000, 10**6])),
        min_size=1,
        max_size=4,
    )
)
def test_whenever_a_compaction_ends_each_letter_is_there_and_in_the_end_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: list[tuple[int, int, int]]
) -> None:
    """A round: batches with letters, after how many removals the compaction ends, and the size of merged files."""
    folder = mkdtemp(dir=tmp_path)
    written: set[Key] = set()
    txid = 0
    for batches, removals, size in rounds:
        for _ in range(batches):
            txid += 1
            for shard in range(1 + txid % 3):
                put(folder, txid, shard)
            written |= set(held(folder))
        with monkeypatch.context() as patch:
            patch.setattr(
                Folder,
                "open",
                lambda self, left=removals: (Breakable(fs.LocalFileSystem(), left), self.target),
            )
            with contextlib.suppress(Interrupted):
                compact_letters(folder, "app", "orders", lambda one, last=txid: one < last, size)
        assert set(held(folder)) == written
        assert sum(name.startswith(f"{txid:012d}-s") for name in files(folder)) == 1 + txid % 3
    found = compact_letters(folder, "app", "orders", lambda _: True)
    again = compact_letters(folder, "app", "orders", lambda _: True)
    assert held(folder) == Counter(written)
    assert (found.after, again.before, again.after) == (1, 1, 1)


def test_a_letter_of_a_later_batch_with_the_same_id_stays_and_so_do_files_of_others(tmp_path: Path) -> None:
    folder = str(tmp_path)
    for txid in (1, 2, 3):
        put(folder, txid, 0)
    orders = tmp_path / "app" / "orders"
    (first,) = orders.glob("000000000001-*")
    # The record of the first batch was replayed, and has failed again in the third.
    (orders / "000000000003-s0-again.jsonl").write_text(first.read_text().replace('"txid":1', '"txid":3'))
    (orders / "000000000002-s9-p.jsonl").write_text("not a letter\n")
    for name in ("notes.jsonl", "000000000001-s0-p.json", "1-s0.jsonl"):
        (orders / name).write_text("somebody else's\n")
    done = compact_letters(folder, "app", "orders", lambda _: True)
    assert (done.before, done.after) == (5, 2)
    assert [Path(path).name for path in done.strange] == ["000000000002-s9-p.jsonl"]
    merged = next(orders.glob("*-merged-*"))
    assert merged.name.startswith("000000000001-000000000003-")
    assert merged.read_text().count("\n") == 4
    assert len(files(folder)) == 4
    assert compact_letters(folder, "app", "none", lambda _: True).before == 0


@pytest.mark.parametrize("broken", ["size", "place"])
def test_what_cannot_be_written_whole_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    folder = str(tmp_path)
    for txid in (1, 2):
        put(folder, txid, 0)
    before = held(folder)

    def short(self: Folder, name: str, data: bytes) -> None:
        if broken == "place":
            raise FolderError("No space left on device")
        Path(self.path(name)).write_bytes(data[:-1])

    monkeypatch.setattr(Folder, "write", short)
    with pytest.raises(DeadLetterError, match=r"'orders' in .*: .*No letter is lost"):
        compact_letters(folder, "app", "orders", lambda _: True)
    assert len([name for name in files(folder) if "merged" not in name]) == 2
    assert held(folder) == before
