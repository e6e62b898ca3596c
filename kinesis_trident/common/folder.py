"""A folder that the driver and all executors reach: a shared local path, or any URI that pyarrow supports.

A file appears under its name when it is whole, on each of the three kinds of file systems: a local one and one that
renames (HDFS) write it beside, under a hidden name, and rename it; an object store shows an object when it is complete.

pyarrow's file systems are imported when a folder is used: they load the libraries of object stores, and most queries
have no folder.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import xxhash

from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.common.redaction import hide_secrets, redact

if TYPE_CHECKING:
    from pyarrow import fs

_PRIVATE = 0o700
_OBJECT_STORES = {"s3", "gcs", "abfs"}
_PART = re.compile(r"\.[0-9a-f]{32}")

OUTDATED_SECONDS = 24 * 3600
"""The age of a part of a file at which nobody writes it any more."""

_ALIASES = {r"s3[an]://": "s3://", r"dbfs:/+": "/dbfs/", r"file:/(?!/)": "/"}
"""Hadoop's names, which users of Spark write, for places that pyarrow knows by another."""


class FolderError(KinesisTridentError, OSError):
    """A folder cannot be reached, read or written. The message has no secret of the folder's URI."""


class NoFolderError(FolderError):
    """A text names no folder: it is a relative path, or a URI that pyarrow does not support."""


class NoFileError(FolderError, FileNotFoundError):
    """A file, or a folder that must be there, is missing."""


class FileEntry(NamedTuple):
    """A file: its name below the folder, with slashes, and its size in bytes."""

    name: str
    size: int

    @property
    def base_name(self) -> str:
        """Return the last part of the name."""
        return self.name.rpartition("/")[2]


