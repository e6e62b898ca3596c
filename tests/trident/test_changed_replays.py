"""A replay that updates other keys than the attempt before, as after a changed lookup: it stops before it writes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from test_ownership import given as with_options, owner

from kinesis_trident import KinesisSpout, TopologyError, string_scheme
from kinesis_trident.testing import run_topology
from kinesis_trident.trident import (
    CombinerAggregator,
    Count,
    Function,
    MapGet,
    MemoryMapState,
    RedisState,
    ReducerAggregator,
    ReplayDiffersError,
    SqlState,
    StateUpdater,
    StoreUnavailableError,
    TridentTopology,
)
from kinesis_trident.trident.state import Key
from kinesis_trident.trident.stores import MapStateFactory
from kinesis_trident.trident.stores.key_text import digest_keys
from kinesis_trident.trident.stores.task import TASK, StateTask


def count(factory: MapStateFactory, txid: int, words: str, attempt: int = 1, **who: Any) -> list[Any]:
    """One partition of a batch, as an update of a topology counts it."""
    state = factory.make_state({TASK: StateTask(attempt, owner("counts", **who))}, 3, 8)
    state.begin_commit(txid)
    keys: list[Key] = [(word,) for word in words]
    state.check_replay(keys)
    counts = state.multi_combine(keys, operator.add, [1] * len(keys))
    state.commit(txid)
    return counts


def test_a_replay_with_other_keys_is_refused_and_accepted_on_purpose(every_store: MapStateFactory) -> None:
    count(every_store, 1, "abc")
    count(every_store, 2, "ab")
    for words, what in [("ac", "other keys"), ("abc", "3 keys instead of 2"), ("", "0 keys instead of 2")]:
        with pytest.raises(ReplayDiffersError, match=rf"batch 2 updates {what} of shop/.*acceptReplay=2 "):
            count(every_store, 2, words, attempt=2)
    assert every_store.make_state({}, 0, 1).multi_get([("a",), ("b",), ("c",)]) == [2, 2, 1]
    assert count(every_store, 2, "ba", attempt=3) == [2, 2]
    with pytest.raises(ReplayDiffersError):
        count(with_options(every_store, accept_replay=1), 2, "ac", attempt=4)
    accepting = with_options(every_store, accept_replay=2)
    for attempt in (5, 6):
        assert count(accepting, 2, "ac", attempt=attempt) == [2, 2]
    assert count(every_store, 3, "bd") == [3, 1]


def test_a_batch_that_an_older_release_has_begun() -> None:
    """It has stored a fence, the mark of the owner and values, and no digest of keys."""
    factory = MemoryMapState.opaque()
    stored = {'["$FENCE$"]': [7, 1], '["$OWNER$"]': ["shop", "lines@1", "counts", 0], "a": [7, 3, 2]}
    factory.store().set_many([*stored], [msgspec.json.encode(value) for value in stored.values()])
    assert count(factory, 7, "ab", attempt=2) == [3, 1]
    assert sorted(factory.make_state({}, 0, 1).tuples()) == [("a", 3), ("b", 1)]


def test_an_owner_that_took_over_names_its_own_batch() -> None:
    factory = MemoryMapState.opaque()
    count(factory, 70, "ab", application="other")
    theirs = with_options(factory, accept_owner="other/lines@1/counts")
    assert count(theirs, 1, "a") == [2]
    with pytest.raises(
        ReplayDiffersError, match=r"the replay of batch 1 updates other keys .* acceptReplay=1 "
    ):
        count(theirs, 1, "b", attempt=2)


@given(st.lists(st.text(), unique=True), st.randoms())
def test_a_digest_depends_on_the_keys_alone(names: list[str], random: Any) -> None:
    digest = digest_keys(5, names)
    mixed = random.sample(names, len(names))
    assert digest_keys(5, mixed) == digest
    for name in names:
        assert digest_keys(5, [other for other in names if other != name]) != digest
        if name + "x" not in names:
            assert digest_keys(5, [other if other != name else name + "x" for other in names]) != digest


def test_keys_that_have_swapped_their_ends_are_others() -> None:
    assert digest_keys(1, ["a1", "b2"]) != digest_keys(1, ["a2", "b1"])


def test_a_static_state_that_the_topology_updates() -> None:
    def built(*prefixes: str) -> TridentTopology:
        topology = TridentTopology()
        updated, static = (RedisState.opaque("redis://host", keyPrefix=prefix) for prefix in prefixes)
        spout = KinesisSpout(
            streamName="s", applicationName="a", zookeeper__hosts="z", scheme=string_scheme("name")
        )
        stream = topology.new_stream("s", spout)
        stream.group_by(["name"]).persistent_aggregate(updated, Count(), ["n"])
        stream.state_query(topology.new_static_state(static), ["name"], MapGet(), ["n long"])
        return topology

    with pytest.raises(
        TopologyError,
        match=r"persistent_aggregate\(Count\) updates the RedisState .* to new_static_state: .* Query",
    ):
        built("a", "a").check()
    built("a", "b").check()


class Total(CombinerAggregator):
    """A combiner that Spark does not have."""

    def init(self, tup: Any) -> int:
        return 1

    def combine(self, left: int, right: int) -> int:
        return left + right

    def zero(self) -> int:
        return 0


class Folded(ReducerAggregator):
    def init(self) -> int:
        return 0

    def reduce(self, current: int, tup: Any) -> int:
        return current + 1


class FailsOnce(SqlState):
    """A store that does not answer the first time, in the process of the test."""

    failed = False

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Any:
        if not type(self).failed:
            type(self).failed = True
            msg = "the network is gone"
            raise StoreUnavailableError(msg)
        return super().make_state(conf, partition_index, num_partitions)


class LookUp(Function):
    """Another table once a store has failed."""

    def __init__(self, later: dict[str, str]) -> None:
        self._later = later

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([(self._later if FailsOnce.failed else LOOKUPS[0])[tup[0]]])


LOOKUPS = [{"ada": "math", "bob": "art"}, {"ada": "math", "bob": "law"}, {"ada": "math", "bob": "math"}]


@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize(("aggregator", "several"), [(Count, True), (Total, False), (Folded, True)])
def test_a_lookup_that_changes_between_two_attempts(
    tmp_path: Path, lookup: dict[str, str], aggregator: Callable[[], Any], several: bool
) -> None:
    """Two records of each of three words: each counts once, or the topology stops with the counts as they were."""
    FailsOnce.failed = False
    topology = TridentTopology()
    spout = KinesisSpout(
        streamName="s", applicationName="a", zookeeper__hosts="z", scheme=string_scheme("name")
    )
    stream = topology.new_stream("s", spout)
    of = stream.each(["name"], LookUp(lookup), ["subject string"])
    counts = SqlState.opaque(f"sqlite:///{tmp_path}/counts.db")
    of.group_by(["subject"]).persistent_aggregate(counts, aggregator(), ["n long"])
    if several:
        more = SqlState.opaque(f"sqlite:///{tmp_path}/more.db")
        of.group_by(["subject", "name"]).persistent_aggregate(more, Count(), ["n"])
    of.group_by(["name"]).persistent_aggregate(
        FailsOnce.opaque(f"sqlite:///{tmp_path}/last.db"), Count(), ["n"]
    )

    def run() -> None:
        run_topology(topology, {"s": ["ada", "bob", "bob"] * 2}, parallelism=32)

    if lookup == LOOKUPS[0]:
        run()
    else:
        with pytest.raises(ReplayDiffersError, match="the replay of batch 1 updates"):
            run()
    keys: list[Key] = [("math",), ("art",), ("law",)]
    assert counts.make_state({}, 0, 1).multi_get(keys) == [2, 4, None]


@pytest.mark.parametrize("partitions", [1, 16])
def test_a_replay_in_another_number_of_partitions_counts_once(partitions: int) -> None:
    """As after a change of spark.sql.shuffle.partitions between two lives; the check needs the same number."""
    factory = MemoryMapState.opaque()

    def update(txid: int, attempt: int, words: str, number: int) -> None:
        for part in range(number):
            state = factory.make_state({TASK: StateTask(attempt, owner("counts"))}, part, number)
            state.begin_commit(txid)
            keys: list[Key] = [(word,) for word in words if ord(word) % number == part]
            state.check_replay(keys)
            state.multi_combine(keys, operator.add, [1] * len(keys))
            state.commit(txid)

    def counts(words: str) -> list[Any]:
        return list(factory.make_state({}, 0, 1).multi_get([(word,) for word in words]))

    update(1, 1, "abcde", 8)
    update(2, 1, "abcdef", 8)
    update(2, 2, "abcdef", partitions)
    assert counts("abcdef") == [2, 2, 2, 2, 2, 1]
    update(3, 1, "ab", partitions)
    update(3, 2, "ba", partitions)
    assert counts("abc") == [3, 3, 2]
    # What docs/states.md says of both changes at once.
    update(3, 3, "ac", partitions + 1)
    assert counts("abc") == [3, 3, 3]


class PutSubjects(StateUpdater[Any]):
    """Counts subjects by itself."""

    def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
        keys = [(tup[0],) for tup in tuples]
        for key in dict.fromkeys(keys):
            (before,) = state.multi_get([key])
            state.multi_put([key], [(before or 0) + keys.count(key)])


@pytest.mark.parametrize(("lookup", "found"), zip(LOOKUPS, [[2, 4, None], [2, 4, 4]], strict=False))
def test_an_updater_of_one_s_own_is_not_checked(
    tmp_path: Path, lookup: dict[str, str], found: list[int | None]
) -> None:
    """What it updates is known only when it has: docs/states.md says that a changed lookup counts twice there."""
    FailsOnce.failed = False
    topology = TridentTopology()
    spout = KinesisSpout(
        streamName="s", applicationName="a", zookeeper__hosts="z", scheme=string_scheme("name")
    )
    of = topology.new_stream("s", spout).each(["name"], LookUp(lookup), ["subject string"])
    counts = SqlState.opaque(f"sqlite:///{tmp_path}/counts.db")
    of.partition_persist(counts, ["subject"], PutSubjects())
    of.group_by(["name"]).persistent_aggregate(
        FailsOnce.opaque(f"sqlite:///{tmp_path}/last.db"), Count(), ["n"]
    )
    run_topology(topology, {"s": ["ada", "bob", "bob"] * 2})
    keys: list[Key] = [("math",), ("art",), ("law",)]
    assert counts.make_state({}, 0, 1).multi_get(keys) == found
