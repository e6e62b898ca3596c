"""Runs a topology of bolts in this process, over given tuples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.moves import Grouping, Move
from kinesis_trident.bolt.storm.api import DEFAULT_STREAM, BasicBolt, BasicOutputCollector, Tuple
from kinesis_trident.bolt.storm.components import (
    BoltPart,
    Input,
    InputGrouping,
    Part,
    SpoutPart,
    StreamId,
    TransformPart,
)
from kinesis_trident.bolt.storm.spout import KinesisSpout
from kinesis_trident.bolt.storm.streams import Declared
from kinesis_trident.bolt.storm.ticks import Ticks
from kinesis_trident.bolt.storm.topology import TopologyBuilder

# Registers what frames of this process do.
from kinesis_trident.bolt.testing import local_columns  # noqa: F401
from kinesis_trident.bolt.testing.by_reference import LocalCarrier, Recorder
from kinesis_trident.bolt.testing.given_tuples import Batches, FailedTuple, TopologyResult
from kinesis_trident.bolt.testing.local_frames import LocalFrame, LocalSession
from kinesis_trident.bolt.testing.local_stream import LocalStream, life_of
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.testing.clock import FakeTime


def run_bolts(
    builder: TopologyBuilder,
    tuples: Mapping[str, Iterable[Any] | Batches],
    *,
    attempts: int | None,
    parallelism: int,
    batch_retries: int,
    clock: FakeTime,
) -> TopologyResult:
    """Run a topology of bolts; see `run_topology`."""
    name, spout = builder.spout
    if not isinstance(spout, KinesisSpout):
        msg = (
            f"run_topology: spout {name!r} is a DataFrame, which needs Spark. Run the topology with run_batch() on a "
            "Spark session, or give it a KinesisSpout, in whose place the test's tuples come"
        )
        raise TopologyError(msg)
    run = builder.check(parallelism)
    check_spouts([name], tuples)
    part = run.parts[name]
    assert isinstance(part, SpoutPart)
    fields = [part.fields[field] for field in part.scheme]
    options = SourceOptions.parse(spout.options)
    failed: list[FailedTuple] = []
    stream = LocalStream(name, part.scheme, fields, options, clock, attempts, failed, life_of(builder, name))
    stream.feed(tuples.get(name, ()))
    recorder = Recorder()
    recorded = replace(run, parts=_add_recorders(run.parts, recorder), ticks=Ticks(clock))
    emitted: dict[str | StreamId, list[Any]] = {_key(*source): [] for source in _streams_of(run.parts)}
    emitted[name] = stream.delivered
    handler = BatchHandler(
        options, recorded, batch_retries, carrier=LocalCarrier(recorder), sleep=clock.sleep
    )

    def process(_stream: LocalStream, rows: LocalFrame, batch: CurrentBatch) -> None:
        recorder.clear()
        handler.process(cast(DataFrame, rows), batch)
        for source in _streams_of(run.parts):
            emitted[_key(*source)] += recorder.rows(str(source))

    run_streams(LocalSession(), [stream], clock, process)
    return TopologyResult(emitted, {name: stream.acked}, {name: stream.held}, failed)


def run_streams(
    session: LocalSession,
    streams: Sequence[LocalStream],
    clock: FakeTime,
    process: Callable[[LocalStream, LocalFrame, CurrentBatch], None],
) -> None:
    """Run the batches of all spouts in turn; the clock jumps to when failed tuples are due."""
    while dues := [due for stream in streams if (due := stream.due) is not None]:
        if min(dues) > clock.milliseconds():
            clock.sleep((min(dues) - clock.milliseconds()) / 1000)
        for stream in streams:
            if stream.due is not None and stream.due <= clock.milliseconds():
                stream.run(session, lambda rows, batch, stream=stream: process(stream, rows, batch))  # type: ignore[misc]


def check_spouts(known: Sequence[str], tuples: Mapping[str, object]) -> None:
    """Check that tuples are given for spouts of the topology.

    Raises:
        TopologyError: one is not.
    """
    for name in tuples:
        if name not in known:
            msg = f"there is no spout {name!r}. Give tuples for {', '.join(map(repr, known))}"
            raise TopologyError(msg)


def run_in_spark(function: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame], DataFrame]:
    """Return a function of Spark's frames as one of frames in this process: it runs on the active Spark session."""

    def run(frame: LocalFrame) -> LocalFrame:
        spark = SparkSession.builder.getOrCreate()
        result = function(spark.createDataFrame(frame.toArrow(), frame.schema))
        return frame.sparkSession.createDataFrame(result.toArrow(), result.schema)

    return cast(Callable[[DataFrame], DataFrame], run)


class _Recording(BasicBolt):
    """Takes all that a component emits to a stream."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self._name = name

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Keep it."""
        self._recorder.note(self._name, tup.fields, tup.values)


def _streams_of(parts: Mapping[str, Part]) -> list[StreamId]:
    """Return the streams of bolts and transforms."""
    return [
        (name, stream)
        for name, part in parts.items()
        if not isinstance(part, SpoutPart)
        for stream in part.streams
    ]


def _key(component: str, stream: str) -> str | StreamId:
    """Return the name of a stream in the result."""
    return component if stream == DEFAULT_STREAM else (component, stream)


def _add_recorders(parts: Mapping[str, Part], recorder: Recorder) -> dict[str, Part]:
    """Add a bolt to each stream that takes its tuples; transforms run on their Spark session.

    These bolts come last: the first that takes a direct stream is the one that its tuples are for.
    """
    made: dict[str, Part] = {
        name: replace(part, function=run_in_spark(part.function)) if isinstance(part, TransformPart) else part
        for name, part in parts.items()
    }
    for name, stream in _streams_of(parts):
        fields = parts[name].streams[stream].fields.fieldNames()
        if fields:
            taken = Input(InputGrouping(name, Move(Grouping.LOCAL), stream), fields, name=name)
            bolt = _Recording(recorder, str((name, stream)))
            made[f"__what {name} emits to {stream}"] = BoltPart(
                bolt, (taken,), {DEFAULT_STREAM: Declared(StructType())}, watches=True
            )
    return made
