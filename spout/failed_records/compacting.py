"""Merges the many small files of a folder of dead letters into few: a query writes one a batch and task."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import xxhash

from kinesis_trident.checkpoint.model.layout import escape
from kinesis_trident.spout.errors import DeadLetterError
from kinesis_trident.spout.failed_records.dead_letters import FILE_NAME, lines_of
from kinesis_trident.spout.failed_records.folders import filesystem, replace
from kinesis_trident.spout.options.redaction import redact

if TYPE_CHECKING:
    from pyarrow import fs

_SIZE = 64 * 2**20
"""Bytes at which a merged file is complete; it takes no further part if it has half of them."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result for one stream: its files before and after, and those that stay because they cannot be read."""

    before: int
    after: int
    strange: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _LetterFile:
    path: str
    size: int
    first: int
    last: int


def compact_letters(
    target: str, application: str, stream: str, is_settled: Callable[[int], bool], size: int = _SIZE
) -> Compacted:
    """Merge the files of one stream, in the order of their names, each letter (messageId and txid) once.

    A merged file is complete before the first of its parts is removed: a compaction that ends in between leaves letters
    twice, in files, which the next one finds. Files of a batch that is not settled stay, because tasks may write them.

    Args:
        target: the folder of the option `deadLetter`.
        application: whose letters are merged.
        stream: of the records.
        is_settled: tells of a txid whether no task writes its letters any more.
        size: the bytes of a merged file, about.

    Raises:
        DeadLetterError: the folder cannot be read or written; nothing is lost.
    """
    folder = f"{escape(application)}/{escape(stream)}"
    try:
        system, root = filesystem(target)
        base = f"{root.rstrip('/')}/{folder}"
        files = [file for file in _files(system, base) if is_settled(file.last)]
        small = [file for file in files if file.size < size // 2]
        firsts = sorted(file.first for file in small)
        # What a compaction that was interrupted has merged into a large file is there once more.
        large = [
            one for one in files if one.size >= size // 2 and _is_any_within(firsts, one.first, one.last)
        ]
        seen = {key for one in large for key, _ in _letters(system, one.path)}
        after, strange = len(files), []
        for group in _groups(small, size):
            if len(group) < 2 and not large:
                continue
            merged, unreadable = _merge(system, group, seen)
            strange += unreadable
            parts = [file for file in group if file.path not in unreadable]
            kept = _write(system, target, folder, base, parts, merged) if parts else ""
            for file in parts:
                if file.path != kept:
                    with suppress(FileNotFoundError):
                        system.delete_file(file.path)
            after += bool(kept) - len(parts)
    except (OSError, ValueError, pa.ArrowException) as error:
        msg = (
            f"cannot compact the dead letters of stream {stream!r} in {redact(target)}: {error}. No letter is lost; "
            "check the folder and its permissions, and compact it again"
        )
        raise DeadLetterError(msg) from error
    return Compacted(len(files), after, tuple(strange))


def _files(system: fs.FileSystem, base: str) -> Iterator[_LetterFile]:
    """Yield the files that tasks and compactions have written, in the order of their names."""
    from pyarrow import fs

    infos = system.get_file_info(fs.FileSelector(base, allow_not_found=True))
    for info in sorted(infos, key=lambda one: one.path):
        found = FILE_NAME.fullmatch(info.base_name)
        if info.is_file and found is not None:
            yield _LetterFile(info.path, info.size, int(found["first"]), int(found["last"] or found["first"]))


def _is_any_within(ordered: list[int], first: int, last: int) -> bool:
    """Return whether any of the ordered numbers lies between two, both included."""
    place = bisect_left(ordered, first)
    return place < len(ordered) and ordered[place] <= last


def _groups(files: Iterable[_LetterFile], size: int) -> Iterator[list[_LetterFile]]:
    """Cut files into groups of about so many bytes."""
    group: list[_LetterFile] = []
    total = 0
    for file in files:
        group.append(file)
        total += file.size
        if total >= size:
            yield group
            group, total = [], 0
    if group:
        yield group


def _merge(
    system: fs.FileSystem, files: Iterable[_LetterFile], seen: set[tuple[str, int]]
) -> tuple[list[bytes], list[str]]:
    """Return the lines of files that were not seen yet, which are seen from here on, and the files left out."""
    lines: list[bytes] = []
    strange: list[str] = []
    for file in files:
        try:
            found = list(_letters(system, file.path))
        except DeadLetterError:
            strange.append(file.path)
            continue
        for key, line in found:
            if key not in seen:
                seen.add(key)
                lines.append(line)
    return lines, strange


def _letters(system: fs.FileSystem, path: str) -> Iterator[tuple[tuple[str, int], bytes]]:
    return (((letter.message_id, letter.txid), line) for letter, line in lines_of(system, path))


def _write(
    system: fs.FileSystem, target: str, folder: str, base: str, parts: list[_LetterFile], lines: list[bytes]
) -> str:
    """Write a merged file, and check that it is complete; return its path, empty if there is nothing to write.

    Raises:
        OSError: it is not complete.
    """
    if not lines:
        return ""
    data = b"".join(line + b"\n" for line in lines)
    first, last = min(file.first for file in parts), max(file.last for file in parts)
    name = f"{first:012d}-{last:012d}-merged-{xxhash.xxh3_64_hexdigest(data)}.jsonl"
    replace(target, f"{folder}/{name}", data)
    found = system.get_file_info(f"{base}/{name}")
    if found.size != len(data):
        msg = f"{name} has {found.size} bytes of {len(data)}"
        raise OSError(msg)
    return str(found.path)
