"""A state in files on file systems that rename, as HDFS does, and on others: no test runs a namenode."""

from __future__ import annotations

import operator
import os
import stat
from pathlib import Path

import pytest
from file_systems import KINDS, Renaming, use

from kinesis_trident.common.folder import Folder
from kinesis_trident.trident.errors import StoreUnavailableError
from kinesis_trident.trident.stores.files import FileByteStore, FileState

KEYS = [("a",), ("b",)]


def count(factory: FileState, txid: int) -> list[int | None]:
    state = factory.make_state({}, 0, 1)
    state.begin_commit(txid)
    counts: list[int | None] = state.multi_combine(KEYS, operator.add, [1, 10])
    state.commit(txid)
    return counts


def test_a_file_is_whole_when_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = Renaming.over(tmp_path)
    monkeypatch.setattr(Folder, "open", lambda _: (system, "state"))
    factory = FileState.opaque("hdfs://namenode/state", snapshotInterval=2)
    for txid in (1, 2, 3):
        counts = count(factory, txid)
    assert counts == [3, 30]
    there = {f"state/{path.name}" for path in (tmp_path / "state").iterdir()}
    assert there <= {dest for _, dest in system.renamed}
    assert all(src.startswith("state/.") for src, _ in system.renamed)
    # What a batch could not name is not there for who opens the folder next; its replay is.
    system.fails = True
    with pytest.raises(
        StoreUnavailableError, match=r"hdfs://namenode/state cannot be reached \(the namenode is"
    ):
        count(factory, 4)
    system.fails = False
    assert count(factory, 4) == [4, 40]
    again = FileState.opaque("hdfs://namenode/state")
    assert again.make_state({}, 0, 1).multi_get(KEYS) == [4, 40]
    assert count(again, 5) == [5, 50]
    assert FileState.opaque("hdfs://namenode/state").make_state({}, 0, 1).multi_get(KEYS) == [5, 50]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_whose_file_is_cut_at_any_byte_is_not_there_and_its_replay_is(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = use(kind, tmp_path, monkeypatch)
    store = FileByteStore(made.target)
    store.set_many(["a"], [b"0"])
    store.end_batch(1)
    largest = max(path.stat().st_size for path in tmp_path.rglob("*.batch"))
    for size in range(0, largest, 9):
        store.set_many(["a"], [b"%d" % (size + 1)])
        with made.cut(size), pytest.raises(StoreUnavailableError, match="cannot be reached"):
            store.end_batch(2)
        before = b"%d" % (size - 8) if size else b"0"
        assert FileByteStore(made.target).get_many(["a"])[0] == [before]
        store.end_batch(2)
        assert FileByteStore(made.target).get_many(["a"])[0] == [b"%d" % (size + 1)]


@pytest.mark.parametrize("given", [None, 0o755])
def test_a_state_is_for_its_user_alone_unless_the_mode_of_its_folder_says_otherwise(
    tmp_path: Path, given: int | None
) -> None:
    folder = tmp_path / "states" / "counts"
    if given is not None:
        folder.mkdir(parents=True, mode=given)
    before = os.umask(0o022)
    try:
        assert count(FileState.opaque(str(folder)), 1) == [1, 10]
    finally:
        os.umask(before)
    mode = given or 0o700
    assert stat.S_IMODE(folder.stat().st_mode) == mode
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {mode & 0o666}
