"""Records that failed for good, as JSON documents, and the files of a folder that hold them.

    <application>/<stream>/<txid>-<shard>-<plan>-<reach>~<digest>.jsonl
    <application>/<stream>/<first txid>-<last txid>-merged-<digest>.jsonl

The digest is of the content, so that a file which was cut off, or damaged, is known by its name: the writer, the
readers and the compaction leave it out, and name it. A file without a digest is of release 1.0.0: it counts if each of
its lines is a document.

Two tasks that write the same letters at one time may give them other times, and so another digest: names that are equal
up to the digest are of the same letters.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec
import xxhash

from kinesis_trident.checkpoint.model.layout import escape
from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.common.folder import Folder, FolderError, NoFileError, digest_of
from kinesis_trident.common.visible_text import make_reason, make_visible
from kinesis_trident.spout.errors import DeadLetterError
from kinesis_trident.tracker.failure import OF_ANOTHER_STREAM
from kinesis_trident.tracker.records import Number

if TYPE_CHECKING:
    from _typeshed import StrPath

log = logging.getLogger(__name__)

_LISTINGS = 100
"""How often the files are listed again, because some are gone, until that is an error."""

_SUFFIX = ".jsonl"
# No escaped name has the mark before a digest.
_DIGEST = re.compile(r"(~|-merged-)([0-9a-f]{16})\.jsonl\Z")
_NAME = re.compile(
    r"(?P<first>[0-9]{12,19})-(?:(?P<last>[0-9]{12,19})-merged-[0-9a-f]{16}|[^0-9].*)\.jsonl", re.DOTALL
)


class Reason(msgspec.Struct, frozen=True):
    """One failed delivery: its time (ISO 8601, UTC) and reason."""

    time: str
    reason: str


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One document.

    `data` is the original payload, base64 in JSON; None if the record is past the stream's retention. Then
    the document may stand for `count` records, from the first to the last that `message_id` names. With the last reason
    `UNREADABLE`, `data` is the whole record in JSON, as Kinesis sent it, but for aggregates and their user records.
    `stream_created` (ISO 8601, UTC) and `account` are of the stream that had the record; None in letters of earlier
    releases, and where that stream is not known.
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
    stream_created: str | None = None
    account: str | None = None

    def is_of_another_stream(self, created: int, account: str = "") -> bool:
        """Return whether the record is known to be of another stream of its name.

        Args:
            created: the stream's creation time, in epoch milliseconds.
            account: that of the stream; empty if it is not known.
        """
        if self.reasons and self.reasons[-1].reason == str(OF_ANOTHER_STREAM):
            return True
        is_older = self.stream_created not in (None, iso_ms(created))
        return is_older or bool(account and self.account and account != self.account)


def iso_ms(milliseconds: int) -> str:
    """Return epoch milliseconds as letters have times."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


_decoder = msgspec.json.Decoder(DeadLetter)


def parse_letter(data: bytes) -> DeadLetter:
    """Return the letter of a document.

    Raises:
        one of UNREADABLE: it is none.
    """
    return _decoder.decode(data)


class LetterFile(NamedTuple):
    """A file of a stream's letters: its name below the folder of the option, its size, the first and the last txid."""

    name: str
    size: int
    first: int
    last: int

    @classmethod
    def of(cls, name: str, size: int = 0) -> Self | None:
        """Return the file of a name; None if no release writes such a name."""
        found = _NAME.fullmatch(name.rpartition("/")[2])
        if found is None:
            return None
        return cls(name, size, int(found["first"]), int(found["last"] or found["first"]))


def letter_files(folder: Folder, below: str) -> list[LetterFile]:
    """Return the files that tasks and compactions have written in a folder of a stream, in the order of their names.

    Raises:
        FolderError: the folder cannot be read.
    """
    found = (LetterFile.of(*file) for file in folder.files(below))
    return [file for file in found if file is not None]


def name_file(stem: str, data: bytes, mark: str = "~") -> str:
    """Return the name of a file of letters with this content; the mark is "-merged-" for a merged one."""
    return f"{stem}{mark}{digest_of(data)}{_SUFFIX}"


