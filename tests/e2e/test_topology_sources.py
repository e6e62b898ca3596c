"""Test what a topology asks of its source and of its states: several streams, kept failures, few keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import PATIENCE
from stage import AVAILABLE_NOW, Stage

from kinesis_trident.trident import Count, Function, TridentTopology
from kinesis_trident.trident.maps.backing import Version
from kinesis_trident.trident.stores import ByteStore, MemoryMapState
from kinesis_trident.trident.stores.memory import MemoryByteStore


class Text(Function):
    """The record's text and whatever `besides` says; `flaky` fails at its first delivery."""

    def __init__(self, besides: Callable[[], str] = lambda: "") -> None:
        self.besides = besides

    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        text = tup["data"].decode()
        if text == "flaky" and tup["attempt"] == 1:
            raise ValueError(text)
        collector.emit([text, self.besides() if text == "flaky" else ""])


class CountingStore(MemoryByteStore):
    """Notes the keys of each write."""

    def __init__(self) -> None:
        super().__init__("memory")
        self.writes: list[list[str]] = []

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        self.writes.append(sorted(keys))
        return super().compare_and_set_many(keys, values, versions)


class CountingState(MemoryMapState):
    def _connect(self) -> ByteStore:
        return CountingStore()


def finished(stage: Stage, topology: TridentTopology) -> None:
    running = topology.start(checkpointLocation=stage.at("spark"), trigger=AVAILABLE_NOW)
    stage.queries += running.queries.values()
    assert running.await_termination(PATIENCE)


def counts(factory: MemoryMapState, *keys: tuple[Any, ...]) -> list[Any]:
    return list(factory.make_state({}, 0, 1).multi_get(keys))


@pytest.mark.long
def test_several_streams_are_one_spout_with_one_txid_a_batch(
    make_stage: Callable[..., Stage], make_stream: Callable[..., str]
) -> None:
    """test_streams_together.py reads two streams as one source."""
    stage = make_stage()
    other = replace(stage, stream=make_stream(2))
    stage.put(["a", "a", "b"])
    other.put(["a", "flaky"])
    topology = TridentTopology(stage.spark)
    state = MemoryMapState.opaque()
    names = f"{stage.stream},{other.stream}"
    (
        topology.new_stream("both", stage.load(streamName=names, retryBackoff="1ms..2ms x2"))
        .each(["data", "attempt"], Text(), ["text", "besides"])
        .group_by(["stream", "text"])
        .persistent_aggregate(state, Count(), ["n"])
    )
    finished(stage, topology)
    keys = [(stage.stream, "a"), (stage.stream, "b"), (other.stream, "a"), (other.stream, "flaky")]
    assert counts(state, *keys) == [2, 1, 1, 1]


def test_a_record_that_fails_in_a_topology_is_kept_for_its_retry(stage: Stage) -> None:
    """By the operator in which it failed: the file bears the txid of its first delivery."""
    stage.put(["fine", "flaky"])
    spool = stage.at("spool")
    topology = TridentTopology(stage.spark)
    state = MemoryMapState.opaque()
    (
        topology.new_stream("lines", stage.load(retrySpool=spool, retryBackoff="1ms..2ms x2"))
        .each(
            ["data", "attempt"],
            Text(lambda: ",".join(path.name[:12] for path in Path(spool).rglob("*.arrow"))),
            ["text", "besides"],
        )
        .group_by(["text", "besides"])
        .persistent_aggregate(state, Count(), ["n"])
    )
    finished(stage, topology)
    assert counts(state, ("fine", ""), ("flaky", "000000000001")) == [1, 1]


def test_a_state_sees_each_key_once_a_batch_however_many_records_there_are(stage: Stage) -> None:
    for _ in range(2):
        stage.put(["a", "b", "c"] * 100)
    topology = TridentTopology(stage.spark)
    state = CountingState.opaque()
    (
        topology.new_stream("lines", stage.load())
        .each(["data", "attempt"], Text(), ["text", "besides"])
        .group_by(["text"])
        .persistent_aggregate(state, Count(), ["n"])
    )
    finished(stage, topology)
    store = state.store()
    assert isinstance(store, CountingStore)
    # Beside its keys a state has entries of its own, such as the fence.
    batches = [keys for keys in store.writes if not all(key.startswith('["$') for key in keys)]
    assert set(map(tuple, batches)) == {("a", "b", "c")}
    assert counts(state, ("a",), ("b",), ("c",)) == [200, 200, 200]
