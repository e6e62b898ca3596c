"""The acker: a tree is done exactly when every tuple made in it was acked, whatever the order of the messages."""

from __future__ import annotations

import functools
import operator
import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from thorough import cases, examples

from kinesis_trident.tracker.acker import Acker, TreeOutcome
from kinesis_trident.tracker.errors import OrderError

ACKED, FAILED = TreeOutcome.ACKED, TreeOutcome.FAILED
ROOT = -7
ROOTS = st.integers(-(2**63), 2**63 - 1)
Messages = list[tuple[str, int]]


@dataclass(frozen=True)
class Dag:
    """Tuples in order of their making, each with the tuples it is anchored to: one anchor is one edge, with an id."""

    anchors: list[list[int]]
    seed: int

    def messages(self) -> Messages:
        """Return what the acker of the root is told, in the order in which it happens."""
        rng = np.random.default_rng(self.seed)
        ids = [rng.integers(-(2**63), 2**63, max(len(above), 1)).tolist() for above in self.anchors]
        values = [functools.reduce(operator.xor, edges) for edges in ids]
        first = 0
        for above, edges in zip(self.anchors, ids, strict=True):
            if not above:
                first ^= edges[0]
            for parent, edge in zip(above, edges, strict=False):
                values[parent] ^= edge
        return [("init", first), *(("ack", value) for value in values)]


@st.composite
def dags(draw: st.DrawFn) -> Dag:
    size = draw(st.integers(1, 12))
    anchors: list[list[int]] = [[]]
    for n in range(1, size):
        anchors.append(draw(st.lists(st.integers(0, n - 1), max_size=3)))
    return Dag(anchors, draw(st.integers(0, 2**32)))


def told(acker: Acker, messages: Messages, root: int = ROOT) -> list[TreeOutcome | None]:
    return [acker.init(root, value) if kind == "init" else acker.ack(root, value) for kind, value in messages]


@given(dags(), st.randoms())
def test_a_tree_is_done_with_its_last_message_in_any_order(dag: Dag, order) -> None:  # type: ignore[no-untyped-def]
    messages = dag.messages()
    order.shuffle(messages)
    acker = Acker()
    assert told(acker, messages) == [None] * (len(messages) - 1) + [ACKED]
    assert acker.pending == 0


@given(dags(), st.randoms(), st.data())
def test_a_dropped_or_doubled_message_is_never_a_done_tree(dag: Dag, order, data: st.DataObject) -> None:  # type: ignore[no-untyped-def]
    messages = dag.messages()
    wrong = data.draw(st.integers(0, len(messages) - 1))
    acker = Acker(timeout=10)
    if data.draw(st.booleans()):
        del messages[wrong]
        order.shuffle(messages)
        assert told(acker, messages) == [None] * len(messages)
        assert acker.tick(20) == ([ROOT] if wrong else [])
        return
    names = list(range(len(messages)))
    came = [*names, wrong]
    order.shuffle(came)
    said = told(acker, [messages[name] for name in came])
    # Done exactly where all have come and no ack has come twice by then; later it is late. A second init is ignored.
    complete = next(at for at in range(len(came)) if set(came[: at + 1]) == set(names))
    fine = not wrong or complete == len(names) - 1
    assert [at for at, one in enumerate(said) if one] == ([complete] if fine else [])
    assert acker.tick(20) == ([] if fine else [ROOT])


@given(dags(), st.randoms())
def test_a_failed_tuple_fails_its_tree_even_where_the_sum_is_zero(dag: Dag, order) -> None:  # type: ignore[no-untyped-def]
    messages = dag.messages()
    order.shuffle(messages)
    for at in range(len(messages)):
        acker = Acker()
        before = told(acker, messages[:at])
        said = [acker.fail(ROOT), *told(acker, messages[at:])]
        assert before == [None] * at
        assert [one for one in said if one] == [FAILED]
        assert acker.pending == 0


