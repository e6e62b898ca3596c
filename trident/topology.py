"""`TridentTopology`: streams, their states, and the queries that run them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.foreach_batch import Process
from kinesis_trident.spout.reader.rows import ANCHORS, SCHEMA
from kinesis_trident.spout.spark_plan import is_bare, options_of
from kinesis_trident.trident.build.checks import check_factory, check_places
from kinesis_trident.trident.build.graph import Node, SpoutNode, UpdateNode
from kinesis_trident.trident.guarantees import GuaranteeWarning, weakness
from kinesis_trident.trident.run.batches import TopologyAttempts
from kinesis_trident.trident.state import StateFactory
from kinesis_trident.trident.stream import Stream, TridentState

__all__ = ["RunningTopology", "TridentTopology"]


class TridentTopology:
    """Streams of tuples, and the states that they update.

        topology = TridentTopology(spark)
        counts = (topology.new_stream("lines", spark.readStream.format("kinesis-trident").options(...).load())
            .each(["data"], Split(), ["word"])
            .group_by(["word"])
            .persistent_aggregate(RedisState.opaque("redis://..."), Count(), ["count"]))
        topology.start(checkpointLocation=...)

    Every stream of Kinesis runs as a query of its own, with batches and txids of its own.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._spouts: dict[str, SpoutNode] = {}

    def new_stream(self, name: str, spout: Any) -> Stream:
        """A stream of tuples with the columns of the source.

        `spout` is a `kinesis-trident` DataFrame as `load()` returned it, or something whose `load(spark)` gives one.
        A batch DataFrame makes a stream outside of any transaction: its `df` is what comes of it.

        Raises:
            TopologyError: the name is taken, the DataFrame cannot be tracked, or its option `ackMode` is `explicit`.
        """
        if name in self._spouts:
            msg = f"new_stream: there is a stream {name!r} already"
            raise TopologyError(msg)
        rows = spout if isinstance(spout, DataFrame) else spout.load(self._spark)
        if rows.isStreaming:
            if not is_bare(rows):
                msg = (
                    f"new_stream({name!r}): takes the DataFrame as load() returned it: rows that were filtered or "
                    "changed before could not be told from rows that were lost. Use each, filter or transform"
                )
                raise TopologyError(msg)
            options = options_of(rows)
            if options.ack_mode == "explicit":
                msg = (
                    f"new_stream({name!r}): ackMode=explicit is for sinks that confirm later. A topology decides in "
                    "each batch what became of its records, before it updates a state: leave ackMode out, or use "
                    "reliable() of bolt (docs/acks.md)"
                )
                raise TopologyError(msg)
            schema = StructType([field for field in SCHEMA.fields if field.name != ANCHORS])
            node = SpoutNode(f"new_stream({name})", schema, (), name, rows, options)
        else:
            node = SpoutNode(f"new_stream({name})", rows.schema, (), name, rows, None)
        self._spouts[name] = node
        return Stream(node)

    def new_static_state(self, factory: StateFactory) -> TridentState:
        """A state that the topology queries and does not update.

        Raises:
            TopologyError: it is no factory of states.
        """
        check_factory(factory, "new_static_state")
        return TridentState(factory)

    def start(
        self,
        checkpointLocation: str,
        *,
        strict: bool = False,
        trigger: Mapping[str, Any] | None = None,
        batch_retries: int = 3,
    ) -> RunningTopology:
        """Start a query for each stream of Kinesis.

        Args:
            checkpointLocation: Spark's checkpoint; of several streams each has a folder of its name in it.
            strict: refuse a pair of spout and state that is not exactly once, instead of warning.
            trigger: of Spark, as in `{"availableNow": True}`.
            batch_retries: how often a batch that fails as a whole is tried again in place, with its txid, before the
                query stops.

        Raises:
            TopologyError: there is no stream of Kinesis, a stream leads nowhere, two of its updates go to one state, or
                `strict` refuses a state.
        """
        spouts = [spout for spout in self._spouts.values() if spout.options is not None]
        if not spouts:
            msg = "start: the topology has no stream of Kinesis; call new_stream with a kinesis-trident DataFrame"
            raise TopologyError(msg)
        parts = {spout: _below(spout) for spout in spouts}
        for spout, nodes in parts.items():
            if len(nodes) == 1:
                msg = f"start: nothing is done with the stream {spout.name!r}"
                raise TopologyError(msg)
            _check_guarantees(spout, nodes, strict=strict)
        check_places(parts)
        queries = {}
        for spout, nodes in parts.items():
            folder = checkpointLocation if len(spouts) == 1 else f"{checkpointLocation}/{spout.name}"
            assert spout.options is not None
            attempts = TopologyAttempts(spout, nodes, self._partitions())
            process = Process(spout.options, attempts, batch_retries)
            writer = spout.rows.writeStream.foreachBatch(process).option("checkpointLocation", folder)
            if trigger is not None:
                writer = writer.trigger(**trigger)
            queries[spout.name] = writer.start()
        return RunningTopology(queries)

    def _partitions(self) -> int:
        return int(self._spark.sparkContext.defaultParallelism)


@dataclass(frozen=True, slots=True)
class RunningTopology:
    """A topology that was started: `queries` are Spark's, by the names of the streams."""

    queries: Mapping[str, StreamingQuery]

    @property
    def is_active(self) -> bool:
        """Whether all its queries run."""
        return all(query.isActive for query in self.queries.values())

    def await_termination(self, timeout: int | None = None) -> bool:
        """Wait until every query has ended, each for at most `timeout` seconds; an error of one is raised.

        Returns:
            Whether all have ended.
        """
        ended = [query.awaitTermination(timeout) for query in self.queries.values()]
        return all(one is None or one for one in ended)

    def stop(self) -> None:
        """Stop all queries."""
        for query in self.queries.values():
            query.stop()


def _below(spout: SpoutNode) -> list[Node]:
    """All that a spout's tuples come to, in the order of declaration."""
    found: dict[int, Node] = {}
    todo: list[Node] = [spout]
    while todo:
        node = todo.pop()
        if node.order not in found:
            found[node.order] = node
            todo += node.children
    return [found[order] for order in sorted(found)]


def _check_guarantees(spout: SpoutNode, nodes: list[Node], *, strict: bool) -> None:
    assert spout.options is not None
    for node in nodes:
        if isinstance(node, UpdateNode):
            why = weakness(spout.options.spout, node.factory)
            if why is not None:
                msg = f"{node.operation} on {type(node.factory).__name__} is not exactly once: {why}"
                if strict:
                    raise TopologyError(msg)
                warnings.warn(msg, GuaranteeWarning, stacklevel=3)
