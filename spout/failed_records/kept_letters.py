"""Delivers records that have left their stream from their dead letters, if somebody has asked for them again."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa

from kinesis_trident.checkpoint.model.layout import Layout, escape
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.common.folder import Folder, FolderError
from kinesis_trident.spout.failed_records.dead_letters import DeadLetter, letter_files, read_letters
from kinesis_trident.spout.failed_records.places import KINESIS
from kinesis_trident.spout.failed_records.retry_ranges import Picker, RunRecords
from kinesis_trident.spout.failed_records.retry_spool import find_beginning, sort_distinct
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.tracker.failure import Kind
from kinesis_trident.tracker.records import Run

log = logging.getLogger(__name__)


class KeptLetters:
    """The payloads in the folder of the option `deadLetter`.

    Args:
        target: the folder.
        layout: of the source's home, which names the shards.
    """

    def __init__(self, target: str, layout: Layout) -> None:
        self._folder = Folder(target)
        self._layout = layout

    def get(self, shard: str, runs: Sequence[Run]) -> RunRecords:
        """Return the records of runs (sorted, disjoint), as far as there are letters of them.

        All files of the stream are read: their names do not tell of which records they are.
        """
        key, picker = self._layout.key_of(shard), Picker(runs)
        below = f"{escape(self._layout.identity)}/{escape(key.stream)}"
        ends = [run.last_position for run in runs]
        rows: list[dict[str, object]] = []
        try:
            for letter in self._read(below):
                one = MessageId.parse(letter.message_id)
                at = bisect_left(ends, one.last)
                is_wanted = at < len(runs) and find_beginning(runs[at]) <= one.last
                if letter.shard_id == key.shard and one.is_one and is_wanted:
                    rows.append(_row_of(letter))
        except (FolderError, ValueError) as error:
            log.warning(
                "shard %s: records that have left the stream cannot be taken from their dead letters in %s: %s",
                shard,
                self._folder.place,
                error,
            )
            return RunRecords.none(len(runs))
        records = sort_distinct([pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA)])
        if records is not None:
            picker.offer(records)
        return picker.records

    def _read(self, below: str) -> Iterator[DeadLetter]:
        for file in letter_files(self._folder, below):
            for letter, _ in read_letters(self._folder, file.name) or ():
                # That of a record which could not be decoded is the JSON of Kinesis, not its payload.
                said = letter.reasons[-1].reason if letter.reasons else ""
                if letter.data is not None and not said.startswith(Kind.UNREADABLE.name):
                    yield letter


def _row_of(letter: DeadLetter) -> dict[str, object]:
    arrival = letter.approximate_arrival_timestamp
    return {
        "partitionKey": letter.partition_key,
        "data": letter.data,
        "sequenceNumber": letter.sequence_number,
        "subSequenceNumber": letter.sub_sequence_number,
        "approximateArrivalTimestamp": datetime.fromisoformat(arrival or "1970-01-01T00:00:00+00:00"),
    }


def kept_letters(options: SourceOptions, layout: Layout) -> KeptLetters | None:
    """Return the letters of the options; None if they are in no folder."""
    target = options.dead_letter
    return None if target is None or target.startswith(KINESIS) else KeptLetters(target, layout)
