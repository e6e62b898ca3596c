"""Writes records that failed for good as JSON documents to a stream or to files of a folder.

A turn is dead-lettered before it is pinned, so a crash in between writes it again. In a folder the turns that are
written together determine the file's name, and the second write replaces the first, or leaves out what is there; in a
stream documents can appear twice, with the same `messageId`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa
import xxhash
from pyarrow import fs

from kinesis_trident.checkpoint.model.layout import escape
from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.spout.errors import DeadLetterError
from kinesis_trident.spout.failed_records.folders import filesystem, replace
from kinesis_trident.spout.kinesis import Kinesis, KinesisError
from kinesis_trident.spout.kinesis.pages.decoding import why_unreadable
from kinesis_trident.spout.kinesis.record_batches import PLAIN_SUB, UNREADABLE_SUB
from kinesis_trident.spout.options.redaction import redact
from kinesis_trident.tracker.reasons import make_reason
from kinesis_trident.tracker.records import Number, RecordPosition, Run

if TYPE_CHECKING:
    from _typeshed import StrPath

Letter = tuple[Run, Sequence[pa.RecordBatch], bool]
"""A run that failed for good, its records that were found, and whether others have left the stream.

The batches have the columns partitionKey, data, sequenceNumber, subSequenceNumber,
approximateArrivalTimestamp.
"""

_KINESIS = "kinesis://"
_SUFFIX = ".jsonl"
FILE_NAME = re.compile(
    r"(?P<first>[0-9]{12,19})-(?:(?P<last>[0-9]{12,19})-merged-[0-9a-f]{16}|[^0-9].*)\.jsonl", re.DOTALL
)
"""The name of a file: the txid of its letters, or the first and the last of them where it was merged."""


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
    the document may stand for `count` records, from the first to the last that `message_id` names. With the last reason
    `UNREADABLE`, `data` is the whole record in JSON, as Kinesis sent it.
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


_decoder = msgspec.json.Decoder(DeadLetter)


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
    ) -> list[DeadLetter]:
        """Write the dead letters of turns of one stream and batch, in a folder as one file; durable on return.

        Args:
            stream: the stream that is read.
            txid: of the batch.
            letters: the runs of each turn by shard, in shard order.
            plan: the mark of the batch's plan. It distinguishes two batches with the same txid, which exist if
                ZooKeeper's data was lost in between.
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
            for document in self._documents(stream, shard, txid, run, batches, gone=gone)
        ]
        shards = ", ".join(letters)
        try:
            folder = f"{escape(self._application)}/{escape(stream)}"
            is_stream = self._target.startswith(_KINESIS)
            if again and not is_stream:
                there = self._find_written(folder, txid, plan)
                documents = [document for document in documents if document.message_id not in there]
            lines = [msgspec.json.encode(document) for document in documents]
            if is_stream:
                keys = [document.partition_key or document.message_id[:256] for document in documents]
                name = self._target.removeprefix(_KINESIS).strip("/")
                self._kinesis.put_records(name, list(zip(lines, keys, strict=True)))
            elif lines:
                mark = f"{escape(plan)}-{reach(letters)}" if plan else ""
                first = escape(next(iter(letters)))
                name = f"{txid:012d}-{first}{f'-{mark}' if mark else ''}{_SUFFIX}"
                replace(self._target, f"{folder}/{name}", b"".join(line + b"\n" for line in lines))
        except (KinesisError, OSError, ValueError, pa.ArrowException) as error:
            msg = (
                f"cannot write {len(documents)} dead letters of stream {stream!r}, shard {shards}, txid "
                f"{txid} to {redact(self._target)}: {error}. Check the option deadLetter (kinesis://name, or "
                "a folder that every executor reaches), its permissions and its free space; the batch is "
                "retried"
            )
            raise DeadLetterError(msg) from error
        return documents

    def _find_written(self, folder: str, txid: int, plan: str) -> set[str]:
        """Return the message ids of the letters that are there of a plan."""
        system, root = filesystem(self._target)
        selected = fs.FileSelector(f"{root.rstrip('/')}/{folder}", allow_not_found=True)
        names = [info.path for info in system.get_file_info(selected) if info.is_file]
        found = sorted(
            path
            for path in names
            if path.rpartition("/")[2].startswith(f"{txid:012d}-") and f"-{plan}-" in path
        )
        return {letter.message_id for path in found for letter, _ in lines_of(system, path)}

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
                said = reasons
                if sub == UNREADABLE_SUB and not (said and said[-1].reason.startswith("UNREADABLE")):
                    said += (Reason(_iso_ms(self._clock()), why_unreadable(data)),)
                yield DeadLetter(
                    message_id=f"{stream}/{shard}:{RecordPosition(int(sequence), sub)}",
                    stream=stream,
                    shard_id=shard,
                    sequence_number=sequence,
                    sub_sequence_number=max(sub, PLAIN_SUB),
                    partition_key=key,
                    data=data,
                    approximate_arrival_timestamp=arrival.astimezone(UTC).isoformat(timespec="milliseconds"),
                    attempts=run.attempt,
                    reasons=said,
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


def read_dead_letters(
    folder: StrPath, among: Mapping[tuple[str, str], Collection[int]] | None = None
) -> Iterator[DeadLetter]:
    """Yield all dead letters below a folder, file by file in the order of their names.

    Args:
        folder: a local path, or any URI that the writer accepts.
        among: by application and stream, the txids of the letters that are wanted. Files whose path says that they hold
            none of these are not read; the others may hold more.

    Raises:
        DeadLetterError: the folder cannot be read, or a line is not a dead letter; it names file and line.
    """
    target = str(folder)
    try:
        system, root = filesystem(target)
        infos = system.get_file_info(fs.FileSelector(root, recursive=True))
        paths = sorted(info.path for info in infos if info.is_file and info.path.endswith(_SUFFIX))
        if among is not None:
            wanted = {(escape(one), escape(other)): txids for (one, other), txids in among.items()}
            paths = [path for path in paths if _may_hold(path, wanted)]
        for path in paths:
            yield from (letter for letter, _ in lines_of(system, path))
    except (OSError, ValueError, pa.ArrowException) as error:
        msg = f"cannot read dead letters from {redact(target)}: {error}. Pass the folder of the option deadLetter"
        raise DeadLetterError(msg) from error


def _may_hold(path: str, wanted: Mapping[tuple[str, str], Collection[int]]) -> bool:
    *_, application, stream, name = ("", "", *path.split("/"))
    found = FILE_NAME.fullmatch(name)
    if found is None:
        return True
    first, last = int(found["first"]), int(found["last"] or found["first"])
    return any(first <= txid <= last for txid in wanted.get((application, stream), ()))


def lines_of(system: fs.FileSystem, path: str) -> Iterator[tuple[DeadLetter, bytes]]:
    """Yield the dead letters of one file, each with its line.

    Raises:
        DeadLetterError: a line is not a dead letter.
        OSError: the file cannot be read.
    """
    with system.open_input_stream(path) as stream:
        lines = stream.read().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            letter = _decoder.decode(line)
        except UNREADABLE as error:
            why = make_reason(str(error))
            msg = f"{path}, line {number} is not a dead letter: {why}. Move the file elsewhere"
            raise DeadLetterError(msg) from None
        yield letter, line


def _iso_ms(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


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
