"""What the planning process knows of each shard, loaded from ZooKeeper and moved on by settling."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from checkpoint.errors import StateMissingError
from checkpoint.layout import ShardKey
from checkpoint.nodes import (
    Acks,
    DeadLetterRecord,
    DeadLettersNode,
    Plan,
    SettledNode,
    ShardLineage,
    ShardsNode,
    StartNode,
)
from checkpoint.store import SourceStore
from spout.adoption import adopted_nodes, is_beyond
from spout.errors import DataLossError
from spout.external import Tally, take_in
from spout.kinesis import Shard
from spout.options import Options
from spout.places import Places
from spout.planning import ShardState
from spout.positions import TRIM_HORIZON, AtTimestamp, Position, ShardEnd, parse_position
from spout.probe import Look
from spout.settling import Explicit, SettledShard, inflight_of, settle_shard, tracker_of
from spout.shards import adopted, drained, first_listing, listed_again, readable
from spout.streams import Streams
from tracker.explicit import TIMEOUT, ExplicitTracker
from tracker.keys import Keys, unpack
from tracker.records import Run
from tracker.retry import Backoff, RetryPolicy

__all__ = ["SourceState"]

log = logging.getLogger(__name__)

_SEEN_PERIOD_MS = 10 * 60 * 1000

_FEW_SHARDS = 500
"""Up to here a plan is one node, and what a settled batch leaves is removed in the multi that settles it."""

_REQUESTS_AT_A_TIME = 1_000
"""Nodes of other processes that are taken in, and removed, in one multi: more would not fit."""

_LAST_LETTERS = 20
"""Dead letters kept in ZooKeeper a shard, to look at; the records themselves are in the dead letter."""


class SourceState:
    """The shards of a source: lineage, positions, what is in flight, and the newest settled txid.

    Every write goes through the store under this run's epoch. Shards of a stream that is not read any more are kept
    as they are: a batch of theirs may still have to be settled, and the stream may be read again.
    """

    def __init__(
        self,
        options: Options,
        store: SourceStore,
        streams: Streams,
        epoch: int,
        rng: random.Random,
    ) -> None:
        self._options = options
        self._store = store
        self._epoch = epoch
        self._rng = rng
        self._policy = RetryPolicy(options.retry_limit, Backoff.parse(options.retry_backoff))
        self._layout = store.layout
        self._parked: frozenset[str] = frozenset()
        self.streams = streams
        self.settled = 0
        self.settled_plan = ""
        self.untidy = True
        self.lineage: dict[str, ShardLineage] = {}
        self.shards: dict[str, ShardState] = {}
        self.dead_letters: dict[str, DeadLettersNode] = {}
        self.losses: dict[str, str] = {}
        self._stored_seen: dict[str, int] = {}
        bound = options.max_inflight_records if options.ack_mode == "explicit" else None
        self._explicit = Explicit(round(options.message_timeout * 1000), bound)
        self.tally = Tally()

    def load(self) -> None:
        """Read everything from ZooKeeper; the very first time, list the shards and settle where they start."""
        settled = self._store.settled()
        if settled is not None:
            self.settled, self.settled_plan = settled.txid, settled.plan
        known = self._store.lineage()
        self.lineage = dict(known.shards) if known else {}
        begun = {self._stream_of(shard) for shard in self.lineage}
        for stream, created in self.streams.created.items():
            if (stream, created) not in begun:
                listed = self.streams.list_shards(stream)
                self.lineage |= first_listing(listed, self._starts(stream, created, listed))
        if known is None or len(self.lineage) > len(known.shards):
            self._store.put_lineage(ShardsNode(shards=dict(self.lineage)), self._epoch)
        checkpoints, inflight = self._store.checkpoints(), self._store.inflight()
        for shard in {*self.lineage, *inflight}:
            start = parse_position(self.lineage[shard].start) if shard in self.lineage else TRIM_HORIZON
            turns = self._positions(shard, inflight[shard].turns) if shard in inflight else {}
            self.shards[shard] = ShardState(start, checkpoints.get(shard), inflight.get(shard), turns)
        self._parked = frozenset(shard for shard in self.shards if self.streams.info_of(shard) is None)
        self.dead_letters = self._store.dead_letters()

    def list_shards(self) -> None:
        """Ask for the shards again; new ones join, what retention removed goes.

        Raises:
            DataLossError: with `failOnDataLoss`, a shard went that was not read to its end.
        """
        lineage = {shard: node for shard, node in self.lineage.items() if shard in self._parked}
        for stream, created in self.streams.created.items():
            known = self._lineage_of({stream: created})
            lineage |= listed_again(known, self.streams.list_shards(stream))
        for shard in self.lineage.keys() - lineage.keys():
            info = self.streams.info_of(shard)
            if self.lineage[shard].state != "drained" and info is not None:
                node = self.shards[shard].checkpoint
                read = (
                    f"whose last record arrived {_age(info.server_time - node.arrival)} ago"
                    if node is not None and node.arrival
                    else "with no record read"
                )
                self._loss(
                    f"stream {info.name!r}: shard {self.key_of(shard).shard} is no longer listed and was read "
                    f"only to {self.shards[shard].position}, {read}; what came after is past the retention of "
                    f"{info.retention_hours} h",
                    shard,
                )
        if lineage == self.lineage:
            return
        self._store.put_lineage(ShardsNode(shards=lineage), self._epoch)
        for shard in lineage.keys() - self.shards.keys():
            self.shards[shard] = ShardState(parse_position(lineage[shard].start))
        for shard in self.lineage.keys() - lineage.keys():
            if not self.shards[shard].held:
                del self.shards[shard]
        self.lineage = lineage

    def check_retention(self) -> None:
        """See that no shard's position has fallen out of the stream.

        Raises:
            DataLossError: with `failOnDataLoss`, records may have expired before they were read.
        """
        for shard, state in sorted(self.shards.items()):
            node, info = state.checkpoint, self.streams.info_of(shard)
            # Of a shard that is no longer listed nothing new is read: what it lost was said when it went.
            if (
                node is None
                or info is None
                or shard not in self.lineage
                or isinstance(state.position, ShardEnd)
            ):
                continue
            horizon = info.server_time - info.retention_hours * 3_600_000
            known = max(node.seen or 0, node.arrival or 0)
            if 0 < known < horizon:
                self._loss(
                    f"stream {info.name!r}, shard {self.key_of(shard).shard}: reading stands at "
                    f"{state.position}, whose last record arrived {_age(info.server_time - known)} ago, but the stream "
                    f"keeps only {info.retention_hours} h: records may have expired unread",
                    shard,
                )

    def seen_at_tip(self, looks: Mapping[str, Look]) -> None:
        """Note that idle shards were seen to hold nothing more; in ZooKeeper only now and then.

        Otherwise a shard that is idle for longer than the retention would look as if its records had expired unread.
        """
        for shard, look in looks.items():
            state = self.shards.get(shard)
            node = state.checkpoint if state is not None else None
            if state is None or node is None or look.more is not False or look.at <= (node.seen or 0):
                continue
            if node.position != str(look.position):
                continue
            seen = msgspec.structs.replace(node, seen=look.at, behind_ms=0)
            if look.at - self._stored_seen.get(shard, node.seen or 0) >= _SEEN_PERIOD_MS:
                self._store.amend(shard, self._epoch, checkpoint=seen)
                self._stored_seen[shard] = look.at
            self.shards[shard] = replace(state, checkpoint=seen)

    def settle(self, plan: Plan, now: int) -> None:
        """Settle a batch that Spark has committed: move checkpoints, queue what failed, in ZooKeeper first.

        Shards that carry the batch's stamp were moved on by an earlier settling that a crash has cut short.
        """
        found, acks = self._store.finished(plan.txid, plan.shards)
        pins = {shard: pin for shard, pin in found.items() if pin.plan == plan.plan}
        not_done = _outcome(acks, plan)
        done: dict[str, SettledShard] = {}
        for shard in plan.shards:
            before = self._of(plan, shard)
            if before.checkpoint is not None and before.checkpoint.txid >= plan.txid:
                continue
            done[shard] = settle_shard(
                before,
                plan,
                self.key_of(shard).source,
                shard,
                pins.get(shard),
                not_done.get(shard, ()),
                self._policy,
                max_retrying=self._options.max_retrying_records,
                now=now,
                rng=self._rng,
                explicit=self._explicit,
            )
        for shard, pin in pins.items():
            if pin.lost:
                self.losses[f"{shard} txid {plan.txid}"] = (
                    f"{self.key_of(shard).source}, txid {plan.txid}: {pin.lost} records had left the stream when the "
                    "batch was replayed"
                )
        ended = [shard for shard, pin in pins.items() if pin.closed]
        lineage = drained(self.lineage, ended)
        letters = {
            shard: self._counted(shard, result.dead_lettered)
            for shard, result in done.items()
            if result.dead_lettered
        }
        # A plan or an outcome of many nodes is left to a purge; and pins that know where records in flight are, stay.
        known = plan.txid in self.turns_in_use or any(plan.txid in result.turns for result in done.values())
        small = not (plan.retries or plan.dead or not_done or known) and len(plan.positions) < _FEW_SHARDS
        self.untidy |= not small
        self._store.settle(
            {shard: (result.checkpoint, result.inflight) for shard, result in done.items()},
            letters,
            ShardsNode(shards=lineage) if ended else None,
            SettledNode(txid=plan.txid, plan=plan.plan),
            self._epoch,
            leftover=self._store.nodes_of(plan.txid, list(found), outcome=acks is not None) if small else (),
        )
        self.lineage = lineage
        self.dead_letters |= letters
        for shard, result in done.items():
            start = self._of(plan, shard).start
            self.shards[shard] = ShardState(start, result.checkpoint, result.inflight, result.turns)
        self.settled, self.settled_plan = plan.txid, plan.plan

    def _of(self, plan: Plan, shard: str) -> ShardState:
        """A shard of a plan; retention may have removed it from the listing since it was planned."""
        return self.shards.get(shard) or ShardState(parse_position(plan.positions[shard]))

    def stands_further(self, plan: Plan) -> bool:
        """Whether ZooKeeper has a shard read beyond where a plan starts: its batch can no longer be settled."""
        return any(
            shard in self.shards and is_beyond(self.shards[shard], parse_position(text))
            for shard, text in plan.positions.items()
        )

    def adopt(self, plan: Plan, settled: int) -> None:
        """Go on from an offset alone, because ZooKeeper lost its data: at least once from here.

        Positions are those the offset's batch started from; what it would have retried and what waited is not done.
        """
        updates = adopted_nodes(plan, self.shards, settled)
        mark = plan.plan if settled == plan.txid else ""
        lineage = ShardsNode(
            shards=self.lineage | adopted(self._lineage_of(plan.streams), {**plan.positions, **plan.resume}),
        )
        self._store.settle(updates, {}, lineage, SettledNode(txid=settled, plan=mark), self._epoch)
        self.shards.clear()
        self.load()

    def take_in_requests(self, now: int) -> None:
        """Take in what other processes ask for: replays, acks and fails; between two batches only."""
        for shard, asked in self._store.external().items():
            state = self.shards.get(shard)
            if state is None or state.checkpoint is None:
                log.warning("shard %s was never read: what was asked of its records is dropped", shard)
                self._store.amend(shard, self._epoch, consumed=list(asked))
                continue
            names = list(asked)
            for start in range(0, len(names), _REQUESTS_AT_A_TIME):
                some = names[start : start + _REQUESTS_AT_A_TIME]
                tracker = tracker_of(self.shards[shard], self._policy)
                requests = [asked[name] for name in some]
                tally = take_in(shard, tracker, requests, now, self._rng, self._explicit.timeout)
                self._amend(shard, tracker, consumed=some)
                self.tally = self.tally.plus(tally)

    def time_out(self, now: int) -> None:
        """Fail the records that nobody has acked in time; between two batches only."""
        for shard, state in list(self.active.items()):
            if not any(run.due <= now for run in state.pending):
                continue
            tracker = tracker_of(state, self._policy)
            late = tracker.time_out(now, self._rng)
            log.warning("shard %s: %d records were not acked in time and fail (%s)", shard, late, TIMEOUT)
            self._amend(shard, tracker)
            self.tally = self.tally.plus(Tally(timed_out=late))

    def _amend(self, shard: str, tracker: ExplicitTracker, consumed: Sequence[str] = ()) -> None:
        """Store what a shard's tracker says between two batches."""
        state = self.shards[shard]
        assert state.checkpoint is not None, "a shard that was read has a checkpoint"
        safe = tracker.checkpoint
        checkpoint = msgspec.structs.replace(
            state.checkpoint,
            checkpoint=str(safe.sequence) if safe else None,
            sub=safe.sub if safe else -1,
        )
        inflight = inflight_of(tracker, checkpoint.txid, self._options.max_retrying_records, self._explicit)
        self._store.amend(shard, self._epoch, checkpoint=checkpoint, inflight=inflight, consumed=consumed)
        self.shards[shard] = ShardState(state.start, checkpoint, inflight, tracker.turns_in_use)

    def _positions(self, shard: str, txids: Sequence[int]) -> dict[int, Keys]:
        """The positions of the rows of settled batches, from their pins.

        Raises:
            StateMissingError: a pin is gone.
        """
        found = {txid: self._store.get_pin(txid, shard) for txid in txids}
        for txid, pin in found.items():
            if pin is None:
                layout = self._store.layout
                msg = (
                    f"{layout.pin_of(txid, shard)} does not exist, but {layout.inflight_of(shard)} names records of "
                    "that batch which nobody has acked yet: only it knows their positions. Nothing was changed. "
                    "Restore the node from a backup"
                )
                raise StateMissingError(msg)
        return {txid: unpack(*pin.positions) for txid, pin in found.items() if pin is not None}

    def _counted(self, shard: str, letters: Sequence[DeadLetterRecord]) -> DeadLettersNode:
        before = self.dead_letters.get(shard)
        return DeadLettersNode(
            count=(before.count if before else 0) + sum(letter.count for letter in letters),
            target=self._options.dead_letter or self._options.on_exhausted,
            last=(*(before.last if before else ()), *letters)[-_LAST_LETTERS:],
        )

    def positions(self) -> dict[str, Position]:
        """Where each shard that may be read for new records now stands."""
        return {
            shard: self.shards[shard].position
            for shard in readable(self.lineage, self._options.shard_ordering)
            if shard not in self._parked
        }

    def key_of(self, shard: str) -> ShardKey:
        """Which shard of which stream a name stands for."""
        return self._layout.key_of(shard)

    @property
    def active(self) -> Mapping[str, ShardState]:
        """The shards of the streams that are read now."""
        if not self._parked:
            return self.shards
        return {shard: state for shard, state in self.shards.items() if shard not in self._parked}

    @property
    def waiting(self) -> list[Run]:
        """All runs that wait for a retry."""
        return [run for state in self.active.values() for run in state.waiting]

    @property
    def unacked(self) -> int:
        """How many records nobody has acked yet."""
        return sum(state.unacked for state in self.active.values())

    @property
    def next_timeout(self) -> int | None:
        """When the first record times out that nobody has acked yet; None when there is none."""
        return min((run.due for state in self.active.values() for run in state.pending), default=None)

    @property
    def turns_in_use(self) -> frozenset[int]:
        """The settled batches whose pins know the positions of what is in flight."""
        return frozenset(txid for state in self.shards.values() for txid in state.turns)

    @property
    def dead(self) -> Mapping[str, tuple[Run, ...]]:
        """The exhausted runs, by shard."""
        return {shard: state.dead for shard, state in self.active.items() if state.dead}

    def _stream_of(self, shard: str) -> tuple[str, int]:
        key = self.key_of(shard)
        return key.stream, key.created

    def _lineage_of(self, streams: Mapping[str, int]) -> dict[str, ShardLineage]:
        """The part of the lineage that belongs to streams, name to creation time."""
        wanted = set(streams.items())
        return {shard: node for shard, node in self.lineage.items() if self._stream_of(shard) in wanted}

    def _starts(self, stream: str, created: int, listed: Sequence[Shard]) -> dict[str, Position]:
        """Where the shards of a stream that was never read begin, by name."""
        places = Places.parse(self._options.starting_position)

        def latest() -> Position:
            node = StartNode(timestamp=self.streams.infos[stream].server_time)
            return AtTimestamp(self._store.put_start(stream, created, node, self._epoch).timestamp)

        names = {self.key_of(shard.id).shard: shard.id for shard in listed}
        for shard in sorted(set(places.named(stream)) - set(names)):
            self._loss(
                f"stream {stream!r}: startingPosition names shard {shard}, which is not listed: it is past retention, "
                "or of another stream",
                f"{stream}/{shard}",
            )
        plain = [
            Shard(shard, tuple(self.key_of(parent).shard for parent in held.parents), held.closed)
            for shard, held in zip(names, listed, strict=True)
        ]
        found = places.of(stream, plain, latest)
        return {names[shard]: position for shard, position in found.items()}

    def _loss(self, what: str, shard: str) -> None:
        if self._options.fail_on_data_loss:
            msg = (
                f"{what}. Raise the stream's retention or read more often; to go on with what is left, set "
                "failOnDataLoss=false"
            )
            raise DataLossError(msg)
        # Until the shard is read on, each look at the retention finds the same loss.
        place = f"{shard} {self.shards[shard].position}" if shard in self.shards else shard
        if place not in self.losses:
            self.losses[place] = what
            log.error("%s; going on with what is left (failOnDataLoss=false)", what)


def _outcome(acks: Acks | None, plan: Plan) -> Mapping[str, Sequence]:  # type: ignore[type-arg]
    return acks.not_done if acks is not None and acks.plan == plan.plan else {}


def _age(milliseconds: int) -> str:
    return f"{milliseconds / 3_600_000:.1f} h"
