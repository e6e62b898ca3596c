"""Merges the many small files of a folder of dead letters into few: a query writes one a batch and task."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kinesis_trident.checkpoint.model.layout import escape
from kinesis_trident.common.folder import OUTDATED_SECONDS, Folder, FolderError
from kinesis_trident.spout.errors import DeadLetterError
from kinesis_trident.spout.failed_records.dead_letters import (
    LetterFile,
    letter_files,
    name_file,
    read_letters,
)

_SIZE = 64 * 2**20
"""Bytes at which a merged file is complete; it takes no further part if it has half of them."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result for one stream: its files before and after, and those that stay because they are not whole."""

    before: int
    after: int
    strange: tuple[str, ...] = ()


def compact_letters(
    target: str, application: str, stream: str, is_settled: Callable[[int], bool], size: int = _SIZE
) -> Compacted:
    """Merge the files of one stream, in the order of their names, each letter (messageId and txid) once.

    A merged file is complete before the first of its parts is removed: a compaction that ends in between leaves letters
    twice, in files, which the next one finds. Files of a batch that is not settled stay, because tasks may write them;
    a file that was cut off or damaged stays, because a person may restore it. Parts of files that killed tasks have not
    ended go once they are a day old; no reader sees them.

    Args:
        target: the folder of the option `deadLetter`.
        application: whose letters are merged.
        stream: of the records.
        is_settled: tells of a txid whether no task writes its letters any more.
        size: the bytes of a merged file, about.

    Raises:
        DeadLetterError: the folder cannot be read or written; nothing is lost.
    """
    folder = Folder(target)
    below = f"{escape(application)}/{escape(stream)}"
    try:
        folder.remove_parts(below, before=time.time() - OUTDATED_SECONDS)
        files = [file for file in letter_files(folder, below) if is_settled(file.last)]
        small = [file for file in files if file.size < size // 2]
        firsts = sorted(file.first for file in small)
        # What a compaction that was interrupted has merged into a large file is there once more.
        large = [
            one for one in files if one.size >= size // 2 and _is_any_within(firsts, one.first, one.last)
        ]
        seen = set[tuple[str, int]]()
        strange = {file.name for file in large if _take_new(folder, file, seen) is None}
        after = {file.name for file in files}
        for group in _groups(small, size):
            if len(group) < 2 and not large:
                continue
            lines, parts = list[bytes](), list[LetterFile]()
            for file in group:
                found = _take_new(folder, file, seen)
                if found is None:
                    strange.add(file.name)
                else:
                    lines += found
                    parts.append(file)
            kept = _write(folder, below, parts, lines)
            for file in parts:
                if file.name != kept:
                    folder.remove(file.name)
                    after.remove(file.name)
            if kept:
                # It may be whole again: a compaction before may have been cut off in its write.
                after.add(kept)
                strange.discard(kept)
    except FolderError as error:
        msg = (
            f"cannot compact the dead letters of stream {stream!r} in {folder.place}: {error}. No letter is lost; "
            "check the folder and its permissions, and compact it again"
        )
        raise DeadLetterError(msg) from error
    return Compacted(len(files), len(after), tuple(map(folder.path, sorted(strange))))


def _is_any_within(ordered: list[int], first: int, last: int) -> bool:
    """Return whether any of the ordered numbers lies between two, both included."""
    place = bisect_left(ordered, first)
    return place < len(ordered) and ordered[place] <= last


def _groups(files: Iterable[LetterFile], size: int) -> Iterator[list[LetterFile]]:
    """Cut files into groups of about so many bytes."""
    group: list[LetterFile] = []
    total = 0
    for file in files:
        group.append(file)
        total += file.size
        if total >= size:
            yield group
            group, total = [], 0
    if group:
        yield group


def _take_new(folder: Folder, file: LetterFile, seen: set[tuple[str, int]]) -> list[bytes] | None:
    """Return the lines of letters that were not seen yet, and are from here on; None if the file is not whole."""
    letters = read_letters(folder, file.name)
    if letters is None:
        return None
    lines = []
    for letter, line in letters:
        key = letter.message_id, letter.txid
        if key not in seen:
            seen.add(key)
            lines.append(line)
    return lines


def _write(folder: Folder, below: str, parts: list[LetterFile], lines: list[bytes]) -> str:
    """Write a merged file, and check that it is whole; return its name, empty if there is nothing to write.

    Raises:
        FolderError: it is not whole.
    """
    if not lines:
        return ""
    data = b"".join(line + b"\n" for line in lines)
    first, last = min(file.first for file in parts), max(file.last for file in parts)
    name = f"{below}/{name_file(f'{first:012d}-{last:012d}', data, '-merged-')}"
    folder.write(name, data)
    # The parts are removed next, and nobody else has these letters.
    if folder.read(name) != data:
        msg = f"{folder.path(name)} does not hold what was written"
        raise FolderError(msg)
    return name