@settings(deadline=None)
@given(st.lists(ROOTS, unique=True, min_size=1, max_size=20), st.randoms(), st.data())
def test_arrays_and_single_calls_say_the_same(roots: list[int], order, data: st.DataObject) -> None:  # type: ignore[no-untyped-def]
    roots.sort()
    if data.draw(st.booleans()):
        roots = [min(roots[0], 0) + n for n in range(len(roots))]
    trees = {root: data.draw(dags()).messages() for root in roots}
    early = data.draw(st.sets(st.sampled_from(roots)))
    failing = sorted(data.draw(st.sets(st.sampled_from(roots))))
    ones, many = Acker(), Acker()
    firsts = [(root, value) for root, (_, (_, value), *_) in trees.items() if root in early]
    single = {root: one for root, value in firsts if (one := ones.ack(root, value))}
    bulk: dict[int, TreeOutcome] = dict.fromkeys(many.ack_many(*arrays(firsts)).tolist(), ACKED)
    inits = [(root, messages[0][1]) for root, messages in trees.items()]
    single |= {root: one for root, value in inits if (one := ones.init(root, value))}
    acked, failed = many.init_many(*arrays(inits))
    bulk |= dict.fromkeys(acked.tolist(), ACKED) | dict.fromkeys(failed.tolist(), FAILED)
    rest = [
        (root, value)
        for root, messages in trees.items()
        for _, value in messages[2 if root in early else 1 :]
    ]
    if data.draw(st.booleans()):
        order.shuffle(rest)
    half = data.draw(st.integers(0, len(rest)))
    for part in (rest[:half], rest[half:]):
        single |= {root: one for root, value in part if (one := ones.ack(root, value))}
        bulk |= dict.fromkeys(many.ack_many(*arrays(part)).tolist(), ACKED)
        single |= {root: one for root in failing if (one := ones.fail(root))}
        bulk |= dict.fromkeys(many.fail_many(np.array(failing, dtype=np.int64)).tolist(), FAILED)
        assert bulk == single
        assert many.pending == ones.pending
    assert set(single) == set(roots)