class Folder:
    """A folder of files. It is opened when it is first used; it is picklable, and several processes may use it.

    Args:
        target: an absolute local path, or a URI that pyarrow supports; `s3a://` and `s3n://` are `s3://`.

    Attributes:
        target: as it was given.
        place: the target without secrets, for messages.

    Raises:
        FolderError: each method that reaches the folder.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.place = redact(target).rstrip("/") or "/"

    def __reduce__(self) -> tuple[type[Folder], tuple[str]]:
        return type(self), (self.target,)

    def open(self) -> tuple[fs.FileSystem, str]:
        """Return pyarrow's file system, and the path of the folder there without a slash at its end.

        Raises:
            NoFolderError: there is no such kind of folder.
        """
        from pyarrow import fs

        target = self.target
        for alias, name in _ALIASES.items():
            target = re.sub(f"^{alias}", name, target)
        if "://" not in target:
            if not Path(target).is_absolute():
                msg = "the path of a local folder must be absolute, because executors run elsewhere"
                raise NoFolderError(msg)
            return fs.LocalFileSystem(), target.rstrip("/")
        try:
            system, path = fs.FileSystem.from_uri(target)
        except (ValueError, pa.ArrowException) as error:
            # pyarrow quotes the URI, in parts of its own choice.
            why = f": {error}" if redact(target) == target else ""
            msg = f"it is not a folder that pyarrow.fs supports{why}"
            raise NoFolderError(msg) from None
        except OSError as error:
            raise FolderError(hide_secrets(str(error), self.target)) from None
        return system, path.rstrip("/")

    def check(self) -> None:
        """Check that there can be such a folder, as far as can be told without making it.

        Raises:
            NoFolderError: there is no such kind of folder, or a file is in its place.
            FolderError: it cannot be told.
        """
        system, path = self.open()
        if system.type_name == "local":
            there = next(
                one for one in (Path(path or "/"), *Path(path or "/").parents) if os.path.lexists(one)
            )
            if not os.path.isdir(there):
                msg = f"{there} is not a folder"
                raise NoFolderError(msg)

    def path(self, name: str) -> str:
        """Return the path of a file in its file system, for messages: it has no secrets."""
        return f"{self._opened[1]}/{name}"

    def files(self, below: str = "", *, deep: bool = False, must_exist: bool = False) -> list[FileEntry]:
        """Return the files in a folder below this one, in the order of their names, without hidden ones.

        Args:
            below: its name; none for this folder.
            deep: the files of all folders below it, too.
            must_exist: a folder that is not there is an error; else it has no files.
        """
        from pyarrow import fs

        with self._trouble():
            system, root = self._opened
            base = f"{root}/{below}".rstrip("/")
            selector = fs.FileSelector(base or "/", recursive=deep, allow_not_found=not must_exist)
            return sorted(
                FileEntry(_name_below(root, info.path), info.size)
                for info in system.get_file_info(selector)
                if info.is_file and not info.base_name.startswith(".")
            )

    def read(self, name: str) -> bytes:
        """Return the bytes of a file.

        Raises:
            NoFileError: it is not there.
        """
        with self._trouble():
            system, _ = self._opened
            with system.open_input_stream(self.path(name), compression=None) as stream:
                return bytes(stream.read())

    def write(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write a file, whole or not at all, and replace the one of that name; durable on return.

        A local folder that is made here is for this user alone, as are the files below it: they hold payloads. Below
        one that exists, its own mode says who else may read or write.
        """
        with self._trouble():
            system, _ = self._opened
            folder = self.path(name).rpartition("/")[0]
            if system.type_name in _OBJECT_STORES:
                _write_stream(system, self.path(name), data)
                return
            part = f"{folder}/.{uuid.uuid4().hex}"
            mode = self._make(folder)
            try:
                if system.type_name == "local":
                    _write_synced(part, data, mode & 0o666)
                    Path(part).replace(self.path(name))
                    _sync_folder(folder)
                else:
                    _write_stream(system, part, data)
                    _rename(system, part, self.path(name))
            except BaseException:
                with suppress(OSError):
                    system.delete_file(part)
                raise

    def make(self) -> None:
        """Make the folder, if it is not there."""
        with self._trouble():
            self._make(self._opened[1])

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is removed."""
        with self._trouble(), suppress(FileNotFoundError):
            self._opened[0].delete_file(self.path(name))

    def remove_parts(self, below: str = "", *, deep: bool = False, before: float = math.inf) -> None:
        """Remove the files that killed processes have not ended.

        Args:
            below: as in `files`.
            deep: those of all folders below it, too.
            before: only those last written before this time, in seconds of the epoch. Needed where others may write.
        """
        from pyarrow import fs

        with self._trouble():
            system, root = self._opened
            if system.type_name in _OBJECT_STORES:
                return
            selector = fs.FileSelector(f"{root}/{below}".rstrip("/"), recursive=deep, allow_not_found=True)
            for info in system.get_file_info(selector):
                is_old = before == math.inf or (info.mtime_ns or math.inf) < before * 1e9
                if info.is_file and _PART.fullmatch(info.base_name) and is_old:
                    self.remove(_name_below(root, info.path))

    @cached_property
    def _opened(self) -> tuple[fs.FileSystem, str]:
        return self.open()

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        """Raise a FolderError without secrets for all errors of pyarrow and of the file system."""
        try:
            yield
        except FolderError:
            raise
        except FileNotFoundError as error:
            raise NoFileError(hide_secrets(str(error), self.target)) from None
        except (OSError, ValueError, pa.ArrowException) as error:
            raise FolderError(hide_secrets(str(error), self.target)) from None

    def _make(self, folder: str) -> int:
        """Make a folder at or below this one; return the mode that files and folders below a local one have."""
        system, root = self._opened
        if system.type_name != "local":
            system.create_dir(folder, recursive=True)
            return _PRIVATE
        return _make_local(Path(root or "/"), Path(folder or "/"))


def digest_of(data: bytes) -> str:
    """Return 16 hexadecimal digits for the name of a file, by which its readers see whether it is whole."""
    return xxhash.xxh3_64_hexdigest(data)


def absolute_target(given: str) -> str:
    """Return a folder as `Folder` takes it: a URI as it is, a local path from the root on."""
    return given if re.match("[A-Za-z][A-Za-z0-9+.-]*:/", given) else str(Path(given).absolute())


def _name_below(root: str, path: str) -> str:
    """Return the name below a folder of a path there; some systems return one that begins with scheme and host."""
    rest = path.partition("://")[2] or path
    # The host may have the folder's name.
    paths = (path, rest, rest[max(0, rest.find("/")) :])
    return next((one for one in paths if one.startswith(f"{root}/")), path).removeprefix(root).strip("/")


def _write_stream(system: fs.FileSystem, path: str, data: bytes | pa.Buffer) -> None:
    # One write: a stream that was closed after only some of them would be a whole object, with a part of the data.
    with system.open_output_stream(path, compression=None) as stream:
        stream.write(data)


def _rename(system: fs.FileSystem, part: str, path: str) -> None:
    """Give a file its name, in place of the file that has it: HDFS renames onto nothing."""
    try:
        system.move(part, path)
    except OSError:
        is_left, is_there = (info.is_file for info in system.get_file_info([part, path]))
        if not is_there:
            raise
        if is_left:
            system.delete_file(path)
            system.move(part, path)
        # Else only the answer was lost: nobody else knows the name of the part.


def _write_synced(path: str, data: bytes | pa.Buffer, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: str | Path) -> None:
    """Write the names in a folder to the disk, which the machine else does when it likes."""
    try:
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        # Some mounted stores sync files alone; a folder may be one that this user writes and does not read.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise


def _make_local(root: Path, folder: Path) -> int:
    """Make a folder below the root, and the root, durable; return the root's mode, which all below it has."""
    if not root.is_dir():
        for parent in reversed(root.parents):
            _make_one(parent, 0o777)
        _make_one(root, _PRIVATE)
    mode = stat.S_IMODE(root.stat().st_mode)
    below = folder.relative_to(root).parts
    for depth in range(1, len(below) + 1):
        part = root.joinpath(*below[:depth])
        if _make_one(part, _PRIVATE):
            # The umask may have taken something of it.
            part.chmod(mode)
    return mode


def _make_one(folder: Path, mode: int) -> bool:
    """Return whether a folder was made."""
    try:
        folder.mkdir(mode=mode)
    except FileExistsError:
        return False
    _sync_folder(folder.parent)
    return True
