"""`TopologyBuilder`: spouts, bolts and groupings, after Apache Storm's class of that name.

builder = TopologyBuilder(spark)
builder.set_spout("sentences", KinesisSpout(streamName="lines", ..., scheme=string_scheme("sentence")))
builder.set_bolt("split", SplitSentence(), 10).shuffle_grouping("sentences")
builder.set_bolt("count", WordCount(), 20).fields_grouping("split", "word")
query = builder.start(checkpointLocation=...)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import (
    ByteType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)
from pyspark.sql.utils import is_remote

from kinesis_trident.bolt.calls import check_runs
from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.foreach_batch import BatchHandler, start_query
from kinesis_trident.bolt.names import check_fields, check_name
from kinesis_trident.bolt.steps.functions import reason_of
from kinesis_trident.bolt.storm.api import DEFAULT_STREAM, ArrowBolt, Bolt
from kinesis_trident.bolt.storm.checks import check_bolt, check_groupings, configuration_of, find_stream
from kinesis_trident.bolt.storm.components import (
    BoltPart,
    Input,
    Part,
    SpoutPart,
    StreamId,
    TransformPart,
    title_of,
)
from kinesis_trident.bolt.storm.groupings import BoltDeclarer
from kinesis_trident.bolt.storm.other_spouts import (
    AnySpout,
    FrameHandler,
    check_spouts,
    frame_parts,
    rows_of_spouts,
)
from kinesis_trident.bolt.storm.spout import DataFrameSpout, KinesisSpout
from kinesis_trident.bolt.storm.streams import declared_streams
from kinesis_trident.bolt.storm.topology_run import TopologyRun
from kinesis_trident.bolt.storm.unsupported import StormNames, check_configuration
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.reader.rows import ANCHORS, SCHEMA


class TopologyBuilder(StormNames):
    """Builds a topology and starts it as one streaming query.

    `ackers=0` turns tracking off, as in Storm: a record is done when its batch ran, whatever the bolts ack or fail.
    Any other number changes nothing: there are no acker tasks here. `configuration`: what every bolt finds in the
    `configuration` of its context, as Storm's `Config`; `BoltDeclarer.add_configuration` overrides it for one bolt.
    Without `spark` a topology is built and checked as with it, for `kinesis_trident.testing.run_topology`, and cannot
    be started.

    Raises:
        TopologyError: `ackers` is not a number, or below 0; an entry of `configuration` has no effect.
    """

    _storm: ClassVar[tuple[str, ...]] = ("TopologyBuilder",)

    def __init__(
        self,
        spark: SparkSession | None = None,
        ackers: int | None = None,
        configuration: Mapping[str, Any] | None = None,
    ) -> None:
        if ackers is not None and (type(ackers) is not int or ackers < 0):
            msg = f"TopologyBuilder got ackers={ackers!r}. Give 0, which turns tracking off, or omit it"
            raise TopologyError(msg)
        self._configuration = dict(configuration or {})
        check_configuration("the topology", self._configuration)
        self._spark = spark
        self._ackers = ackers
        self._spouts: dict[str, AnySpout] = {}
        self._bolts: dict[str, BoltDeclarer] = {}
        self._transforms: dict[str, tuple[StreamId, Callable[[DataFrame], DataFrame]]] = {}

    def set_spout(self, name: str, spout: object, parallelism: object = None) -> None:
        """Add a spout: the source, or any DataFrame.

        A `KinesisSpout`, or a `DataFrameSpout` with a `message_id`, is the only one. Several others can be in one
        topology, if all their DataFrames are streaming, or none.

        Raises:
            TopologyError: the name is used already, `spout` is not a spout, or cannot be beside the others;
                `parallelism` is given.
        """
        self._free(name)
        if parallelism is not None:
            msg = (
                f"spout {name!r}: Spark chooses the number of its tasks. Omit the number of tasks here, and give it "
                "to bolts"
            )
            raise TopologyError(msg)
        if not isinstance(spout, AnySpout):
            msg = (
                f"spout {name!r}: {type(spout).__name__} is not a KinesisSpout or a DataFrameSpout. Give "
                "KinesisSpout(streamName=..., ...), or DataFrameSpout(rows)"
            )
            raise TopologyError(msg)
        spouts = {**self._spouts, name: spout}
        check_spouts(spouts)
        self._spouts = spouts

    def set_bolt(
        self, name: str, bolt: object, parallelism: int | None = None, *, fields: str = ""
    ) -> BoltDeclarer:
        """Add a bolt with `parallelism` tasks.

        The default is Spark's default parallelism; under Spark Connect, the number of shuffle partitions. A function of
        a tuple, or of a tuple and a collector that emits the `fields`, is a `BasicBolt`.

        Raises:
            TopologyError: the name is used already, `bolt` is not a bolt, has no `execute` or cannot be pickled, or
                `parallelism` is below 1.
        """
        self._free(name)
        self._bolts[name] = BoltDeclarer(name, check_bolt(name, bolt, parallelism, fields), parallelism)
        return self._bolts[name]

    def transform(
        self,
        name: str,
        component: str,
        function: Callable[[DataFrame], DataFrame],
        stream: str = DEFAULT_STREAM,
    ) -> None:
        """Apply plain DataFrame operations to the tuples of a stream; other bolts take the result under `name`.

        The component's tuples are acked at the input. The output is tracked again by the column `__anchors`: rows
        that the function drops are done, rows that it duplicates are two tuples. If it drops `__anchors` (an
        aggregation), its tuples are unanchored.

        Raises:
            TopologyError: the name is used already, or the function is async or yields.
        """
        self._free(name)
        check_runs(f"transform {name!r}: its function", function)
        self._transforms[name] = (component, stream), function

    def start(
        self,
        *,
        checkpointLocation: str,
        queryName: str | None = None,
        trigger: Mapping[str, Any] | None = None,
        batch_retries: int = 3,
    ) -> StreamingQuery:
        """Start the topology; the parameters are those of `ReliableSink.start`.

        `batch_retries` is for a `KinesisSpout`: with other spouts a batch that fails stops the query.

        Raises:
            TopologyError: there is no spout; a component is unknown; there is a cycle; a bolt has no grouping; a
                component lacks a field of a grouping; fields cannot be parsed.
        """
        run, stream = self.build()
        process: Callable[[DataFrame, int], None]
        spout = self.spout[1]
        if isinstance(spout, DataFrameSpout):
            if not spout.frame.isStreaming:
                msg = "the DataFrames of the spouts are not streaming. Call run_batch() in place of start()"
                raise TopologyError(msg)
            process = FrameHandler(run, spout.message_id, spout.settle)
        else:
            process = BatchHandler(
                SourceOptions.parse(spout.options),
                run,
                batch_retries,
                isolate=run.isolate if run.tracked else None,
            )
        return start_query(
            stream, process, checkpointLocation=checkpointLocation, queryName=queryName, trigger=trigger
        )

    def run_batch(self, txid: int = 0) -> None:
        """Run the topology once over the DataFrames of its spouts, which are not streaming.

        Raises:
            TopologyError: as `start`; or a spout is streaming.
        """
        run, rows = self.build()
        spout = self.spout[1]
        if not isinstance(spout, DataFrameSpout) or rows.isStreaming:
            msg = "a spout of the topology is streaming. Call start(checkpointLocation=...) in place of run_batch()"
            raise TopologyError(msg)
        FrameHandler(run, spout.message_id, spout.settle)(rows, txid)

    def build(self) -> tuple[TopologyRun, DataFrame]:
        """Check the topology; return the handler of its batches, and the stream.

        Raises:
            TopologyError: as `start`.
        """
        if self._spark is None:
            msg = (
                "the topology was built without a Spark session, so it cannot be started. Build it with "
                "TopologyBuilder(spark), or run it with kinesis_trident.testing.run_topology"
            )
            raise TopologyError(msg)
        for name, declared in self._bolts.items():
            if getattr(declared.bolt, "_driver_local", False):
                msg = (
                    f"bolt {name!r}: its state is in the driver's memory, and bolts run in executors. Give it a "
                    "state in a store that executors reach; kinesis_trident.testing.run_topology takes it as it is"
                )
                raise TopologyError(msg)
        run = self.check(_parallelism(self._spark))
        spout = self.spout[1]
        return run, spout.load(self._spark) if isinstance(spout, KinesisSpout) else rows_of_spouts(
            self._frames
        )

    @property
    def _frames(self) -> dict[str, DataFrameSpout]:
        return {name: one for name, one in self._spouts.items() if isinstance(one, DataFrameSpout)}

    @property
    def spout(self) -> tuple[str, KinesisSpout | DataFrameSpout]:
        """The first spout, with its name: the only one, unless they are DataFrames.

        Raises:
            TopologyError: there is none.
        """
        if not self._spouts:
            msg = "the topology has no spout. Call set_spout(name, KinesisSpout(...))"
            raise TopologyError(msg)
        return next(iter(self._spouts.items()))

    def check(self, parallelism: int) -> TopologyRun:
        """Check the topology; return the handler of its batches, with that many tasks a bolt by default.

        Raises:
            TopologyError: as `start`.
        """
        if not self._bolts:
            msg = "the topology has no bolt. Call set_bolt(name, bolt).shuffle_grouping(...)"
            raise TopologyError(msg)
        places: dict[Any, str] = {}
        for name, declared in self._bolts.items():
            place = getattr(declared.bolt, "_place", None)
            if place is not None and places.setdefault(place, name) != name:
                msg = (
                    f"bolt {name!r} has its state where bolt {places[place]!r} has its own. Give each a keyPrefix or a "
                    "table of its own"
                )
                raise TopologyError(msg)
        name, spout = self.spout
        tracked = spout.tracking and self._ackers != 0
        parts: dict[str, Part] = {**frame_parts(self._frames)}
        if isinstance(spout, KinesisSpout):
            parts[name] = SpoutPart(spout.scheme, self._spout_fields(name, spout))
        for name in self._order_components():
            if name in self._transforms:
                parts[name] = self._transform_part(name, parts, tracked)
            elif name in self._bolts:
                parts[name] = self._bolt_part(self._bolts[name], parts)
        run = TopologyRun(parts, tracked, parallelism)
        for name, part in parts.items():
            if isinstance(part, BoltPart) and isinstance(part.bolt, Bolt) and name not in run.keyed:
                part.bolt.check_keys(name, part.parallelism)
        return run

    def _free(self, name: str) -> None:
        check_name("component", name)
        if name in self._spouts or name in self._bolts or name in self._transforms:
            msg = f"there already is a component {name!r}. Give each component its own name"
            raise TopologyError(msg)

    def _order_components(self) -> list[str]:
        graph: dict[str, list[str]] = {name: [] for name in self._spouts}
        graph |= {name: [one.component for one in bolt.groupings] for name, bolt in self._bolts.items()}
        graph |= {name: [source[0]] for name, (source, _) in self._transforms.items()}
        for name, above in graph.items():
            if not above and name not in self._spouts:
                msg = (
                    f"bolt {name!r} takes no tuples. Name a component with shuffle_grouping(...) or another "
                    "grouping"
                )
                raise TopologyError(msg)
            for component in above:
                if component not in graph:
                    msg = (
                        f"{name!r} subscribes to unknown component {component!r}; known components: "
                        f"{', '.join(graph)}"
                    )
                    raise TopologyError(msg)
        try:
            return list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            msg = f"the topology has a cycle: {' <- '.join(error.args[1])}. Remove one of these groupings"
            raise TopologyError(msg) from None

    def _spout_fields(self, name: str, spout: KinesisSpout) -> StructType:
        fields = [*spout.scheme_fields(self._spark, name), *SCHEMA.fields]
        return StructType([one for one in fields if one.name != ANCHORS])

    def _bolt_part(self, declared: BoltDeclarer, parts: Mapping[str, Part]) -> BoltPart:
        check_groupings(declared, parts)
        streams = declared_streams(declared.name, declared.bolt)
        configuration, tick = configuration_of(declared, self._configuration)
        given = {one.source: parts[one.component].streams[one.stream].fields for one in declared.groupings}
        inputs = inputs_of(declared, given)
        if isinstance(declared.bolt, Bolt):
            for fields in given.values():
                declared.bolt.check_input(declared.name, fields)
        part = BoltPart(declared.bolt, inputs, streams, configuration, tick)
        if part.stays and declared.parallelism is not None:
            msg = (
                f"bolt {declared.name!r}: local_or_shuffle_grouping keeps tuples where they are made, so its "
                f"{declared.parallelism} tasks have no effect. Omit the number, or call shuffle_grouping"
            )
            warnings.warn(msg, stacklevel=4)
        return part

    def _transform_part(self, name: str, parts: Mapping[str, Part], tracked: bool) -> TransformPart:
        source, function = self._transforms[name]
        if self._spark is None:
            msg = (
                f"transform {name!r} is DataFrame code, which needs Spark. Build the topology with a Spark session, as "
                "in TopologyBuilder(spark): then kinesis_trident.testing.run_topology runs it there, too"
            )
            raise TopologyError(msg)
        stream = find_stream(f"transform {name!r}", source, parts)
        if stream.direct:
            msg = (
                f"transform {name!r} takes {title_of(source)}, whose stream is direct. Take it with a bolt, with "
                "direct_grouping()"
            )
            raise TopologyError(msg)
        fields = [*stream.fields.fields, *([SCHEMA[ANCHORS]] if tracked else [])]
        try:
            out = function(self._spark.createDataFrame([], StructType(fields))).schema
        except Exception as error:
            msg = (
                f"transform {name!r}: its function failed on the rows of {title_of(source)}, whose columns are "
                f"{', '.join(one.name for one in fields)}: {reason_of(error)}"
            )
            raise TopologyError(msg) from error
        kept = ANCHORS in out.fieldNames()
        if tracked and not kept:
            msg = (
                f"transform {name!r} drops the column {ANCHORS!r}, as aggregations do: its tuples are unanchored, "
                "so a failure there brings no record back"
            )
            warnings.warn(msg, stacklevel=4)
        rest = StructType([one for one in out.fields if one.name != ANCHORS])
        check_fields(f"transform {name!r}", rest.names)
        return TransformPart(source, function, rest, kept)


def _parallelism(spark: SparkSession) -> int:
    if is_remote():
        # A Spark Connect client does not know the cluster.
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return spark.sparkContext.defaultParallelism


def inputs_of(declared: BoltDeclarer, given: Mapping[StreamId, StructType]) -> tuple[Input, ...]:
    """Return the inputs of a bolt: fields of several components share a column only if name and type are the same.

    Raises:
        TopologyError: an `ArrowBolt` would get a column for two fields that differ.
    """
    known: dict[str, tuple[str, StructField]] = {}
    differ: set[str] = set()
    for grouping in declared.groupings:
        for one in given[grouping.source]:
            other, first = known.setdefault(one.name.casefold(), (grouping.title, one))
            if (first.name, first.dataType) == (one.name, one.dataType):
                continue
            if isinstance(declared.bolt, ArrowBolt) and not _merge(first, one):
                msg = (
                    f"bolt {declared.name!r}: {other} emits {first.name!r}, {first.dataType.simpleString()}, and "
                    f"{grouping.title} emits {one.name!r}, {one.dataType.simpleString()}: an ArrowBolt gets both in "
                    "one column. Rename one, or give both the same type"
                )
                raise TopologyError(msg)
            differ.add(one.name.casefold())
    if isinstance(declared.bolt, ArrowBolt):
        differ.clear()
    inputs = []
    for number, grouping in enumerate(declared.groupings):
        fields = given[grouping.source].fieldNames()
        renamed = {name: f"__{number}_{name}" for name in fields if name.casefold() in differ}
        # Names of components do not begin with "__".
        name = grouping.component if grouping.stream == DEFAULT_STREAM else f"__{number}"
        inputs.append(Input(grouping, fields, renamed, name))
    return tuple(inputs)


def _merge(one: StructField, other: StructField) -> bool:
    """Return whether two fields can share a column without a change of any value."""
    if one.name != other.name:
        return False
    both = {type(one.dataType), type(other.dataType)}
    return both <= {ByteType, ShortType, IntegerType, LongType} or both <= {FloatType, DoubleType}
