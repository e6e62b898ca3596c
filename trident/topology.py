"""`TridentTopology`: streams, their states, and the queries that run them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.foreach_batch import BatchHandler, start_query
from kinesis_trident.bolt.names import check_fields, check_name
from kinesis_trident.bolt.storm.spout import KinesisSpout
from kinesis_trident.bolt.storm.unsupported import StormNames
from kinesis_trident.spout.graceful_stop import stop
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.reader.rows import ANCHORS, SCHEMA
from kinesis_trident.spout.spark_plan import source_of
from kinesis_trident.trident.aggregators import GroupedMultiReducer, MultiReducer
from kinesis_trident.trident.build.checks import GuaranteeWarning, check_factory, check_places, weakness
from kinesis_trident.trident.build.fields import Fields, Names, choose_fields
from kinesis_trident.trident.build.graph import DeclaredNodes, Graph
from kinesis_trident.trident.build.hints import resolve_hints
from kinesis_trident.trident.build.merge_and_join import multi_reduce_node
from kinesis_trident.trident.build.nodes import SpoutNode, TopologyNode, UpdateNode
from kinesis_trident.trident.maps.metering import StateMetrics
from kinesis_trident.trident.run.batches import TopologyAttempts
from kinesis_trident.trident.run.state_metrics import UpdateMetrics, read_metrics
from kinesis_trident.trident.state import StateFactory
from kinesis_trident.trident.stream import GroupedStream, Stream, TridentState

_POLL = 0.2
"""The seconds between two checks of a topology's queries."""


