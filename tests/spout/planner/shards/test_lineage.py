"""The lineage of shards: nothing is read before its parents, nothing is left unread."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import get_args

import pytest
from hypothesis import given, settings, strategies as st

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import ShardLineage
from kinesis_trident.spout.kinesis import Shard, StreamInfo
from kinesis_trident.spout.options.modes import ShardOrdering
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.listing import Listed, Listing, take_in_listing
from kinesis_trident.spout.planner.settling.shard_events import HomeUnit
from kinesis_trident.spout.planner.shards.lineage import (
    add_new_shards,
    adopt_positions,
    find_readable,
    left_out,
    mark_drained,
    start_lineage,
)
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.positions import TRIM_HORIZON, AtTimestamp, parse_position

START = AtTimestamp(1_700_000_000_000)
INFO = StreamInfo("orders", "arn", 1, 24, "ACTIVE", 0)
LAYOUT = Layout("/k", "app", "orders", 1)


def merge_listing(lineage: Mapping[str, ShardLineage], listed: Sequence[Shard]) -> dict[str, ShardLineage]:
    """Return the lineage after a full listing; what it lacks cannot be read."""
    gone = lineage.keys() - {shard.id for shard in listed}
    event = Listed([Listing(INFO, lineage, listed, TRIM_HORIZON, gone, 0)], everything=True)
    shards = Shards("none", {s: ShardState(parse_position(one.start)) for s, one in lineage.items()}, lineage)
    for unit in take_in_listing(shards, event, LAYOUT):
        assert isinstance(unit, HomeUnit)
        shards = unit.after
    return dict(shards.lineage)


def test_at_the_very_first_start_every_shard_begins_where_the_user_said() -> None:
    lineage = start_lineage([Shard("a", closed=True), Shard("b", ("a",))], START)
    assert lineage == {
        "a": ShardLineage((), "closed", str(START)),
        "b": ShardLineage(("a",), "open", str(START)),
    }


def test_children_found_later_are_read_from_the_trim_horizon_after_all_their_parents() -> None:
    lineage = start_lineage([Shard("a"), Shard("b")], START)
    listing = [Shard("a", closed=True), Shard("b", closed=True), Shard("c", ("a", "b"))]
    lineage = merge_listing(lineage, listing)
    assert lineage["c"].start == "TRIM_HORIZON"
    assert lineage["a"] == ShardLineage((), "closed", str(START))
    assert find_readable(lineage, "parentFirst") == ["a", "b"]
    lineage = mark_drained(lineage, ["a"])
    assert find_readable(lineage, "parentFirst") == ["b"]
    lineage = mark_drained(lineage, ["b"])
    assert find_readable(lineage, "parentFirst") == ["c"]


def test_a_closed_shard_is_not_drained_by_the_listing() -> None:
    lineage = merge_listing(start_lineage([Shard("a")], START), [Shard("a", closed=True)])
    assert lineage["a"].state == "closed"
    assert find_readable(lineage, "parentFirst") == ["a"]


def test_a_drained_shard_stays_drained_while_it_is_listed() -> None:
    lineage = mark_drained(start_lineage([Shard("a", closed=True)], START), ["a"])
    assert merge_listing(lineage, [Shard("a", closed=True)])["a"].state == "drained"


def test_a_parent_that_is_no_longer_listed_counts_as_done_and_is_forgotten() -> None:
    lineage = start_lineage([Shard("a", closed=True), Shard("b", ("a",)), Shard("c", ("never-seen",))], START)
    assert find_readable(lineage, "parentFirst") == ["a", "c"]
    lineage = merge_listing(lineage, [Shard("b", ("a",)), Shard("c", ("never-seen",))])
    assert sorted(lineage) == ["b", "c"]
    assert find_readable(lineage, "parentFirst") == ["b", "c"]


def test_what_a_known_shard_came_from_is_not_read_again_after_a_listing_of_before_it() -> None:
    parents = [Shard("a"), Shard("b")]
    lineage = mark_drained(start_lineage(parents, START), ["a", "b"])
    lineage = merge_listing(lineage, [Shard("c", ("a", "b"))])
    assert set(merge_listing(lineage, [*parents, Shard("x")])) == {"x"}
    assert set(add_new_shards(lineage, parents)) == {"c"}


def test_a_listing_of_what_is_new_forgets_nothing_and_closes_what_it_came_from() -> None:
    lineage = start_lineage([Shard("a", closed=True), Shard("b", ("a",)), Shard("c", ("a",))], START)
    new = [Shard("d", ("b",)), Shard("e", ("b",))]
    after = add_new_shards(lineage, new)
    assert sorted(after) == ["a", "b", "c", "d", "e"]
    assert [after[shard].state for shard in "abcde"] == ["closed", "closed", "open", "open", "open"]
    assert after["d"].start == "TRIM_HORIZON"
    assert add_new_shards(after, []) == after


def test_what_was_closed_before_the_start_is_not_read_although_it_is_listed_later() -> None:
    """The first listing left out `a` and `b`, which a listing of everything names again."""
    lineage = start_lineage([Shard("c", ("b",))], START)
    everything = [
        Shard("a", closed=True),
        Shard("b", ("a",), closed=True),
        Shard("c", ("b",), closed=True),
        Shard("d", ("c",)),
    ]
    for after in (add_new_shards(lineage, everything), merge_listing(lineage, everything)):
        assert sorted(after) == ["c", "d"]


def test_an_adopted_offset_knows_what_was_before_it_and_what_came_after() -> None:
    everything = [
        Shard("a", closed=True),
        Shard("b", ("a",), closed=True),
        Shard("c", ("b",), closed=True),
        Shard("d", ("b",), closed=True),
        Shard("e", ("c", "d")),
    ]
    positions = {"c": "AFTER_SEQUENCE_NUMBER 5", "d": "SHARD_END"}
    lineage = adopt_positions({}, everything, positions)
    assert {shard: node.state for shard, node in lineage.items()} == {
        "a": "drained",
        "b": "drained",
        "c": "closed",
        "d": "drained",
        "e": "open",
    }
    assert lineage["e"].start == "TRIM_HORIZON"
    assert find_readable(lineage, "parentFirst") == ["c"]


def test_an_offset_leaves_out_what_is_done_while_it_names_what_came_of_it() -> None:
    everything = [
        Shard("a", closed=True),
        Shard("b", ("a",), closed=True),
        Shard("c", ("a",), closed=True),
        Shard("d", ("b", "c")),
        Shard("e", closed=True),
    ]
    lineage = mark_drained(start_lineage(everything, START), ["a", "b", "e"])
    # Nothing of the new shards of `e` is known yet: without `e` in the offset it would be read again.
    assert left_out(lineage, lambda _: False) == {"a", "b"}
    assert left_out(lineage, {"b"}.__contains__) == {"a"}
    assert left_out(mark_drained(lineage, ["c"]), {"d"}.__contains__) == {"a", "b", "c"}
    # All is done: the newest shards stay, or the offset would say nothing.
    assert left_out(mark_drained(lineage, ["c", "d"]), lambda _: False) == set()


def test_an_older_copy_s_lineage_learns_what_the_offset_leaves_out() -> None:
    known = start_lineage([Shard("a"), Shard("x")], START)
    listed = [Shard("b", ("a",), closed=True), Shard("c", ("b",)), Shard("x")]
    lineage = adopt_positions(known, listed, {"c": "TRIM_HORIZON", "x": "TRIM_HORIZON"})
    # `a` is past retention by now, and was read to its end before.
    assert {shard: node.state for shard, node in lineage.items()} == {
        "a": "drained",
        "b": "drained",
        "c": "open",
        "x": "open",
    }


def test_without_ordering_children_need_not_wait() -> None:
    lineage = start_lineage([Shard("a", closed=True), Shard("b", ("a",))], START)
    assert find_readable(lineage, "none") == ["a", "b"]
    assert find_readable(mark_drained(lineage, ["a"]), "none") == ["b"]


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), ordering=st.sampled_from(get_args(ShardOrdering)))
def test_random_resharding(seed: int, ordering: ShardOrdering) -> None:
    r = random.Random(seed)
    stream = {f"s{i}": Shard(f"s{i}") for i in range(r.randint(1, 3))}
    listed = dict(stream)
    first = set(stream)
    lineage = start_lineage(list(listed.values()), START)
    read_to_end: list[str] = []
    unread_gone: set[str] = set()

    def reshard() -> None:
        open_ = [shard for shard in listed.values() if not shard.closed]
        parents = r.sample(open_, min(len(open_), r.randint(1, 2)))
        for parent in parents:
            listed[parent.id] = stream[parent.id] = Shard(parent.id, parent.parents, True)
        for _ in range(2 if len(parents) == 1 else 1):
            name = f"s{len(stream)}"
            listed[name] = stream[name] = Shard(name, tuple(parent.id for parent in parents))

    def retention() -> None:
        gone = [shard.id for shard in listed.values() if shard.closed]
        if gone and r.random() < 0.3:
            name = r.choice(gone)
            del listed[name]
            if name not in read_to_end:
                unread_gone.add(name)

    def read() -> None:
        for name in find_readable(lineage, ordering):
            assert name not in read_to_end
            if ordering == "parentFirst":
                waited = set(stream[name].parents) & lineage.keys()
                assert waited <= set(read_to_end)
        ended = [
            n for n in find_readable(lineage, ordering) if lineage[n].state == "closed" and r.random() < 0.7
        ]
        read_to_end.extend(ended)
        lineage.update(mark_drained(lineage, ended))

    for _ in range(15):
        r.choice([reshard, retention, read, read])()
        if r.random() < 0.5:
            before = set(lineage)
            shards = r.sample(list(listed.values()), len(listed))
            lineage = add_new_shards(
                lineage, [shard for shard in shards if r.random() < 0.5 or shard.id not in before]
            )
            assert before | set(listed) == set(lineage)
            lineage = merge_listing(lineage, shards)
            assert list(lineage) == sorted(listed)
        for name, node in lineage.items():
            assert node.start == (str(START) if name in first else "TRIM_HORIZON")
            assert (node.state == "drained") == (name in read_to_end)
    for name in list(listed):
        listed[name] = Shard(name, listed[name].parents, True)
    lineage = merge_listing(lineage, list(listed.values()))
    while names := find_readable(lineage, ordering):
        read_to_end.extend(names)
        lineage = mark_drained(lineage, names)
    assert set(read_to_end) | unread_gone == set(stream)
    assert len(read_to_end) == len(set(read_to_end))


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), ordering=st.sampled_from(get_args(ShardOrdering)))
def test_an_offset_is_adopted_as_one_that_leaves_out_nothing(seed: int, ordering: ShardOrdering) -> None:
    r = random.Random(seed)
    stream = {f"s{i}": Shard(f"s{i}") for i in range(r.randint(1, 3))}

    def reshard() -> None:
        open_ = [shard for shard in stream.values() if not shard.closed]
        parents = r.sample(open_, min(len(open_), r.randint(1, 2)))
        for parent in parents:
            stream[parent.id] = Shard(parent.id, parent.parents, True)
        for _ in range(2 if len(parents) == 1 else 1):
            name = f"s{len(stream)}"
            stream[name] = Shard(name, tuple(parent.id for parent in parents))

    for _ in range(r.randint(0, 8)):
        reshard()
    older = lineage = start_lineage(list(stream.values()), START)
    for _ in range(r.randint(0, 6)):
        lineage = mark_drained(
            lineage, [n for n in find_readable(lineage, ordering) if stream[n].closed and r.random() < 0.8]
        )
    held = {shard for shard in stream if r.random() < 0.1}
    whole = {
        shard: "SHARD_END" if node.state == "drained" else "AFTER_SEQUENCE_NUMBER 5"
        for shard, node in lineage.items()
    }
    fewer = {shard: at for shard, at in whole.items() if shard not in left_out(lineage, held.__contains__)}
    assert {shard for shard in held if whole[shard] == "SHARD_END"} <= fewer.keys()
    for _ in range(r.randint(0, 3)):
        reshard()
    # Retention removes parents no later than their children.
    listed = list(stream.values())[r.randint(0, len(stream) // 2) :]
    for known in ({}, older):
        adoptions = [adopt_positions(known, listed, positions) for positions in (whole, fewer)]
        states = [{shard.id: found[shard.id].state for shard in listed} for found in adoptions]
        assert states[0] == states[1]


@pytest.mark.parametrize("ordering", get_args(ShardOrdering))
def test_nothing_is_readable_once_all_is_drained(ordering: ShardOrdering) -> None:
    assert find_readable(mark_drained(start_lineage([Shard("a")], START), ["a"]), ordering) == []
