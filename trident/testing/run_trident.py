"""Runs a topology in the process of a test, over given tuples; notes what passes through its steps and states."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.steps.border import values
from kinesis_trident.bolt.steps.functions import Judged
from kinesis_trident.bolt.storm.topology import TopologyBuilder
from kinesis_trident.bolt.testing.by_reference import ByReference, LocalCarrier, Recorder
from kinesis_trident.bolt.testing.given_tuples import Batches, FailedTuple, TopologyResult
from kinesis_trident.bolt.testing.local_frames import LocalFrame, LocalSession
from kinesis_trident.bolt.testing.local_stream import LocalStream, life_of
from kinesis_trident.bolt.testing.run_bolts import check_spouts, run_bolts, run_in_spark, run_streams
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.spout.reader.rows import ANCHORS, SCHEMA
from kinesis_trident.spout.testing.clock import FakeTime
from kinesis_trident.trident.build.graph import Graph
from kinesis_trident.trident.build.nodes import (
    RepartitionNode,
    RowNode,
    SpoutNode,
    TopologyNode,
    TransformNode,
    UpdateNode,
)
from kinesis_trident.trident.run.batches import TopologyAttempts
from kinesis_trident.trident.state import Key, State, StateFactory
from kinesis_trident.trident.testing import local_operations  # noqa: F401
from kinesis_trident.trident.topology import TridentTopology


def run_trident(
    topology: TridentTopology,
    tuples: Mapping[str, Iterable[Any] | Batches],
    *,
    attempts: int | None,
    parallelism: int,
    batch_retries: int,
    clock: FakeTime,
) -> TopologyResult:
    """Run a Trident topology; see `run_topology`."""
    session, recorder = LocalSession(), Recorder()
    graph = _in_this_process(topology.check(), session)
    check_spouts([spout.name for spout in graph.spouts], tuples)
    names = _names(graph)
    emitted: dict[str | tuple[str, str], list[Any]] = {name: [] for name in names.values()}
    failed: list[FailedTuple] = []
    handlers: dict[str, BatchHandler] = {}
    streams = []
    for spout in graph.spouts:
        assert spout.options is not None
        fields = [spout.schema[field] for field in spout.scheme]
        life = life_of(topology, spout.name)
        stream = LocalStream(spout.name, spout.scheme, fields, spout.options, clock, attempts, failed, life)
        stream.feed(tuples.get(spout.name, ()))
        emitted[spout.name] = stream.delivered
        streams.append(stream)

    def process(stream: LocalStream, rows: LocalFrame, batch: CurrentBatch) -> None:
        recorder.clear()
        handlers[stream.name].process(cast(DataFrame, rows), batch)
        for name in names.values():
            emitted[name] += recorder.rows(name)

    recording = [
        RowNode(f"record {name}", node.schema, (node,), RecordStep(name, recorder, arrow_schema(node.schema)))
        for node, name in names.items()
        # An updater without new fields emits nothing.
        if node.schema.names
    ]
    whole = Graph([*graph.nodes, *recording])
    for spout in graph.spouts:
        assert spout.options is not None
        handlers[spout.name] = BatchHandler(
            spout.options,
            TopologyAttempts(spout, whole, parallelism),
            batch_retries,
            carrier=LocalCarrier(recorder),
            sleep=clock.sleep,
        )
    run_streams(session, streams, clock, process)
    states = {
        names[node]: node.factory.stored(_conf(spout))
        for spout in graph.spouts
        for node in graph.below(spout)
        if isinstance(node, UpdateNode) and isinstance(node.factory, NotedStates)
    }
    acked = {stream.name: stream.acked for stream in streams}
    return TopologyResult(emitted, acked, {stream.name: stream.held for stream in streams}, failed, states)


def _conf(spout: SpoutNode) -> dict[str, Any]:
    assert spout.options is not None
    return {"trident.application": spout.options.application_name, "trident.stream": spout.name}


def _names(graph: Graph) -> dict[TopologyNode, str]:
    """Name the nodes that emit: by their operations, with a number from the second of a name on.

    Spouts have names of their own, which come first; moves change no tuple, and of the parts of one operation the last
    has its name.
    """
    names: dict[TopologyNode, str] = {}
    taken = {spout.name for spout in graph.spouts}
    for spout in graph.spouts:
        for node in graph.below(spout):
            if node in graph.ends and not isinstance(node, SpoutNode | RepartitionNode):
                numbers = itertools.count(2)
                name = node.operation
                while name in taken:
                    name = f"{node.operation}#{next(numbers)}"
                names[node] = name
                taken.add(name)
    return names


def _in_this_process(graph: Graph, session: LocalSession) -> Graph:
    """Return the graph for frames of this process: a user's DataFrame code, batch DataFrames, and noted states."""
    in_batches = [node for node in graph.nodes if any(spout.in_batches for spout in node.spouts)]
    read = frozenset().union(*(node.spouts for node in in_batches))

    def change(old: TopologyNode, node: TopologyNode) -> TopologyNode:
        if isinstance(node, TransformNode):
            return replace(node, function=run_in_spark(node.function))
        if isinstance(node, UpdateNode):
            return replace(node, factory=NotedStates(node.factory))
        if isinstance(node, SpoutNode) and old in read and node.rows is not None and not node.in_batches:
            rows = session.createDataFrame(node.rows.toArrow(), node.schema)
            return replace(node, rows=cast(DataFrame, rows))
        return node

    made = graph.changed(change)
    return Graph(made.values(), (made[end] for end in graph.ends if end in made))


