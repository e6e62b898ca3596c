"""Folders on the three kinds of file systems, whose writes can be cut off: local, renaming as HDFS does, and objects.

No test runs a namenode. These are pyarrow's own file systems over a local folder, with the rules of the other kinds.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyarrow import fs

from kinesis_trident.common.folder import Folder

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""The folder of temporary folders, where the machine has one in memory: flushing is not waited for."""


class KilledError(BaseException):
    """The process ends here: nothing that it does afterwards happens."""


class _CutStream:
    """An output stream that takes some bytes; then the connection is lost, or the process ends."""

    def __init__(self, system: Any, stream: Any, left: int) -> None:
        self._system, self._stream, self._left = system, stream, left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if kind is None or self._system.shows_unfinished:
            self._stream.close()

    def write(self, data: Any) -> None:
        self._stream.write(memoryview(data)[: self._left])
        self._system.is_dead = self._system.kills
        raise KilledError if self._system.kills else OSError("the connection is lost")


class Renaming(fs.SubTreeFileSystem):
    """A folder as HDFS has it: a file is seen from its first byte, and is renamed onto nothing.

    Attributes:
        cut: the bytes that a write takes; all if there is none.
        kills: the process ends at the cut.
        renamed: the pairs of paths.
        fails: no file is renamed.
    """

    shows_unfinished = True
    cut: int | None = None
    kills = False
    is_dead = False
    fails = False

    @classmethod
    def over(cls, folder: Path) -> Self:
        system = cls(str(folder), fs.LocalFileSystem())
        system.renamed = []
        return system

    renamed: list[tuple[str, str]]

    def open_output_stream(self, path: str, **options: Any) -> Any:
        self._live()
        if self.cut is None:
            return super().open_output_stream(path, **options)
        if not self.shows_unfinished:
            # The parts of an object that is not complete are nowhere to be seen.
            path = "uploads"
        return _CutStream(self, super().open_output_stream(path, **options), self.cut)

    def move(self, src: str, dest: str) -> None:
        self._live()
        if self.fails:
            raise OSError("the namenode is in safe mode")
        if self.get_file_info(dest).type is not fs.FileType.NotFound:
            raise OSError("the destination exists")
        self.renamed.append((src, dest))
        super().move(src, dest)

    def delete_file(self, path: str) -> None:
        self._live()
        super().delete_file(path)

    def _live(self) -> None:
        if self.is_dead:
            raise KilledError


class Objects(Renaming):
    """A folder as an object store has it: an object is seen when it is complete, and replaces the one before."""

    type_name = "s3"
    shows_unfinished = False

    def open_output_stream(self, path: str, **options: Any) -> Any:
        # A store has no folders.
        self.create_dir(path.rpartition("/")[0], recursive=True)
        return super().open_output_stream(path, **options)

    def move(self, src: str, dest: str) -> None:
        raise AssertionError("an object store cannot rename")


@contextlib.contextmanager
def full_after(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond some bytes: the write that would fails in the middle (EFBIG)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


KINDS = ("local", "renaming", "objects")


class FolderKind:
    """Makes folders of one kind, over a local one in which the test can look; `cut` bounds what a write takes."""

    def __init__(self, kind: str, root: Path) -> None:
        self.kind = kind
        self.root = root
        self.system: Renaming | None = {
            "local": None,
            "renaming": Renaming.over(root),
            "objects": Objects.over(root),
        }[kind]

    @property
    def target(self) -> str:
        return str(self.root / "letters") if self.system is None else f"{self.kind}://host/letters"

    @contextlib.contextmanager
    def cut(self, size: int) -> Iterator[None]:
        if self.system is None:
            with full_after(size):
                yield
            return
        self.system.cut = size
        try:
            yield
        finally:
            self.system.cut = None

    def opens(self, opened: Any) -> Any:
        """Return the method `Folder.open` with this file system."""
        return lambda folder: opened(folder) if self.system is None else (self.system, "letters")


def use(kind: str, root: Path, monkeypatch: Any) -> FolderKind:
    """Make every folder of the product one of this kind."""
    made = FolderKind(kind, root)
    monkeypatch.setattr(Folder, "open", made.opens(Folder.open))
    return made
