"""Packs very many runs of records into a text for JSON: base64 of zlib of JSON. Pure.

In that JSON a run is an array: `[first, last, count, prev, attempt, due, failures]`, and in an outcome
`[first, last, count, prev, reason]`. The last item is an index into the `failures`, or the `reasons`, that stand before
all runs: records that fail together share them. One by one they would take half of the space, and after reading most
of the memory.

Release 1.0.0 packed runs in chunks, as columns: `unpack_chunks` reads them.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Annotated, TypeAlias

import msgspec

from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.records import (
    SEQUENCE,
    Failure,
    NotDone,
    Number,
    RecordPosition,
    Run,
    Time,
)

Runs: TypeAlias = Sequence[Run] | Mapping[str, Sequence[Run]] | Mapping[str, Sequence[NotDone]]
"""The runs of one shard, or of several by shard, or those of an outcome."""

_DEFLATE = 4, zlib.DEFLATED, 11, 5, zlib.Z_FILTERED
"""Digits of positions are random: matches of three or four of them, which other strategies take, cost a fifth more."""

_MOST_TIMES = 300
"""The limit of what a text unpacks to, in lengths of the text: runs take 4 to 40, those with 16 failures each whose
reasons are control characters, six bytes each in JSON, up to 250, and zeros 770."""

_Index = Annotated[int, msgspec.Meta(ge=0)]


class _Row(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The beginning of a row; its positions are checked all together (`_check_positions`)."""

    first: str
    last: str
    count: Number
    prev: str | None


class _RunRow(_Row, array_like=True, frozen=True, gc=False):
    attempt: Number
    due: Time
    failures: _Index


class _PieceRow(_Row, array_like=True, frozen=True, gc=False):
    reason: _Index


class _PackedRuns(msgspec.Struct, frozen=True):
    failures: tuple[tuple[Failure, ...], ...]
    runs: list[_RunRow] | dict[str, list[_RunRow]]


class _PackedPieces(msgspec.Struct, frozen=True):
    reasons: tuple[str, ...]
    runs: dict[str, list[_PieceRow]]


_PLAIN = frozenset(range(1, 130))
"""The numbers of digits of sequence numbers."""

_is_position = re.compile(rf"\A{SEQUENCE}\Z").match

_encoder = msgspec.json.Encoder()
_run_decoder = msgspec.json.Decoder(_PackedRuns)
_piece_decoder = msgspec.json.Decoder(_PackedPieces)


def pack(runs: Runs) -> str:
    """Return runs as a text."""
    shared: dict[Hashable, int] = {}
    # Records that fail together share their failures, mostly as the same object: the others are compared.
    known: dict[int, int] = {}

    def index(value: Hashable) -> int:
        at = known.get(id(value))
        if at is None:
            at = known[id(value)] = shared.setdefault(value, len(shared))
        return at

    def rows(some: Sequence[Run] | Sequence[NotDone]) -> list[tuple[object, ...]]:
        return [
            (run.first, run.last, run.count, run.prev, index(run.reason))
            if isinstance(run, NotDone)
            else (run.first, run.last, run.count, run.prev, run.attempt, run.due, index(run.failures))
            for run in some
        ]

    packed = {shard: rows(some) for shard, some in runs.items()} if isinstance(runs, Mapping) else rows(runs)
    name = "reasons" if any(isinstance(value, str) for value in shared) else "failures"
    deflate = zlib.compressobj(*_DEFLATE)
    data = deflate.compress(_encoder.encode({name: list(shared), "runs": packed}))
    return base64.b64encode(data + deflate.flush()).decode()


def unpack(text: str) -> tuple[Run, ...] | dict[str, tuple[Run, ...]]:
    """Return the runs of one shard, or of several by shard, that `pack` has packed.

    Raises:
        OrderError: the text is no output of `pack`.
    """
    with _explain_errors(text):
        packed = _run_decoder.decode(_inflate(text, _MOST_TIMES * len(text)))
        failures = packed.failures
        _check_positions([packed.runs] if isinstance(packed.runs, list) else packed.runs.values())

        def runs(rows: list[_RunRow]) -> tuple[Run, ...]:
            return tuple(
                [
                    Run(
                        row.first, row.last, row.count, row.prev, row.attempt, row.due, failures[row.failures]
                    )
                    for row in rows
                ]
            )

        if isinstance(packed.runs, list):
            return runs(packed.runs)
        return {shard: runs(rows) for shard, rows in packed.runs.items()}


def unpack_pieces(text: str) -> dict[str, tuple[NotDone, ...]]:
    """Return the pieces of an outcome, by shard.

    Raises:
        OrderError: as `unpack`.
    """
    with _explain_errors(text):
        packed = _piece_decoder.decode(_inflate(text, _MOST_TIMES * len(text)))
        reasons = packed.reasons
        _check_positions(packed.runs.values())
        return {
            shard: tuple(
                [NotDone(row.first, row.last, row.count, reasons[row.reason], row.prev) for row in rows]
            )
            for shard, rows in packed.runs.items()
        }


