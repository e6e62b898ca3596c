"""The records of one turn that are not done: disjoint intervals of their ordinals, with a failure each.

Ordinals, because behind a shuffle nothing else is known of a record, and because two of them are neighbours by
arithmetic. Where an operator has seen the source's rows, the positions of an interval's ends are known too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from kinesis_trident.bolt.tracking.anchors import groups_of
from kinesis_trident.checkpoint.model.nodes import NotDone
from kinesis_trident.tracker.failure import Failure, join, parse, text_of
from kinesis_trident.tracker.ids import ordinal_of
from kinesis_trident.tracker.records import with_keys
from kinesis_trident.tracker.runs import MOST_KEYS

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """Records with their failures, as columns: they may be very many. It is a value: nothing changes it.

    Attributes:
        firsts: the first ordinal of each interval, ascending.
        lasts: the last one.
        failures: those of the intervals.
        starts: the position of each first record as `sequence[:sub]`, empty if it is not known.
        ends: that of each last record.
        befores: that of the record just before each interval, if known.
        keys: the hashes of the keys of records, by ordinal, as far as they are known.
    """

    firsts: _Numbers
    lasts: _Numbers
    failures: Sequence[Failure]
    starts: Sequence[str]
    ends: Sequence[str]
    befores: Sequence[str | None]
    keys: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def over(
        cls,
        firsts: Sequence[int] | _Numbers,
        lasts: Sequence[int] | _Numbers,
        failures: Sequence[Failure],
        starts: Sequence[str] = (),
        ends: Sequence[str] = (),
        befores: Sequence[str | None] = (),
    ) -> Failed:
        """Return the records of intervals in any order, which may overlap: there both failures are joined.

        Overlapping intervals are cut, never widened: no record gets a failure that nobody has given it.
        """
        low, high = np.asarray(firsts, np.int64), np.asarray(lasts, np.int64)
        count = len(low)
        starts, ends, befores = starts or [""] * count, ends or [""] * count, befores or [None] * count
        if (low[1:] <= high[:-1]).any():
            order = np.argsort(low, kind="stable")
            low, high = low[order], high[order]
            failures, starts, ends, befores = (
                [column[at] for at in order.tolist()] for column in (failures, starts, ends, befores)
            )
        if (low[1:] > high[:-1]).all():
            return _join_neighbours(cls(low, high, failures, starts, ends, befores))
        return _cut(cls(low, high, failures, starts, ends, befores))

    @classmethod
    def of_columns(
        cls,
        firsts: Sequence[int] = (),
        lasts: Sequence[int] = (),
        starts: Sequence[str] = (),
        ends: Sequence[str] = (),
        befores: Sequence[str | None] = (),
        texts: Sequence[str] = (),
        keys: Mapping[int, str] | None = None,
    ) -> Failed:
        """Return what `columns` has made into columns, with the keys of its records."""
        return cls.over(firsts, lasts, list(map(parse, texts)), starts, ends, befores).with_keys(keys or {})

    def with_keys(self, keys: Mapping[int, str]) -> Failed:
        """Return the same records with the hashes of the keys of some, by ordinal."""
        return replace(self, keys={**self.keys, **keys}) if keys else self

    def columns(self) -> tuple[Sequence[Any], ...]:
        """Return the columns in which a report travels, with failures as texts; none if nothing has failed."""
        texts = list(map(_Texts().__getitem__, self.failures))
        places = list(self.starts), list(self.ends), list(self.befores)
        return (self.firsts.tolist(), self.lasts.tolist(), *places, texts) if texts else ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Failed.of_columns, (*self.columns(), self.keys) if self and self.keys else self.columns()

    def union(self, *others: Failed) -> Failed:
        """Return the records of all; a record that is in several has its failures joined."""
        some = [one for one in (self, *others) if one]
        if len(some) < 2:
            return some[0] if some else self
        columns = ("failures", "starts", "ends", "befores")
        return Failed.over(
            np.concatenate([one.firsts for one in some]),
            np.concatenate([one.lasts for one in some]),
            *([value for one in some for value in getattr(one, name)] for name in columns),
        ).with_keys({ordinal: key for one in some for ordinal, key in one.keys.items()})

    def at(self, ordinals: _Numbers) -> tuple[npt.NDArray[np.bool_], _Numbers]:
        """Return which ordinals are in here, and for each of these the index of its interval."""
        at = np.searchsorted(self.lasts, ordinals)
        inside = np.append(self.firsts, np.iinfo(np.int64).max)[at] <= ordinals
        return inside, at[inside]

    @property
    def count(self) -> int:
        """The number of records."""
        return int((self.lasts - self.firsts + 1).sum())

    @property
    def is_placed(self) -> bool:
        """True if the positions of all ends are known."""
        return all(self.starts) and all(self.ends)

    def not_done(self) -> Iterator[NotDone]:
        """Yield the intervals in the form in which they are published."""
        counts = (self.lasts - self.firsts + 1).tolist()
        pieces = map(
            NotDone, self.starts, self.ends, counts, map(_Texts().__getitem__, self.failures), self.befores
        )
        if not self.keys or len(set(self.keys.values())) > MOST_KEYS:
            return pieces
        return map(self._with_keys, pieces, self.firsts.tolist(), counts)

    def _with_keys(self, piece: NotDone, first: int, count: int) -> NotDone:
        """Return an interval with the keys of its records, if all are known."""
        keys = [self.keys[at] for at in range(first, first + count) if at in self.keys]
        return with_keys(piece, tuple(sorted(set(keys)))) if len(keys) == count else piece

    def __len__(self) -> int:
        return len(self.failures)

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Failed) and self.columns() == other.columns()


_NO_NUMBERS = np.empty(0, np.int64)
NONE = Failed(_NO_NUMBERS, _NO_NUMBERS, (), (), (), ())
"""No record."""


class _Texts(dict[Failure, str]):
    """The texts of failures, which are few: each is made once."""

    def __missing__(self, failure: Failure) -> str:
        text = self[failure] = text_of(failure)
        return text


def failures_in(records: Mapping[int, Failed], roots: _Numbers) -> dict[int, Failure]:
    """Return the failures of the source's rows with these roots, by row. `records`: by shard index."""
    found: dict[int, Failure] = {}
    for (_, shard), rows in groups_of(roots):
        failed = records.get(shard)
        if failed:
            inside, at = failed.at(ordinal_of(roots[rows]))
            found.update(
                zip(rows[inside].tolist(), map(failed.failures.__getitem__, at.tolist()), strict=True)
            )
    return found


