"""Writes records that failed for good as JSON documents to a stream or to files of a folder.

A turn is dead-lettered before it is pinned, so a crash in between writes it again. In a folder the second write leaves
out what is there; in a stream documents can appear twice, with the same `messageId`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC
from typing import Protocol

import msgspec
import pyarrow as pa
import xxhash

from kinesis_trident.checkpoint.model.layout import escape
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.common.folder import Folder
from kinesis_trident.common.stream_names import stream_of
from kinesis_trident.spout.errors import DeadLetterError
from kinesis_trident.spout.failed_records.dead_letters import (
    DeadLetter,
    Reason,
    iso_ms,
    letter_files,
    name_file,
    read_letters,
)
from kinesis_trident.spout.kinesis import Kinesis, KinesisError, StreamInfo
from kinesis_trident.spout.kinesis.aggregation import why_unreadable
from kinesis_trident.spout.kinesis.record_batches import PLAIN_SUB, without_row
from kinesis_trident.tracker.failure import OF_ANOTHER_STREAM, Failure, Kind, parse, text_of
from kinesis_trident.tracker.records import RecordPosition, Run

Letter = tuple[Run, Sequence[pa.RecordBatch], bool]
"""A run that failed for good, its records that were found, and whether others have left the stream.

The batches have the columns partitionKey, data, sequenceNumber, subSequenceNumber,
approximateArrivalTimestamp.
"""


class DeadLetterOptions(Protocol):
    """The part of `spout.options.source.SourceOptions` that the writer uses."""

    @property
    def dead_letter(self) -> str | None:
        """Return `kinesis://name`, a local folder, or a folder's URI."""

    @property
    def application_name(self) -> str:
        """Return the name that is part of every document and of the files' paths."""


