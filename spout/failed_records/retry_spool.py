"""Keeps the payloads of failed records in a folder, so that retries need not fetch them from Kinesis again.

An operator of `bolt` writes the records that fail in it before it reports. For other failed records, the task that
delivers them again for the first time writes them before its pin. Later deliveries, replays of a batch and the dead
letter read them from there. A file's content determines its name, so tasks that do the same write the same file, and
the folder is the only index:

    <application>/<root>/<home>/<shard>/<txid>-<first>-<last>-<digest>.arrow

with the names of the source's home in ZooKeeper, and of its shards there. What a stream left in its own home, before it
was read together with others, is found there; so are files of releases that did not put the root into their names.

The folder is a copy. Missing records are read from the stream, as without a folder.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kinesis_trident.checkpoint.model.layout import Layout, ShardKey, escape, unescape
from kinesis_trident.common.folder import OUTDATED_SECONDS, Folder, FolderError, NoFileError, digest_of
from kinesis_trident.spout.errors import SpoolError
from kinesis_trident.spout.failed_records.retry_ranges import Picker, RunRecords
from kinesis_trident.spout.kinesis.record_batches import (
    RECORD_SCHEMA,
    copy_keys,
    position_at,
    select_readable,
)
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.tracker.records import SEQUENCE, RecordPosition, Run, begin_of

log = logging.getLogger(__name__)

_DOTTED = SEQUENCE.replace(":", "[.]")
_NAME = re.compile(
    rf"(?P<txid>[0-9]{{12,19}})-(?P<first>{_DOTTED})-(?P<last>{_DOTTED})-(?P<digest>[0-9a-f]{{16}})\.arrow"
)
_COLUMNS = RECORD_SCHEMA.names, RECORD_SCHEMA.types


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    txid: int
    first: RecordPosition
    last: RecordPosition
    digest: str
    size: int
    has_no_root: bool

    def holds_some_of(self, runs: Sequence[Run]) -> bool:
        return any(begin_of(run) <= self.last and self.first <= run.last_position for run in runs)


class RetrySpool:
    """The files of one source. Several tasks may use it at once; it is picklable.

    Args:
        target: an absolute local path that all executors share, or a URI that pyarrow supports.
        layout: of the source's home, which names the shards.
        created: the creation times of the streams by name, in epoch milliseconds, which rows do not contain.
    """

    def __init__(self, target: str, layout: Layout, created: Mapping[str, int] | None = None) -> None:
        self._folder = Folder(target)
        self._layout = layout
        self._created = dict(created or {})
        self._base = self._bases_of(layout)[0]
        self._ours = set[str]()
        self._where = f"{self._folder.place} (option retrySpool)"

    def put(self, shard: str, txid: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Keep records of one shard (in `RECORD_SCHEMA`) that batch `txid` has delivered; durable on return.

        One that cannot be decoded is not kept: the next version may decode it.

        Raises:
            SpoolError: the file cannot be written.
        """
        records = sort_distinct([copy_keys(select_readable(batch)) for batch in batches])
        if records is None:
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, RECORD_SCHEMA) as writer:
            writer.write_batch(records)
        data = sink.getvalue().to_pybytes()
        first, last = position_at(records, 0), position_at(records, -1)
        name = f"{txid:012d}-{_format_position(first)}-{_format_position(last)}-{digest_of(data)}.arrow"
        try:
            self._folder.write(f"{self._base}/{escape(shard)}/{name}", data)
        except FolderError as error:
            msg = (
                f"cannot keep failed records of shard {shard}, txid {txid} in {self._where}: {error}. Check that every "
                "executor reaches the folder, its permissions and its free space; the batch is retried"
            )
            raise SpoolError(msg) from error

    def put_rows(self, txid: int, rows: Sequence[pa.RecordBatch]) -> None:
        """Keep rows of the source, of any shards, in its columns; durable on return.

        Raises:
            SpoolError: a file cannot be written.
        """
        if not rows:
            return
        table = pa.Table.from_batches(rows)
        for found in table.group_by(["stream", "shardId"]).aggregate([]).to_pylist():
            stream, shard = found["stream"], found["shardId"]
            mine = pc.and_(pc.equal(table["stream"], stream), pc.equal(table["shardId"], shard))
            own = table.filter(mine).select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)
            name = self._layout.name_of(ShardKey(stream, self._created[stream], shard))
            self.put(name, txid, own.to_batches())

    def get(self, shard: str, runs: Sequence[Run], max_bytes: float = math.inf) -> RunRecords:
        """Return the kept records of runs (sorted, disjoint).

        Of the first runs only, as many as have at most `max_bytes` in their files, and at least of one.
        """
        runs, files = _choose_within(runs, self._files(shard), max_bytes)
        found = [batch for file in files for batch in self._read(file)]
        records = sort_distinct(found)
        if records is None:
            return RunRecords.none(len(runs))
        picker = Picker(runs)
        picker.offer(records)
        return picker.records

    def clean(self, settled: int, left: Mapping[str, Sequence[Run]]) -> int:
        """Remove files that no remaining run of a shard needs; files of batches after `settled` stay.

        A file without a root in its name may be of another root's query: it goes only if a run here has needed it.
        What killed tasks have not ended goes once it is a day old.

        Returns:
            The number of removed files that were whole.

        Raises:
            SpoolError: the folder cannot be listed or written.
        """
        removed = 0
        try:
            for shard, file in self._list_all(left):
                if file.holds_some_of(left.get(shard, ())):
                    self._ours.add(file.name)
                elif file.txid <= settled and (not file.has_no_root or file.name in self._ours):
                    self._folder.remove(file.name)
                    removed += 1
            self._folder.remove_parts(self._base, deep=True, before=time.time() - OUTDATED_SECONDS)
        except FolderError as error:
            msg = f"cannot clean up {self._where}: {error}"
            raise SpoolError(msg) from error
        return removed

    def _files(self, shard: str) -> list[_File]:
        try:
            return [file for _, file in self._list_all([shard], only=self._layout.key_of(shard))]
        except FolderError as error:
            log.warning("cannot list %s: %s; reading from the stream instead", self._where, error)
            return []

    def _bases_of(self, home: Layout) -> tuple[str, str]:
        """Return the folder of a home's files, and that of the releases before, which have the same for each root."""
        application, root = escape(home.identity), escape(Layout.root_path(home.root).strip("/") or "/")
        return f"{application}/{root}/{home.element}", f"{application}/{home.element}"

    def _list_all(self, shards: Iterable[str], only: ShardKey | None = None) -> Iterator[tuple[str, _File]]:
        """Yield the files of the home of these shards, and of those in which their streams were read alone."""
        homes = {self._layout}
        if self._layout.several:
            keys = map(self._layout.key_of, shards)
            homes |= {replace(self._layout, stream=key.stream, created=key.created) for key in keys}
        for home in homes:
            below = "" if only is None else f"/{escape(home.name_of(only))}"
            for base, has_no_root in zip(self._bases_of(home), (False, True), strict=True):
                yield from self._list_files(home, base + below, has_no_root=has_no_root)

    def _list_files(self, home: Layout, folder: str, *, has_no_root: bool) -> Iterator[tuple[str, _File]]:
        for file in self._folder.files(folder, deep=True):
            found = _NAME.fullmatch(file.base_name)
            if found is not None:
                try:
                    shard = self._layout.name_of(home.key_of(unescape(file.name.rsplit("/", 2)[1])))
                except ValueError:
                    # A folder that is not of ours.
                    continue
                first, last = _position(found["first"]), _position(found["last"])
                yield (
                    shard,
                    _File(
                        file.name, int(found["txid"]), first, last, found["digest"], file.size, has_no_root
                    ),
                )

    def _read(self, file: _File) -> list[pa.RecordBatch]:
        try:
            data = self._folder.read(file.name)
            if digest_of(data) != file.digest:
                # Arrow believes the lengths and offsets in a file: a damaged one can end the process.
                msg = "it is damaged: its content does not have the digest in its name"
                raise ValueError(msg)
            batches: list[pa.RecordBatch] = pa.ipc.open_stream(data).read_all().to_batches()
        except NoFileError:
            return []
        except (OSError, ValueError, pa.ArrowException) as error:
            log.warning(
                "cannot read %s of %s: %s; reading from the stream instead", file.name, self._where, error
            )
            return []
        if any((batch.schema.names, batch.schema.types) != _COLUMNS for batch in batches):
            log.warning("%s has unknown columns; reading from the stream instead", file.name)
            return []
        # Release 1.0.0 wrote that a partition key is never null.
        return [pa.RecordBatch.from_arrays(batch.columns, schema=RECORD_SCHEMA) for batch in batches]


