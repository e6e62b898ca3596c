"""The source's state in files instead of ZooKeeper: what the same source costs without it. For measuring only."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import BatchNode, PastNode
from kinesis_trident.spout.engines import ENGINES, Engine, find_protocol
from kinesis_trident.spout.kinesis.client import kinesis_client
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.reader.task import TurnReader
from kinesis_trident.spout.source import KinesisTridentReader, KinesisTridentSource

__all__ = ["FileReader", "FileRun", "FileSource", "FileStore", "NoClient"]


_NOTHING = PastNode(epoch=0, txid=0, lost_upto=0)


class _Part:
    """A part of the store: whatever is not needed does nothing, and nothing is there."""

    def __getattr__(self, name: str) -> Any:
        empty: object = {} if name in {"checkpoints", "inflight", "dead_letters", "create_pins"} else None
        return lambda *_args, **_kwargs: empty


class _Epochs(_Part):
    def raise_epoch(self, *_: Any, **_known: Any) -> int:
        return 1

    def past(self) -> PastNode:
        return _NOTHING


class _Batches(_Part):
    """The newest plan in memory, the pins in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._batch: BatchNode | None = None

    def put(self, plan: Any, epoch: int) -> BatchNode:
        self._batch = BatchNode(epoch=epoch, plan=plan)
        return self._batch

    def get(self, txid: int) -> BatchNode | None:
        found = self._batch
        return found if found is not None and found.plan.txid == txid else None

    def create_pin(self, shard: str, pin: Any, _epoch: int) -> tuple[Any, bool]:
        (self._folder / f"{pin.txid}-{shard}").write_bytes(pickle.dumps(pin))
        return pin, True

    def read_finished(
        self, txid: int, shards: list[str], *, judging: bool
    ) -> tuple[dict[str, Any], None, None, dict[str, int]]:
        paths = {shard: self._folder / f"{txid}-{shard}" for shard in shards}
        pins = {shard: pickle.loads(path.read_bytes()) for shard, path in paths.items() if path.exists()}
        return pins, None, None, {}


class FileStore:
    """A store as a run and its tasks need it, without fencing and without waiting for a disk."""

    written = requests = 0

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.layout = layout
        folder /= layout.application
        folder.mkdir(parents=True, exist_ok=True)
        self.epochs, self.batches = _Epochs(), _Batches(folder)

    def __getattr__(self, _part: str) -> _Part:
        return _Part()

    def open_for_looking(self, _told: object) -> FileStore:
        return self


class FileRun(SourceRun):
    """A run of the source with its state in files."""

    def _open_store(self, created: Mapping[str, int]) -> Any:
        options = self._options
        [(stream, at)] = created.items()
        layout = Layout(options.zookeeper_root, options.application_name, stream, at)
        return FileStore(_folder(options), layout)

    def _load_used_before(self) -> PastNode:
        return _NOTHING

    def _close_left_homes(self, epoch: int) -> None:
        """Nobody asks for anything here."""


class NoClient:
    """Stands where a run has its client of ZooKeeper."""

    connected = False

    def stop(self) -> None:
        """Nothing was started."""

    close = stop


class FileReader(KinesisTridentReader):
    """The source's reader over files."""

    @cached_property
    def _engine(self) -> Engine:
        return ENGINES[find_protocol()](
            lambda _: FileRun(self._options, kinesis_client(self._options), NoClient())
        )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # An executor's reader has no options.
        part: Any = partition
        store: Any = FileStore(_folder(part.options), part.layout)
        return TurnReader(part, kinesis_client(part.options), store, look_first=False).rows()


class FileSource(KinesisTridentSource):
    """The format `kinesis-files`; `zookeeper.root` names the folder."""

    @classmethod
    def name(cls) -> str:
        return "kinesis-files"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return FileReader(self._parse())


def _folder(options: SourceOptions) -> Path:
    return Path(options.zookeeper_root)
