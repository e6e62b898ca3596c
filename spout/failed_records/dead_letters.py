"""Writes records that failed for good as JSON documents to a stream or to files of a folder.

A turn is dead-lettered before it is pinned, so a crash in between writes it again. In a folder the turn determines the
file's name, and the second write replaces the first; in a stream documents can appear twice, with the same `messageId`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa
import xxhash
from pyarrow import fs

from kinesis_trident.checkpoint.model.layout import escape
from kinesis_trident.spout.errors import DeadLetterError
from kinesis_trident.spout.failed_records.folders import filesystem, replace
from kinesis_trident.spout.kinesis import Kinesis, KinesisError
from kinesis_trident.spout.options.redaction import shown
from kinesis_trident.tracker.errors import UNREADABLE
from kinesis_trident.tracker.reasons import make_reason
from kinesis_trident.tracker.records import Number, RecordPosition, Run

if TYPE_CHECKING:
    from _typeshed import StrPath

__all__ = [
    "DeadLetter",
    "DeadLetterOptions",
    "DeadLetterWriter",
    "Letter",
    "Reason",
    "reach",
    "read_dead_letters",
]

Letter = tuple[Run, Sequence[pa.RecordBatch], bool]
"""A run that failed for good, its records that were found, and whether others have left the stream.

The batches have the columns partitionKey, data, sequenceNumber, subSequenceNumber,
approximateArrivalTimestamp.
"""

_KINESIS = "kinesis://"
_SUFFIX = ".jsonl"


class DeadLetterOptions(Protocol):
    """The part of `spout.options.source.SourceOptions` that the writer uses."""

    @property
    def dead_letter(self) -> str | None:
        """Return `kinesis://name`, a local folder, or a folder's URI."""

    @property
    def application_name(self) -> str:
        """Return the name that is part of every document and of the files' paths."""