def spool_of(
    options: SourceOptions, layout: Layout, created: Mapping[str, int] | None = None
) -> RetrySpool | None:
    """Return the spool of the options; None if they have none."""
    return None if options.retry_spool is None else RetrySpool(options.retry_spool, layout, created)


def _choose_within(
    runs: Sequence[Run], files: Sequence[_File], max_bytes: float
) -> tuple[Sequence[Run], list[_File]]:
    """Return the first runs whose files have at most so many bytes, at least one, and these files."""
    left = sorted(files, key=lambda file: file.first, reverse=True)
    chosen, size = list[_File](), 0
    for count, run in enumerate(runs):
        begun: list[_File] = []
        while left and left[-1].first <= run.last_position:
            begun.append(left.pop())
        begin = begin_of(run)
        more = [file for file in begun if file.last >= begin]
        size += sum(file.size for file in more)
        if count and size > max_bytes:
            return runs[:count], chosen
        chosen += more
    return runs, chosen


def sort_distinct(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Return the distinct records of all batches in shard order; None if there are none."""
    table = pa.Table.from_batches(batches, RECORD_SCHEMA)
    if not table.num_rows:
        return None
    # Compare numbers of any length as text: first by length.
    keys = pa.table(
        [pc.utf8_length(table["sequenceNumber"]), *table.select([2, 3]).columns], ["n", "seq", "sub"]
    )
    order = pc.sort_indices(keys, [("n", "ascending"), ("seq", "ascending"), ("sub", "ascending")])
    places = keys.take(order)
    same = np.ones(max(0, len(order) - 1), dtype=bool)
    for column in (places["seq"], places["sub"]):
        same &= pc.equal(column.slice(1), column.slice(0, len(column) - 1)).to_numpy()
    first = np.concatenate([[True], ~same])
    [records] = table.take(order.filter(pa.array(first))).combine_chunks().to_batches()
    return records


def _format_position(position: RecordPosition) -> str:
    # Some file systems do not allow a colon in a file name.
    return str(position).replace(":", ".")


def _position(text: str) -> RecordPosition:
    return RecordPosition.parse(text.replace(".", ":"))