def arrays(pairs: Messages | list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


@pytest.mark.parametrize("dense", cases(True, long=(False,)))
def test_ten_million_random_trees_have_no_false_zero(dense: bool) -> None:
    # Each tree: init, two tuples anchored to its first, all acked; of each one message is lost, or comes twice.
    trees, rng = 5_000_000, np.random.default_rng(4)
    roots = np.arange(trees, dtype=np.int64) * (1 if dense else 3) - trees
    a, b, c = (rng.integers(-(2**63), 2**63, trees) for _ in range(3))
    acker = Acker(timeout=1)
    acker.init_many(roots, a)
    wrong = np.arange(trees) % 6
    messages = a ^ b ^ c, b, c
    # One that comes twice does so while another is still to come: else the tree is done, and the second is late.
    for number, comes in (
        *((2, wrong == 5) for _ in range(2)),
        *((number, wrong != number) for number in range(2)),
        *((number, wrong == number + 3) for number in range(2)),
        (2, (wrong != 2) & (wrong != 5)),
    ):
        assert len(acker.ack_many(roots[comes], messages[number][comes])) == 0
    assert acker.pending == trees
    # With what was lost, and what came twice once more, all are done: nothing else had gone wrong.
    for number, values in enumerate(messages):
        mend = wrong % 3 == number
        assert np.array_equal(acker.ack_many(roots[mend], values[mend]), roots[mend])
    assert acker.pending == 0


def test_a_tuple_that_nobody_consumes_is_done_at_once() -> None:
    assert Acker().init(ROOT, 0) is ACKED
    acked, failed = Acker().init_many(np.array([1, 2, 3]), np.array([5, 0, 6]))
    assert (acked.tolist(), failed.tolist()) == ([2], [])


@pytest.mark.parametrize("many", [False, True])
def test_a_tree_times_out_between_one_and_two_timeouts_after_its_init(many: bool) -> None:
    for born in range(10, 20):
        acker = Acker(timeout=10, now=0)
        assert acker.tick(born) == []
        if many:
            acker.init_many(np.array([ROOT]), np.array([1]))
        else:
            acker.init(ROOT, 1)
        late = next(now for now in range(born, 60) if acker.tick(now))
        assert 10 < late - born <= 20
        assert acker.pending == 0


@pytest.mark.parametrize("many", [False, True])
def test_a_reset_puts_the_timeout_off_and_acks_do_not(many: bool) -> None:
    acker = Acker(timeout=10)
    if many:
        acker.init_many(np.array([1, 2]), np.array([5, 5]))
    else:
        acker.init(1, 5)
        acker.init(2, 5)
    assert acker.tick(10) == []
    acker.reset_timeout(1)
    acker.ack(2, 4)
    assert acker.tick(20) == [2]
    assert acker.pending == 1
    assert acker.ack(1, 5) is ACKED
    assert acker.tick(100) == []


def test_the_timeout_begins_with_the_init_where_an_ack_came_long_before() -> None:
    acker = Acker(timeout=10)
    acker.ack(1, 4)
    assert acker.tick(10) == []
    assert acker.init(1, 5) is None
    assert acker.tick(20) == []
    assert acker.ack(1, 1) is ACKED


def test_a_long_pause_times_out_everything_once() -> None:
    acker = Acker(timeout=10)
    acker.init(1, 5)
    assert acker.tick(1000) == [1]
    acker.init(2, 5)
    assert acker.tick(1009) == []
    assert acker.tick(1020) == [2]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("end", ["acked", "failed", "timed out"])
def test_late_messages_make_no_new_entry(many: bool, end: str) -> None:
    acker = Acker(timeout=10)
    if many:
        acker.init_many(np.array([1]), np.array([5]))
    else:
        acker.init(1, 5)
    if end == "acked":
        assert acker.ack(1, 5) is ACKED
    elif end == "failed":
        assert acker.fail(1) is FAILED
    else:
        assert acker.tick(20) == [1]
    acker.reset_timeout(1)
    assert acker.ack(1, 3) is None
    assert acker.fail(1) is None
    assert len(acker.ack_many(np.array([1]), np.array([5]))) == 0
    assert acker.pending == 0
    # Nor do they for another timeout after that.
    assert acker.tick(30 if end == "timed out" else 10) == []
    assert acker.ack(1, 3) is None
    assert acker.fail(1) is None
    assert acker.init(1, 3) is None
    assert len(acker.fail_many(np.array([1]))) == 0
    assert acker.pending == 0
    # What never had an init is forgotten without a word.
    assert acker.tick(100) == []
    acker.reset_timeout(9)
    assert acker.init(9, 4) is None
    assert acker.pending == 1


@pytest.mark.parametrize("seed", range(20))
def test_arrays_over_several_blocks_are_as_single_calls(seed: int) -> None:
    # Blocks of consecutive, of scattered and of interleaved roots, some single, over several timeouts.
    rng = np.random.default_rng(seed)
    blocks = [
        np.arange(100, 400),
        np.arange(1_000, 4_000, 3),
        np.arange(1_001, 4_000, 3),
        np.unique(rng.integers(-(2**63), 2**63, 300)),
    ]
    ones, many = Acker(timeout=10), Acker(timeout=10)
    values = {}
    for now, roots in enumerate(blocks, 1):
        drawn = rng.integers(-(2**63), 2**63, len(roots))
        values |= dict(zip(roots.tolist(), drawn.tolist(), strict=True))
        single = [
            root for root, value in zip(roots.tolist(), drawn.tolist(), strict=True) if ones.init(root, value)
        ]
        acked, failed = many.init_many(roots, drawn)
        assert single == acked.tolist() == failed.tolist() == []
        assert ones.tick(4 * now) == many.tick(4 * now) == []
    moved = rng.choice(np.concatenate(blocks), 50).tolist()
    for root in moved:
        ones.reset_timeout(root)
        many.reset_timeout(root)
    everything = np.array([*values, 7, 2_002, -5], dtype=np.int64)
    for now in range(20, 60, 4):
        picked = rng.choice(everything, 400, replace=False)
        # Half of them are done by that.
        given = np.array([values.get(root, 1) for root in picked.tolist()]) * rng.integers(0, 2, len(picked))
        said = [
            root for root, value in zip(picked.tolist(), given.tolist(), strict=True) if ones.ack(root, value)
        ]
        assert sorted(said) == many.ack_many(picked, given).tolist()
        bad = rng.choice(everything, 20)
        said = [root for root in bad.tolist() if ones.fail(root)]
        assert sorted(said) == many.fail_many(bad).tolist()
        assert ones.pending == many.pending
        assert sorted(ones.tick(now)) == sorted(many.tick(now))
    assert ones.pending == 0


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32))
def test_any_order_of_calls_says_the_same_by_arrays_and_one_by_one(seed: int) -> None:
    """Ids of zero, acks before and behind their tree's life, and time-outs between; a root begins once."""
    r = random.Random(seed)
    ones, many, now = Acker(timeout=10), Acker(timeout=10), 0
    known = [*range(40), *range(100, 200, 3), *(r.randrange(-(2**63), 2**63) for _ in range(20))]
    begun = set[int]()
    for _ in range(40):
        what = r.choice(["init", "ack", "ack", "ack", "fail", "reset", "tick"])
        roots = sorted(r.sample(known, r.randint(0, len(known))))
        if what == "init":
            roots = [root for root in roots if root not in begun]
            begun.update(roots)
        values = [r.choice([0, 1, 1, 2, 3, r.randrange(-(2**63), 2**63)]) for _ in roots]
        some, ids = np.array(roots, np.int64), np.array(values, np.int64)
        if what == "init":
            acked, failed = many.init_many(some, ids)
            bulk = dict.fromkeys(acked.tolist(), ACKED) | dict.fromkeys(failed.tolist(), FAILED)
            single = {root: ones.init(root, value) for root, value in zip(roots, values, strict=True)}
        elif what == "ack":
            bulk = dict.fromkeys(many.ack_many(some, ids).tolist(), ACKED)
            single = {root: ones.ack(root, value) for root, value in zip(roots, values, strict=True)}
        elif what == "fail":
            bulk = dict.fromkeys(many.fail_many(some).tolist(), FAILED)
            single = {root: ones.fail(root) for root in roots}
        elif what == "reset":
            many.reset_many(some)
            bulk, single = {}, dict.fromkeys(roots, None)
            for root in roots:
                ones.reset_timeout(root)
        else:
            now += r.choice([0, 4, 10, 25])
            bulk = dict.fromkeys(many.tick(now), FAILED)
            single = dict.fromkeys(ones.tick(now), FAILED)
        assert bulk == {root: said for root, said in single.items() if said}
        assert many.pending == ones.pending


