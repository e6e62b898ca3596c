"""A state in files where a file appears by being renamed, as in HDFS: no test runs a namenode."""

from __future__ import annotations

import operator
from pathlib import Path

import pytest
from pyarrow import fs

from kinesis_trident.trident.errors import StoreUnavailableError
from kinesis_trident.trident.stores import files
from kinesis_trident.trident.stores.files import FileState

KEYS = [("a",), ("b",)]


class Renaming(fs.SubTreeFileSystem):
    """A folder that is no local file system to the store, and that renames as HDFS does: onto nothing."""

    renamed: list[tuple[str, str]]
    fails = False

    def move(self, src: str, dest: str) -> None:
        if self.fails:
            raise OSError("the namenode is in safe mode")
        assert self.get_file_info(dest).type is fs.FileType.NotFound
        self.renamed.append((src, dest))
        super().move(src, dest)


def count(factory: FileState, txid: int) -> list[int | None]:
    state = factory.make_state({}, 0, 1)
    state.begin_commit(txid)
    counts: list[int | None] = state.multi_combine(KEYS, operator.add, [1, 10])
    state.commit(txid)
    return counts


def test_a_file_is_whole_when_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = Renaming(str(tmp_path), fs.LocalFileSystem())
    system.renamed = []
    monkeypatch.setattr(files, "_filesystem", lambda _: (system, "state"))
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
