"""Packs very many runs of records into a text for JSON: base64 of zlib of JSON. Pure.

In that JSON the runs of a shard are columns, `[head, first, last, count, prev, attempt, due, failures]`, and in an
outcome `[head, first, last, count, prev, reason]`. Columns of positions are texts with spaces in between, without the
`head`, the digits that all of them begin with: `=` is a first record that is also the last one, `-` no record before.
The last column has indexes into the `failures`, or the `reasons`, that stand before all runs: records that fail
together share them. The `keys` of the runs of a shard, if there are any, stand beside the columns, with spaces in
between: releases before leave them out.

What is written again with each batch is cut into pieces (`pack_in_pieces`), of which a change of few runs changes few:
runs are cut where a hash of a run's last record is lowest, so that a cut stays where it is whatever comes before it.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import starmap
from operator import ne
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
import xxhash

from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.records import SEQUENCE, NotDone, Noted, Number, Run, Time

Runs: TypeAlias = Sequence[Run] | Mapping[str, Sequence[Run]] | Mapping[str, Sequence[NotDone]]
"""The runs of one shard, or of several by shard, or those of an outcome."""

_MOST_TIMES = 300
"""The limit of what a text unpacks to, in lengths of the text: runs take 4 to 40, those with 16 failures each whose
reasons are control characters, six bytes each in JSON, up to 250, and zeros 770."""

MOST_RUNS = 512
"""The number of runs up to which they are one piece; a piece has half as many on average."""

MOST_TEXT = 32 * 1024
"""The characters up to which several runs are one piece."""

PIECE_END = "."
"""Stands behind each of several pieces."""

_Index = Annotated[int, msgspec.Meta(ge=0)]


# All digits of the longest position but one, also of those of its part of an aggregate.
_Head = Annotated[str, msgspec.Meta(max_length=139)]

_RunColumns = tuple[_Head, str, str, list[Number], str, list[Number], list[Time], list[_Index]]
_PieceColumns = tuple[_Head, str, str, list[Number], str, list[_Index]]


class _PackedRuns(msgspec.Struct, frozen=True):
    failures: tuple[tuple[Noted, ...], ...]
    columns: _RunColumns | dict[str, _RunColumns]
    keys: tuple[str, ...] = ()


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
    lists = [*runs.values()] if isinstance(runs, Mapping) else [runs]
    is_outcome = any(isinstance(run, NotDone) for some in lists for run in some[:1])
    values = [[run.text if isinstance(run, NotDone) else run.failures for run in some] for some in lists]
    # Records that fail together share their failures, mostly as the same object: the others are compared.
    alike = {id(value): value for some in values for value in some}
    shared: dict[Hashable, int] = {}
    indexes = {key: shared.setdefault(value, len(shared)) for key, value in alike.items()}
    packed = [
        [
            *_columns_of(some),
            *([] if is_outcome else [[getattr(run, name) for run in some] for name in ("attempt", "due")]),
            [indexes[key] for key in map(id, of_each)],
        ]
        for some, of_each in zip(lists, values, strict=True)
    ]
    of_all = dict(zip(runs, packed, strict=True)) if isinstance(runs, Mapping) else packed[0]
    name = "reasons" if is_outcome else "failures"
    # Levels that look for more matches find few among the digits of positions, which are random.
    keys = (
        [" ".join(run.keys) for run in runs if isinstance(run, Run)] if not isinstance(runs, Mapping) else []
    )
    more = {"keys": keys} if any(keys) else {}
    data = zlib.compress(_encoder.encode({name: list(shared), "columns": of_all} | more), 1)
    return base64.b64encode(data).decode()


def pack_in_pieces(runs: Sequence[Run]) -> str:
    """Return the runs of a shard as a text: that of `pack`, or several of these if they are too many for one."""
    pieces = list(_cut(runs))
    return pieces[0] if len(pieces) == 1 else "".join(piece + PIECE_END for piece in pieces)


def _cut(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the pieces of runs in their order. What is too large is cut before the run whose hash is the lowest."""
    hashes = np.array([xxhash.xxh32_intdigest(run.last.encode()) for run in runs], np.uint32)
    left = [(0, len(runs))]
    while left:
        start, stop = left.pop()
        if stop - start <= MOST_RUNS:
            text = pack(runs[start:stop])
            if len(text) <= MOST_TEXT or stop - start == 1:
                yield text
                continue
        middle = start + 1 + int(hashes[start + 1 : stop].argmin())
        left += [(middle, stop), (start, middle)]


