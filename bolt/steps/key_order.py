"""The order of keys within the turns of a task: what follows a record that has failed waits with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kinesis_trident.bolt.steps.functions import Judged
from kinesis_trident.common.arrow_columns import booleans, numbers, texts, values_of
from kinesis_trident.tracker.failure import BEHIND, Failure
from kinesis_trident.tracker.ids import hashes_of, turn_of

_KEY = "partitionKey"
_Key = tuple[int, str]
"""A turn, and a partition key; records without one have one in common."""


class KeyOrder:
    """The keys that have failed in the turns of one task, whose rows come in the order of the stream.

    The reader says of a row, by an attempt of 0, that an earlier record of its key waits in another batch.
    """

    def __init__(self) -> None:
        self._failed = set[_Key]()

    def find_behind(self, batch: pa.RecordBatch, roots: np.ndarray) -> np.ndarray:
        """Return the rows of a batch that wait for earlier ones, of this task or of other batches; ascending."""
        marked = values_of(batch.column("attempt")) == 0
        rows = self._find_rows(batch, {key for _, key in self._failed})
        keys = self._keys_of(batch, roots, rows)
        marked[[row for row, key in zip(rows.tolist(), keys, strict=True) if key in self._failed]] = True
        return np.flatnonzero(marked)

    @staticmethod
    def hashes_of(batch: pa.RecordBatch, rows: Collection[int]) -> list[str]:
        """Return the hashes of the keys of some rows."""
        at = np.fromiter(rows, np.int64, len(rows))
        return hashes_of(batch.column(_KEY).take(numbers(at)).to_pylist())

    def judge(
        self, batch: pa.RecordBatch, roots: np.ndarray, taken: np.ndarray, parts: Iterable[Judged]
    ) -> Iterator[Judged]:
        """Yield the parts of a batch without the results of what follows a failed row of its key: it waits.

        Args:
            batch: of the source.
            roots: of its rows.
            taken: the rows that were given to the functions.
            parts: what these made of them.
        """
        begin, bad = 0, set[str]()
        for part in parts:
            end = len(taken) if part.end is None else part.end
            behind = self._find_followers(batch, roots, taken[begin:end], part.failed, begin, bad)
            begin = end
            if not behind:
                yield part
                continue
            failed: dict[int, Failure] = dict(part.failed) | dict.fromkeys(behind, BEHIND)
            good = ~np.isin(part.source, np.array(behind, np.int64))
            rows = part.rows.filter(booleans(good))
            yield replace(part, rows=rows, source=part.source[good], failed=failed)

    def _find_followers(
        self,
        batch: pa.RecordBatch,
        roots: np.ndarray,
        rows: np.ndarray,
        failed: Mapping[int, Failure],
        begin: int,
        bad: set[str],
    ) -> list[int]:
        """Return which of some rows, numbered from `begin` on, follow a failed one of their key; note what failed.

        `bad`: the keys that have failed in the batch, which has further parts.
        """
        if not (failed or bad):
            return []
        first = begin if bad else min(failed)
        left, here = rows[first - begin :], rows[np.fromiter(failed, np.int64, len(failed)) - begin]
        bad.update(key for _, key in self._keys_of(batch, roots, here))
        at = np.flatnonzero(np.isin(left, self._find_rows(batch, bad)))
        found = list[int]()
        for number, key in zip((at + first).tolist(), self._keys_of(batch, roots, left[at]), strict=True):
            if key in self._failed:
                found.append(number)
            elif number in failed:
                self._failed.add(key)
        return found

    @staticmethod
    def _find_rows(batch: pa.RecordBatch, keys: Collection[str]) -> np.ndarray:
        """Return the rows with one of some keys."""
        if not keys:
            return np.empty(0, np.int64)
        inside = pc.is_in(batch.column(_KEY).fill_null(""), texts(list(keys)))
        return np.flatnonzero(values_of(inside))

    @staticmethod
    def _keys_of(batch: pa.RecordBatch, roots: np.ndarray, rows: np.ndarray) -> list[_Key]:
        keys = batch.column(_KEY).take(numbers(rows)).fill_null("").to_pylist()
        return list(zip(turn_of(roots[rows]).tolist(), keys, strict=True))
