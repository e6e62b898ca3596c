"""Runs one task of a batch: reads its shards' turns, pins each before its first row, and yields the rows.

Every other read of the same batch (a task retry, a speculative task, a second action, a replay after a crash) finds
the pin and yields the same rows.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pyarrow as pa

from kinesis_trident.checkpoint.errors import BatchMissingError
from kinesis_trident.checkpoint.model.nodes import Pin
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import shared_client
from kinesis_trident.spout.data_loss import (
    DataLossLog,
    describe_expired_unread,
    describe_gone_before_read,
    may_have_expired,
)
from kinesis_trident.spout.errors import (
    ProtocolMismatchError,
    SettledBatchError,
    TurnChangedError,
)
from kinesis_trident.spout.failed_records.letter_writer import DeadLetterWriter, Letter
from kinesis_trident.spout.failed_records.retry_ranges import DeaggregateChangedError, RunRecords
from kinesis_trident.spout.kinesis import InvalidPositionError, Kinesis, KinesisError
from kinesis_trident.spout.kinesis.client import kinesis_client
from kinesis_trident.spout.kinesis.record_batches import position_at
from kinesis_trident.spout.log_lines import configure_logging
from kinesis_trident.spout.partition import PROTOCOL, ShardTurn, TurnsPartition
from kinesis_trident.spout.positions import After, parse_position
from kinesis_trident.spout.reader.fan_out import Subscriber
from kinesis_trident.spout.reader.fetch import ShardFetcher
from kinesis_trident.spout.reader.key_marks import mark_waiting
from kinesis_trident.spout.reader.letter_box import LetterBox
from kinesis_trident.spout.reader.missing import Recreation
from kinesis_trident.spout.reader.replay import TurnReplay, holds_all_of
from kinesis_trident.spout.reader.rows import Retried, Segment, TurnRows
from kinesis_trident.spout.reader.turn_source import TurnSource
from kinesis_trident.spout.shard_rules import is_gone
from kinesis_trident.tracker.position_keys import pack_in_parts

log = logging.getLogger(__name__)

_KEPT = 16 * 2**20
"""Bytes of rows that were given, up to which Arrow keeps their memory for the next ones."""


def read_turns(partition: TurnsPartition, *, first_attempt: bool) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, in the columns of `spout.reader.rows.ARROW_SCHEMA`.

    Raises:
        ProtocolMismatchError: the executor has another version of this package than the driver.
        FencedError: a newer run of the application has taken over.
        SettledBatchError: the batch is settled: its records are done, or another batch delivers them.
        StreamRecreatedError: with `failOnDataLoss`, the stream was deleted and created again since it was planned.
        DataLossError: with `failOnDataLoss`, a shard to be read is past retention.
        TurnChangedError: with `spout=nontransactional`, another task has read a turn differently in the meantime.
        PinnedRecordsGoneError: with `spout=transactional`, records of a pinned turn are no longer in the stream.
        KinesisError, CheckpointError, DeadLetterError, SpoolError: naming the failed read or write.
    """
    if partition.protocol != PROTOCOL:
        msg = (
            f"this executor uses version {PROTOCOL} of the kinesis-trident protocol, but the driver version "
            f"{partition.protocol}. Install the same kinesis-trident on both"
        )
        raise ProtocolMismatchError(msg)
    options = partition.options
    configure_logging(options.log_format)
    store = SourceStore(shared_client(options.zookeeper), partition.layout)
    kinesis = kinesis_client(options)
    reader = TurnReader(
        partition,
        kinesis,
        store,
        look_first=partition.replay or not first_attempt,
        subscriber=kinesis,
    )
    yield from reader.rows()


