"""Any interleaving of batches, crashes and replays that a kind of spout allows, and how each kind of state counts."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import find, given, settings, strategies as st
from overlapping import Overlapping
from thorough import examples

from kinesis_trident.trident.errors import StoreUnavailableError
from kinesis_trident.trident.maps.backing import Version
from kinesis_trident.trident.state import Key
from kinesis_trident.trident.stores import StateType, StoreMap, map_state
from kinesis_trident.trident.stores.memory import MemoryByteStore
from kinesis_trident.trident.stores.serializers import JsonSerializer
from kinesis_trident.trident.stores.task import StateTask

KEYS = "abc"

Partials = dict[str, int]


@dataclass(frozen=True)
class Attempt:
    """An attempt at a batch: its additions, in one update or one a key, and the write after which it crashes."""

    partials: Partials
    split: bool
    crash_after: int | None
    twice: bool
    """Its answer is lost after the write, so that the write is tried again."""


class CrashingStore(MemoryByteStore):
    """Stops in the middle of a write: what came before it stays."""

    def __init__(self) -> None:
        super().__init__("crashing")
        self.left: int | None = None
        self.lose_answer = False

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        many = self._spend(len(keys))
        written = super().compare_and_set_many(keys[:many], values[:many], versions[:many])
        self._after(many, len(keys))
        return written

    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        many = self._spend(len(keys))
        super().set_many(keys[:many], values[:many])
        self._after(many, len(keys))

    def _spend(self, wanted: int) -> int:
        if self.left is None:
            return wanted
        many = min(wanted, self.left)
        self.left -= many
        return many

    def _after(self, done: int, wanted: int) -> None:
        if done < wanted:
            raise CrashError
        if self.lose_answer:
            self.lose_answer = False
            msg = "the answer was lost"
            raise StoreUnavailableError(msg)


class CrashingOverlapping(Overlapping, CrashingStore):
    """The same, a few keys after the others being under way."""


class CrashError(Exception):
    """The process is gone."""


PARTIALS = st.dictionaries(st.sampled_from(KEYS), st.integers(1, 9), min_size=1)


@st.composite
def batches(draw: st.DrawFn, spout: str) -> list[list[Attempt]]:
    """The attempts at each batch, of which the last one succeeds.

    A transactional spout gives the same records again. An opaque one may give others; `opaque, any keys` also such
    that a key of the first attempt is in none of the later ones, which the verdict of a topology rules out.
    """
    batches = []
    for _ in range(draw(st.integers(1, 4))):
        same = draw(PARTIALS)
        split = draw(st.booleans())
        attempts = []
        for _ in range(draw(st.integers(0, 3))):
            partials = same
            if spout == "opaque":
                partials = draw(st.fixed_dictionaries(dict.fromkeys(same, st.integers(1, 9))))
            elif spout == "opaque, any keys":
                partials = draw(PARTIALS)
            attempts.append(
                Attempt(partials, split, draw(st.none() | st.integers(0, 4)), draw(st.booleans()))
            )
        attempts.append(Attempt(same, split, None, draw(st.booleans())))
        batches.append(attempts)
    return batches


def run(
    kind: StateType,
    history: list[list[Attempt]],
    *,
    numbered: bool,
    store_type: type[CrashingStore] = CrashingStore,
) -> tuple[Partials, Partials]:
    """Return what the state holds in the end, and what it should."""
    store = store_type()
    truth: Partials = {}
    count = 0
    for txid, attempts in enumerate(history, 1):
        for attempt in attempts:
            count += 1
            state = map_state(
                StoreMap(
                    store,
                    JsonSerializer(kind),
                    task=StateTask(count if numbered else None),
                    sleep=lambda _: None,
                ),
                kind,
            )
            state.begin_commit(txid)
            store.left, store.lose_answer = attempt.crash_after, attempt.twice
            keys: list[Key] = [(key,) for key in attempt.partials]
            values = list(attempt.partials.values())
            try:
                for part in [slice(i, i + 1) for i in range(len(keys))] if attempt.split else [slice(None)]:
                    state.multi_combine(keys[part], operator.add, values[part])
                state.commit(txid)
            except CrashError:
                pass
            store.left, store.lose_answer = None, False
        for key, value in attempts[-1].partials.items():
            truth[key] = truth.get(key, 0) + value
    state = map_state(StoreMap(store, JsonSerializer(kind)), kind)
    found = state.multi_get([(key,) for key in KEYS])
    return {key: value for key, value in zip(KEYS, found, strict=True) if value is not None}, truth


EXACT = [
    ("transactional", StateType.TRANSACTIONAL),
    ("transactional", StateType.OPAQUE),
    ("opaque", StateType.OPAQUE),
]
WRONG = [
    ("transactional", StateType.NON_TRANSACTIONAL),
    ("opaque", StateType.NON_TRANSACTIONAL),
    ("opaque", StateType.TRANSACTIONAL),
    ("opaque, any keys", StateType.OPAQUE),
]


@pytest.mark.parametrize("store_type", [CrashingStore, CrashingOverlapping])
@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize(("spout", "kind"), EXACT)
@given(data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_exactly_once(
    spout: str, kind: StateType, numbered: bool, store_type: type[CrashingStore], data: st.DataObject
) -> None:
    found, truth = run(kind, data.draw(batches(spout)), numbered=numbered, store_type=store_type)
    assert found == truth


@pytest.mark.parametrize(("spout", "kind"), WRONG)
def test_not_exactly_once(spout: str, kind: StateType) -> None:
    """There is a history that it counts wrong."""
    find(batches(spout), lambda history: operator.ne(*run(kind, history, numbered=False)))
