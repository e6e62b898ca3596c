"""The current micro-batch in the driver: its identity, the coverage of its records, and its outcome."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from kinesis_trident.bolt.errors import StaleBatchError
from kinesis_trident.bolt.failed_share import FailedShare
from kinesis_trident.bolt.steps.watchdog import Watch
from kinesis_trident.bolt.tracking.carriers import SlowCallNotes
from kinesis_trident.bolt.tracking.failed import Failed
from kinesis_trident.bolt.tracking.judged_facts import JudgedFacts
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import BatchNode, BatchOutcome, NotDone, Pin, StatesNode
from kinesis_trident.checkpoint.model.run_status import FailingNode
from kinesis_trident.checkpoint.store.source_home import find_home
from kinesis_trident.checkpoint.store.source_store import SourceStore, streams_of
from kinesis_trident.checkpoint.zookeeper.client import shared_client
from kinesis_trident.spout.failed_records.retry_spool import spool_of
from kinesis_trident.spout.kinesis.client import kinesis_client
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.shard_rules import describe_streams
from kinesis_trident.tracker.ids import tag
from kinesis_trident.tracker.records import RecordPosition

log = logging.getLogger(__name__)

_AGAIN = "Start the query again: if Spark's checkpoint and ZooKeeper disagree, its error says how"


def open_store(options: SourceOptions) -> SourceStore:
    """Open the state of the source that the options name, in the driver's process.

    Raises:
        KinesisError, CheckpointError: the stream or ZooKeeper cannot be reached.
    """
    client = shared_client(options.zookeeper)
    infos = describe_streams(kinesis_client(options), options.streams)
    created = {name: info.created for name, info in infos.items()}
    return SourceStore(client, find_home(client, options.zookeeper_root, options.application_name, created))


class CurrentBatch:
    """The batch that Spark has handed to the driver, read from ZooKeeper once, at its start.

    The outcome is written later under the epoch read here, so a driver that was paused during a takeover changes
    nothing; the rows carry the mark of the run and the plan that read them, so it cannot publish for a newer run's
    batch either.

    Attributes:
        txid: the transaction id of the batch: the same when it is replayed.
        tasks: the number of tasks that are enough for the records that are expected; None if it is not known.
        epoch: of the run that works on the batch: it rises with each run.
        application: its name.
        tag: the tag in the roots of the rows that this run reads by this plan.
        deadly: the records known to end the worker that processes them: by shard index.
    """

    def __init__(
        self,
        store: SourceStore,
        batch: BatchNode,
        options: SourceOptions | None = None,
        published: BatchOutcome | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._store = store
        self._plan = plan = batch.plan
        self.txid, self.tasks, self.epoch = plan.txid, plan.tasks, batch.epoch
        self.application = store.layout.identity
        self._spool = spool_of(options, store.layout, batch.plan.streams) if options else None
        self.deadly: Mapping[int, Failed] = {}
        self._watch = watch if options is None else self._watch_of(options)
        self._in_order = options is not None and options.retry_order == "key"
        self.tag = tag(batch.epoch, batch.plan.plan)
        ours = published is not None and published.plan == self._plan.plan
        self._published = published if ours else None

    def _watch_of(self, options: SourceOptions) -> Watch:
        notes = SlowCallNotes(options.zookeeper, self._store.layout, self.txid, self.epoch)
        return Watch(notes, options.record_timeout, no_retry=options.no_retry_for)

    @classmethod
    def newest(cls, store: SourceStore, options: SourceOptions | None = None) -> CurrentBatch:
        """Read the batch with the highest txid.

        Raises:
            StaleBatchError: there is none, or it is settled: then it is not Spark's current batch.
        """
        batch, settled, published = store.batches.newest_unsettled()
        if batch is None:
            msg = (
                f"{store.layout.batches} holds no plan: a newer run has settled the current batch, or ZooKeeper's "
                f"data was lost. {_AGAIN}"
            )
            raise StaleBatchError(msg)
        if settled is not None and settled.txid >= batch.plan.txid:
            msg = (
                f"the newest plan in {store.layout.batches} is txid {batch.plan.txid}, which is settled: the current "
                f"batch is another one, and was settled before. {_AGAIN}"
            )
            raise StaleBatchError(msg)
        return cls(store, batch, options, published)

    def is_empty(self) -> bool:
        """True if every turn was read, and none of them holds a row."""
        pins = self.pins()
        return len(pins) == len(self._plan.shards) and not any(pin.rows for pin in pins.values())

    @property
    def verdict(self) -> Verdict | None:
        """The outcome that an earlier attempt has published, if any: it is applied, and nothing is judged again."""
        return Verdict(self._published.not_done) if self._published is not None else None

    @property
    def facts(self) -> JudgedFacts:
        """The facts by which its tuples are judged."""
        return JudgedFacts(
            plan=self._plan,
            epoch=self.epoch,
            tag=self.tag,
            pins=self.pins,
            source_of=self._store.layout.source_of,
            published=self.verdict,
            deadly=self.deadly,
            spool=self._spool,
            watch=self._watch,
            in_order=self._in_order,
        )

    def share_of(self, verdict: Verdict) -> FailedShare:
        """Return the new records with those that have failed."""
        return FailedShare.of(self._plan, verdict.fresh, verdict.not_done)

    def first_of(self, shard: str, piece: NotDone) -> str:
        """Return the message id of the first record of a piece of an outcome."""
        first = RecordPosition.parse(piece.first or piece.last)
        return str(MessageId.of_record(self._store.layout.source_of(shard), first))

    def pins(self) -> dict[str, Pin]:
        """The pins of the batch's turns, of this plan only."""
        found = self._store.batches.get_pins(self.txid, self._plan.shards, fresh=True)
        return {shard: pin for shard, pin in found.items() if pin.plan == self._plan.plan}

    def unpin(self, before: Collection[str]) -> None:
        """Let the turns be read anew that are pinned since those in `before` were, and hold rows: nobody took them.

        Raises:
            FencedError: a newer run has taken over.
        """
        since = {shard: pin for shard, pin in self.pins().items() if pin.count and shard not in before}
        self._store.batches.release_pins(since, self.epoch)

    def say_judging(self) -> None:
        """Store, before the first job, that this run's batches are done only with an outcome.

        Raises:
            FencedError: a newer run has taken over.
        """
        plain = self._store.judging.declare(
            self.epoch, lambda: {pin.epoch for pin in self.pins().values() if pin.count}
        )
        if plain:
            log.warning(
                "batch %d was begun by a plain query (epoch %d), and is finished by one that judges its records (epoch "
                "%d). Rows that the plain query has written are written again",
                self.txid,
                plain[-1],
                self.epoch,
            )

    def take_back_judging(self) -> None:
        """Take back what `say_judging` has stored: the rows in hand are not of this batch."""
        self._store.judging.take_back(self.epoch)

    def check_epoch(self) -> None:
        """Make sure that no newer run has taken over.

        Raises:
            FencedError: one has.
        """
        self._store.epochs.check_epoch(self.epoch)

    @property
    def home(self) -> str:
        """The name of the stream's state in ZooKeeper, which numbers the batches."""
        return self._store.layout.element

    @property
    def merged_homes(self) -> list[str]:
        """The names of the states that streams had alone, of all that were ever read together in this one."""
        layout = self._store.layout
        if not layout.several:
            return []
        streams = streams_of(self._store) | self._plan.streams
        alone = [replace(layout, stream=stream, created=created) for stream, created in streams.items()]
        return [one.element for one in alone]

    def applied_to_states(self) -> dict[str, int]:
        """Return the newest batch that was applied to each of a topology's states, by their names."""
        node = self._store.states.get(fresh=True)
        return dict(node.applied) if node is not None else {}

    def note_applied(self, applied: Mapping[str, int]) -> None:
        """Store the newest batch that was applied to each of a topology's states.

        Raises:
            FencedError: a newer run has taken over.
        """
        self._store.states.put(StatesNode(applied=dict(applied)), self.epoch)

    def note_failing(self, node: FailingNode) -> None:
        """Store how many new records fail.

        Raises:
            FencedError: a newer run has taken over.
        """
        self._store.failing.put(node, self.epoch)

    def publish(self, verdict: Verdict) -> None:
        """Store the outcome, before Spark counts the batch as finished.

        Raises:
            FencedError: a newer run has taken over; nothing was written.
        """
        outcome = verdict.node(self._plan, self.epoch)
        self._published, _ = self._store.batches.put_outcome(outcome, self.epoch)
