"""A stream of numbers, and what befalls the ZooKeeper that keeps a query's state."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from by_hand import Query

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient


Start = Callable[..., Query]
"""`start(checkpoint=None, kinesis=..., **options)`: a life of the query; a new checkpoint by default."""


class Stream:
    """A stream of numbers."""

    def __init__(self, kinesis: KinesisClient, name: str) -> None:
        self._kinesis = kinesis
        self.name = name
        self._next = 0

    def put(self, count: int) -> list[int]:
        """Put the next numbers into the stream."""
        numbers = list(range(self._next, self._next + count))
        records = [{"Data": str(number).encode(), "PartitionKey": str(number)} for number in numbers]
        assert not self._kinesis.put_records(StreamName=self.name, Records=records)["FailedRecordCount"]
        self._next += count
        return numbers


def wipe(server: EmbeddedZooKeeper, folder: Path) -> None:
    """All data is lost."""
    server.stop()
    shutil.rmtree(folder / "zookeeper" / "data")
    server.start()


def backup(server: EmbeddedZooKeeper, folder: Path) -> None:
    """Copy the data of a server that nobody writes to, as they stand on disk."""
    shutil.copytree(folder / "zookeeper" / "data", folder / "backup")


def restore(server: EmbeddedZooKeeper, folder: Path) -> None:
    """Put the copy back."""
    server.stop()
    shutil.rmtree(folder / "zookeeper" / "data")
    shutil.copytree(folder / "backup", folder / "zookeeper" / "data")
    server.start()
