"""A state in the driver's memory, backed by files: a snapshot and a log of batches, local, in HDFS or in S3.

The folder belongs to one process at a time. A process that opens it reads the newest snapshot and the batches after
it. At its first write, as a batch begins, it reads the folder once more and writes a snapshot of its own
generation; from then on the writes of an older process are never read: its files are of a lower generation. A batch
is one file, complete or absent, written by `commit`.

    <generation>-<number>.snapshot    the keys and values that the batches with higher numbers do not have
    <generation>-<number>.batch       the values that one batch has set, a null value: removed; and a part of all others

No batch writes all keys, which of very many takes long. Keys are in as many parts as `snapshotInterval` says, and each
batch writes one part whole, in turns. So that many batches hold every key, and nothing before them is needed: the
number before them is marked by a snapshot without keys, and the files before that are removed.

Both are Arrow IPC files with the columns key, value (binary) and expires (epoch seconds, 0: never). `generation` and
`number` are decimal; the state is the highest snapshot and the batches of its generation with higher numbers, none of
which may be missing.
"""

from __future__ import annotations

import logging
import re
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar

import msgspec
import pyarrow as pa
from pyarrow import ipc

from kinesis_trident.common.folder import Folder, NoFileError, NoFolderError, absolute_target
from kinesis_trident.common.visible_text import make_reason
from kinesis_trident.trident.errors import (
    ForeignValueError,
    StateBehindError,
    StateFencedError,
    StateOptionsError,
    StoreUnavailableError,
)
from kinesis_trident.trident.maps.backing import Version
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.factory import MapStateFactory
from kinesis_trident.trident.stores.key_text import FENCE, mark_key
from kinesis_trident.trident.stores.memory import MemoryByteStore
from kinesis_trident.trident.stores.options import MapOptions
from kinesis_trident.trident.stores.ownership import Mark

log = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{6,})-(\d{12,})\.(snapshot|batch)")
_SCHEMA = pa.schema([("key", pa.string()), ("value", pa.binary()), ("expires", pa.float64())])

_REMOVED = 4
"""The files that a batch removes at most: more than it makes, and few, because each is a request."""

_MOVES = 10
"""How often the mark before the files that are needed moves while each part is written once."""

_READS = 5
"""The number of times that a folder is read while its writer replaces files."""

Name = tuple[int, int, str]
"""The generation, number and kind of a file."""

Entry = tuple[bytes, float]
"""A value and its expiry in epoch seconds, 0 for never."""


class FileOptions(MapOptions, kw_only=True, frozen=True, rename="camel"):
    """Options of a state backed by files; each key is written once in `snapshot_interval` batches."""

    snapshot_interval: int = 100


