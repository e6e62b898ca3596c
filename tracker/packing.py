"""Packs runs of records as columns: thousands of failed records of a shard take a tenth of their JSON. Pure.

Neighbouring positions differ in few of their digits, a turn's records fail with few reasons and are due together. So
a chunk of runs keeps the distances between positions, and what its runs share once, in a table. All of it is
`zlib` of msgpack, in base64.

The last run of a chunk determines its end, not the number of runs before: so added, changed or removed runs leave
all other chunks the same, to the byte, and each stored chunk is written once.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.records import Failure, Number, RecordPosition, Run, Time

__all__ = ["PackedRuns", "pack_runs", "packed_size", "unpack_runs"]

_SUB = 32
"""The bits of a sub-sequence number: a position is one number, and the distance to its neighbour another."""

_SUBS = (1 << _SUB) - 1

_HIGHEST = 10**129 << _SUB
"""The bound of positions: Kinesis' sequence numbers have up to 129 digits."""

_ENDS_A_CHUNK = 1024
"""On average one run of this many ends its chunk."""

_MOST_IN_A_CHUNK = 8192

_MOST_BYTES = 32 * 2**20
"""The limit of an unpacked chunk: one with the longest sequence numbers and the most failures is smaller."""

_PREV, _FIRST, _ALONE = 1, 2, 4

_Index = Annotated[int, msgspec.Meta(ge=0)]
_Fate = tuple[Number, Time, tuple[tuple[Time, _Index], ...]]


_UNREADABLE = (
    ValueError,
    OverflowError,
    IndexError,
    StopIteration,
    binascii.Error,
    zlib.error,
    msgspec.MsgspecError,
)