class DeadLetterWriter:
    """Writes the dead letters of turns to the target of the option `deadLetter`.

    Args:
        options: with the target and the application's name.
        kinesis: writes if the target is a stream.
        clock: epoch milliseconds, for the reason `EXPIRED`.
    """

    def __init__(
        self,
        options: DeadLetterOptions,
        kinesis: Kinesis,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        if options.dead_letter is None:
            msg = "the option deadLetter is not set. Set it to kinesis://name or to a folder"
            raise DeadLetterError(msg)
        self._target = options.dead_letter
        self._folder = Folder(self._target)
        self._application = options.application_name
        self._kinesis = kinesis
        self._clock = clock

    def write(
        self,
        *,
        stream: str,
        txid: int,
        letters: Mapping[str, Sequence[Letter]],
        plan: str = "",
        again: bool = False,
        info: StreamInfo | None = None,
    ) -> list[DeadLetter]:
        """Write the dead letters of turns of one stream and batch, in a folder as one file; durable on return.

        Args:
            stream: the stream that is read.
            txid: of the batch.
            letters: the runs of each turn by shard, in shard order.
            plan: the mark of the batch's plan. It distinguishes two batches with the same txid, which exist if
                ZooKeeper's data was lost in between.
            info: of the stream; None if it is not known.
            again: another task may have written some of them, with those of other turns: what is there is left out.

        Returns:
            The documents.

        Raises:
            DeadLetterError: naming the target, the error and what to do.
        """
        documents = [
            document
            for shard, runs in letters.items()
            for run, batches, gone in runs
            for document in self._documents(stream, shard, txid, run, batches, gone=gone, info=info)
        ]
        shards = ", ".join(letters)
        try:
            if (name := stream_of(self._target)) is not None:
                lines = [msgspec.json.encode(document) for document in documents]
                keys = [document.partition_key or document.message_id[:256] for document in documents]
                self._kinesis.put_records(name, list(zip(lines, keys, strict=True)))
            else:
                below = f"{escape(self._application)}/{escape(stream)}"
                there = self._find_written(below, txid, plan) if again else ()
                documents = [document for document in documents if document.message_id not in there]
                mark = f"{escape(plan)}-{reach(letters)}" if plan else reach(letters)
                stem = f"{txid:012d}-{escape(next(iter(letters), '-'))}-{mark}"
                data = b"".join(msgspec.json.encode(document) + b"\n" for document in documents)
                if data:
                    self._folder.write(f"{below}/{name_file(stem, data)}", data)
        except (KinesisError, OSError, ValueError) as error:
            msg = (
                f"cannot write {len(documents)} dead letters of stream {stream!r}, shard {shards}, txid "
                f"{txid} to {self._folder.place}: {error}. Check the option deadLetter (kinesis://name, or "
                "a folder that every executor reaches), its permissions and its free space; the batch is "
                "retried"
            )
            raise DeadLetterError(msg) from error
        return documents

    def _find_written(self, below: str, txid: int, plan: str) -> set[str]:
        """Return the message ids of the letters that are there of a plan; those of a file that is not whole are not."""
        names = (file.name for file in letter_files(self._folder, below) if file.first == file.last == txid)
        found = [
            read_letters(self._folder, name)
            for name in names
            if f"-{escape(plan)}-" in name.rpartition("/")[2]
        ]
        return {letter.message_id for letters in found for letter, _ in letters or ()}

    def _documents(
        self,
        stream: str,
        shard: str,
        txid: int,
        run: Run,
        batches: Sequence[pa.RecordBatch],
        *,
        gone: bool,
        info: StreamInfo | None,
    ) -> Iterator[DeadLetter]:
        reasons = tuple(Reason(iso_ms(failure.time), failure.reason) for failure in run.failures)
        kind = parse(run.failures[-1].text).kind if run.failures else None
        if run.failures and run.failures[-1].text == text_of(OF_ANOTHER_STREAM):
            info = None
        created, account = (iso_ms(info.created), info.account) if info is not None else (None, None)
        found = 0
        for batch in batches:
            columns = batch.to_pydict()
            found += batch.num_rows
            for key, data, sequence, sub, arrival in zip(
                columns["partitionKey"],
                columns["data"],
                columns["sequenceNumber"],
                columns["subSequenceNumber"],
                columns["approximateArrivalTimestamp"],
                strict=True,
            ):
                said, place = reasons, sub
                if sub < PLAIN_SUB:
                    place = without_row(sub)
                    if kind is not Kind.UNREADABLE:
                        said += (Reason(iso_ms(self._clock()), why_unreadable(data, sub)),)
                yield DeadLetter(
                    message_id=str(MessageId.of_record(f"{stream}/{shard}", RecordPosition(sequence, place))),
                    stream=stream,
                    shard_id=shard,
                    sequence_number=sequence,
                    sub_sequence_number=place,
                    partition_key=key,
                    data=data,
                    approximate_arrival_timestamp=arrival.astimezone(UTC).isoformat(timespec="milliseconds"),
                    attempts=run.attempt,
                    reasons=said,
                    txid=txid,
                    application_name=self._application,
                    stream_created=created,
                    account=account,
                )
        if gone and found < run.count:
            if kind is not Kind.EXPIRED:
                reasons += (Reason(iso_ms(self._clock()), str(Failure(Kind.EXPIRED))),)
            count = run.count - found
            first = RecordPosition.parse(run.first) if run.first else None
            yield DeadLetter(
                message_id=str(MessageId.of_run(f"{stream}/{shard}", run)),
                stream=stream,
                shard_id=shard,
                sequence_number=first.sequence if first else None,
                sub_sequence_number=first.sub if first else -1,
                partition_key=None,
                data=None,
                approximate_arrival_timestamp=None,
                attempts=run.attempt,
                reasons=reasons,
                txid=txid,
                application_name=self._application,
                count=count,
                stream_created=created,
                account=account,
            )


def reach(letters: Mapping[str, Sequence[Letter]]) -> str:
    """Return a digest of the dead-lettered records of turns, as 16 hexadecimal digits.

    Two tasks may write at a time, and the pinned one may have read further: with separate files, the other one cannot
    overwrite its records.
    """
    found = [
        (shard, run.last, sum(batch.num_rows for batch in batches), gone)
        for shard, runs in letters.items()
        for run, batches, gone in runs
    ]
    return xxhash.xxh3_64_hexdigest(repr(found).encode())
