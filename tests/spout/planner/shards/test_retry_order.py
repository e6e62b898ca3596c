"""What of a shard waits for what, with `retryOrder`: runs, shards that come of one another, and plans."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, strategies as st

from kinesis_trident.checkpoint.model.nodes import InflightNode, Plan, ShardLineage
from kinesis_trident.checkpoint.model.standing import RETRIES_FIRST
from kinesis_trident.spout.planner.plan import ShardState, keep_still_due
from kinesis_trident.spout.planner.shards.retry_order import Chains
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.tracker.failure import Failure, Kind, text_of
from kinesis_trident.tracker.ids import hash_of
from kinesis_trident.tracker.records import Noted, Run
from kinesis_trident.tracker.runs import ALL, MOST_KEYS

NOW = 1_000
ABOVE = {"parent": [Run("1", "1", due=NOW + 1)]}
CHILD = {"child": ShardLineage(parents=("parent",)), "parent": ShardLineage(state="drained")}
ORDERED = Chains("shard", CHILD, ABOVE)
HELD = (Noted(0, text_of(Failure(Kind.HELD, where=("join",)))),)


@st.composite
def waiting(draw: st.DrawFn) -> list[Run]:
    """Runs of one record: due or not, failed once or more, or held by a bolt."""
    kinds = draw(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.booleans()), max_size=7))
    return [
        Run(str(n), str(n), attempt=attempt, due=NOW - is_due, failures=HELD if is_held else ())
        for n, (is_due, attempt, is_held) in enumerate(kinds, start=1)
    ]


def is_due(run: Run) -> bool:
    return run.due < NOW or run.is_held


@given(waiting())
def test_what_failed_is_taken_up_in_order_up_to_the_first_that_is_not_due_or_has_failed_twice(
    runs: list[Run],
) -> None:
    taken = ORDERED.select("parent", runs, is_due)
    failed = [run for run in runs if not run.is_held]
    expected = []
    for run in failed:
        if not is_due(run):
            break
        expected.append(run)
        if run.attempt >= 2:
            break
    assert [run for run in taken if not run.is_held] == expected
    assert [run for run in taken if run.is_held] == [run for run in runs if run.is_held]
    heads = [run for run in ORDERED.find_heads("parent", runs) if not run.is_held]
    assert heads == failed[:1]
    assert not [run for run in ORDERED.select("child", runs, is_due) if not run.is_held]
    assert not [run for run in ORDERED.find_heads("child", runs) if not run.is_held]
    assert Chains().select("child", runs, is_due) == tuple(filter(is_due, runs))
    assert list(Chains().find_heads("child", runs)) == runs


def shards(*failed: str, **waits: list[Run]) -> Shards:
    """Two parents, their child, and its child; the parents are read to their ends."""
    lineage = {
        "a": ShardLineage(state="drained"),
        "b": ShardLineage(state="drained"),
        "child": ShardLineage(parents=("a", "b")),
        "grandchild": ShardLineage(parents=("child",)),
        "other": ShardLineage(),
    }
    runs = {name: [Run("1", "1", due=5)] for name in failed} | waits
    states = {
        name: ShardState(TRIM_HORIZON, None, InflightNode(txid=1, waiting=tuple(runs.get(name, ()))))
        for name in lineage
    }
    return Shards("parentFirst", states, lineage, retry_order="shard")


def test_a_shard_stands_while_something_of_it_waits_or_of_what_it_comes_of() -> None:
    for failed, first in (
        ((), set()),
        (("a",), {"child"}),
        (("child",), {"child"}),
        (("grandchild",), set()),
        (("other",), {"other"}),
        (("a", "other"), {"child", "other"}),
    ):
        found = shards(*failed).standings
        assert {shard for shard, one in found.items() if RETRIES_FIRST in one.causes} == first
    assert not shards("child").standing("child").reads
    held = shards(other=[Run("1", "1", failures=HELD)])
    assert held.standing("other").reads


@st.composite
def keyed(draw: st.DrawFn) -> list[Run]:
    """Runs of up to two keys, of which some are not known, due or not."""
    kinds = draw(
        st.lists(
            st.tuples(
                st.sampled_from([("a",), ("a",), ("b",), ("c",), ("a", "b"), ("b", "c"), ()]),
                st.booleans(),
                st.integers(0, 3),
            ),
            max_size=8,
        )
    )
    return [
        Run(str(n), str(n), attempt=attempt, due=NOW - is_due, keys=keys)
        for n, (keys, is_due, attempt) in enumerate(kinds, start=1)
    ]


@given(keyed(), st.sets(st.sampled_from("abc")))
def test_of_each_key_a_plan_takes_up_what_nothing_before_it_holds(runs: list[Run], above: set[str]) -> None:
    waits = {
        "child": runs,
        "parent": [Run("0", "0", due=NOW + 1, keys=tuple(sorted(above)))] if above else [],
    }
    chains = Chains("key", CHILD, waits)
    taken = chains.select("child", runs, is_due)
    held, expected, heads, before = set(above), [], [], set(above)
    everything = set("abc")
    for run in runs:
        keys = set(run.keys) or everything
        if not keys & before and not (not run.keys and before):
            heads.append(run)
        before |= keys
        is_free = not keys & held and not (not run.keys and held)
        if is_free and is_due(run):
            expected.append(run)
        if not is_free or not is_due(run) or run.attempt >= 2:
            held |= keys
    assert list(taken) == expected
    assert list(chains.find_heads("child", runs)) == heads
    left = [run for run in runs if run not in taken]
    hold = chains.hold("child", {run.last for run in taken})
    assert hold >= above
    if all(run.keys for run in left):
        assert hold == above.union(*(run.keys for run in left))
        assert ("child" in chains.stand) is not all(run.keys for run in runs)
    else:
        assert ALL in hold
        assert "child" in chains.stand


def test_a_record_that_cannot_be_decoded_holds_nobody() -> None:
    unreadable = (Noted(0, text_of(Failure(Kind.UNREADABLE, "no JSON"))),)
    runs = [Run("1", "1", due=NOW + 1, failures=unreadable), Run("2", "2", keys=("a",))]
    chains = Chains("key", CHILD, {"child": runs})
    assert chains.select("child", runs, is_due) == (runs[1],)
    assert not chains.stand
    assert chains.hold("child", {"2"}) == frozenset()


def test_more_keys_than_are_named_hold_the_shard() -> None:
    def chains_of(count: int) -> Chains:
        runs = [Run(str(n), str(n), keys=(hash_of(str(n)),)) for n in range(count)]
        return Chains("key", CHILD, {"child": runs})

    assert chains_of(MOST_KEYS).stand == frozenset()
    assert chains_of(MOST_KEYS + 1).stand == {"child"}


def test_shards_come_of_each_other_through_those_in_between() -> None:
    def behind(*failed: str) -> set[str]:
        return set(shards(*failed).chains.ahead)

    assert behind("a") == {"child", "grandchild"}
    assert behind("child", "other") == {"grandchild"}
    assert behind() == set()


class Counted(tuple[str, ...]):
    """Parents that count how often they are asked for."""

    asked = 0

    def __iter__(self) -> Iterator[str]:
        Counted.asked += 1
        return super().__iter__()


def test_to_find_what_comes_of_a_shard_all_that_came_before_it_is_not_walked_through() -> None:
    count = 300
    lineage = {
        str(n): ShardLineage(Counted([str(n - 1)]), "drained" if n < count else "open")
        for n in range(1, count + 1)
    }
    chains = Chains("key", lineage, {str(count - 1): [Run("1", "1", keys=("a",))]})
    before = Counted.asked
    assert chains.ahead == {str(count): frozenset({"a"})}
    assert Counted.asked - before <= count


def test_a_run_that_waits_for_another_wakes_nobody() -> None:
    runs = [Run("1", "1", due=50), Run("2", "2", due=3)]
    assert shards(other=runs).next_retry == 50
    assert shards(child=runs, a=[Run("1", "1", due=70)]).next_retry == 70
    assert shards().next_retry is None


def test_of_a_plan_that_nobody_has_stored_what_follows_a_run_that_is_not_in_it_is_left_for_later() -> None:
    first, second, third = (Run(str(n), str(n)) for n in (1, 2, 3))
    states = shards(other=[first, second, third]).states
    plan = Plan(txid=2, plan="p", streams={"s": 1}, positions={}, retries={"other": (second, third)})
    assert keep_still_due(plan, states).retries == {"other": (second, third)}
    ordered = shards(other=[first, second, third]).chains
    assert keep_still_due(plan, states, ordered).retries == {}
    whole = Plan(txid=2, plan="p", streams={"s": 1}, positions={}, retries={"other": (first, second)})
    assert keep_still_due(whole, states, ordered).retries == {"other": (first, second)}
