"""A job to be killed: a Trident topology for each kind of spout, each of which counts words into three kinds of state.

It runs until it is killed. Before, during and after a state's commit, and before Spark's, there is a gate.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gates import stop_at
from job_session import job_session
from lives import eventually
from matrix import STATES
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.trident import Count, Function, TridentTopology
from kinesis_trident.trident.maps.backing import VersionedBackingMap
from kinesis_trident.trident.run.batches import TopologyAttempts
from kinesis_trident.trident.state import MapState, StateFactory
from kinesis_trident.trident.stores.redis import RedisState

FAILS_FIRST = "!"
"""The end of a record that fails at its first delivery."""

CHECKPOINTS = "spark-checkpoint"
"""The folder below that of the job, with a Spark checkpoint for each topology."""


class Word(Function):
    """The record's word."""

    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        text = tup["data"].decode()
        if text.endswith(FAILS_FIRST) and tup["attempt"] == 1:
            raise ValueError(text)
        collector.emit([text.rstrip(FAILS_FIRST)])


class GatedMap(VersionedBackingMap[Any]):
    """The store's map, with gates before, in the middle of and after what a batch writes."""

    def __init__(self, backing: Any, gate: str) -> None:
        self._backing = backing
        self._gate = gate
        self._txid = 0
        self._written = False

    def begin_batch(self, txid: int | None) -> Any:
        assert txid is not None
        self._txid, self._written = txid, False
        return self._backing.begin_batch(txid)

    def end_batch(self, txid: int | None) -> None:
        self._backing.end_batch(txid)
        if self._written:
            self._stop("after the state's commit")

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        return list(self._backing.multi_get(keys))

    def multi_get_versioned(self, keys: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        values, versions = self._backing.multi_get_versioned(keys)
        return values, versions

    def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        self._stop("before the state's commit")
        for half in self._halves(keys):
            self._backing.multi_put([keys[i] for i in half], [values[i] for i in half])

    def multi_compare_and_set(
        self, keys: Sequence[Any], values: Sequence[Any], versions: Sequence[Any]
    ) -> list[Any]:
        self._stop("before the state's commit")
        new = [*versions]
        for half in self._halves(keys):
            parts = ([of[i] for i in half] for of in (keys, values, versions))
            for i, version in zip(half, self._backing.multi_compare_and_set(*parts), strict=True):
                new[i] = version
        return new

    def _halves(self, keys: Sequence[Any]) -> Any:
        """The positions of every other key in the order of the words, then those of the others."""
        order = sorted(range(len(keys)), key=lambda i: keys[i])
        yield order[::2]
        self._written = True
        self._stop("during the state's commit")
        if order[1::2]:
            yield order[1::2]

    def _stop(self, point: str) -> None:
        stop_at(point, self._gate, self._txid)


class GatedRedis(RedisState):
    """Redis with gates."""

    def make_backing(self, conf: Any) -> GatedMap:
        return GatedMap(super().make_backing(conf), f"{conf['trident.application']}.{self.kind.name.lower()}")


class SideBySideState(MapState[Any]):
    """Several states as one: each is given every batch, all of them at a time, so that one death finds all there."""

    def __init__(self, states: Sequence[MapState[Any]]) -> None:
        self._states = states

    def begin_commit(self, txid: int | None) -> None:
        self._each(lambda state: state.begin_commit(txid))

    def commit(self, txid: int | None) -> None:
        self._each(lambda state: state.commit(txid))

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        return self._each(lambda state: state.multi_get(keys))[0]

    def multi_update(self, keys: Sequence[Any], updaters: Sequence[Any]) -> list[Any]:
        return self._each(lambda state: state.multi_update(keys, updaters))[0]

    def multi_combine(self, keys: Sequence[Any], combine: Any, partials: Sequence[Any]) -> list[Any]:
        return self._each(lambda state: state.multi_combine(keys, combine, partials))[0]

    def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        self._each(lambda state: state.multi_put(keys, values))

    def _each(self, do: Callable[[MapState[Any]], Any]) -> list[Any]:
        with ThreadPoolExecutor(len(self._states)) as pool:
            return list(pool.map(do, self._states))


class SideBySide(StateFactory):
    """Makes several states as one."""

    def __init__(self, *factories: StateFactory) -> None:
        self._factories = factories

    def make_state(
        self, conf: Mapping[str, Any], partition_index: int, num_partitions: int
    ) -> SideBySideState:
        made: list[Any] = [one.make_state(conf, partition_index, num_partitions) for one in self._factories]
        return SideBySideState(made)


def gate_before_sparks_commit() -> None:
    """Stop where a batch with rows has been processed, and Spark has not heard of it yet."""
    process, attempt = BatchHandler.__call__, TopologyAttempts.__call__
    updated: dict[str, int] = {}

    def attempted(self: Any, rows: DataFrame, batch: Any, of: Any) -> None:
        attempt(self, rows, batch, of)
        if any(pin.count for pin in batch.pins().values()):
            updated[self.spout.options.application_name] = batch.txid

    def processed(self: Any, rows: DataFrame, batch_id: int) -> None:
        process(self, rows, batch_id)
        name = self.options.application_name
        stop_at("before Spark's commit", name, updated.get(name, 0))

    BatchHandler.__call__ = processed  # type: ignore[method-assign]
    TopologyAttempts.__call__ = attempted  # type: ignore[method-assign]


def start(topologies: Mapping[str, TridentTopology]) -> None:
    """Start topologies, by their Spark checkpoints, and wait until all have their sources.

    Spark gives a planning process ten seconds to come up, which is too short on a busy machine. A query that ended for
    that has done nothing yet, and is started again.
    """
    queries: dict[str, StreamingQuery] = {}
    waiting = set(topologies)

    def all_started() -> bool:
        for checkpoint in sorted(waiting):
            query = queries.get(checkpoint)
            error = query.exception() if query is not None else None
            if error is not None and "Python worker failed to connect back" not in str(error):
                raise error
            if query is None or error is not None:
                [queries[checkpoint]] = (
                    topologies[checkpoint].start(checkpointLocation=checkpoint).queries.values()
                )
            elif not query.status["message"].startswith("Initializing"):
                waiting.remove(checkpoint)
        return not waiting

    eventually(all_started, "all queries have their sources")


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(asked["folder"])
    memory = {"spark.driver.memory": "768m", "spark.executor.memory": "768m"}
    spark = job_session(asked["master"], folder, memory | {"spark.sql.shuffle.partitions": "1"})
    gate_before_sparks_commit()
    topologies = {}
    for name, spout in asked["topologies"].items():
        options = asked["options"] | {"streamName": name, "applicationName": name, "spout": spout}
        states = [getattr(GatedRedis, kind)(asked["redis"], keyPrefix=f"{name}/{kind}/") for kind in STATES]
        topology = TridentTopology(spark)
        (
            topology.new_stream("words", spark.readStream.format("kinesis-trident").options(**options).load())
            .each(["data", "attempt"], Word(), ["word"])
            .group_by(["word"])
            .persistent_aggregate(SideBySide(*states), Count(), ["count"])
            .parallelism_hint(1)
        )
        topologies[str(folder / CHECKPOINTS / name)] = topology
    start(topologies)
    spark.streams.resetTerminated()
    assert len(spark.streams.active) == len(topologies)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
