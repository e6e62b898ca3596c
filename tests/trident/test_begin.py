"""The begin of a batch: on all drawn fences and marks as the loop of the release before, and never without end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from kinesis_trident.trident.errors import StateError, StateFencedError, StoreError
from kinesis_trident.trident.maps.backing import LOST, Version
from kinesis_trident.trident.state import StateType
from kinesis_trident.trident.stores.key_text import FENCE
from kinesis_trident.trident.stores.memory import MemoryByteStore
from kinesis_trident.trident.stores.ownership import GLOBALS, Owner, StatePlace, read_mark
from kinesis_trident.trident.stores.serializers import JsonSerializer
from kinesis_trident.trident.stores.storemap import StoreMap
from kinesis_trident.trident.stores.task import StateTask

UPDATES = st.sampled_from(["count", "sum", "old"])
MARKS = st.none() | st.tuples(
    st.sampled_from(["shop", "other"]),
    st.sampled_from(["lines@1", "lines@2", "both@3"]),
    UPDATES | st.just(GLOBALS),
    st.integers(0, 4),
)
FENCES = st.none() | st.tuples(st.integers(1, 9), st.integers(1, 4))
OWNERS = st.builds(
    Owner,
    application=st.just("shop"),
    stream=st.sampled_from(["lines@1", "both@3"]),
    update=UPDATES,
    updates=st.frozensets(UPDATES | st.just(GLOBALS)),
    is_global=st.booleans(),
    applied=st.integers(0, 6),
    merged=st.frozensets(st.sampled_from(["lines@1", "lines@2"])),
)
ACCEPTED = st.sampled_from(["", "other/lines@1/count", "shop/lines@2/sum", f"shop/lines@1/{GLOBALS}"])


class Twin:
    """The loop of the release before, without the register and the keys of other prefixes."""

    def __init__(self, store: MemoryByteStore, place: StatePlace, prefix: str) -> None:
        self.store, self.place, self.fence_key = store, place, prefix + FENCE
        self.base = 0
        self.mark = (0, 0)

    def begin_batch(self, txid: int, attempt: int) -> None:
        keys = [self.fence_key, *self.place.own]
        while True:
            raws, versions = self.store.get_many(keys)
            fence = read_mark("here", keys[0], raws[0], tuple[int, int], "[txid, attempt]")
            claimed = self.place.claim(raws[1:], fence[0] if fence else None, txid)
            marks = list(map(msgspec.json.encode, claimed))
            self.base = claimed[0].base
            self.place.check_applied(fence[0] - self.base if fence else None)
            self.mark = txid + self.base, attempt
            if fence is not None and fence > self.mark:
                raise StateFencedError("")
            if marks != raws[1:]:
                self.store.compare_and_set_many(keys[1:], marks, versions[1:])
                continue
            if fence == self.mark:
                return
            news = [msgspec.json.encode(self.mark), *marks]
            if LOST not in self.store.compare_and_set_many(keys, news, versions):
                return


@given(
    fence=FENCES,
    marks=st.tuples(MARKS, MARKS),
    owner=OWNERS,
    accepted=ACCEPTED,
    txid=st.integers(1, 9),
    attempt=st.integers(1, 4),
    prefix=st.sampled_from(["", "p:"]),
)
def test_as_the_release_before(
    fence: Any, marks: Any, owner: Owner, accepted: str, txid: int, attempt: int, prefix: str
) -> None:
    place = StatePlace(owner, "here", prefix, "$GLOBAL$", accepted, root=prefix)
    outcomes = []
    for twin in (True, False):
        store = MemoryByteStore("here")
        keys = [prefix + FENCE, *place.own]
        stored = [None if one is None else msgspec.json.encode(one) for one in (fence, *marks)]
        store.set_many(keys, stored[: len(keys)])
        try:
            if twin:
                old = Twin(store, place, prefix)
                old.begin_batch(txid, attempt)
                done: Any = old.mark[0], old.base
            else:
                new = StoreMap(
                    store,
                    JsonSerializer(StateType.OPAQUE),
                    key_prefix=prefix,
                    task=StateTask(attempt, place=place),
                )
                done = new.begin_batch(txid), new._base
        except StateError as error:
            done = type(error)
        outcomes.append((done, store.get_many(keys)[0]))
    assert outcomes[0] == outcomes[1]


class Forgetful(MemoryByteStore):
    """Forgets the keys that have a text in them, and counts its writes."""

    def __init__(self, forgotten: str) -> None:
        super().__init__("a cache")
        self.forgotten = forgotten
        self.writes = 0

    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        found = [
            None if self.forgotten in key else raw
            for key, raw in zip(keys, super().get_many(keys)[0], strict=True)
        ]
        return found, list(found)

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        self.writes += 1
        return super().compare_and_set_many(keys, values, versions)


@pytest.mark.parametrize("forgotten", ["FENCE", "OWNER", "KEYS"])
def test_a_store_that_does_not_keep_the_state_s_own_keys(forgotten: str) -> None:
    store = Forgetful(forgotten)
    place = StatePlace(Owner("shop", "lines@1", "count"), "a cache", "p:", "$GLOBAL$", root="p:")

    def begin(txid: int) -> None:
        state = StoreMap(
            store,
            JsonSerializer(StateType.OPAQUE),
            key_prefix="p:",
            task=StateTask(1, place.owner, 0, 1, place=place, lasting=False),
        )
        state.begin_batch(txid)
        state.check_replay([("a",)])

    def begin_two() -> None:
        begin(1)
        begin(2)

    with pytest.raises(StoreError, match=r"a cache does not keep the key 'p:.*after each of 20 writes"):
        begin_two()
    assert store.writes < 50