_SOURCE = {*SCHEMA.names} - {ANCHORS}
"""The columns of the source that a tuple has beside the fields that the topology adds."""

_BY_KEY = ("multi_put", "multi_update", "multi_combine", "multi_remove")
_WHOLE = ("set", "update")


@dataclass(frozen=True, slots=True)
class RecordStep:
    """Keeps all tuples, and gives a recorder their fields: without the source's columns, if all of these came along."""

    operation: str
    recorder: Recorder
    schema: pa.Schema

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Nothing to do."""

    def cleanup(self) -> None:
        """Nothing to do."""

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Note the tuples of a batch, with None for a value that Python cannot have."""
        names = self.schema.names
        # A tuple that has only some of them, or another field of such a name, has what the topology chose.
        fields = [name for name in names if name not in _SOURCE] if set(names) > _SOURCE else names
        for row in zip(*(values(batch.column(name), name)[0] for name in fields), strict=True):
            self.recorder.note(self.operation, fields, row)
        return Judged(batch.select(self.schema.names), np.arange(batch.num_rows, dtype=np.int64), {})


class NotedKeys(ByReference):
    """The keys that states of one factory have changed. `whole`: a value without a key was changed, too."""

    def __init__(self) -> None:
        self.keys: dict[Key, None] = {}
        self.whole = False

    def watch(self, state: State) -> None:
        """Note from now on what a state changes."""
        for name in _BY_KEY:
            if hasattr(state, name):
                setattr(state, name, self._by_key(getattr(state, name)))
        for name in _WHOLE:
            if hasattr(state, name):
                setattr(state, name, self._of_all(getattr(state, name)))

    def _by_key(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(keys: Any, *args: Any, **named: Any) -> Any:
            self.keys |= dict.fromkeys(keys)
            return method(keys, *args, **named)

        return noted

    def _of_all(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **named: Any) -> Any:
            keys, self.whole = dict(self.keys), True
            try:
                return method(*args, **named)
            finally:
                # A map has a key for it, which nobody has named.
                self.keys = keys

        return noted


class NotedStates(StateFactory):
    """Makes the states of another factory, and notes the keys that they change."""

    def __init__(self, factory: StateFactory) -> None:
        self.kind = factory.kind
        self.driver_local = factory.driver_local  # type: ignore[misc]
        self._factory = factory
        self._noted = NotedKeys()

    @property
    def checks_replays(self) -> bool:
        """See `StateFactory.checks_replays`."""
        return self._factory.checks_replays

    @property
    def place(self) -> Hashable:
        """See `StateFactory.place`."""
        return self._factory.place

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> State:
        """Make a state."""
        state: State = self._factory.make_state(conf, partition_index, num_partitions)
        self._noted.watch(state)
        return state

    def stored(self, conf: Mapping[str, Any]) -> dict[Key, Any]:
        """Read the values of the keys that were changed, without those that hold none."""
        if not self._noted.keys and not self._noted.whole:
            return {}
        state: Any = self._factory.make_state(conf, 0, 1)
        found: dict[Key, Any] = {}
        if self._noted.keys:
            keys = list(self._noted.keys)
            found = {
                key: value
                for key, value in zip(keys, state.multi_get(keys), strict=True)
                if value is not None
            }
        return found | {(): state.get()} if self._noted.whole else found


def run_topology(
    topology: TopologyBuilder | TridentTopology,
    tuples: Mapping[str, Iterable[Any] | Batches],
    *,
    attempts: int | None = 1,
    parallelism: int = 2,
    batch_retries: int = 3,
    clock: FakeTime | None = None,
) -> TopologyResult:
    """Run a topology in this process, over tuples given in place of its spouts' records.

        result = run_topology(build(None), {"sentences": ["the cow jumped", "the man went"]})
        assert result.emitted["split"][0] == ("the",)

    Nothing of Spark, Kinesis or ZooKeeper is started: the operators run here over Arrow batches, and the records are
    judged as in a query. A topology with a `transform` needs the Spark session that it was built with.

    Args:
        topology: as it is started in production; built without a session, it needs no Spark.
        tuples: those of each spout, by its name: one micro-batch, or `Batches` of several. A text or bytes are the data
            of a record. A list has a value for each field of the spout's scheme, a dict has values by name.
        attempts: the most deliveries of a tuple; None for as many as the spout's `retryLimit` allows.
        parallelism: the number of tasks where the topology sets none.
        batch_retries: the number of times that a batch that fails as a whole is tried again in place.
        clock: jumps to when failed tuples are due; by default a new one.

    Raises:
        TopologyError: the topology cannot be built, or tuples do not fit its spouts.
        OptionsError: an option of a spout is missing, or has a value that cannot be used.
        BatchFailedError: a batch failed as a whole in all attempts.
    """
    if attempts is not None and attempts < 1:
        msg = f"run_topology: attempts={attempts} delivers nothing. Give 1 or more, or None"
        raise TopologyError(msg)
    how: dict[str, Any] = {
        "attempts": attempts,
        "parallelism": parallelism,
        "batch_retries": batch_retries,
        "clock": clock or FakeTime(),
    }
    if isinstance(topology, TopologyBuilder):
        return run_bolts(topology, tuples, **how)
    given: object = topology
    if isinstance(given, TridentTopology):
        return run_trident(given, tuples, **how)
    msg = f"run_topology got a {type(given).__name__}. Pass the TopologyBuilder or the TridentTopology that you start"
    raise TopologyError(msg)
