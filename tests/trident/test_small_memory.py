"""A state in memory that keeps few keys: against a model, whatever it keeps for itself."""

from __future__ import annotations

import operator
from collections import OrderedDict

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.trident import MemoryMapState
from kinesis_trident.trident.state import ATTEMPT
from kinesis_trident.trident.stores.ownership import Owner
from kinesis_trident.trident.stores.task import TASK, StateTask

BATCHES = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=8, unique=True), max_size=8)


@pytest.mark.parametrize("prefix", ["", "p:"])
@pytest.mark.parametrize("size", range(1, 10))
@given(batches=BATCHES)
def test_counts_of_the_last_used_keys(size: int, prefix: str, batches: list[list[str]]) -> None:
    factory = MemoryMapState.opaque(maxSize=size, keyPrefix=prefix)
    model: OrderedDict[str, int] = OrderedDict()
    for txid, words in enumerate(batches, 1):
        owner = Owner("shop", "lines@1", "count", frozenset({"count"}))
        state = factory.make_state({TASK: StateTask(txid, owner)}, 0, 1)
        state.begin_commit(txid)
        state.check_replay([(word,) for word in words])
        found = state.multi_combine([(word,) for word in words], operator.add, [1] * len(words))
        state.commit(txid)
        expected = [model.pop(word, 0) + 1 for word in words]
        model.update(zip(words, expected, strict=True))
        while len(model) > size:
            model.popitem(last=False)
        assert found == expected
        assert sorted(state.tuples()) == sorted(model.items())


@pytest.mark.parametrize("key", ['a["$FENCE$"]', "$OWNER$", '["$OWNER$"', 'p:["$FENCE$"]'])
def test_a_user_s_key_that_looks_like_one_of_the_state_s_own(key: str) -> None:
    factory = MemoryMapState.opaque(maxSize=1)
    for txid in (1, 2):
        state = factory.make_state({ATTEMPT: txid}, 0, 1)
        state.begin_commit(txid)
        state.multi_put([(key,)], [txid])
        state.commit(txid)
    assert state.tuples() == [(key, 2)]