def read_letters(folder: Folder, name: str) -> list[tuple[DeadLetter, bytes]] | None:
    """Return the letters of one file, each with its line; None if the file is not whole, which the log says.

    Raises:
        FolderError: the file cannot be read.
    """
    data = folder.read(name)
    known = _DIGEST.search(name)
    if known is not None and known[2] != digest_of(data):
        why = f"its {len(data)} bytes do not have the digest in its name"
    else:
        letters, why = _parse(data)
        if not why:
            return letters
    log.warning(
        "the file of dead letters %s was cut off or damaged, and is left out: %s. Restore it, or move it elsewhere",
        make_visible(folder.path(name)),
        why,
    )
    return None


def read_files(
    folder: Folder, list_names: Callable[[], list[str]], *, leaves_out: bool = False
) -> Iterator[DeadLetter]:
    """Yield the letters of files of a folder, each once, also where a compaction merges files meanwhile.

    Args:
        folder: of the option `deadLetter`.
        list_names: is called again where a file is gone: others have its letters by then.
        leaves_out: a file that cannot be read is left out, and the log names it.

    Raises:
        FolderError: a file cannot be read, or files go faster than they can be read.
    """
    read, yielded = set[str](), array("Q")
    for _ in range(_LISTINGS):
        before = set(yielded)
        names = list_names()
        # A listing may have a merged file, and parts of it that are not removed yet.
        has_merged = any("-merged-" in name for name in names)
        try:
            for name in names:
                known = _DIGEST.search(name)
                # Merged files of the same txids may hold different letters.
                same = name[: known.start()] if known is not None and known[1] == "~" else name
                if not read.isdisjoint((same, name)):
                    continue
                try:
                    found = read_letters(folder, name)
                except FolderError as error:
                    if not leaves_out or isinstance(error, NoFileError):
                        raise
                    log.warning("the file of dead letters %s cannot be read: %s", make_visible(name), error)
                    found = None
                read.add(name if found is None else same)
                for letter, _line in found or ():
                    key = f"{letter.application_name}\0{letter.message_id}\0{letter.txid}".encode()
                    # Eight bytes a letter: there may be very many.
                    digest = xxhash.xxh3_64_intdigest(key)
                    if digest not in before:
                        yielded.append(digest)
                        if has_merged:
                            before.add(digest)
                        yield letter
        except NoFileError:
            continue
        return
    msg = "its files are merged or removed faster than they can be read: read them again later"
    raise FolderError(msg)


def read_dead_letters(
    folder: StrPath, among: Mapping[tuple[str, str], Collection[int]] | None = None
) -> Iterator[DeadLetter]:
    """Yield all dead letters below a folder, file by file in the order of their names.

    A file that was cut off or damaged is left out, and the log names it.

    Args:
        folder: a local path, or any URI that the writer accepts.
        among: by application and stream, the txids of the letters that are wanted. Files whose path says that they hold
            none of these are not read; the others may hold more.

    Raises:
        DeadLetterError: the folder cannot be read.
    """
    opened = Folder(str(folder))
    wanted = {(escape(one), escape(other)): txids for (one, other), txids in (among or {}).items()}

    def list_names() -> list[str]:
        files = opened.files(deep=True, must_exist=True)
        names = [file.name for file in files if file.name.endswith(_SUFFIX)]
        return names if among is None else [name for name in names if _may_hold(name, wanted)]

    try:
        yield from read_files(opened, list_names)
    except FolderError as error:
        msg = (
            f"cannot read dead letters from {opened.place}: {error}. Pass the folder of the option deadLetter"
        )
        raise DeadLetterError(msg) from error


def _may_hold(name: str, wanted: Mapping[tuple[str, str], Collection[int]]) -> bool:
    *_, application, stream, _ = ("", "", *name.split("/"))
    file = LetterFile.of(name)
    if file is None:
        return True
    return any(file.first <= txid <= file.last for txid in wanted.get((application, stream), ()))


def _parse(data: bytes) -> tuple[list[tuple[DeadLetter, bytes]], str]:
    """Return the letters of lines, and why one of them is none; empty if all are."""
    letters = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            letters.append((parse_letter(line), line))
        except UNREADABLE as error:
            return [], f"line {number} is not a dead letter: {make_reason(str(error))}"
    return letters, ""