def _columns_of(some: Sequence[Run] | Sequence[NotDone]) -> list[str | list[int]]:
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
    """Return the runs of one shard, or of several by shard, that `pack` or `pack_in_pieces` has packed.

    Raises:
        OrderError: the text is no output of these.
    """
    with _explain_errors(text):
        *pieces, rest = text.split(PIECE_END)
        found, known = list[Run](), dict[tuple[Noted, ...], tuple[Noted, ...]]()
        for piece in pieces or [rest]:
            packed = _run_decoder.decode(_inflate(piece, _MOST_TIMES * len(piece)))
            # In memory all pieces share the failures that they have in common.
            failures = [known.setdefault(one, one) for one in packed.failures]
            if isinstance(packed.columns, dict) and not pieces:
                return {shard: _make_runs(one, failures) for shard, one in packed.columns.items()}
            if isinstance(packed.columns, dict) or (pieces and rest):
                msg = "its pieces are not those of one shard"
                raise ValueError(msg)
            runs = _make_runs(packed.columns, failures)
            found += map(_with_keys, runs, packed.keys) if len(packed.keys) == len(runs) else runs
        return tuple(found)


def unpack_pieces(text: str) -> dict[str, tuple[NotDone, ...]]:
    """Return the pieces of an outcome, by shard.

    Raises:
        OrderError: as `unpack`.
    """
    with _explain_errors(text):
        packed = _piece_decoder.decode(_inflate(text, _MOST_TIMES * len(text)))
        return {
            shard: tuple(_make_pieces(columns, packed.reasons)) for shard, columns in packed.columns.items()
        }


def _make_runs(columns: _RunColumns, failures: Sequence[tuple[Noted, ...]]) -> tuple[Run, ...]:
    """Return runs of their columns.

    Raises:
        ValueError, IndexError: these are none.
    """
    head, firsts, lasts, counts, prevs, attempts, dues, indexes = columns
    each = map(failures.__getitem__, indexes)
    positions = _expand_positions(head, firsts, lasts, counts, prevs)
    return tuple(starmap(Run, zip(*positions, attempts, dues, each, strict=True)))


def _with_keys(run: Run, keys: str) -> Run:
    return msgspec.structs.replace(run, keys=tuple(keys.split(" "))) if keys else run


def _make_pieces(columns: _PieceColumns, reasons: Sequence[str]) -> Iterator[NotDone]:
    """Yield pieces of an outcome of their columns.

    Raises:
        ValueError, IndexError: these are none.
    """
    head, begins, ends, numbers, before, indexes = columns
    firsts, lasts, counts, prevs = _expand_positions(head, begins, ends, numbers, before)
    return starmap(NotDone, zip(firsts, lasts, counts, map(reasons.__getitem__, indexes), prevs, strict=True))


def _expand_positions(
    head: str, firsts: str, lasts: str, counts: list[int], prevs: str
) -> tuple[list[str], list[str], list[int], list[str | None]]:
    """Return the first and last records, counts and records before, with all digits.

    Raises:
        ValueError: they are none, or of several lengths.
    """
    if not lasts:
        return [], [], counts, []
    ends = [head + last for last in lasts.split(" ")]
    begins = [
        last if first == "=" else first and head + first
        for first, last in zip(firsts.split(" "), ends, strict=True)
    ]
    before = [None if prev == "-" else head + prev for prev in prevs.split(" ")]
    _check_positions(begins, ends, before)
    return begins, ends, counts, before


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
