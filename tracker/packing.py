"""Packs very many runs of records into a text for JSON: base64 of zlib of JSON. Pure.

In that JSON the runs of a shard are columns, `[head, first, last, count, prev, attempt, due, failures]`, and in an
outcome `[head, first, last, count, prev, reason]`. Columns of positions are texts with spaces in between, without the
`head`, the digits that all of them begin with: `=` is a first record that is also the last one, `-` no record before.
The last column has indexes into the `failures`, or the `reasons`, that stand before all runs: records that fail
together share them.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter, ne
from typing import Annotated, Any, TypeAlias

import msgspec

from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.records import SEQUENCE, NotDone, Noted, Number, Run, Time

Runs: TypeAlias = Sequence[Run] | Mapping[str, Sequence[Run]] | Mapping[str, Sequence[NotDone]]
"""The runs of one shard, or of several by shard, or those of an outcome."""

_MOST_TIMES = 300
"""The limit of what a text unpacks to, in lengths of the text: runs take 4 to 40, those with 16 failures each whose
reasons are control characters, six bytes each in JSON, up to 250, and zeros 770."""

_Index = Annotated[int, msgspec.Meta(ge=0)]


# All digits of the longest position but one, also of those of its part of an aggregate.
_Head = Annotated[str, msgspec.Meta(max_length=139)]

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