def unite(some: Mapping[int, Failed], others: Mapping[int, Failed]) -> dict[int, Failed]:
    """Return the records of both, by shard index."""
    return {shard: some.get(shard, NONE).union(others.get(shard, NONE)) for shard in {**some, **others}}


def _join_neighbours(failed: Failed) -> Failed:
    """Return disjoint intervals with those as one that touch and have one failure."""
    firsts, lasts, failures = failed.firsts, failed.lasts, failed.failures
    touching = np.flatnonzero(firsts[1:] == lasts[:-1] + 1)
    same = [at for at in touching.tolist() if failures[at] == failures[at + 1]]
    if not same:
        return failed
    begin, until = np.ones(len(failures), np.bool_), np.ones(len(failures), np.bool_)
    until[same] = False
    begin[np.array(same) + 1] = False
    return Failed(
        firsts[begin],
        lasts[until],
        list(compress(failures, begin)),
        list(compress(failed.starts, begin)),
        list(compress(failed.ends, until)),
        list(compress(failed.befores, begin)),
    )


def _cut(failed: Failed) -> Failed:
    """Return intervals that overlap as disjoint ones, with the ends of which some interval has told the position."""
    bounds = np.unique(np.concatenate([failed.firsts, failed.lasts + 1]))
    begin, until = np.searchsorted(bounds, failed.firsts), np.searchsorted(bounds, failed.lasts + 1)
    joined: dict[int, Failure] = {}
    for failure, low, high in zip(failed.failures, begin.tolist(), until.tolist(), strict=True):
        for piece in range(low, high):
            known = joined.get(piece)
            joined[piece] = failure if known is None else join(known, failure)
    pieces = np.array(sorted(joined), np.int64)
    failures = list(map(joined.__getitem__, pieces.tolist()))
    unknown = [""] * len(failures)
    whole = Failed(bounds[pieces], bounds[pieces + 1] - 1, failures, unknown, unknown, [None] * len(failures))
    return _find_ends(_join_neighbours(whole), _positions_of(failed))


def _positions_of(failed: Failed) -> dict[int, str]:
    """Return all positions that intervals know, by ordinal."""
    firsts, lasts = failed.firsts.tolist(), failed.lasts.tolist()
    known = {first - 1: before for first, before in zip(firsts, failed.befores, strict=True) if before}
    known |= {first: start for first, start in zip(firsts, failed.starts, strict=True) if start}
    return known | {last: end for last, end in zip(lasts, failed.ends, strict=True) if end}


def _find_ends(failed: Failed, known: Mapping[int, str]) -> Failed:
    """Return intervals with the positions of their ends, as far as these are known by ordinal."""
    starts, befores, behind = list[str](), list[str | None](), -2
    for first, last in zip(failed.firsts.tolist(), failed.lasts.tolist(), strict=True):
        before = known.get(first - 1)
        # Without the record before it, a cut would pass for the beginning of what was read.
        is_cut_off = before is None and behind == first - 1
        starts.append("" if is_cut_off else known.get(first, ""))
        befores.append(before)
        behind = last
    ends = [known.get(last, "") for last in failed.lasts.tolist()]
    return Failed(failed.firsts, failed.lasts, failed.failures, starts, ends, befores)
