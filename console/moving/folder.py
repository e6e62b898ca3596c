"""A folder that Spark has written: local, or at a URI that pyarrow supports."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from kinesis_trident.checkpoint.errors import MigrationError
from kinesis_trident.spout.failed_records.folders import filesystem

_ALIASES = {"s3a://": "s3://", "s3n://": "s3://", "dbfs:/": "/dbfs/"}
"""Hadoop's names for places that pyarrow knows by another."""


class Folder:
    """A folder to read.

    Raises:
        MigrationError: the place cannot be reached; also the methods.
    """

    def __init__(self, path: str) -> None:
        self.place = path.rstrip("/")
        real = path
        for alias, name in _ALIASES.items():
            if path.startswith(alias):
                real = name + path.removeprefix(alias).lstrip("/")
        if "://" not in real:
            real = str(Path(real.removeprefix("file:")).absolute())
        try:
            self._system, self._root = filesystem(real)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self._unreadable(error) from error

    def below(self, name: str) -> Folder:
        """Return a folder within this one."""
        return Folder(f"{self.place}/{name}")

    def names(self) -> list[str]:
        """Return the names of the files, without hidden ones such as checksums; none if there is no such folder."""
        try:
            found = self._system.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(error) from error
        return sorted(
            one.base_name for one in found if one.is_file and not one.base_name.startswith((".", "_"))
        )

    def numbers(self, name: str) -> list[int]:
        """Return the files of a folder within this one whose names are numbers, as Spark numbers its batches."""
        return sorted(int(one) for one in self.below(name).names() if one.isascii() and one.isdigit())

    def read(self, name: str) -> str:
        """Return the text of a file."""
        try:
            with self._system.open_input_stream(f"{self._root.rstrip('/')}/{name}") as stream:
                return bytes(stream.read()).decode()
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self._unreadable(error, f"/{name}") from error

    def _unreadable(self, error: Exception, name: str = "") -> MigrationError:
        return MigrationError(
            f"{self.place}{name} cannot be read: {error}. Check the path and the access to it"
        )
