"""The anchors of a batch's tuples as flat arrays, and the ids of their children: derived, never random.

A tuple has one (root, edge) for each record that it comes from; `edge` is its id in that record's tree. A child's
edge is mix64((parent's edge XOR xxh3(operator)) + child number), so that a stage that Spark computes again gives the
same ids. Source: "Guaranteeing Message Processing" of Apache Storm, where the ids are random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from kinesis_trident.common.arrow_columns import numbers, spread, values_of
from kinesis_trident.spout.reader.rows import ANCHORS, ARROW_SCHEMA
from kinesis_trident.tracker.ids import mix64, of_turn, turn_of

_TYPE = ARROW_SCHEMA.field(ANCHORS).type


@dataclass(frozen=True, slots=True)
class Anchors:
    """The anchors of n tuples, one after the other: int64 arrays `roots` and `edges` of the same length.

    Tuple i has those from `offsets[i]` to `offsets[i + 1]`; `offsets` is None if each tuple has exactly one.
    """

    roots: np.ndarray
    edges: np.ndarray
    offsets: np.ndarray | None = None

    def roots_at(self, row: int) -> list[int]:
        """Return the roots of one tuple."""
        span = (
            slice(row, row + 1) if self.offsets is None else slice(self.offsets[row], self.offsets[row + 1])
        )
        found: list[int] = self.roots[span].tolist()
        return found

    def take(self, rows: np.ndarray) -> Anchors:
        """Return the anchors of these tuples, in this order."""
        if self.offsets is None:
            return Anchors(self.roots[rows], self.edges[rows])
        lengths = np.diff(self.offsets)[rows]
        at = spread(self.offsets[:-1][rows], lengths)
        return Anchors(self.roots[at], self.edges[at], np.concatenate([[0], np.cumsum(lengths)]))

    def children(self, rows: np.ndarray, salt: int, numbers: np.ndarray | None = None) -> Anchors:
        """Return the anchors of tuples that an operator made, each from the tuple `rows[i]`.

        `numbers`: the number of each among its parent's children; without it they are counted from 0.
        """
        if numbers is None:
            numbers = ranks_of(rows)
        taken = self.take(rows)
        if taken.offsets is not None:
            numbers = np.repeat(numbers, np.diff(taken.offsets))
        return Anchors(taken.roots, child_edges(taken.edges, salt, numbers), taken.offsets)

    def join(self, lengths: np.ndarray) -> Anchors:
        """Return the anchors of fewer tuples: the first joins the first `lengths[0]` of these, and so on.

        Edges of the same root are one: their XOR.
        """
        ours = np.ones(len(self.roots), np.int64) if self.offsets is None else np.diff(self.offsets)
        owners = np.repeat(np.repeat(np.arange(len(lengths)), lengths), ours)
        order = np.lexsort((self.roots, owners))
        roots, edges = self.roots[order], self.edges[order]
        other = np.ones(len(order), dtype=bool)
        other[1:] = (roots[1:] != roots[:-1]) | (owners[order][1:] != owners[order][:-1])
        if other.all():
            roots, edges = self.roots, self.edges
        else:
            starts = np.flatnonzero(other)
            firsts = order[starts]
            back = np.argsort(firsts)
            roots, owners = self.roots[firsts[back]], owners[firsts[back]]
            edges = np.bitwise_xor.reduceat(edges, starts)[back]
        return Anchors(roots, edges, np.searchsorted(owners, np.arange(len(lengths) + 1)))

    @classmethod
    def concatenate(cls, parts: Sequence[Anchors]) -> Anchors:
        """Return the anchors of the tuples of all parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        roots = np.concatenate([one.roots for one in parts])
        edges = np.concatenate([one.edges for one in parts])
        if all(one.offsets is None for one in parts):
            return cls(roots, edges)
        lengths = [
            np.ones(len(one.roots), np.int64) if one.offsets is None else np.diff(one.offsets)
            for one in parts
        ]
        return cls(roots, edges, np.concatenate([[0], np.cumsum(np.concatenate(lengths))]))

    def column(self) -> pa.ListArray:
        """Return the column `__anchors`."""
        values = pa.StructArray.from_arrays(
            [numbers(self.roots), numbers(self.edges)], fields=list(_TYPE.value_field.type)
        )
        offsets = np.arange(len(self.roots) + 1) if self.offsets is None else self.offsets
        return pa.ListArray.from_arrays(numbers(offsets.astype(np.int32)), values).cast(_TYPE)


def anchors_of(batch: pa.RecordBatch) -> Anchors:
    """Return the anchors of a batch with the column `__anchors`."""
    column = batch.column(ANCHORS)
    roots, edges = (values_of(part) for part in column.flatten().flatten())
    offsets = values_of(column.offsets)
    # A slice of a longer array still has the offsets of that array.
    offsets = offsets - offsets[0]
    single = len(roots) == batch.num_rows and np.array_equal(offsets, np.arange(len(offsets)))
    return Anchors(roots, edges, None if single else offsets)


def salt_of(operator: str) -> int:
    """Return the salt that an operator's name adds to the ids of its tuples."""
    return xxhash.xxh3_64_intdigest(operator.encode())


def child_edges(edges: np.ndarray, salt: int, numbers: np.ndarray) -> np.ndarray:
    """Return the edges of children, from their parents' edges and their numbers among the children, as int64."""
    return mix64((edges.view(np.uint64) ^ np.uint64(salt)) + numbers.astype(np.uint64)).view(np.int64)


def ranks_of(values: np.ndarray) -> np.ndarray:
    """Return for each value how often it stands before."""
    counting = np.arange(len(values))
    if (values[1:] >= values[:-1]).all():
        return counting - np.searchsorted(values, values)
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = counting - np.searchsorted(values[order], values[order])
    return ranks


def groups_of(roots: np.ndarray) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
    """Yield each tag and shard index of roots with the indexes of its roots, ascending."""
    if not len(roots):
        return
    for key, places in _places_of(turn_of(roots)):
        yield of_turn(key), places


def _places_of(keys: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """The different keys, each with where it stands, ascending; there is at least one."""
    if (keys == keys[0]).all():
        yield int(keys[0]), np.arange(len(keys))
        return
    unique, inverse = np.unique(keys, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    bounds = np.searchsorted(inverse[order], np.arange(1, len(unique)))
    for key, places in zip(unique, np.split(order, bounds), strict=True):
        yield int(key), places