def test_bulk_roots_must_be_ascending() -> None:
    for roots in ([2, 1], [1, 1]):
        with pytest.raises(OrderError, match="ascending"):
            Acker().init_many(np.array(roots), np.array([1, 1]))


@pytest.mark.parametrize("dense", [True, False])
def test_many_resets_put_timeouts_off_as_single_ones_do(dense: bool) -> None:
    roots = np.arange(100, dtype=np.int64) * (1 if dense else 7)
    ones, many = Acker(timeout=10), Acker(timeout=10)
    for acker in (ones, many):
        acker.init_many(roots, roots + 1)
        acker.init(5_000, 3)
        assert acker.tick(10) == []
        acker.fail(int(roots[4]))
    chosen = np.concatenate([roots[[40, 2, 2, 4]], [5_000, 9_999]])
    for root in chosen.tolist():
        ones.reset_timeout(root)
    many.reset_many(chosen)
    kept = {int(roots[2]), int(roots[40]), 5_000}
    assert (
        sorted(ones.tick(20)) == sorted(many.tick(20)) == sorted({*roots.tolist()} - kept - {int(roots[4])})
    )
    assert many.ack_many(roots[[2, 40]], roots[[2, 40]] + 1).tolist() == roots[[2, 40]].tolist()
    assert sorted(ones.tick(30)) == sorted(kept)
    assert many.tick(30) == [5_000]


def test_what_was_begun_a_moment_ago_is_not_moved_by_a_reset() -> None:
    acker = Acker()
    acker.init_many(np.arange(1000), np.ones(1000, dtype=np.int64))
    (block,) = acker._young.blocks
    acker.reset_many(np.arange(1000))
    acker.reset_timeout(7)
    assert acker._young.blocks == [block]
    assert not acker._young.trees


def test_unsigned_values_are_the_signed_ones_of_the_same_bits() -> None:
    acker = Acker()
    assert acker.init(2**64 - 1, 2**64 - 1) is None
    assert acker.ack(-1, -1) is ACKED
    acker.init_many(np.array([1]), np.array([-5]))
    assert acker.ack_many(
        np.array([1], dtype=np.uint64), np.array([2**64 - 5], dtype=np.uint64)
    ).tolist() == [1]


def test_what_makes_no_sense_is_refused() -> None:
    acker = Acker()
    with pytest.raises(OrderError, match="3 roots with 1 values"):
        acker.ack_many(np.arange(3), np.array([1]))
    with pytest.raises(OrderError, match="2 roots with 3 values"):
        acker.init_many(np.arange(2), np.arange(3))
    with pytest.raises(OrderError, match="timeout is 0"):
        Acker(timeout=0)


def random_forest(trees: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random trees, each tuple of which is anchored to any earlier one: each message's tree, number and value.

    The first message of each is the init, the others the acks: the id of the tuple XOR those of its children.
    """
    sizes = rng.integers(1, 8, trees)
    starts = np.cumsum(sizes) - sizes
    tree = np.repeat(np.arange(trees), sizes)
    number = np.arange(len(tree)) - starts[tree]
    ids = rng.integers(-(2**63), 2**63, len(tree))
    parents = starts[tree] + rng.integers(0, np.maximum(number, 1))
    acks = ids.copy()
    child = number > 0
    np.bitwise_xor.at(acks, parents[child], ids[child])
    return tree, number, np.concatenate([ids[starts], acks])


def test_random_shapes_come_to_zero_exactly_when_all_is_acked() -> None:
    trees, rng = 1_000_000, np.random.default_rng(7)
    tree, number, values = random_forest(trees, rng)
    acker = Acker(timeout=1)
    acker.init_many(np.arange(trees), values[:trees])
    acks = values[trees:]
    # Of each tree one ack is lost, at random; they come in any order.
    lost = number == rng.integers(0, np.bincount(tree))[tree]
    comes = rng.permutation(np.flatnonzero(~lost))
    for part in np.array_split(comes, 20):
        assert len(acker.ack_many(tree[part], acks[part])) == 0
    assert acker.pending == trees
    late = rng.permutation(np.flatnonzero(lost))
    assert np.array_equal(acker.ack_many(tree[late], acks[late]), np.arange(trees))
    assert acker.pending == 0