class FileByteStore(MemoryByteStore):
    """Bytes in memory, and in a folder from which they can be read again.

    Args:
        folder: a local path, or any URI that `pyarrow.fs` accepts. What is made is for this user alone.
        expire: seconds that a key lives after it was set; 0: forever.
        snapshot_interval: batches in which each key is written once.
        accepted_loss: the option `acceptLossUpTo`.
        clock: returns epoch seconds.

    Raises:
        ForeignValueError: a file of the folder cannot be read.
        StateBehindError: a file is missing between others.
        StateOptionsError: it is no folder.
        StoreUnavailableError: the folder cannot be reached.
    """

    def __init__(
        self,
        folder: str,
        expire: float = 0,
        snapshot_interval: int = 100,
        accepted_loss: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = Folder(absolute_target(folder))
        super().__init__(f"folder {self._folder.place}", expire, clock=clock)
        self._interval = max(snapshot_interval, 1)
        self._accepted_loss = accepted_loss
        self._changed: dict[str, None] = {}
        self._generation, self._number = 1, 0
        self._parts, self._base = defaultdict[int, list[str]](list), 0
        self._is_ours = False
        self._reach(self._open)

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        """See `ByteStore.compare_and_set_many`; the first write claims the folder."""
        with self._lock:
            self._claim()
            return super().compare_and_set_many(keys, values, versions)

    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        """See `ByteStore.set_many`; the first write claims the folder."""
        with self._lock:
            self._claim()
            super().set_many(keys, values)

    def end_batch(self, txid: int | None) -> None:
        """Write the changes since the last batch, and a part of the other keys, as one file."""
        with self._lock:
            if not self._changed:
                return
            names: list[Name] = []
            self._reach(lambda: names.extend(self._check_newest()))
            entries = self._next_part()
            entries.update((key, self._values.get(key)) for key in self._changed)
            self._reach(lambda: self._write("batch", entries))
            self._changed.clear()
            self._reach(lambda: self._forget_files(names))

    def _set(self, key: str, value: bytes | None, now: float) -> None:
        if key not in self._values:
            self._part_of(key).append(key)
        super()._set(key, value, now)
        self._changed[key] = None

    def _claim(self) -> None:
        """Read the folder once more, and begin a generation of our own."""
        if not self._is_ours:
            self._reach(self._open)
            self._reach(self._snapshot)
            self._is_ours = True
            # An older writer's next write is refused anyway.
            self._reach(self._folder.remove_parts)

    def _part_of(self, key: str) -> list[str]:
        return self._parts[hash(key) % self._interval]

    def _next_part(self) -> dict[str, Entry | None]:
        """Return the part that the next batch writes whole, without what has expired."""
        at, now = (self._number + 1) % self._interval, self._clock()
        part: dict[str, Entry | None] = {}
        for key in self._parts[at]:
            entry = self._values.get(key)
            if entry is not None and not 0 < entry[1] <= now:
                part[key] = entry
            elif entry is not None:
                del self._values[key]
        # Without what was removed, and what is there twice because it was set again since.
        self._parts[at] = list(part)
        return part

    def _forget_files(self, names: Sequence[Name]) -> None:
        """Mark from where on the batches hold every key; remove some of the files before that."""
        needless = self._number - self._interval
        if needless >= self._base + max(self._interval // _MOVES, 1):
            self._write_file((self._generation, needless, "snapshot"), {})
            self._base = needless
        base = self._generation, self._base, "snapshot"
        for name in [name for name in names if name < base][:_REMOVED]:
            self._folder.remove(_file_name(*name))

    def _open(self) -> None:
        self._folder.make()
        for left in reversed(range(_READS)):
            names = self._names()
            try:
                self._read_all(names, last=not left)
                break
            except NoFileError:
                # The folder's writer has just replaced files by a snapshot.
                if not left:
                    raise
        self._generation = 1 + max((name[0] for name in names), default=0)

    def _read_all(self, names: Sequence[Name], *, last: bool) -> None:
        before, self._values = self._values, OrderedDict()
        try:
            missing = self._read_newest(names)
            if missing and not last:
                raise NoFileError(missing)
            if missing:
                self._check_loss(missing)
        except BaseException:
            self._values = before
            raise

    def _read_newest(self, names: Sequence[Name]) -> str:
        """Read the newest snapshot and the batches after it; return the path of a file that is missing among them."""
        if not names:
            return ""
        before = min(name for name in names if name[0] == names[-1][0])
        newest = max(
            (name for name in names if name[2] == "snapshot"), default=(before[0], before[1] - 1, "snapshot")
        )
        files = [name for name in names if name >= newest]
        for name in files:
            self._read(name)
        wanted = [newest, *((newest[0], newest[1] + i, "batch") for i in range(1, len(files)))]
        return next((self._path(a) for a, b in zip(wanted, files, strict=True) if a != b), "")

    def _check_loss(self, missing: str) -> None:
        """Check that the loss of a file is accepted.

        Raises:
            StateBehindError: it is not.
        """
        newest = max(map(self._newest_batch, [key for key in self._values if key.endswith(FENCE)]), default=1)
        what = f"{self.where}: {missing} is missing, but later files are there"
        if self._accepted_loss >= newest:
            log.warning("%s. acceptLossUpTo=%s accepts that", what, self._accepted_loss)
            return
        msg = (
            f"{what}: what it has changed would be lost. Nothing was written. Restore it, and start the query again; "
            f"or accept the loss with the option acceptLossUpTo={newest} of this state (docs/states.md)"
        )
        raise StateBehindError(msg)

    def _newest_batch(self, fence: str) -> int:
        """Return the txid of the batch that a fence has, as its query numbers them."""
        number: int = msgspec.json.decode(self._values[fence][0])[0]
        mark, _ = self._values.get(mark_key(fence.removesuffix(FENCE)), (None, 0))
        return number - (msgspec.json.decode(mark, type=Mark).base if mark else 0)

    def _names(self) -> list[Name]:
        matches = [_NAME.fullmatch(file.name) for file in self._folder.files(must_exist=True)]
        return sorted((int(match[1]), int(match[2]), match[3]) for match in matches if match)

    def _path(self, name: Name) -> str:
        return self._folder.path(_file_name(*name))

    def _read(self, name: Name) -> None:
        data = self._folder.read(_file_name(*name))
        try:
            table = _table(data)
        except (ValueError, pa.ArrowException) as error:
            why = make_reason(str(error))
            msg = (
                f"{self.where}: {self._path(name)} is not a file of a state ({why}); nothing was changed. Restore it "
                "from a backup, or use another folder"
            )
            raise ForeignValueError(msg) from None
        for key, value, expires in zip(*(column.to_pylist() for column in table.columns), strict=True):
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = (value, expires)

    def _snapshot(self) -> None:
        now = self._clock()
        for key in [key for key, entry in self._values.items() if entry[1] and entry[1] <= now]:
            del self._values[key]
        old = self._names()
        self._write("snapshot", self._values)
        self._base = self._number
        self._parts.clear()
        for key in self._values:
            self._part_of(key).append(key)
        for name in old:
            if name[0] <= self._generation:
                self._folder.remove(_file_name(*name))

    def _write(self, kind: str, entries: Mapping[str, Entry | None]) -> None:
        # Counted when it is there: a number that is left out would be a file that is missing.
        self._write_file((self._generation, self._number + 1, kind), entries)
        self._number += 1

    def _write_file(self, name: Name, entries: Mapping[str, Entry | None]) -> None:
        table = pa.table(
            [
                pa.array(entries, pa.string()),
                pa.array([None if entry is None else entry[0] for entry in entries.values()], pa.binary()),
                pa.array([0.0 if entry is None else entry[1] for entry in entries.values()], pa.float64()),
            ],
            schema=_SCHEMA,
        )
        sink = pa.BufferOutputStream()
        with ipc.new_file(sink, _SCHEMA) as writer:
            writer.write_table(table)
        self._folder.write(_file_name(*name), sink.getvalue())

    def _check_newest(self) -> list[Name]:
        """Return the names of all files, once the folder is still this process's."""
        names = self._names()
        newest = max((name[0] for name in names), default=0)
        # A write that seemed to fail may have come to its end.
        self._number = max([self._number, *(name[1] for name in names if name[0] == self._generation)])
        if newest < self._generation:
            # The files were removed; their values are still in memory.
            self._snapshot()
        if newest > self._generation:
            msg = (
                f"another process has opened {self.where} since (generation {newest}, this one is "
                f"{self._generation}); this one writes nothing any more. Give each query its own folder"
            )
            raise StateFencedError(msg)
        return names

    def _reach(self, action: Callable[[], None]) -> None:
        try:
            action()
        except NoFolderError as error:
            msg = f"{self.where}: {error}. Check the path or URI"
            raise StateOptionsError(msg) from None
        except OSError as error:
            msg = f"{self.where} cannot be reached ({error}). Check that it exists, its rights and its free space"
            raise StoreUnavailableError(msg) from None


class FileState(MapStateFactory):
    """Makes map states in memory that files back: `FileState.opaque("hdfs://namenode/states/counts")`."""

    driver_local: ClassVar[bool] = True
    options_type: ClassVar[type[MapOptions]] = FileOptions

    @property
    def place(self) -> Hashable:
        """See `StateFactory.place`: a folder belongs to one state, independent of its keys."""
        return type(self), self._target

    def _connect(self) -> ByteStore:
        options = self._options
        assert isinstance(options, FileOptions)
        return FileByteStore(
            self._target, options.expire_interval_sec, options.snapshot_interval, options.accept_loss_up_to
        )


def _file_name(generation: int, number: int, kind: str) -> str:
    return f"{generation:06d}-{number:012d}.{kind}"


def _table(data: bytes) -> pa.Table:
    """Return the table in the bytes of a file.

    Raises:
        ValueError, pyarrow.ArrowException: they are not a file of ours, or damaged.
    """
    try:
        table = ipc.open_file(pa.BufferReader(data)).read_all()
    except OSError as error:
        # Arrow's error for bytes that contradict each other; the file itself was read.
        raise ValueError(str(error)) from None
    if table.schema != _SCHEMA:
        msg = f"its columns are {', '.join(f'{one.name} {one.type}' for one in table.schema)}"
        raise ValueError(msg)
    # Arrow believes the lengths and offsets in a file until it is asked to check them.
    table.validate(full=True)
    if table.column("key").null_count or table.column("expires").null_count:
        msg = "a key or a time is missing"
        raise ValueError(msg)
    return table
