"""Folders that the driver and all executors reach: a shared local path, or any URI that pyarrow supports.

pyarrow's file systems are imported when a folder is used: they load the libraries of object stores, and most queries
have no folder.
"""

from __future__ import annotations

import os
import stat
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow import fs

_PRIVATE = 0o700


def replace(target: str, name: str, data: bytes) -> None:
    """Write a file below the target's folder, completely or not at all; replace the one of that name.

    A local folder that is made here is for this user alone, as are the files below it: they hold payloads. Below one
    that exists, its own mode says who else may read or write.

    Raises:
        OSError, ValueError, pyarrow.ArrowException: it cannot be written, or the target is not a folder.
    """
    system, root = filesystem(target)
    if system.type_name != "local":
        # In an object store a file appears when it is complete, and needs no existing folder.
        with system.open_output_stream(f"{root.rstrip('/')}/{name}") as stream:
            stream.write(data)
        return
    path = Path(root, name)
    mode = _make_folder(Path(root), path.parent)
    part = path.with_name(f".{uuid.uuid4().hex}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            os.fchmod(file.fileno(), mode & 0o666)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _make_folder(root: Path, folder: Path) -> int:
    """Make a folder below the root, and the root; return the root's mode, which all below it has."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        root.mkdir(mode=_PRIVATE)
    mode = stat.S_IMODE(root.stat().st_mode)
    below = folder.relative_to(root).parts
    for depth in range(1, len(below) + 1):
        part = root.joinpath(*below[:depth])
        with suppress(FileExistsError):
            part.mkdir(mode=_PRIVATE)
            # The umask may have taken something of it.
            part.chmod(mode)
    return mode


def filesystem(target: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a target, and the path of its folder there.

    Raises:
        ValueError: the target is a relative path, or a URI that pyarrow does not support.
        OSError, pyarrow.ArrowException: the file system cannot be reached.
    """
    from pyarrow import fs

    if "://" in target:
        system, path = fs.FileSystem.from_uri(target)
        return system, path
    if not Path(target).is_absolute():
        msg = "the path of a local folder must be absolute, because executors run elsewhere"
        raise ValueError(msg)
    return fs.LocalFileSystem(), target