class TridentTopology(StormNames):
    """Streams of tuples, and the states that they update.

        topology = TridentTopology(spark)
        counts = (topology.new_stream("lines", KinesisSpout(streamName="lines", ...))
            .each(["data"], Split(), ["word"])
            .group_by(["word"])
            .persistent_aggregate(RedisState.opaque("redis://..."), Count(), ["count"]))
        topology.start(checkpointLocation=...)

    Every Kinesis stream runs as a separate query, with its own batches and txids. Without `spark` a topology is built
    and checked as with it, for `kinesis_trident.testing.run_topology`, and cannot be started.
    """

    def __init__(self, spark: SparkSession | None = None) -> None:
        self._spark = spark
        self._spouts: dict[str, SpoutNode] = {}
        self._static: list[StateFactory] = []
        self._declared = DeclaredNodes()

    def new_stream(self, name: str, spout: DataFrame | KinesisSpout) -> Stream:
        """Add a stream of tuples with the columns of the source, behind the fields of the spout's `scheme`.

        Without the spout's `tracking` no record fails separately: an error in an operation replays the batch in
        place. A batch DataFrame makes a stream outside of any transaction: its `df` is the result.

        Args:
            name: the stream's name, in messages and in the folder of its checkpoint.
            spout: a `KinesisSpout`, or a `kinesis-trident` DataFrame as `load()` returned it, or a batch DataFrame.

        Raises:
            TopologyError: the name is used already, `spout` is not one of these, the DataFrame cannot be tracked,
                the option `ackMode` is `explicit`, or `scheme` cannot be used.
        """
        check_name("new_stream", name)
        if name in self._spouts:
            msg = f"new_stream: there already is a stream {name!r}. Choose another name"
            raise TopologyError(msg)
        scheme: Mapping[str, str] = {}
        tracking, added = True, []
        rows: DataFrame | None = None
        options: SourceOptions | None = None
        if isinstance(spout, KinesisSpout):
            scheme, tracking = spout.scheme, spout.tracking
            added = spout.scheme_fields(self._spark, name)
            options = SourceOptions.parse(spout.options)
            if self._spark is not None:
                rows = spout.load(self._spark)
        else:
            rows = _frame(name, spout)
            if rows.isStreaming:
                options = _stream_options(name, rows)
        if options is None:
            assert rows is not None
            check_fields(f"new_stream({name!r})", rows.columns)
            node = SpoutNode(f"new_stream({name})", rows.schema, (), name, rows, None)
        else:
            _check_ack_mode(name, options)
            schema = StructType([*added, *(field for field in SCHEMA.fields if field.name != ANCHORS)])
            node = SpoutNode(
                f"new_stream({name})", schema, (), name, rows, options, scheme, tracking, rows is not None
            )
        self._spouts[name] = node
        return self._stream(node)

    def multi_reduce(
        self,
        streams: Sequence[Stream | GroupedStream],
        reducer: MultiReducer[Any] | GroupedMultiReducer[Any],
        new: Fields,
        inputs: Sequence[Names] | None = None,
    ) -> Stream:
        """Reduce the tuples of several streams of one spout together: all of a batch, or those of each group.

        The stream has the group fields of the first one, and the new fields.

        Args:
            streams: all grouped by as many fields of the same types, or none.
            reducer: gets each tuple with the number of its stream; a `GroupedMultiReducer` the group, too.
            new: the fields that it emits.
            inputs: of each stream the fields that the reducer gets; all but the group fields by default.

        Raises:
            TopologyError: the group fields do not match, a field is unknown, the streams come from different spouts, or
                `inputs` are not as many.
        """
        if not streams or (inputs is not None and len(inputs) != len(streams)):
            msg = (
                f"multi_reduce: there are {len(streams)} streams and "
                f"{'no' if inputs is None else len(inputs)} lists of inputs. Give at least one stream, and inputs for "
                "each"
            )
            raise TopologyError(msg)
        parts = []
        for number, one in enumerate(streams):
            stream, keys = one._group()
            rest = [name for name in stream.fields if name not in keys]
            names = rest if inputs is None else inputs[number]
            parts.append((stream.node, keys, choose_fields(names, stream.schema, "multi_reduce")))
        return self._stream(multi_reduce_node(parts, reducer, new))

    def _stream(self, node: TopologyNode) -> Stream:
        self._declared.add(node)
        return Stream(node, _declared=self._declared)

    def new_static_state(self, factory: StateFactory) -> TridentState:
        """Add a state that the topology queries and does not update.

        Raises:
            TopologyError: it is not a factory of states; `start` refuses one that the topology updates.
        """
        check_factory(factory, "new_static_state")
        self._static.append(factory)
        return TridentState(factory)

    def start(
        self,
        *,
        checkpointLocation: str,
        queryName: str | None = None,
        trigger: Mapping[str, Any] | None = None,
        batch_retries: int = 3,
        strict: bool = False,
    ) -> RunningTopology:
        """Start a query for each Kinesis stream.

        Args:
            checkpointLocation: the folder of Spark's checkpoint; several streams have folders of their names in it.
            queryName: the query's name; with several streams each query is named `queryName-<stream>`.
            trigger: what `DataStreamWriter.trigger` takes, as in `{"availableNow": True}`.
            batch_retries: the number of times that a batch that fails as a whole is tried again in place, with its
                txid, before the query stops.
            strict: refuse a pair of spout and state that is not exactly-once, instead of a warning.

        Raises:
            TopologyError: there is no Kinesis stream, a stream is not used, two updates go to one state, or
                `strict` refuses a state.
        """
        if self._spark is None:
            msg = (
                "start: the topology was built without a Spark session. Build it with TridentTopology(spark), or run "
                "it with kinesis_trident.testing.run_topology"
            )
            raise TopologyError(msg)
        graph = self.check(strict=strict)
        queries: dict[str, StreamingQuery] = {}
        metrics: dict[str, UpdateMetrics] = {}
        spouts = graph.spouts
        one = len(spouts) == 1
        parallelism = int(self._spark.sparkContext.defaultParallelism)
        try:
            for spout in spouts:
                assert spout.options is not None
                assert spout.rows is not None
                metrics[spout.name] = UpdateMetrics(graph.below(spout))
                attempts = TopologyAttempts(spout, graph, parallelism, metrics[spout.name])
                isolate = attempts.isolate if spout.tracking else None
                queries[spout.name] = start_query(
                    spout.rows,
                    BatchHandler(spout.options, attempts, batch_retries, isolate=isolate),
                    checkpointLocation=checkpointLocation if one else f"{checkpointLocation}/{spout.name}",
                    queryName=queryName if one or queryName is None else f"{queryName}-{spout.name}",
                    trigger=trigger,
                )
        except BaseException:
            # Nothing else could stop the queries that run.
            for query in queries.values():
                query.stop()
            raise
        return RunningTopology(queries, metrics)

    def check(self, *, strict: bool = False) -> Graph:
        """Check the topology; return its nodes as they run.

        Raises:
            TopologyError: as `start`.
        """
        graph, _ = resolve_hints(self._declared.graph)
        if not graph.spouts:
            msg = (
                "start: the topology has no Kinesis stream. Call new_stream with a KinesisSpout or a "
                "kinesis-trident DataFrame"
            )
            raise TopologyError(msg)
        parts = {spout: graph.below(spout) for spout in graph.spouts}
        for spout, nodes in parts.items():
            if len(nodes) == 1:
                msg = f"start: the stream {spout.name!r} is not used. Add operations to it, or remove it"
                raise TopologyError(msg)
            _check_guarantees(spout, nodes, strict=strict)
        check_places(parts, self._static)
        return graph