class PackedRuns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`n` runs of one shard in order, packed: together `count` records, for those who read nodes without unpacking."""

    n: int
    count: int
    packed: str


class _Columns(msgspec.Struct, frozen=True, array_like=True):
    """An unpacked chunk.

    `fates`: attempt, due, and the failures as (time, index of the reason); `fate`: the index of each run's fate.
    `flags`: the record before a run is known, its first one is, and that is also its last one. `gaps`: the distance
    of each existing position to the previous one, in order, `width` bytes each. Columns of several bytes are stored
    byte by byte: the first bytes of all numbers are alike.
    """

    reasons: tuple[str, ...]
    fates: tuple[_Fate, ...]
    fate: bytes
    counts: bytes
    flags: bytes
    begin: bytes
    width: int
    gaps: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Columns)


def pack_runs(runs: Sequence[Run]) -> tuple[PackedRuns, ...]:
    """Pack runs into chunks, in order. Their positions come back as numbers, without leading zeros.

    Raises:
        ValueError: a position is not valid.
    """
    return tuple(_packed(chunk) for chunk in _chunks(runs))


def unpack_runs(chunks: Iterable[PackedRuns]) -> tuple[Run, ...]:
    """Unpack the runs of all chunks, in order.

    Raises:
        OrderError: a chunk is not an output of `pack_runs`.
    """
    return tuple(run for chunk in chunks for run in _unpacked(chunk))


def packed_size(chunks: Iterable[PackedRuns]) -> int:
    """Return the approximate bytes of chunks in JSON."""
    return sum(len(chunk.packed) + 32 for chunk in chunks)


def _chunks(runs: Sequence[Run]) -> Iterator[Sequence[Run]]:
    start = 0
    for index, run in enumerate(runs):
        ends = zlib.crc32(run.last.encode()) % _ENDS_A_CHUNK == 0
        if ends or index - start + 1 == _MOST_IN_A_CHUNK:
            yield runs[start : index + 1]
            start = index + 1
    if start < len(runs):
        yield runs[start:]


def _packed(runs: Sequence[Run]) -> PackedRuns:
    reasons: dict[str, int] = {}
    fates: dict[tuple[int, int, tuple[tuple[int, int], ...]], int] = {}
    flags = bytearray()
    # Records that fail together share their failures, mostly as the same object.
    alike: dict[tuple[int, int, int], int] = {}
    fate: list[int] = []
    numbers: list[int] = []
    for run in runs:
        same = (run.attempt, run.due, id(run.failures))
        known = alike.get(same)
        if known is None:
            failures = tuple(
                (failure.time, reasons.setdefault(failure.reason, len(reasons))) for failure in run.failures
            )
            known = alike[same] = fates.setdefault((run.attempt, run.due, failures), len(fates))
        fate.append(known)
        last = _number(run.last)
        flag = 0
        if run.prev is not None:
            flag |= _PREV
            numbers.append(_number(run.prev))
        if run.first:
            first = last if run.first == run.last else _number(run.first)
            flag |= _FIRST | (_ALONE if first == last else 0)
            numbers.append(first)
        if not flag & _ALONE:
            numbers.append(last)
        flags.append(flag)
    begin = numbers[0]
    gaps = [_unsigned(after - before) for before, after in pairwise(numbers)]
    width = max(1, (max(gaps, default=0).bit_length() + 7) // 8)
    matrix = np.frombuffer(b"".join(gap.to_bytes(width, "big") for gap in gaps), np.uint8)
    columns = _Columns(
        tuple(reasons),
        tuple(fates),
        _bytewise(fate),
        _bytewise([run.count for run in runs]),
        bytes(flags),
        begin.to_bytes((begin.bit_length() + 7) // 8 or 1, "big"),
        width,
        matrix.reshape(-1, width).T.tobytes(),
    )
    squeezed = base64.b64encode(zlib.compress(_encoder.encode(columns))).decode()
    return PackedRuns(len(runs), sum(run.count for run in runs), squeezed)


def _unpacked(chunk: PackedRuns) -> Iterator[Run]:
    try:
        columns = _decoder.decode(_inflated(base64.b64decode(chunk.packed, validate=True)))
        runs = _runs(columns, chunk.n)
        if sum(run.count for run in runs) != chunk.count:
            msg = f"they are not {chunk.count} records"
            raise ValueError(msg)
    except _UNREADABLE as error:
        msg = f"packed runs {chunk.packed[:40]!r}... of {chunk.n} cannot be read: {error!r}"
        raise OrderError(msg) from error
    yield from runs


def _inflated(squeezed: bytes) -> bytes:
    stream = zlib.decompressobj()
    raw = stream.decompress(squeezed, _MOST_BYTES)
    if not stream.eof:
        msg = f"more than {_MOST_BYTES} bytes, or cut off"
        raise ValueError(msg)
    return raw


def _runs(columns: _Columns, count: int) -> list[Run]:
    fates = [
        (attempt, due, tuple(Failure(time, columns.reasons[reason]) for time, reason in failures))
        for attempt, due, failures in columns.fates
    ]
    width = columns.width
    matrix = np.frombuffer(columns.gaps, np.uint8).reshape(width, -1).T.tobytes()
    texts = _texts(int.from_bytes(columns.begin, "big"), matrix, width)
    runs = []
    for flag, fate, size in zip(
        columns.flags, _numbers(columns.fate, count), _numbers(columns.counts, count), strict=True
    ):
        if flag > _PREV + _FIRST + _ALONE or (flag & _ALONE and not flag & _FIRST):
            msg = f"unknown flags {flag}"
            raise ValueError(msg)
        prev = next(texts) if flag & _PREV else None
        first = next(texts) if flag & _FIRST else ""
        last = first if flag & _ALONE else next(texts)
        attempt, due, failures = fates[fate]
        runs.append(Run(first, last, size, prev, attempt, due, failures))
    if len(runs) != count or next(texts, None) is not None:
        msg = f"{len(runs)} runs, {count} expected"
        raise ValueError(msg)
    return runs


def _texts(number: int, gaps: bytes, width: int) -> Iterator[str]:
    """Yield the positions as texts: the first, and one for each gap."""
    yield _text(number)
    for at in range(0, len(gaps), width):
        number += _signed(int.from_bytes(gaps[at : at + width], "big"))
        yield _text(number)


def _number(text: str) -> int:
    if ":" not in text:
        return int(text) << _SUB
    position = RecordPosition.parse(text)
    return (position.sequence << _SUB) + position.sub + 1


def _text(number: int) -> str:
    if not 0 <= number < _HIGHEST:
        msg = "a position is not valid"
        raise ValueError(msg)
    sub = number & _SUBS
    return f"{number >> _SUB}:{sub - 1}" if sub else str(number >> _SUB)


def _unsigned(gap: int) -> int:
    """Encode a distance, which may be negative, as a number that begins with zeros if it is short."""
    return gap << 1 if gap >= 0 else (-gap << 1) - 1


def _signed(number: int) -> int:
    return -((number + 1) >> 1) if number & 1 else number >> 1


def _bytewise(numbers: Sequence[int]) -> bytes:
    return np.asarray(numbers, ">u8").view(np.uint8).reshape(-1, 8).T.tobytes()


def _numbers(column: bytes, count: int) -> list[int]:
    numbers: list[int] = (
        np.ascontiguousarray(np.frombuffer(column, np.uint8).reshape(8, count).T).view(">i8")[:, 0].tolist()
    )
    return numbers
