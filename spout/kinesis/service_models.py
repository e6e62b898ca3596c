"""Loads botocore's descriptions of services in half of botocore's time, for each process that creates a client.

botocore (`botocore/loaders.py`) looks into the folders of all its 400 services to know whether it has the one, and
parses its descriptions, 1.3 MB of JSON, into ordered dicts.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from botocore.loaders import JSONFileLoader, Loader

from kinesis_trident.tracker.errors import UNREADABLE

__all__ = ["ServiceModels"]

_READ_BY: Mapping[str, Callable[[str], bytes]] = {
    ".json": lambda path: Path(path).read_bytes(),
    ".json.gz": lambda path: gzip.decompress(Path(path).read_bytes()),
}


class _Files(JSONFileLoader):
    """Reads the files of descriptions."""

    def load_file(self, file_path: str) -> Any:
        """Return what a file holds, without its ending; None if there is none. Errors are botocore's."""
        for ending, read in _READ_BY.items():
            try:
                return msgspec.json.decode(read(file_path + ending))
            except FileNotFoundError:
                continue
            except (OSError, *UNREADABLE):
                return super().load_file(file_path)
        return None


class ServiceModels(Loader):
    """The component `data_loader` of a botocore session."""

    FILE_LOADER_CLASS = _Files

    def list_available_services(self, type_name: str) -> list[str]:
        """Return the names of all services, with or without a description of that type: asking for it tells."""
        folders = filter(os.path.isdir, self.search_paths)
        return sorted({name for folder in folders for name in os.listdir(folder)})
