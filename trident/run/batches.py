"""The driver's side of a topology: processes each batch of one spout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count

from pyspark.sql import DataFrame

from kinesis_trident.bolt.errors import BatchFailedError
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.storm.frames import add_scheme
from kinesis_trident.bolt.tracking.batch_run import BatchRuns
from kinesis_trident.bolt.tracking.carriers import Carrier
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.bolt.tracking.held import Held, has_lost_held_rows
from kinesis_trident.bolt.tracking.state_facts import StateFacts, StateNotes
from kinesis_trident.bolt.tracking.tracking import Tracking
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.trident.build.graph import Graph
from kinesis_trident.trident.build.nodes import (
    PersistentAggregateNode,
    RowNode,
    SpoutNode,
    TopologyNode,
    UpdateNode,
)
from kinesis_trident.trident.run.arrow_aggregation import partials_of
from kinesis_trident.trident.run.attempt import Attempt
from kinesis_trident.trident.run.batch_facts import BatchFacts
from kinesis_trident.trident.run.state_metrics import UpdateMetrics
from kinesis_trident.trident.run.tracked import Sections
from kinesis_trident.trident.state import ATTEMPT
from kinesis_trident.trident.stores.factory import MapStateFactory
from kinesis_trident.trident.stores.ownership import GLOBALS, Owner


@dataclass(slots=True)
class TopologyAttempts:
    """Attempts each batch of one spout: decides about its records, publishes the outcome, then updates the states.

    Args:
        spout: the spout of the batches.
        graph: all nodes of the topology.
        partitions: their number for state updates and groupings without a `parallelism_hint`.
        metrics: count what the updates ask of their stores.
    """

    spout: SpoutNode
    graph: Graph
    partitions: int
    metrics: UpdateMetrics = field(default_factory=UpdateMetrics)
    _runs: BatchRuns = field(default_factory=BatchRuns, init=False)
    _notes: StateNotes = field(default_factory=StateNotes, init=False)

    @property
    def nodes(self) -> list[TopologyNode]:
        """The spout and all nodes below it, in the order of declaration."""
        return self.graph.below(self.spout)

    def __call__(self, rows: DataFrame, batch: CurrentBatch, process: BatchHandler) -> None:
        """Attempt the batch once. The outcome is published before the first state changes, so it returns None.

        Raises:
            BatchFailedError: records failed under `spout=transactional`, or held rows were lost with their
                executor.
        """
        rows = add_scheme(rows, self.spout.scheme)
        judge = self._judge if self.spout.tracking else self._take_whole
        try:
            with Held() as held:
                attempt = judge(rows, batch, process, held)
                self._runs.begin()
                attempt.apply(self.nodes)
            self._note(attempt, batch)
        except Exception as error:
            if has_lost_held_rows(error):
                msg = (
                    f"batch {batch.txid}: an executor was lost together with rows that it held; the batch is read "
                    "again"
                )
                raise BatchFailedError(msg) from error
            raise

    def isolate(self, rows: DataFrame, batch: CurrentBatch, carrier: Carrier) -> Tracking:
        """Run the tracked part to find the records that end their worker."""
        rows = add_scheme(rows, self.spout.scheme)
        tracking = Tracking(rows, batch.facts, carrier, isolating=True)
        facts = self._facts(batch)
        with tracking.held as held:
            Attempt(self.graph, {self.spout: rows}, facts, held, Sections(self.graph, tracking, facts)).judge(
                self.nodes
            )
        return tracking

    def _judge(self, rows: DataFrame, batch: CurrentBatch, process: BatchHandler, held: Held) -> Attempt:
        """Run the tracked part until nothing more fails, and publish the verdict, or adopt the published one.

        Raises:
            BatchFailedError: records failed under `spout=transactional`.
        """
        failed = Verdict()
        while True:
            tracking = Tracking(rows, batch.facts, process.carrier, failed)
            facts = self._facts(batch)
            sections = Sections(self.graph, tracking, facts)
            attempt = Attempt(self.graph, {self.spout: rows}, facts, held, sections)
            with tracking.held:
                attempt.judge(self.nodes)
                more = Verdict() if tracking.final else tracking.judge()
            if tracking.final:
                return attempt
            failed = failed.union(more)
            if not more:
                process.publish(batch, failed)
                adopted = batch.verdict
                if adopted is not None and adopted.same_records(failed):
                    return attempt
            held.release()

    def _take_whole(self, rows: DataFrame, batch: CurrentBatch, process: BatchHandler, held: Held) -> Attempt:
        """Read the batch and publish that all of it is done, or adopt the outcome of an earlier attempt."""
        while True:
            verdict = batch.verdict
            taken = rows if verdict is None else rows.mapInArrow(verdict.keep_done, rows.schema)
            taken = taken.select(*self.spout.schema.names)
            several = len(self.graph.children(self.spout)) > 1
            kept = held.cache(taken) if several else taken
            attempt = Attempt(self.graph, {self.spout: kept}, self._facts(batch), held)
            attempt.judge(self.nodes)
            held.uncache()
            if verdict is None:
                process.publish(batch, Verdict())
            if batch.verdict is None or batch.verdict.same_records(verdict or Verdict()):
                return attempt
            held.release()

    def _facts(self, batch: CurrentBatch) -> BatchFacts:
        run = self._runs.next(batch.txid, batch.epoch, batch.home)
        facts = StateFacts.of(run, batch, self._notes.read(batch))
        conf = {
            "trident.application": facts.application,
            "trident.stream": self.spout.name,
            ATTEMPT: facts.attempt,
        }
        owners = owners_of(name_updates(self.nodes), facts)
        options = self.spout.options
        assert options is not None
        fits = fits_one_task(self.graph, self.spout)
        one_task = batch.tasks == 1 and options.shards_per_task is None and fits
        partitions = 1 if one_task else self.partitions
        return BatchFacts(run, conf, partitions, owners, one_task, self.metrics)

    def _note(self, attempt: Attempt, batch: CurrentBatch) -> None:
        names = name_updates(self.nodes)
        self._notes.note(batch, [names[node] for node in attempt.updated], names.values())


def fits_one_task(graph: Graph, spout: SpoutNode) -> bool:
    """Return whether no number of partitions shows in what the nodes do: groups are counted up in states of stores."""
    return all(
        isinstance(node, SpoutNode)
        or (isinstance(node, RowNode) and node.tracked)
        or (
            isinstance(node, PersistentAggregateNode)
            and isinstance(node.factory, MapStateFactory)
            and node.move.tasks is None
            and not graph.children(node)
            and partials_of(node) is not None
        )
        for node in graph.below(spout)
    )


def name_updates(nodes: Sequence[TopologyNode]) -> dict[UpdateNode, str]:
    """Return a name for each update that stays the same when the query starts again, and other updates change.

    Updates that differ in nothing but the address of their store are counted, in the order of their declaration.
    """
    names: dict[str, UpdateNode] = {}
    for node in nodes:
        if isinstance(node, UpdateNode):
            name = _describe(node)
            # A store's part may be called like a number.
            others = (f"{name} #{number}" for number in count(2))
            names[next(one for one in chain([name], others) if one not in names)] = node
    return {node: name for name, node in names.items()}


def owners_of(
    names: Mapping[UpdateNode, str],
    facts: StateFacts,
) -> dict[UpdateNode, Owner]:
    """Return the owner of each update's state."""
    everyone = frozenset(names.values()) | ({GLOBALS} if any(map(is_global, names)) else set())
    return {node: Owner.of(facts, name, everyone, is_global=is_global(node)) for node, name in names.items()}


def is_global(node: UpdateNode) -> bool:
    """Return whether an update changes one key only, that of a global aggregate."""
    return isinstance(node, PersistentAggregateNode) and not node.keys


def _describe(node: UpdateNode) -> str:
    words = [node.operation]
    factory = node.factory
    if isinstance(node, PersistentAggregateNode) and node.keys:
        words.append(f"by {','.join(node.keys)}")
    elif is_global(node) and isinstance(factory, MapStateFactory):
        words.append(f"as {factory.global_key}")
    if isinstance(factory, MapStateFactory) and factory.label:
        words.append(f"in {factory.label}")
    return " ".join(words)
