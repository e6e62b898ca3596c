"""Packs very many runs of records into a text for JSON: base64 of zlib of JSON. Pure.

In that JSON the runs of a shard are columns, `[head, first, last, count, prev, attempt, due, failures]`, and in an
outcome `[head, first, last, count, prev, reason]`. Columns of positions are texts with spaces in between, without the
`head`, the digits that all of them begin with: `=` is a first record that is also the last one, `-` no record before.
The last column has indexes into the `failures`, or the `reasons`, that stand before all runs: records that fail
together share them.

Release 1.0.0 packed runs in chunks, as columns of bytes: `unpack_chunks` reads them.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from operator import attrgetter, ne
from typing import Annotated, Any, TypeAlias

import msgspec

from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.records import (
    SEQUENCE,
    NotDone,
    Noted,
    Number,
    RecordPosition,
    Run,
    Time,
)

Runs: TypeAlias = Sequence[Run] | Mapping[str, Sequence[Run]] | Mapping[str, Sequence[NotDone]]
"""The runs of one shard, or of several by shard, or those of an outcome."""

_MOST_TIMES = 300
"""The limit of what a text unpacks to, in lengths of the text: runs take 4 to 40, those with 16 failures each whose
reasons are control characters, six bytes each in JSON, up to 250, and zeros 770."""

_Index = Annotated[int, msgspec.Meta(ge=0)]


_Head = Annotated[str, msgspec.Meta(max_length=129)]

_RunColumns = tuple[_Head, str, str, list[Number], str, list[Number], list[Time], list[_Index]]
_PieceColumns = tuple[_Head, str, str, list[Number], str, list[_Index]]


class _PackedRuns(msgspec.Struct, frozen=True):
    failures: tuple[tuple[Noted, ...], ...]
    columns: _RunColumns | dict[str, _RunColumns]


class _PackedPieces(msgspec.Struct, frozen=True):
    reasons: tuple[str, ...]
    columns: dict[str, _PieceColumns]


_PLAIN = frozenset(range(1, 130))
"""The numbers of digits of sequence numbers."""

_is_position = re.compile(rf"\A{SEQUENCE}\Z").match

_encoder = msgspec.json.Encoder()
_run_decoder = msgspec.json.Decoder(_PackedRuns)
_piece_decoder = msgspec.json.Decoder(_PackedPieces)


def pack(runs: Runs) -> str:
    """Return runs as a text."""
    lists: list[Sequence[Any]] = list(runs.values()) if isinstance(runs, Mapping) else [runs]
    is_outcome = any(isinstance(run, NotDone) for some in lists for run in some[:1])
    name = "reasons" if is_outcome else "failures"
    values = [list(map(attrgetter("text" if is_outcome else "failures"), some)) for some in lists]
    # Records that fail together share their failures, mostly as the same object: the others are compared.
    alike = {id(value): value for some in values for value in some}
    shared: dict[Hashable, int] = {}
    indexes = {key: shared.setdefault(value, len(shared)) for key, value in alike.items()}
    packed = [
        [
            *_columns_of(some),
            *([] if is_outcome else [[run.attempt for run in some], [run.due for run in some]]),
            [indexes[key] for key in map(id, of_each)],
        ]
        for some, of_each in zip(lists, values, strict=True)
    ]
    of_all = dict(zip(runs, packed, strict=True)) if isinstance(runs, Mapping) else packed[0]
    # Levels that look for more matches find few among the digits of positions, which are random.
    data = zlib.compress(_encoder.encode({name: list(shared), "columns": of_all}), 1)
    return base64.b64encode(data).decode()


def _columns_of(some: Sequence[Any]) -> list[Any]:
    """Return the columns of the positions and counts of runs."""
    firsts = ["=" if run.first == run.last else run.first for run in some]
    lasts, prevs = [run.last for run in some], [run.prev for run in some]
    texts = [*lasts, *[first for first in firsts if first and first != "="], *filter(None, prevs)]
    low, high = min(texts, default=""), max(texts, default="")
    # A digit of each stays at least: a first record without any is not known.
    begin = low[:-1]
    at = next((at for at, two in enumerate(zip(begin, high, strict=False)) if ne(*two)), len(begin))
    return [
        begin[:at],
        " ".join([first if first == "=" else first[at:] for first in firsts]),
        " ".join([last[at:] for last in lasts]),
        [run.count for run in some],
        " ".join(["-" if prev is None else prev[at:] for prev in prevs]),
    ]


def unpack(text: str) -> tuple[Run, ...] | dict[str, tuple[Run, ...]]:
    """Return the runs of one shard, or of several by shard, that `pack` has packed.

    Raises:
        OrderError: the text is no output of `pack`.
    """
    with _explain_errors(text):
        packed = _run_decoder.decode(_inflate(text, _MOST_TIMES * len(text)))
        found: dict[Any, tuple[Run, ...]] = {
            shard: tuple(map(Run, *columns, map(packed.failures.__getitem__, indexes)))
            for shard, (*columns, indexes) in _columns_in(packed).items()
        }
        return found.get(None, found)


def unpack_pieces(text: str) -> dict[str, tuple[NotDone, ...]]:
    """Return the pieces of an outcome, by shard.

    Raises:
        OrderError: as `unpack`.
    """
    with _explain_errors(text):
        packed = _piece_decoder.decode(_inflate(text, _MOST_TIMES * len(text)))
        return {
            shard: tuple(map(NotDone, *columns, map(packed.reasons.__getitem__, indexes), prevs))
            for shard, (*columns, prevs, indexes) in _columns_in(packed).items()
        }


def _columns_in(packed: _PackedRuns | _PackedPieces) -> dict[Any, list[Sequence[Any]]]:
    """Return the first and last records, counts, records before and other columns by shard; None is a single one.

    Raises:
        ValueError: they are none.
    """
    some: Any = packed.columns if isinstance(packed.columns, dict) else {None: packed.columns}
    found = {shard: _expand_columns(one) for shard, one in some.items()}
    for columns in found.values():
        if len(set(map(len, columns))) > 1:
            msg = "columns are of several lengths"
            raise ValueError(msg)
        firsts, lasts, _, prevs, *_ = columns
        _check_positions(firsts, lasts, prevs)
    return found


def _expand_columns(packed: Sequence[Any]) -> list[Sequence[Any]]:
    head, firsts, lasts, counts, prevs, *others = packed
    if not lasts:
        return [[], [], counts, [], *others]
    lasts = [head + last for last in lasts.split(" ")]
    firsts = [
        last if first == "=" else first and head + first
        for first, last in zip(firsts.split(" "), lasts, strict=True)
    ]
    return [
        firsts,
        lasts,
        counts,
        [None if prev == "-" else head + prev for prev in prevs.split(" ")],
        *others,
    ]


def _check_positions(firsts: Sequence[str], lasts: Sequence[str], prevs: Sequence[str | None]) -> None:
    """Check the positions of runs: one by one that would take most of the time of unpacking.

    Raises:
        ValueError: one is none.
    """
    texts = [first for first, last in zip(firsts, lasts, strict=True) if first and first is not last]
    texts += lasts
    texts += [prev for prev in prevs if prev is not None]
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
            (attempt, due, tuple(Noted(time, columns.reasons[reason]) for time, reason in failures))
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
