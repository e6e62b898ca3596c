"""Delivers records that have left their stream from their dead letters, if somebody has asked for them again."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import datetime
from threading import Lock

import pyarrow as pa

from kinesis_trident.checkpoint.model.layout import Layout, escape
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.common.folder import Folder, FolderError
from kinesis_trident.common.stream_names import stream_of
from kinesis_trident.common.visible_text import make_visible
from kinesis_trident.spout.errors import DeadLetterError
from kinesis_trident.spout.failed_records.dead_letters import DeadLetter, letter_files, read_files
from kinesis_trident.spout.failed_records.letter_stream import read_stream_letters
from kinesis_trident.spout.failed_records.retry_ranges import Picker, RunRecords
from kinesis_trident.spout.failed_records.retry_spool import sort_distinct
from kinesis_trident.spout.kinesis import Kinesis
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.tracker.failure import Kind
from kinesis_trident.tracker.records import RecordPosition, Run
from kinesis_trident.tracker.runs import Runs

log = logging.getLogger(__name__)

_Kept = dict[str, list[tuple[RecordPosition, bool, dict[str, object]]]]
"""By shard, the position of each record, whether it is one of another stream of the name, and the record."""


class KeptLetters:
    """The payloads in the place of the option `deadLetter`, which is read once, for all turns of a task. Thread-safe.

    Args:
        target: a folder, or `kinesis://name`.
        layout: of the source's home, which names the shards.
        kinesis: reads the letters of a stream.
        due: the runs of each shard that may be asked for (sorted, disjoint).
    """

    def __init__(
        self, target: str, layout: Layout, kinesis: Kinesis, due: Mapping[str, Sequence[Run]]
    ) -> None:
        self._folder = Folder(target)
        self._letters = stream_of(target)
        self._layout = layout
        self._kinesis = kinesis
        keys = {shard: layout.key_of(shard) for shard in due}
        self._due = {
            (key.stream, key.shard): (shard, key.created, Runs(due[shard])) for shard, key in keys.items()
        }
        self._lock = Lock()
        self._kept: dict[str, _Kept | KinesisTridentError] = {}

    def get(self, shard: str, runs: Sequence[Run], invalid: Container[int] = ()) -> RunRecords:
        """Return the records of runs (sorted, disjoint), as far as there are letters of them.

        Those of another stream of the name are only of the `invalid` ones, by their indexes, which are in no other way
        to be had. All letters of the stream are read: neither names of files nor shards tell of which records they are.
        """
        picker, stream = Picker(runs), self._layout.key_of(shard).stream
        # A stream has the letters of all that are read; a folder has a folder for each.
        place = "" if self._letters is not None else stream
        with self._lock:
            if place not in self._kept:
                self._kept[place] = self._keep(place)
        kept = self._kept[place]
        if isinstance(kept, KinesisTridentError):
            log.warning(
                "shard %s: records that have left the stream cannot be taken from their dead letters in %s: %s",
                shard,
                self._folder.place,
                kept,
            )
            return RunRecords.none(len(runs))
        known = Runs(runs)
        rows = [
            row
            for position, is_foreign, row in kept.get(shard, ())
            if (at := known.find_holder(position.order)) is not None and (at in invalid or not is_foreign)
        ]
        records = sort_distinct([pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA)])
        if records is not None:
            picker.offer(records)
        return picker.records

    def _keep(self, stream: str) -> _Kept | KinesisTridentError:
        """Return the letters of the runs that may be asked for, or why they cannot be read."""
        kept: _Kept = {}
        try:
            for letter in self._read(stream):
                # That of a record which could not be decoded is the JSON of Kinesis, not its payload.
                said = letter.reasons[-1].reason if letter.reasons else ""
                due = self._due.get((letter.stream, letter.shard_id))
                if letter.data is None or due is None or said.startswith(Kind.UNREADABLE.name):
                    continue
                shard, created, runs = due
                try:
                    one = MessageId.parse(letter.message_id)
                    if one.is_one and runs.find_holder(one.last.order) is not None:
                        row = one.last, letter.is_of_another_stream(created), _row_of(letter)
                        kept.setdefault(shard, []).append(row)
                except ValueError as error:
                    log.warning(
                        "shard %s: the dead letter %s cannot be read, and is left out: %s",
                        shard,
                        make_visible(letter.message_id),
                        error,
                    )
        except (FolderError, DeadLetterError) as error:
            return error
        return kept

    def _read(self, stream: str) -> Iterator[DeadLetter]:
        if self._letters is not None:
            for letter in read_stream_letters(self._kinesis, self._letters):
                if letter.application_name == self._layout.identity:
                    yield letter
            return
        below = f"{escape(self._layout.identity)}/{escape(stream)}"

        def list_names() -> list[str]:
            return [file.name for file in letter_files(self._folder, below)]

        yield from read_files(self._folder, list_names, leaves_out=True)


def _row_of(letter: DeadLetter) -> dict[str, object]:
    arrival = letter.approximate_arrival_timestamp
    return {
        "partitionKey": letter.partition_key,
        "data": letter.data,
        "sequenceNumber": letter.sequence_number,
        "subSequenceNumber": letter.sub_sequence_number,
        "approximateArrivalTimestamp": datetime.fromisoformat(arrival or "1970-01-01T00:00:00+00:00"),
    }
