"""Delivers records that have left their stream from their dead letters, if somebody has asked for them again."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Container, Iterator, Sequence
from datetime import datetime

import pyarrow as pa

from kinesis_trident.checkpoint.model.layout import Layout, escape
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.common.folder import Folder, FolderError
from kinesis_trident.common.visible_text import make_visible
from kinesis_trident.spout.errors import DeadLetterError
from kinesis_trident.spout.failed_records.dead_letters import DeadLetter, letter_files, read_files
from kinesis_trident.spout.failed_records.letter_stream import read_stream_letters
from kinesis_trident.spout.failed_records.places import KINESIS
from kinesis_trident.spout.failed_records.retry_ranges import Picker, RunRecords
from kinesis_trident.spout.failed_records.retry_spool import find_beginning, sort_distinct
from kinesis_trident.spout.kinesis import Kinesis
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.tracker.failure import Kind
from kinesis_trident.tracker.records import Run

log = logging.getLogger(__name__)


class KeptLetters:
    """The payloads in the place of the option `deadLetter`.

    Args:
        target: a folder, or `kinesis://name`.
        layout: of the source's home, which names the shards.
        kinesis: reads the letters of a stream.
    """

    def __init__(self, target: str, layout: Layout, kinesis: Kinesis) -> None:
        self._target = target
        self._folder = Folder(target)
        self._layout = layout
        self._kinesis = kinesis

    def get(self, shard: str, runs: Sequence[Run], invalid: Container[int] = ()) -> RunRecords:
        """Return the records of runs (sorted, disjoint), as far as there are letters of them.

        Those of another stream of the name are only of the `invalid` ones, by their indexes, which are in no other way
        to be had. All letters of the stream are read: neither names of files nor shards tell of which records they are.
        """
        key, picker = self._layout.key_of(shard), Picker(runs)
        ends = [run.last_position for run in runs]
        rows: list[dict[str, object]] = []

        def is_wanted(letter: DeadLetter) -> bool:
            # That of a record which could not be decoded is the JSON of Kinesis, not its payload.
            said = letter.reasons[-1].reason if letter.reasons else ""
            if letter.data is None or letter.shard_id != key.shard or said.startswith(Kind.UNREADABLE.name):
                return False
            one = MessageId.parse(letter.message_id)
            at = bisect_left(ends, one.last)
            is_inside = one.is_one and at < len(runs) and find_beginning(runs[at]) <= one.last
            return is_inside and (at in invalid or not letter.is_of_another_stream(key.created))

        try:
            for letter in self._read(key.stream):
                try:
                    if is_wanted(letter):
                        rows.append(_row_of(letter))
                except ValueError as error:
                    log.warning(
                        "shard %s: the dead letter %s cannot be read, and is left out: %s",
                        shard,
                        make_visible(letter.message_id),
                        error,
                    )
        except (FolderError, DeadLetterError) as error:
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

    def _read(self, stream: str) -> Iterator[DeadLetter]:
        if self._target.startswith(KINESIS):
            for letter in read_stream_letters(self._kinesis, self._target):
                if (letter.application_name, letter.stream) == (self._layout.identity, stream):
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


def kept_letters(options: SourceOptions, layout: Layout, kinesis: Kinesis) -> KeptLetters | None:
    """Return the letters of the options; None if there are none."""
    return None if options.dead_letter is None else KeptLetters(options.dead_letter, layout, kinesis)
