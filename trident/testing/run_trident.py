"""Runs a Trident topology in this process, over given tuples."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from pyspark.sql import DataFrame

from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.testing.by_reference import LocalCarrier, Recorder
from kinesis_trident.bolt.testing.lives import life_of
from kinesis_trident.bolt.testing.local_frames import LocalFrame, LocalSession, arrow
from kinesis_trident.bolt.testing.local_stream import LocalStream
from kinesis_trident.bolt.testing.results import FailedTuple, TopologyResult
from kinesis_trident.bolt.testing.run_bolts import check_spouts, run_in_spark, run_streams
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.spout.testing.clock import FakeTime
from kinesis_trident.trident.build.graph import (
    Node,
    RepartitionNode,
    RowNode,
    SpoutNode,
    TransformNode,
    UpdateNode,
)
from kinesis_trident.trident.run.batches import TopologyAttempts

# Registers what frames of this process do.
from kinesis_trident.trident.testing import local_operations  # noqa: F401
from kinesis_trident.trident.testing.recording import NotedStates, RecordStep
from kinesis_trident.trident.topology import TridentTopology

__all__ = ["run_trident"]


def run_trident(
    topology: TridentTopology,
    tuples: Mapping[str, Iterable[Any]],
    *,
    attempts: int | None,
    parallelism: int,
    batch_retries: int,
    clock: FakeTime,
) -> TopologyResult:
    """Run a Trident topology; see `run_topology`."""
    parts = topology.check()
    check_spouts([spout.name for spout in parts], tuples)
    session, recorder = LocalSession(), Recorder()
    names = _names(itertools.chain(*parts.values()))
    emitted: dict[str | tuple[str, str], list[Any]] = {name: [] for name in names.values()}
    failed: list[FailedTuple] = []
    handlers: dict[str, BatchHandler] = {}
    streams = []
    for spout in parts:
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

    with ExitStack() as stack:
        noted: dict[str, tuple[NotedStates, SpoutNode]] = {}
        for spout, nodes in parts.items():
            assert spout.options is not None
            for node in nodes:
                stack.enter_context(_in_this_process(node, session))
                if isinstance(node, UpdateNode):
                    noted[names[node]] = NotedStates(node.factory), spout
                    stack.enter_context(_changed(node, "factory", noted[names[node]][0]))
                    stack.enter_context(_changed(node, "metrics", None))
            recording = [
                stack.enter_context(_recorded(node, names[node], recorder)) for node in nodes if node in names
            ]
            run = TopologyAttempts(spout, [*nodes, *recording], parallelism)
            handlers[spout.name] = BatchHandler(
                spout.options, run, batch_retries, carrier=LocalCarrier(recorder)
            )
        run_streams(session, streams, clock, process)
        states = {name: factory.stored(_conf(spout)) for name, (factory, spout) in noted.items()}
    acked = {stream.name: stream.acked for stream in streams}
    return TopologyResult(emitted, acked, {stream.name: stream.held for stream in streams}, failed, states)


def _conf(spout: SpoutNode) -> dict[str, Any]:
    assert spout.options is not None
    return {"trident.application": spout.options.application_name, "trident.stream": spout.name}


def _names(nodes: Iterable[Node]) -> dict[Node, str]:
    """Name the nodes that emit: by their operations, with a number from the second of a name on.

    Spouts have names of their own, moves change no tuple, and the halves of one operation have its name once.
    """
    names: dict[Node, str] = {}
    for node in nodes:
        half = any(child.operation == node.operation for child in node.children)
        if not isinstance(node, SpoutNode | RepartitionNode) and not half:
            count = sum(other.operation == node.operation for other in names)
            names[node] = f"{node.operation}#{count + 1}" if count else node.operation
    return names


@contextmanager
def _recorded(node: Node, name: str, recorder: Recorder) -> Iterator[Node]:
    """Add a consumer to a node that records its tuples."""
    step = RecordStep(name, recorder, arrow(node.schema))
    recording = RowNode(f"record {name}", node.schema, (node,), step)
    try:
        yield recording
    finally:
        node.children.remove(recording)


@contextmanager
def _in_this_process(node: Node, session: LocalSession) -> Iterator[None]:
    """Let a node take frames of this process: a user's DataFrame code, and the batch DataFrames that it joins."""
    with ExitStack() as stack:
        if isinstance(node, TransformNode):
            stack.enter_context(_changed(node, "function", run_in_spark(node.function)))
        for static in _static(node.parents):
            assert static.rows is not None
            rows = session.createDataFrame(static.rows.toArrow(), static.schema)
            stack.enter_context(_changed(static, "rows", rows))
        yield


def _static(nodes: Sequence[Node]) -> Iterator[SpoutNode]:
    for spout in {spout for node in nodes for spout in node.spouts}:
        if isinstance(spout.rows, DataFrame) and not spout.in_batches:
            yield spout


@contextmanager
def _changed(node: Node, attribute: str, value: object) -> Iterator[None]:
    """Give an attribute another value for some time."""
    before = getattr(node, attribute)
    setattr(node, attribute, value)
    try:
        yield
    finally:
        setattr(node, attribute, before)