class TurnReader:
    """Reads the turns of one partition in parallel, and holds each in memory until it is pinned.

    `wall`: epoch milliseconds, for a server that does not report the time.
    """

    def __init__(
        self,
        partition: TurnsPartition,
        kinesis: Kinesis,
        store: SourceStore,
        *,
        look_first: bool,
        subscriber: Subscriber | None = None,
        wall: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._partition = partition
        self._options = partition.options
        self._kinesis = kinesis
        self._store = store
        self._subscriber = subscriber
        self._wall = wall
        self._source = TurnSource(partition, kinesis, subscriber)
        self._replay = TurnReplay(partition, self._source, store)
        self._recreation = Recreation(partition, kinesis)
        # If the end is pinned after the last row, only a look at the pin yields the rows of an earlier action. A look
        # costs a millisecond, but a subscription that ends in adopting a pin costs 5 seconds of waiting.
        self._look_first = look_first or self._options.spout == "nontransactional" or self._source.pushed
        self._writes_again = look_first
        self._letters = LetterBox(self._letter_groups(), self._write_letters)
        self._given = 0

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all turns; `maxFetchBytesPerTask` bounds the turns in memory."""
        if self._source.at_a_time == 1:
            for turn in self._partition.turns:
                yield from self._give_rows(self._hold(turn))
                self._release_memory()
            return
        with ThreadPoolExecutor(max_workers=self._source.at_a_time, thread_name_prefix="turn") as pool:
            queue = iter(self._partition.turns)
            running: deque[Future[_ReadTurn]] = deque()
            try:
                while self._start_turns(pool, queue, running):
                    if not running[0].done():
                        wait([turn for turn in running if not turn.done()], return_when=FIRST_COMPLETED)
                        continue
                    # No name keeps a turn when its rows are given: the next one takes its place in memory.
                    yield from self._give_rows(running.popleft().result())
                    self._release_memory()
            finally:
                self._letters.close()
                for future in running:
                    future.cancel()

    def _start_turns(
        self, pool: ThreadPoolExecutor, queue: Iterator[ShardTurn], running: deque[Future[_ReadTurn]]
    ) -> bool:
        """Start as many turns as fit beside those that run or wait to be given; tell whether there are any.

        They are given in the order of the plan, however long each read takes: a batch that is read again has the same
        rows in the same order. A turn without rows takes no memory while it waits.
        """
        held = sum(1 for turn in running if not turn.done() or turn.result().rows.count)
        for turn in islice(queue, max(0, self._source.at_a_time - held)):
            running.append(pool.submit(self._hold, turn))
        return bool(running)

    def _give_rows(self, held: _ReadTurn) -> Iterator[pa.RecordBatch]:
        # No name keeps rows that were given, while the next ones are made.
        yield from map(self._count_given, held.rows.record_batches())
        if held.unpinned is not None:
            self._pin_last(held.shard, held.unpinned)

    def _count_given(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        self._given += rows.nbytes
        return rows

    def _release_memory(self) -> None:
        """Return the memory of rows that were given, from time to time.

        What Arrow keeps of it for later comes on top of what other turns hold, but each turn that gives its memory back
        costs the next one as much as decoding some hundred records.
        """
        if self._given >= _KEPT:
            pa.default_memory_pool().release_unused()
            self._given = 0

    def _refuse_settled(self) -> None:
        settled = self._store.batches.settled()
        part = self._partition
        if settled is not None and settled.txid >= part.txid:
            msg = (
                f"txid {part.txid} of {part.layout.what} is settled ({part.layout.settled}: {settled.txid}): its "
                "records are done, or a later batch delivers them. Read a batch's DataFrame only inside its "
                "foreachBatch, and persist or write there what is needed later"
            )
            raise SettledBatchError(msg)

    def _pin_last(self, shard: str, pin: Pin) -> None:
        """Pin a turn after its last row; an existing pin is valid if it has no record that this turn lacks."""
        stored, created = self._store.batches.create_pin(shard, pin, self._partition.epoch)
        if created or (holds_all_of(pin, stored) and pin.unreadable == stored.unreadable):
            return
        part = self._partition
        msg = (
            f"{self._source.where(shard)}, txid {part.txid}: another task has read {stored.count} records "
            f"up to {stored.last}, this one {pin.count} up to {pin.last}. Retry the task, which then reads "
            "the same records. spout=opaque avoids such differences"
        )
        raise TurnChangedError(msg)

    def _hold(self, turn: ShardTurn) -> _ReadTurn:
        try:
            return self._hold_as_planned(turn)
        except DeaggregateChangedError:
            other = self._partition.apply_deaggregate()
            if other is None:
                raise
            # As planned, this turn has never given a row, and never will: the option was set back meanwhile.
            reader = TurnReader(
                other,
                self._kinesis,
                self._store,
                look_first=self._look_first,
                subscriber=self._subscriber,
                wall=self._wall,
            )
            reader._letters = self._letters
            return reader._hold_as_planned(turn)
        finally:
            self._letters.leave(turn.shard)

    def _hold_as_planned(self, turn: ShardTurn) -> _ReadTurn:
        try:
            return self._read(turn)
        except KinesisError as error:
            key = self._partition.layout.key_of(turn.shard)
            if turn.shard in self._source.gone:
                raise
            if self._recreation.explains(error, turn):
                self._source.gone.add(turn.shard)
            elif is_gone(self._kinesis, key.stream, key.shard, error):
                log.warning("stream %r: shard %s is no longer listed", key.stream, key.shard)
                self._source.gone.add(turn.shard)
            elif isinstance(error, InvalidPositionError) and turn.due:
                self._source.has_invalid.add(turn.shard)
            else:
                raise
        return self._read(turn)

    def _read(self, turn: ShardTurn) -> _ReadTurn:
        part = self._partition
        if self._look_first:
            found = self._store.batches.adopt_pin(part.txid, turn.shard, part.plan, part.epoch)
            if found is not None:
                self._refuse_settled()
                return _ReadTurn(turn.shard, self._replay.rows(turn, found))
        rows, pin, letters = self._fetch(turn)
        self._letters.post(turn.shard, letters)
        if self._options.spout == "nontransactional":
            return _ReadTurn(turn.shard, rows, unpinned=pin)
        try:
            stored, created = self._store.batches.create_pin(turn.shard, pin, part.epoch)
        except BatchMissingError:
            self._refuse_settled()
            raise
        if created:
            return _ReadTurn(turn.shard, rows)
        self._refuse_settled()
        return _ReadTurn(turn.shard, rows if stored.digest == pin.digest else self._replay.rows(turn, stored))

    def _fetch(self, turn: ShardTurn) -> tuple[TurnRows, Pin, list[Letter]]:
        """Read a turn for the first time: due records, then new ones; return what it is dead-lettered with."""
        gone = turn.read and turn.shard in self._source.gone
        if gone:
            key = self._partition.layout.key_of(turn.shard)
            what, expired = self._recreation.said.get(turn.shard), True
            if what is None:
                info = self._kinesis.describe(key.stream)
                what = describe_gone_before_read(info, key.shard, turn.start, self._partition.txid)
                expired = may_have_expired(info)
            DataLossLog(self._options.fail_on_data_loss).report(what, expired=expired)
        fetcher = self._source.fetcher(turn)
        taken = self._take_up(turn, fetcher)
        fresh = (
            fetcher.fetch_new(parse_position(turn.start), self._source.bounds(turn)) if turn.read else None
        )
        if fresh is not None and not gone and self._recreation.shows(fresh, turn):
            self._source.gone.add(turn.shard)
            return self._fetch(turn)
        if fresh is not None:
            self._check_retention(turn, fetcher.answered)
            self._source.keep_cursor(turn, fetcher)
        new = [Segment(fresh.batches, attempt=1)] if fresh is not None and fresh.count else []
        rows = self._source.rows(turn, [taken.again, *new])
        mark_waiting(rows, turn, taken.served, taken.missing)
        part, options = self._partition, self._options
        if options.max_record_age is not None:
            # What somebody has asked for again has no delivery behind it: it comes, however old it is. What has none
            # because it waits for another record of its key was never due.
            asked = [run for run, _ in turn.due if not run.attempt and run.due]
            now = fetcher.answered or self._wall()
            rows.leave_out_aged(now - round(options.max_record_age * 1000), asked)
        unnamed = fresh is not None and fresh.count and not isinstance(parse_position(turn.start), After)
        pin = Pin(
            txid=part.txid,
            plan=part.plan,
            epoch=part.epoch,
            start=turn.start,
            end=str(fresh.end) if fresh else turn.start,
            last=str(fresh.last) if fresh and fresh.last else None,
            first=str(position_at(fresh.batches[0], 0)) if fresh and unnamed else None,
            count=rows.count,
            unreadable=rows.find_unreadable(),
            fresh=fresh.count if fresh else 0,
            digest=rows.digest(),
            xor=rows.xor(),
            closed=fresh.closed if fresh else False,
            arrival=fresh.arrival if fresh else None,
            seen=fresh.seen if fresh else None,
            behind_ms=fresh.behind_ms if fresh else 0,
            served=taken.served,
            missing=taken.missing,
            invalid=taken.invalid,
            through=taken.through,
            positions=pack_in_parts(rows.keys()) if options.ack_mode == "explicit" else (),
            gone=gone,
            cost=_cost(
                fresh.size if fresh else 0,
                fetcher.calls.throttles,
                fetcher.calls.renewals,
                fetcher.calls.reads,
                fetcher.busy_ms if fetcher.calls.reads else 0,
                fetcher.calls.subscribing,
            ),
            ahead=fresh.ahead if fresh else None,
        )
        return rows, pin, taken.letters

    def _check_retention(self, turn: ShardTurn, answered: int) -> None:
        """Check that the start of a turn had not fallen out of the stream by the time of the last answer.

        The planning process has checked that, but a machine may have stood still since then, or no executor was there.

        Raises:
            DataLossError: with `failOnDataLoss`, records may have expired before they were read.
        """
        key = self._partition.layout.key_of(turn.shard)
        info = self._partition.described.get(key.stream)
        if info is None:
            return
        position = parse_position(turn.start)
        what = describe_expired_unread(
            replace(info, server_time=answered), key.shard, position, None, turn.known_until
        )
        if what is not None:
            DataLossLog(self._options.fail_on_data_loss).report(what)

    def _take_up(self, turn: ShardTurn, fetcher: ShardFetcher) -> _TakenUp:
        """Read due runs again."""
        options = self._options
        keep_payload = options.on_exhausted == "deadLetter"
        # With `fail` they stay and the planning process stops there: the option had another value at planning.
        skipped = options.on_exhausted == "skip"
        wanted = [i for i, (_, dead) in enumerate(turn.due) if keep_payload or not dead]
        runs = [turn.due[i][0] for i in wanted]
        is_dead = np.array([turn.due[i][1] for i in wanted], np.bool_)
        # Letters are written before the pin. If another task has to read the turn again, it writes the same ones, in
        # their place, only if it gets as far: what it leaves for a later batch would be there twice.
        found = self._source.read_due(turn, fetcher, runs, patient=bool(is_dead.any()))
        is_invalid = np.zeros(len(runs), np.bool_)
        is_invalid[list(found.invalid)] = True
        # It is no record of this stream, whatever letter there is of it: a person gets that.
        records = found.records.replace_some(
            RunRecords([], np.zeros(len(runs), np.int64)), is_invalid & ~is_dead
        )
        served = [run.count if dead and skipped else -1 for run, dead in turn.due]
        for i, count in zip(wanted, records.counts.tolist(), strict=True):
            served[i] = count
        missing = {*found.missing, *found.invalid}
        letters: list[Letter] = [
            (runs[i], records.of_run(i), i in missing)
            for i in np.flatnonzero(is_dead & records.reached).tolist()
        ]
        if self._source.spool is not None:
            self._source.spool.put(
                turn.shard, self._partition.txid, records.of(found.fetched & ~is_dead & ~is_invalid).batches()
            )
        again = Retried.of(runs, records, ~is_dead)
        return _TakenUp(
            tuple(served),
            str(found.through) if found.through else None,
            tuple(wanted[i] for i in sorted(missing)),
            tuple(wanted[i] for i in found.invalid),
            again,
            letters,
        )

    def _letter_groups(self) -> list[list[str]]:
        """Return the shards with dead letters among those that are read side by side."""
        if self._options.on_exhausted != "deadLetter":
            return []
        turns, count = self._partition.turns, self._source.at_a_time
        return [
            [turn.shard for turn in turns[start : start + count] if any(dead for _, dead in turn.due)]
            for start in range(0, len(turns), count)
        ]

    def _write_letters(self, letters: Mapping[str, Sequence[Letter]]) -> None:
        part = self._partition
        if not self._options.dead_letter:
            return
        streams: dict[tuple[str, int], dict[str, Sequence[Letter]]] = {}
        for shard, some in letters.items():
            key = part.layout.key_of(shard)
            streams.setdefault((key.stream, key.created), {})[key.shard] = some
        writer = DeadLetterWriter(self._options, self._kinesis)
        for (stream, created), of_stream in streams.items():
            info = part.described.get(stream)
            writer.write(
                stream=stream,
                txid=part.txid,
                letters=of_stream,
                plan=part.plan,
                again=self._writes_again,
                info=info if info is not None and info.created == created else None,
            )


def _cost(*numbers: int) -> tuple[int, ...]:
    """Return the numbers without the zeros at their end: a pin is small, and there are very many."""
    while numbers and not numbers[-1]:
        numbers = numbers[:-1]
    return numbers


@dataclass(frozen=True, slots=True)
class _TakenUp:
    """The due runs that a turn has read again, as its pin names them; their records; the letters of exhausted ones."""

    served: tuple[int, ...]
    through: str | None
    missing: tuple[int, ...]
    invalid: tuple[int, ...]
    again: Retried
    letters: list[Letter]


@dataclass(frozen=True, slots=True)
class _ReadTurn:
    """A turn in memory; `unpinned` is the pin to write after the last row."""

    shard: str
    rows: TurnRows
    unpinned: Pin | None = None
