"""Folders that the driver and all executors reach: a shared local path, or any URI that pyarrow supports.

pyarrow's file systems are imported when a folder is used: they load the libraries of object stores, and most queries
have no folder.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow import fs

__all__ = ["filesystem", "replace"]


def replace(target: str, name: str, data: bytes) -> None:
    """Write a file below the target's folder, completely or not at all; replace the one of that name.

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
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{uuid.uuid4().hex}")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


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
