"""The tuples of a bolt's task with their places in the trees, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from kinesis_trident.bolt.steps.columns import Columns
from kinesis_trident.bolt.storm.api import SYSTEM, TICK, Tuple
from kinesis_trident.bolt.storm.redelivery import Deliveries
from kinesis_trident.bolt.tracking.anchors import Anchors, anchors_of, ranks_of
from kinesis_trident.spout.reader.rows import MESSAGE_ID
from kinesis_trident.tracker.failure import Failure


class Given:
    """An input batch. `children`: by the salt of an output, how many tuples each row has there."""

    __slots__ = ("anchors", "children", "deliveries", "failed", "marks", "message_ids", "rows")

    def __init__(self, batch: pa.RecordBatch, tracked: bool, deliveries: Deliveries | None = None) -> None:
        self.anchors = anchors_of(batch) if tracked else None
        self.message_ids = batch.column(MESSAGE_ID) if MESSAGE_ID in batch.schema.names else None
        self.failed: dict[int, Failure] = {}
        self.rows = batch.num_rows
        self.children: dict[int, np.ndarray] = {}
        self.deliveries = deliveries
        self.marks = None if deliveries is None else deliveries.marks_in(batch)

    def mark_at(self, row: int) -> int:
        """Return the number of a row's delivery."""
        return 0 if self.marks is None else int(self.marks[row])

    def roots_at(self, row: int) -> list[int]:
        """Return the roots of a row."""
        return [] if self.anchors is None else self.anchors.roots_at(row)

    def children_of(self, salt: int) -> np.ndarray:
        """Return how many tuples each row has so far in an output."""
        found = self.children.get(salt)
        return np.zeros(self.rows, np.int64) if found is None else found


class HeldTuple(Tuple):
    """A tuple with its row in its batch."""

    __slots__ = ("answered", "given", "is_held", "is_renewed")

    def __init__(
        self,
        columns: Columns,
        row: int,
        fields: Sequence[str],
        component: str,
        stream: str,
        given: Given,
    ) -> None:
        super().__init__(columns, row, fields, component, stream)
        self.given = given
        self.answered = self.is_held = self.is_renewed = False

    @property
    def row(self) -> int:
        """The tuple's row in the batch."""
        return self._row

    @property
    def attempt(self) -> int:
        """See `Tuple.attempt`."""
        mark = self.given.mark_at(self._row)
        return self.given.deliveries.known[mark - 1].attempt if mark and self.given.deliveries else 1

    @property
    def redelivered(self) -> bool:
        """See `Tuple.redelivered`."""
        return self.given.mark_at(self._row) > 0


def tick_tuple(seconds: float) -> HeldTuple:
    """Return a tick tuple, which is in no tree; its one field is the interval in seconds, as in Storm."""
    batch = pa.RecordBatch.from_pydict({"rate_secs": [seconds]})
    return HeldTuple(Columns(batch), 0, ["rate_secs"], SYSTEM, TICK, Given(batch, tracked=False))


def anchors_of_children(parents: Sequence[HeldTuple | Sequence[HeldTuple]], salt: int) -> Anchors:
    """Return the anchors of emitted tuples from the parents of each: one tuple, or several, or none.

    The children of a row are numbered in the order of all calls with this salt.
    """
    flat: list[HeldTuple]
    single = set(map(type, parents)) == {HeldTuple}
    if single:
        flat = parents  # type: ignore[assignment]
    else:
        flat = [one for some in parents for one in ((some,) if isinstance(some, HeldTuple) else some)]
    givens = list(dict.fromkeys([one.given for one in flat]))
    known = [given.anchors or _no_anchors(given.rows) for given in givens]
    if not flat:
        return _no_anchors(len(parents))
    if len(givens) == 1:
        rows = np.array([one._row for one in flat])
    else:
        firsts = dict(zip(givens, np.cumsum([0, *(given.rows for given in givens)]).tolist(), strict=False))
        rows = np.array([firsts[one.given] + one._row for one in flat])
    before = np.concatenate([given.children_of(salt) for given in givens])
    made = Anchors.concatenate(known).children(rows, salt, before[rows] + ranks_of(rows))
    after = before + np.bincount(rows, minlength=len(before))
    bounds = np.cumsum([given.rows for given in givens])[:-1]
    for given, counts in zip(givens, np.split(after, bounds), strict=True):
        given.children[salt] = counts
    if single:
        return made
    return made.join(np.array([1 if isinstance(some, HeldTuple) else len(some) for some in parents]))


def _no_anchors(count: int) -> Anchors:
    """Return the anchors of tuples that are in no tree."""
    return Anchors(np.empty(0, np.int64), np.empty(0, np.int64), np.zeros(count + 1, np.int64))
