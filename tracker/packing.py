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
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice, repeat
from operator import contains
from operator import sub as minus
from threading import Lock
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.records import Failure, NotDone, Number, RecordPosition, Run, Time

__all__ = ["PackedRuns", "pack_runs", "pack_same_runs", "packed_size", "unpack_pieces", "unpack_runs"]

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

_MOST_KEPT = 32_768
"""The most runs that stay in memory with what they are packed to, some MiB: twice as many as a plan can name."""

_PREV, _FIRST, _ALONE = 1, 2, 4

_Index = Annotated[int, msgspec.Meta(ge=0)]
_Fate = tuple[Number, Time, tuple[tuple[Time, _Index], ...]]


_UNREADABLE = (
    ValueError,
    OverflowError,
    IndexError,
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


class _Rows(NamedTuple):
    """The fields of the runs of a chunk; `fates`: attempt, due, failures."""

    firsts: list[str]
    lasts: list[str]
    counts: list[int]
    prevs: list[str | None]
    fates: list[tuple[int, int, tuple[Failure, ...]]]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Columns)


def pack_runs(runs: Sequence[Run]) -> tuple[PackedRuns, ...]:
    """Pack runs into chunks, in order. Their positions come back as numbers, without leading zeros.

    Raises:
        ValueError: a position is not valid.
    """
    return tuple(_packed(chunk) for chunk in _chunks(runs))


def pack_same_runs(runs: tuple[Run, ...]) -> tuple[PackedRuns, ...]:
    """Pack runs as `pack_runs` does, once if they are the same object again soon.

    The runs that a plan takes up are packed to see how many fit, in the offset, and in ZooKeeper.
    """
    return _packed_lately.pack(runs)


