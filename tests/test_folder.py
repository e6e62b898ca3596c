"""A folder of files: written whole or not at all on three kinds of file systems, private, and no secret in errors."""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from file_systems import KINDS, KilledError, use
from pyarrow import fs

from kinesis_trident.common.folder import Folder, FolderError, NoFileError, NoFolderError, absolute_target

DATA = bytes(range(256))


def visible(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_that_fails_at_any_byte_leaves_what_was_there(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = use(kind, tmp_path, monkeypatch)
    folder = Folder(made.target)
    for size in range(len(DATA)):
        with made.cut(size), pytest.raises(FolderError, match=r"File too large|connection is lost"):
            folder.write("a/first", DATA)
        assert folder.files("a") == []
    folder.write("a/second", DATA[:100])
    folder.write("a/second", DATA)
    for size in range(len(DATA) - 1):
        with made.cut(size), pytest.raises(FolderError):
            folder.write("a/second", DATA[::-1])
        assert folder.read("a/second") == DATA
        assert folder.files(deep=True) == [("a/second", len(DATA))]
    hidden = [name for name in visible(tmp_path / "letters") if name.startswith(".")]
    assert hidden == []


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_process_that_is_killed_at_any_byte_leaves_what_was_there(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next test has a local folder, and kills."""
    made = use(kind, tmp_path, monkeypatch)
    assert made.system is not None
    Folder(made.target).write("second", DATA)
    made.system.kills = True
    for size in range(len(DATA)):
        with made.cut(size):
            for name in ("first", "second"):
                with pytest.raises(KilledError):
                    Folder(made.target).write(name, DATA[::-1])
                made.system.is_dead = False
        assert [file.name for file in Folder(made.target).files()] == ["second"]
        assert Folder(made.target).read("second") == DATA
    parts = 2 * len(DATA) if kind == "renaming" else 0
    assert sum(name.startswith(".") for name in visible(tmp_path / "letters")) == parts
    Folder(made.target).remove_parts()
    assert not any(name.startswith(".") for name in visible(tmp_path / "letters"))


class Hosted(fs.SubTreeFileSystem):
    """A file system whose listings have paths with scheme and host."""

    host = "hdfs://lake/"

    def get_file_info(self, what: Any) -> Any:
        found = super().get_file_info(what)
        if not isinstance(what, fs.FileSelector):
            return found
        return [
            fs.FileInfo(self.host + one.path.lstrip("/"), one.type, size=one.size, mtime_ns=one.mtime_ns)
            for one in found
        ]


@pytest.mark.parametrize("host", ["/", "lake/", "hdfs://lake/", "hdfs://lake:8020/", "hdfs://lake.lake/"])
@pytest.mark.parametrize("root", ["/lake", "/lake/lake"])
def test_a_host_that_is_named_as_the_folder_is_no_part_of_its_files_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, root: str
) -> None:
    system = Hosted(str(tmp_path), fs.LocalFileSystem())
    system.host = host
    monkeypatch.setattr(Folder, "open", lambda _: (system, root))
    folder = Folder("hdfs://lake" + root)
    (tmp_path / root[1:] / "lake").mkdir(parents=True)
    for name in ("lake/first", f"lake/.{'a' * 32}"):
        (tmp_path / root[1:] / name).write_bytes(DATA)
    assert folder.files(deep=True) == folder.files("lake") == [("lake/first", len(DATA))]
    folder.remove_parts(deep=True)
    assert [*visible(tmp_path)] == ["first"]


KILLED = """
import os, resource, signal, sys
from kinesis_trident.common.folder import Folder
target, data = sys.argv[1], bytes(range(128))
Folder(target).write("second", data)
for size in range(len(data)):
    for name in ("first", "second"):
        child = os.fork()
        if not child:
            # The kernel kills who writes beyond the limit.
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            Folder(target).write(name, data[::-1])
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGXFSZ
    assert [file.name for file in Folder(target).files()] == ["second"]
    assert Folder(target).read("second") == data
"""


def test_a_process_that_is_killed_at_any_byte_of_a_local_file_leaves_what_was_there(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=True, timeout=300)
    parts = [path for path in tmp_path.iterdir() if path.name != "second"]
    assert {path.stat().st_size for path in parts} == set(range(128))
    Folder(str(tmp_path)).remove_parts(before=parts[0].stat().st_mtime - 3600)
    assert len(visible(tmp_path)) == len(parts) + 1
    Folder(str(tmp_path)).remove_parts()
    assert set(visible(tmp_path)) == {"second"}


def test_an_answer_that_is_lost_after_the_renaming_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = use("renaming", tmp_path, monkeypatch)
    assert made.system is not None
    move = made.system.move

    def lost(src: str, dest: str) -> None:
        move(src, dest)
        raise OSError("the connection is lost")

    monkeypatch.setattr(made.system, "move", lost)
    Folder(made.target).write("one", DATA)
    assert visible(tmp_path / "letters") == {"one": DATA}
    monkeypatch.undo()


def test_a_local_file_its_name_and_the_folders_above_it_are_on_the_disk_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the machine may take back what is not flushed, in any order."""
    synced: list[tuple[str, set[str]]] = []
    fsync = os.fsync

    def watched(file: int) -> None:
        fsync(file)
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        names = {one.name for one in path.iterdir()} if path.is_dir() else set()
        synced.append((str(path.relative_to(tmp_path)) if path.is_dir() else "file", names))

    monkeypatch.setattr(os, "fsync", watched)
    Folder(str(tmp_path / "new" / "letters")).write("app/one", b"1")
    assert [(place, sorted(names)) for place, names in synced if place != "file"] == [
        (".", ["new"]),
        ("new", ["letters"]),
        ("new/letters", ["app"]),
        ("new/letters/app", ["one"]),
    ]
    assert [place for place, _ in synced].index("file") == 3
    synced.clear()
    Folder(str(tmp_path / "new" / "letters")).write("app/two", b"2")
    assert [place for place, _ in synced] == ["file", "new/letters/app"]


@pytest.mark.parametrize("given", [None, 0o770, 0o755])
def test_a_folder_is_for_its_user_alone_unless_its_own_mode_says_otherwise(
    tmp_path: Path, given: int | None
) -> None:
    root = tmp_path / "letters"
    if given is not None:
        root.mkdir()
        root.chmod(given)
    before = os.umask(0o027)
    try:
        Folder(str(root)).write("app/orders/one.jsonl", b"payload")
        Folder(str(root)).write("app/orders/two.jsonl", b"payload")
    finally:
        os.umask(before)
    mode = given or 0o700
    modes = {
        path.relative_to(root).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in (root, *root.rglob("*"))
    }
    assert modes == {
        ".": mode,
        "app": mode,
        "app/orders": mode,
        "app/orders/one.jsonl": mode & 0o666,
        "app/orders/two.jsonl": mode & 0o666,
    }


def test_files_are_listed_below_the_folder_by_name(tmp_path: Path) -> None:
    for target in (f"{tmp_path}/x/", (tmp_path / "y").as_uri(), f"file:{tmp_path}/z"):
        folder = Folder(target)
        assert folder.files() == folder.files("a", deep=True) == []
        with pytest.raises(NoFileError):
            folder.files(must_exist=True)
        with pytest.raises(NoFileError):
            folder.read("a/1")
        for name in ("a/2", "a/b/3", "a/1", "4"):
            folder.write(name, name.encode())
        Path(folder.path("a/.hidden")).write_text("")
        again: Folder = pickle.loads(pickle.dumps(folder))
        assert [file.name for file in again.files()] == ["4"]
        assert [file.name for file in again.files("a")] == ["a/1", "a/2"]
        assert [file.base_name for file in again.files("a", deep=True)] == ["1", "2", "3"]
        assert again.files(deep=True) == [("4", 1), ("a/1", 3), ("a/2", 3), ("a/b/3", 5)]
        assert again.read("a/b/3") == b"a/b/3"
        for file in again.files(deep=True):
            folder.remove(file.name)
            folder.remove(file.name)


def test_a_place_is_named_as_spark_and_hadoop_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for target in ("s3a://bucket/x/y", "s3n://bucket/x/y", "s3://bucket/x/y/"):
        system, path = Folder(f"{target}?region=eu-west-1").open()
        assert (system.type_name, path) == ("s3", "bucket/x/y")
    assert Folder("dbfs:/x/y").open()[1] == "/dbfs/x/y"
    monkeypatch.chdir(tmp_path)
    assert absolute_target("x") == str(tmp_path / "x")
    assert {absolute_target(one) for one in ("s3a://b/x", "dbfs:/x", "/x")} == {"s3a://b/x", "dbfs:/x", "/x"}
    with pytest.raises(NoFolderError, match="must be absolute"):
        Folder("x").files()
