"""The keys of records that wait, as they are stored: beside what a release without them reads."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.codec import FEW, decode, encode
from kinesis_trident.checkpoint.model.nodes import BatchOutcome, InflightNode
from kinesis_trident.tracker.ids import hash_of
from kinesis_trident.tracker.packing import pack, unpack
from kinesis_trident.tracker.records import KeyedNotDone, NotDone, Run, keys_of_piece
from kinesis_trident.tracker.runs import Runs, lean

KEYS = st.lists(st.sampled_from([hash_of(str(n)) for n in range(9)]), max_size=4, unique=True).map(
    lambda some: tuple(sorted(some))
)


@given(st.lists(KEYS, max_size=3 * FEW), st.booleans())
def test_waiting_runs_come_back_with_their_keys(keys: list[tuple[str, ...]], in_pieces: bool) -> None:
    waiting = tuple(Run(str(n), str(n), attempt=2, keys=some) for n, some in enumerate(keys, 1))
    node = InflightNode(txid=3, waiting=waiting)
    assert decode("/path", encode(node, in_pieces=in_pieces), InflightNode) == node
    bare = tuple(Run(run.first, run.last, attempt=2) for run in waiting)
    assert (encode(node) == encode(InflightNode(txid=3, waiting=bare))) is not any(keys)
    assert not any(run.keys for run in lean(waiting)), "plans and offsets have no keys"
    if len(waiting) > FEW:
        # What a release without keys makes of it: it leaves out what it does not know.
        assert [run.last for run in unpack(pack(waiting))] == [run.last for run in bare]


@given(st.lists(KEYS, max_size=3 * FEW))
def test_an_outcome_comes_back_with_the_keys_of_its_records(keys: list[tuple[str, ...]]) -> None:
    pieces = tuple(
        KeyedNotDone(str(n), str(n), 1, "no", None, some) if some else NotDone(str(n), str(n), 1, "no", None)
        for n, some in enumerate(keys, 1)
    )
    outcome = BatchOutcome(txid=3, plan="p", epoch=1, not_done={"a": pieces, "b": ()})
    data = encode(outcome)
    assert decode("/path", data, BatchOutcome) == outcome
    assert ("keys" in json.loads(data)) is any(map(keys_of_piece, pieces))
    without = json.loads(data)
    without.pop("keys", None)
    bare = decode("/path", json.dumps(without).encode(), BatchOutcome)
    assert bare.not_done["a"] == tuple(NotDone(p.first, p.last, p.count, p.text, p.prev) for p in pieces)


def test_keys_of_other_records_are_an_error() -> None:
    pieces = (KeyedNotDone("1", "1", 1, "no", None, (hash_of("a"),)),)
    stored = json.loads(encode(BatchOutcome(txid=3, plan="p", epoch=1, not_done={"a": pieces})))
    stored["keys"]["a"].append(hash_of("b"))
    with pytest.raises(CorruptNodeError, match="/path"):
        decode("/path", json.dumps(stored).encode(), BatchOutcome)


def test_neighbours_of_one_fate_become_one_run_as_long_as_their_keys_are_few_and_known() -> None:
    def joined(*keys: tuple[str, ...]) -> list[tuple[str, ...]]:
        new = [
            Run(str(n), str(n), prev=str(n - 1), attempt=1, due=7, keys=some)
            for n, some in enumerate(keys, 2)
        ]
        return [run.keys for run in Runs[Run]().add(new, joins=True)]

    a, b = hash_of("a"), hash_of("b")
    assert joined((a,), (b,), (a,)) == [tuple(sorted((a, b)))]
    assert joined((), ()) == [()]
    assert joined((a,), (), (b,)) == [(a,), (), (b,)]
    many = [(hash_of(str(n)),) for n in range(100)]
    assert [len(keys) for keys in joined(*many)] == [64, 36]