@dataclass(frozen=True, slots=True)
class RunningTopology:
    """A running topology: `queries` are Spark's queries, by the names of the streams."""

    queries: Mapping[str, StreamingQuery]
    _metrics: Mapping[str, UpdateMetrics] = field(default_factory=dict, repr=False)

    def state_metrics(self) -> dict[str, StateMetrics]:
        """Return what the updates of each state have asked of its store since `start`.

        The keys are the names of the operations; `name(label)` puts a label before them. With several streams the
        stream comes first, and of equal names the second has the suffix `#2`.
        """
        return read_metrics(self._metrics)

    @property
    def is_active(self) -> bool:
        """True while all its queries run."""
        return all(query.isActive for query in self.queries.values())

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until every query has ended, for at most `timeout` seconds.

        Returns:
            True if all have ended.

        Raises:
            StreamingQueryException: a query failed. It is raised at once; the other queries run until `stop`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = list(self.queries.values())
        while True:
            # Check first if they run, then their errors: a query that ends in between is checked once more.
            running = [query for query in waiting if query.isActive]
            for query in waiting:
                error = query.exception()
                if error is not None:
                    raise error
            waiting = running
            if not waiting:
                return True
            left = _POLL if deadline is None else min(_POLL, deadline - time.monotonic())
            # Spark counts whole milliseconds, and needs at least one.
            if left < 0.001:
                return False
            waiting[0].awaitTermination(left)  # type: ignore[arg-type]

    def stop(self, timeout: float | None = None) -> None:
        """Stop all queries gracefully: the current batch of each ends and is settled.

        Args:
            timeout: seconds to wait for the current batches; None for as long as they take.

        Raises:
            StopTimeoutError: a batch did not end in time; its query continues.
            StreamingQueryException: a query failed.
        """
        stop(self, timeout)


def _frame(name: str, spout: object) -> DataFrame:
    """Check that a spout other than a `KinesisSpout` is a DataFrame.

    Raises:
        TopologyError: it is not.
    """
    if not isinstance(spout, DataFrame):
        msg = (
            f"new_stream({name!r}): {type(spout).__name__} is not a stream. Give KinesisSpout(streamName=..., "
            "...) or the DataFrame that readStream.format('kinesis-trident').load() returned"
        )
        raise TopologyError(msg)
    return spout


def _stream_options(name: str, rows: DataFrame) -> SourceOptions:
    """Return the options of a stream that is the source itself.

    Raises:
        TopologyError: it is not.
    """
    options, is_bare = source_of(rows)
    if not is_bare:
        msg = (
            f"new_stream({name!r}) needs the DataFrame as load() returned it: rows that were filtered or changed "
            "before cannot be distinguished from lost rows. Use each, filter or transform"
        )
        raise TopologyError(msg)
    return options


def _check_ack_mode(name: str, options: SourceOptions) -> None:
    """Check that a topology decides about the records of a stream.

    Raises:
        TopologyError: it does not.
    """
    if options.ack_mode == "explicit":
        msg = (
            f"new_stream({name!r}): ackMode=explicit is for sinks that confirm later, but a topology decides about "
            "the records of each batch before it updates a state. Omit ackMode, or use reliable() (docs/acks.md)"
        )
        raise TopologyError(msg)


def _check_guarantees(spout: SpoutNode, nodes: list[TopologyNode], *, strict: bool) -> None:
    assert spout.options is not None
    for node in nodes:
        if isinstance(node, UpdateNode):
            why = weakness(spout.options.spout, node.factory)
            if why is not None:
                msg = f"{node.operation} on {type(node.factory).__name__} is not exactly once: {why}"
                if strict:
                    raise TopologyError(msg)
                warnings.warn(msg, GuaranteeWarning, stacklevel=4)