def _check_positions(lists: Iterable[Sequence[_Row]]) -> None:
    """Check the positions of rows: one by one that would take most of the time of unpacking.

    Raises:
        ValueError: one is none.
    """
    texts: list[str] = []
    for rows in lists:
        texts += [row.last for row in rows]
        texts += [row.first for row in rows if row.first]
        texts += [row.prev for row in rows if row.prev is not None]
    # Nearly always they are plain sequence numbers; of bytes only ASCII's are digits.
    are_plain = "".join(texts).encode().isdigit() and set(map(len, texts)) <= _PLAIN
    if not are_plain and not all(map(_is_position, texts)):
        msg = "a position is none"
        raise ValueError(msg)


class Chunk(msgspec.Struct, frozen=True):
    """`n` neighbouring runs as release 1.0.0 has packed them, with together `count` records."""

    n: int
    count: int
    packed: str


class _Columns(msgspec.Struct, frozen=True, array_like=True):
    """The content of a chunk.

    `fates`: attempt, due, and the failures as (time, index of the reason); `fate`: the index of each run's fate.
    `flags`: the record before a run is known, its first one is, and that is also its last one. `gaps`: twice the
    distance of each position to the one before it, less one and positive where it is negative, in `width` bytes. A
    position is its sequence number and, in the last 32 bits, its sub-sequence number and one. Of numbers of several
    bytes, all first bytes come first.
    """

    reasons: tuple[str, ...]
    fates: tuple[tuple[Number, Time, tuple[tuple[Time, _Index], ...]], ...]
    fate: bytes
    counts: bytes
    flags: bytes
    begin: bytes
    width: Annotated[int, msgspec.Meta(ge=1, le=64)]
    gaps: bytes


_PREV, _FIRST, _ALONE = 1, 2, 4
_SUB = 32
_HIGHEST = 10**129 << _SUB
_MOST_IN_A_CHUNK = 32 * 2**20

_column_decoder = msgspec.msgpack.Decoder(_Columns)


def unpack_chunks(chunks: Iterable[Chunk]) -> tuple[Run, ...]:
    """Return the runs of chunks, in order.

    Raises:
        OrderError: they are none of release 1.0.0.
    """
    return tuple(run for chunk in chunks for run in _runs_of(chunk))


def _runs_of(chunk: Chunk) -> list[Run]:
    with _explain_errors(chunk.packed):
        columns = _column_decoder.decode(_inflate(chunk.packed, _MOST_IN_A_CHUNK))
        fates = [
            (attempt, due, tuple(Failure(time, columns.reasons[reason]) for time, reason in failures))
            for attempt, due, failures in columns.fates
        ]
        positions, runs = _positions(columns), []
        for flags, count, fate in zip(
            columns.flags, _numbers(columns.counts, 8, signed=True), _numbers(columns.fate, 8), strict=True
        ):
            prev = next(positions) if flags & _PREV else None
            first = next(positions) if flags & _FIRST else ""
            last = first if flags & _ALONE else next(positions)
            runs.append(Run(first, last, count, prev, *fates[fate]))
        if len(runs) != chunk.n or sum(run.count for run in runs) != chunk.count or next(positions, None):
            msg = f"they are not {chunk.n} runs of {chunk.count} records"
            raise ValueError(msg)
        return runs


def _positions(columns: _Columns) -> Iterator[str]:
    gaps = (-((gap + 1) >> 1) if gap & 1 else gap >> 1 for gap in _numbers(columns.gaps, columns.width))
    for number in accumulate(gaps, initial=int.from_bytes(columns.begin, "big")):
        if not 0 <= number < _HIGHEST:
            msg = "a position is not valid"
            raise ValueError(msg)
        sequence, sub = divmod(number, 1 << _SUB)
        yield str(RecordPosition(sequence, sub - 1))


def _numbers(column: bytes, width: int, *, signed: bool = False) -> list[int]:
    count, rest = divmod(len(column), width)
    if rest:
        msg = f"a column of {len(column)} bytes holds no numbers of {width}"
        raise ValueError(msg)
    return [int.from_bytes(column[at::count], "big", signed=signed) for at in range(count)]


@contextmanager
def _explain_errors(text: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, IndexError, StopIteration, zlib.error, *UNREADABLE) as error:
        msg = f"packed runs {text[:40]!r}... cannot be read: {error!r}"
        raise OrderError(msg) from error


def _inflate(text: str, most: int) -> bytes:
    stream = zlib.decompressobj()
    raw = stream.decompress(base64.b64decode(text, validate=True), max(1, most))
    if not stream.eof:
        msg = f"more than {most} bytes, or cut off"
        raise ValueError(msg)
    return raw