class _Lately:
    """Remembers what lists of together `most` runs were packed to, those that were used last.

    Runs are the same if their list is the same object: thousands are not compared.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._known: OrderedDict[int, tuple[tuple[Run, ...], tuple[PackedRuns, ...]]] = OrderedDict()
        self._lock = Lock()

    def pack(self, runs: tuple[Run, ...]) -> tuple[PackedRuns, ...]:
        """Return what `pack_runs` returns."""
        key = id(runs)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key][1]
        packed = pack_runs(runs)
        with self._lock:
            if key not in self._known:
                # As long as it is here, no other list gets its id.
                self._known[key] = runs, packed
                self._count += len(runs)
            while self._count > self._most:
                _, (forgotten, _) = self._known.popitem(last=False)
                self._count -= len(forgotten)
        return packed


_packed_lately = _Lately(_MOST_KEPT)


def unpack_runs(chunks: Iterable[PackedRuns]) -> tuple[Run, ...]:
    """Unpack the runs of all chunks, in order.

    Raises:
        OrderError: a chunk is not an output of `pack_runs`.
    """
    return tuple(
        Run(first, last, size, prev, *fate)
        for chunk in chunks
        for first, last, size, prev, fate in zip(*_unpacked(chunk), strict=True)
    )


def unpack_pieces(chunks: Iterable[PackedRuns]) -> tuple[NotDone, ...]:
    """Unpack the pieces of an outcome, packed as runs whose newest failure is the reason.

    Raises:
        OrderError: as `unpack_runs`.
    """
    found: list[NotDone] = []
    for chunk in chunks:
        rows = _unpacked(chunk)
        reasons = [failures[-1].reason if failures else "" for _, _, failures in rows.fates]
        found += map(NotDone, rows.firsts, rows.lasts, rows.counts, reasons, rows.prevs)
    return tuple(found)


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
    texts: list[str] = []
    for run in runs:
        same = (run.attempt, run.due, id(run.failures))
        known = alike.get(same)
        if known is None:
            failures = tuple(
                (failure.time, reasons.setdefault(failure.reason, len(reasons))) for failure in run.failures
            )
            known = alike[same] = fates.setdefault((run.attempt, run.due, failures), len(fates))
        fate.append(known)
        prev, first, last = run.prev, run.first, run.last
        flag = 0
        if prev is not None:
            flag = _PREV
            texts.append(prev)
        if first == last:
            flag |= _FIRST | _ALONE
        elif first:
            flag |= _FIRST
            texts.append(first)
        texts.append(last)
        flags.append(flag)
    numbers = _numbers_of(texts)
    begin = numbers[0]
    gaps = list(map(minus, islice(numbers, 1, None), numbers))
    if gaps and min(gaps) < 0:
        gaps = [gap << 1 if gap >= 0 else (-gap << 1) - 1 for gap in gaps]
    else:
        gaps = [gap << 1 for gap in gaps]
    width = max(1, (max(gaps, default=0).bit_length() + 7) // 8)
    matrix = np.frombuffer(b"".join([gap.to_bytes(width, "big") for gap in gaps]), np.uint8)
    counts = [run.count for run in runs]
    columns = _Columns(
        tuple(reasons),
        tuple(fates),
        _bytewise(fate),
        _bytewise(counts),
        bytes(flags),
        begin.to_bytes((begin.bit_length() + 7) // 8 or 1, "big"),
        width,
        matrix.reshape(-1, width).T.tobytes(),
    )
    squeezed = base64.b64encode(zlib.compress(_encoder.encode(columns))).decode()
    return PackedRuns(len(runs), sum(counts), squeezed)


def _unpacked(chunk: PackedRuns) -> _Rows:
    try:
        columns = _decoder.decode(_inflated(base64.b64decode(chunk.packed, validate=True)))
        rows = _rows(columns, chunk.n)
        if sum(rows.counts) != chunk.count:
            msg = f"they are not {chunk.count} records"
            raise ValueError(msg)
    except _UNREADABLE as error:
        msg = f"packed runs {chunk.packed[:40]!r}... of {chunk.n} cannot be read: {error!r}"
        raise OrderError(msg) from error
    return rows


def _inflated(squeezed: bytes) -> bytes:
    stream = zlib.decompressobj()
    raw = stream.decompress(squeezed, _MOST_BYTES)
    if not stream.eof:
        msg = f"more than {_MOST_BYTES} bytes, or cut off"
        raise ValueError(msg)
    return raw


def _rows(columns: _Columns, count: int) -> _Rows:
    fates = [
        (attempt, due, tuple(Failure(time, columns.reasons[reason]) for time, reason in failures))
        for attempt, due, failures in columns.fates
    ]
    flags = np.frombuffer(columns.flags, np.uint8).astype(np.int64)
    unknown = (flags > _PREV + _FIRST + _ALONE) | ((flags & _ALONE != 0) & (flags & _FIRST == 0))
    if unknown.any():
        msg = f"unknown flags {flags[unknown][0]}"
        raise ValueError(msg)
    texts = _texts(columns)
    known, begins, ends = ((flags & bit != 0).astype(np.int64) for bit in (_PREV, _FIRST, _ALONE))
    ends = 1 - ends
    beyond = np.cumsum(known + begins + ends)
    if len(flags) != count or (beyond[-1] if count else 0) != len(texts):
        msg = f"{len(flags)} runs of {len(texts)} positions, {count} expected"
        raise ValueError(msg)
    # A position that is not there is one of two more.
    places: list[Any] = [*texts, "", None]
    last = beyond - 1
    firsts = np.where(begins, last - ends, len(texts)).tolist()
    prevs = np.where(known, last - ends - begins, len(texts) + 1).tolist()
    return _Rows(
        list(map(places.__getitem__, firsts)),
        list(map(places.__getitem__, last.tolist())),
        _numbers(columns.counts, count),
        list(map(places.__getitem__, prevs)),
        list(map(fates.__getitem__, _numbers(columns.fate, count))),
    )


def _texts(columns: _Columns) -> list[str]:
    """Return the positions as texts: the first, and one for each gap."""
    width = columns.width
    gaps = np.frombuffer(columns.gaps, np.uint8).reshape(width, -1).T.tobytes()
    unsigned = [int.from_bytes(gaps[at : at + width], "big") for at in range(0, len(gaps), width)]
    signed = [-((number + 1) >> 1) if number & 1 else number >> 1 for number in unsigned]
    numbers = list(accumulate(signed, initial=int.from_bytes(columns.begin, "big")))
    if min(numbers) < 0 or max(numbers) >= _HIGHEST:
        msg = "a position is not valid"
        raise ValueError(msg)
    return [
        f"{number >> _SUB}:{within - 1}" if (within := number & _SUBS) else str(number >> _SUB)
        for number in numbers
    ]


def _numbers_of(texts: Sequence[str]) -> list[int]:
    """Return positions as numbers."""
    if any(map(contains, texts, repeat(":"))):
        return [(at.sequence << _SUB) + at.sub + 1 for at in map(RecordPosition.parse, texts)]
    return [number << _SUB for number in map(int, texts)]


def _bytewise(numbers: Sequence[int]) -> bytes:
    return np.asarray(numbers, ">u8").view(np.uint8).reshape(-1, 8).T.tobytes()


def _numbers(column: bytes, count: int) -> list[int]:
    numbers: list[int] = (
        np.ascontiguousarray(np.frombuffer(column, np.uint8).reshape(8, count).T).view(">i8")[:, 0].tolist()
    )
    return numbers