class Reason(msgspec.Struct, frozen=True):
    """One failed delivery: its time (ISO 8601, UTC) and reason."""

    time: str
    reason: str


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One document.

    `data` is the original payload, base64 in JSON; None if the record is past the stream's retention. Then
    the document may stand for `count` records, from the first to the last that `message_id` names.
    """

    message_id: str
    stream: str
    shard_id: str
    sequence_number: str | None
    sub_sequence_number: Number
    partition_key: str | None
    data: bytes | None
    approximate_arrival_timestamp: str | None
    attempts: Number
    reasons: tuple[Reason, ...]
    txid: Number
    application_name: str
    count: Number = 1


class DeadLetterWriter:
    """Writes the dead letters of a turn to the target of the option `deadLetter`.

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
        self._application = options.application_name
        self._kinesis = kinesis
        self._clock = clock

    def write(
        self, *, stream: str, shard: str, txid: int, letters: Iterable[Letter], plan: str = ""
    ) -> list[DeadLetter]:
        """Write the dead letters of a turn; durable on return.

        Args:
            stream: the stream that is read.
            shard: of the turn.
            txid: of the batch.
            letters: the runs of the turn, in shard order.
            plan: the mark of the batch's plan. It distinguishes two batches with the same txid, which exist if
                ZooKeeper's data was lost in between.

        Returns:
            The documents.

        Raises:
            DeadLetterError: naming the target, the error and what to do.
        """
        documents = [
            document
            for run, batches, gone in letters
            for document in self._documents(stream, shard, txid, run, batches, gone=gone)
        ]
        lines = [msgspec.json.encode(document) for document in documents]
        try:
            if self._target.startswith(_KINESIS):
                keys = [document.partition_key or document.message_id[:256] for document in documents]
                name = self._target.removeprefix(_KINESIS).strip("/")
                self._kinesis.put_records(name, list(zip(lines, keys, strict=True)))
            else:
                name = f"{txid:012d}-{escape(shard)}{f'-{escape(plan)}' if plan else ''}{_SUFFIX}"
                folder = f"{escape(self._application)}/{escape(stream)}"
                replace(self._target, f"{folder}/{name}", b"".join(line + b"\n" for line in lines))
        except (KinesisError, OSError, ValueError, pa.ArrowException) as error:
            msg = (
                f"cannot write {len(documents)} dead letters of stream {stream!r}, shard {shard}, txid "
                f"{txid} to {shown(self._target)}: {error}. Check the option deadLetter (kinesis://name, or "
                "a folder that every executor reaches), its permissions and its free space; the batch is "
                "retried"
            )
            raise DeadLetterError(msg) from error
        return documents

    def _documents(
        self, stream: str, shard: str, txid: int, run: Run, batches: Sequence[pa.RecordBatch], *, gone: bool
    ) -> Iterator[DeadLetter]:
        reasons = tuple(Reason(_iso_ms(failure.time), failure.reason) for failure in run.failures)
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
                yield DeadLetter(
                    message_id=f"{stream}/{shard}:{RecordPosition(int(sequence), sub)}",
                    stream=stream,
                    shard_id=shard,
                    sequence_number=sequence,
                    sub_sequence_number=sub,
                    partition_key=key,
                    data=data,
                    approximate_arrival_timestamp=arrival.astimezone(UTC).isoformat(timespec="milliseconds"),
                    attempts=run.attempt,
                    reasons=reasons,
                    txid=txid,
                    application_name=self._application,
                )
        if gone and found < run.count:
            if not reasons or not reasons[-1].reason.startswith("EXPIRED"):
                reasons += (Reason(_iso_ms(self._clock()), "EXPIRED"),)
            count = run.count - found
            first = RecordPosition.parse(run.first) if run.first else None
            where = run.first or f"after {run.prev}"
            yield DeadLetter(
                message_id=f"{stream}/{shard}:{where if run.count == 1 else f'{where}..{run.last}'}",
                stream=stream,
                shard_id=shard,
                sequence_number=str(first.sequence) if first else None,
                sub_sequence_number=first.sub if first else -1,
                partition_key=None,
                data=None,
                approximate_arrival_timestamp=None,
                attempts=run.attempt,
                reasons=reasons,
                txid=txid,
                application_name=self._application,
                count=count,
            )


def read_dead_letters(folder: StrPath) -> Iterator[DeadLetter]:
    """Yield all dead letters below a folder, file by file in the order of their names.

    Args:
        folder: a local path, or any URI that the writer accepts.

    Raises:
        DeadLetterError: the folder cannot be read, or a line is not a dead letter; it names file and line.
    """
    target = str(folder)
    decoder = msgspec.json.Decoder(DeadLetter)
    try:
        system, root = filesystem(target)
        infos = system.get_file_info(fs.FileSelector(root, recursive=True))
        for path in sorted(info.path for info in infos if info.is_file and info.path.endswith(_SUFFIX)):
            with system.open_input_stream(path) as stream:
                lines = stream.read().splitlines()
            for number, line in enumerate(lines, 1):
                try:
                    letter = decoder.decode(line)
                except UNREADABLE as error:
                    why = make_reason(str(error))
                    msg = f"{path}, line {number} is not a dead letter: {why}. Move the file elsewhere"
                    raise DeadLetterError(msg) from None
                yield letter
    except (OSError, ValueError, pa.ArrowException) as error:
        msg = f"cannot read dead letters from {shown(target)}: {error}. Pass the folder of the option deadLetter"
        raise DeadLetterError(msg) from error


def _iso_ms(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def reach(letters: Sequence[Letter]) -> str:
    """Return a digest of the dead-lettered records of a turn, as 16 hexadecimal digits.

    Two tasks may write at a time, and the pinned one may have read further: with separate files, the other one cannot
    overwrite its records.
    """
    found = [(run.last, sum(batch.num_rows for batch in batches), gone) for run, batches, gone in letters]
    return xxhash.xxh3_64_hexdigest(repr(found).encode())
