"""Ids of tuples and their children: derived, distinct, the same however a batch is cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given, strategies as st

from kinesis_trident.bolt.tracking.anchors import Anchors, anchors_of, groups_of, salt_of
from kinesis_trident.spout.reader.rows import ANCHORS
from kinesis_trident.tracker.ids import roots, tuple_ids

TUPLES = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(-(2**63), 2**63 - 1)), max_size=3),
    max_size=12,
)


def made(tuples: list[list[tuple[int, int, int]]]) -> Anchors:
    flat = [anchor for one in tuples for anchor in one]
    root = np.array([int(roots(0xFFFABC, shard, np.array([n]))[0]) for shard, n, _ in flat], dtype=np.int64)
    edges = np.array([edge for _, _, edge in flat], dtype=np.int64)
    return Anchors(root, edges, np.cumsum([0, *map(len, tuples)]))


def listed(anchors: Anchors) -> list[list[tuple[int, int]]]:
    offsets = np.arange(len(anchors.roots) + 1) if anchors.offsets is None else anchors.offsets
    pairs = list(zip(anchors.roots.tolist(), anchors.edges.tolist(), strict=True))
    return [pairs[start:stop] for start, stop in pairwise(offsets.tolist())]


@given(TUPLES, st.integers(0, 12), st.data())
def test_a_batch_has_the_anchors_that_were_put_in_whatever_slice_of_it(
    tuples: list[list[tuple[int, int, int]]], cut: int, data: st.DataObject
) -> None:
    anchors = made(tuples)
    batch = pa.RecordBatch.from_arrays([anchors.column()], [ANCHORS])
    assert listed(anchors_of(batch)) == listed(anchors)
    assert listed(anchors_of(batch.slice(cut))) == listed(anchors)[cut:]
    rows = data.draw(st.lists(st.integers(0, len(tuples) - 1), max_size=8)) if tuples else []
    taken = anchors_of(batch).take(np.array(rows, dtype=np.int64))
    assert listed(taken) == [listed(anchors)[row] for row in rows]


@given(st.lists(st.integers(0, 5), max_size=20).map(sorted))
def test_children_stay_in_their_parents_trees_and_are_all_distinct(rows: list[int]) -> None:
    ids = tuple_ids("orders", 7, "shardId-0", np.arange(12)).tolist()
    parents = made([[(n % 2, n, ids[n]), (3, n, ids[6 + n])] for n in range(6)])
    split = parents.children(np.array(rows, dtype=np.int64), salt_of("split"))
    again = parents.children(np.array(rows, dtype=np.int64), salt_of("split"))
    other = parents.children(np.array(rows, dtype=np.int64), salt_of("other"))
    assert [[root for root, _ in one] for one in listed(split)] == [
        [root for root, _ in listed(parents)[row]] for row in rows
    ]
    assert listed(split) == listed(again)
    edges = [*split.edges.tolist(), *other.edges.tolist(), *parents.edges.tolist()]
    assert len(set(edges)) == len(edges)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=30))
def test_roots_are_grouped_by_their_shard_in_order(pairs: list[tuple[int, int]]) -> None:
    tag = 0x800001
    all_roots = np.array([int(roots(tag, s, np.array([n]))[0]) for s, n in pairs], dtype=np.int64)
    found = {key: places.tolist() for key, places in groups_of(all_roots)}
    assert found == {
        (tag, shard): [at for at, (s, _) in enumerate(pairs) if s == shard] for shard, _ in pairs
    }
