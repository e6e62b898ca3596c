"""Reads the next batch's records beside the running batch (the option `prefetch`): a cache that nothing depends on.

The end of a shard's turn is known once its task has pinned it. From there on the planning process reads, at the pace
of its looks, and sends what it has along with the next plan. Whatever is missing then, for any reason, the task reads.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial

from kinesis_trident.checkpoint.errors import CheckpointError
from kinesis_trident.checkpoint.model.nodes import Pin, Plan
from kinesis_trident.spout.kinesis import KinesisError
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.shards.look_pace import LookPace
from kinesis_trident.spout.planner.shards.tip_probe import Look, TipProbe
from kinesis_trident.spout.positions import Position, ShardEnd, parse_position

__all__ = ["FRESH_MS", "MOST_BYTES", "MOST_SHARDS", "Beside", "PinsOf", "Prefetcher"]

log = logging.getLogger(__name__)

MOST_BYTES = 4 * 2**20
"""Bytes of all columns that are kept of all shards together, in this process and in what Spark sends to its tasks."""

MOST_BYTES_OF_A_SHARD = 960 * 2**10
"""Bytes that are kept of one shard: Spark warns of every task of more than 1000 KiB."""

MOST_SHARDS = 512
"""The shards up to which anything is read ahead: `MOST_BYTES` hold too little of each of more."""

FRESH_MS = 60_000
"""Milliseconds for which a look is passed on: Kinesis keeps its iterator for five minutes. Nothing is read ahead for
longer either: Spark leaves the planning process of a stopped query alive."""

_FIRST_POLL_MS, _LAST_POLL_MS = 50, 1_000
"""Milliseconds between two looks for new pins. The time doubles: a pin is seen after twice the time that it took."""

_COLUMNS = 200
"""The bytes of a record beside its payload that are assumed before the first one was read ahead."""

PinsOf = Callable[[int, list[str]], Mapping[str, Pin]]
"""Returns the pins of those shards of a batch that have one."""

Beside = Callable[[Callable[[], float | None], threading.Event], object]
"""Calls a function again and again beside the caller, until it returns None.

Each time it waits for as many seconds as the function has said, or until the event is set, and clears that.
"""


def in_thread(step: Callable[[], float | None], wake: threading.Event) -> None:
    """Call steps in a thread of their own: see `Beside`."""

    def work() -> None:
        while (seconds := step()) is not None:
            wake.wait(seconds)
            wake.clear()

    threading.Thread(target=work, name="prefetch", daemon=True).start()


@dataclass(slots=True)
class _Ahead:
    """The reading of one shard.

    Attributes:
        position: where its next turn starts.
        record_bytes: the size of a record in memory, estimated.
        look: what was found there; None before the first answer.
        at_tip: the last answer has reached the tip.
        call: under way; None if there is none.
        asked, answered: when the last call was begun, and when the last answer came; in milliseconds.
        took: how long the last answer took, in milliseconds.
        reading: how long all answers with records took.
        ended: nothing more is asked for in this batch.
    """

    position: Position
    record_bytes: float
    look: Look | None = None
    at_tip: bool = False
    call: Future[tuple[Look, int]] | None = None
    asked: int = 0
    answered: int = 0
    took: int = 0
    reading: int = 0
    ended: bool = False

    @property
    def held(self) -> tuple[int, int]:
        """Return the records and the bytes that are kept."""
        page = self.look.page if self.look is not None else None
        return (page.records.num_rows, page.records.nbytes) if page is not None else (0, 0)


@dataclass(slots=True)
class _Batch:
    """The running batch.

    Attributes:
        plan: of the batch.
        until: when reading ahead ends, in milliseconds.
        unpinned: the shards whose turn was not seen to have ended.
        carried: the bytes that the turns were given, by shard.
        begun: when its tasks were handed out.
        share: the bytes that are kept of a shard.
        records: the records of a shard's turn, at most.
        poll: when the pins are looked for again, and the time after which they are then.
        shards: what is read.
        counted: the shards whose turn has ended, with what it has used up.
        wake: set when a call has ended, and at the end.
    """

    plan: Plan
    until: int
    unpinned: list[str]
    carried: Mapping[str, int]
    begun: int
    share: int
    records: int
    poll: tuple[int, int]
    shards: dict[str, _Ahead] = field(default_factory=dict)
    counted: set[str] = field(default_factory=set)
    wake: threading.Event = field(default_factory=threading.Event)


class Prefetcher:
    """Reads ahead from `begin` to `end`; only between these two it uses the probe and the pace.

    Args:
        probe: makes the calls, and knows the iterators.
        pace: of the calls to each shard.
        options: the bounds of a turn.
        pins_of: reads pins.
        fitting: returns how many records of a shard are expected to fit into so many bytes, at least one.
        steady: milliseconds that never step back.
        beside: calls the steps; a thread if None.
    """

    def __init__(
        self,
        probe: TipProbe,
        pace: LookPace,
        options: SourceOptions,
        pins_of: PinsOf,
        *,
        fitting: Callable[[str, int], int],
        steady: Callable[[], int],
        beside: Beside | None = None,
    ) -> None:
        self._probe = probe
        self._pace = pace
        self._options = options
        self._pins_of = pins_of
        self._fitting = fitting
        self._steady = steady
        self._beside = beside or in_thread
        self._lock = threading.Lock()
        self._batch: _Batch | None = None
        self._closed = False
        self._found: dict[str, Look] = {}
        self._counted: set[str] = set()

    def begin(self, plan: Plan, idle: Mapping[str, Position], carried: Mapping[str, int]) -> None:
        """Read ahead from where the turns of a plan end, and look at the other shards, until `end`.

        Args:
            plan: whose tasks Spark is about to run.
            idle: the positions of the shards to be read that have no new records in this plan.
            carried: the bytes that its turns were given, by shard.
        """
        self.drop()
        count = len(plan.read) + len(idle)
        if self._closed or not 0 < count <= MOST_SHARDS:
            return
        now, options = self._steady(), self._options
        share = min(MOST_BYTES_OF_A_SHARD, MOST_BYTES // count, options.max_fetch_bytes_per_shard)
        batch = _Batch(
            plan,
            until=now + FRESH_MS,
            unpinned=list(plan.read),
            carried=carried,
            begun=now,
            share=share if plan.limitBytes is None else min(share, plan.limitBytes),
            records=min(
                options.max_fetch_records_per_shard, plan.limit or options.max_fetch_records_per_shard
            ),
            poll=(now + _FIRST_POLL_MS, 2 * _FIRST_POLL_MS),
        )
        for shard, position in idle.items():
            last = self._probe.looks.get(shard)
            if last is None or last.position != position or not last.more:
                batch.shards[shard] = _Ahead(position, self._size_of(shard, share), at_tip=True)
        self._counted = batch.counted
        self._batch = batch
        self._beside(partial(self._step, batch), batch.wake)

    def _step(self, batch: _Batch) -> float | None:
        """Do what is due; return the seconds until something may be again, None when the batch has ended."""
        now = self._steady()
        if self._batch is not batch or self._closed or now >= batch.until:
            return None
        pins: Mapping[str, Pin] = {}
        if batch.unpinned and now >= batch.poll[0]:
            try:
                pins = self._pins_of(batch.plan.txid, list(batch.unpinned))
            except CheckpointError as error:
                log.debug("nothing more is read ahead of txid %d: %s", batch.plan.txid, error)
                return None
        with self._lock:
            if self._batch is not batch or self._closed:
                return None
            now = self._steady()
            if now >= batch.poll[0]:
                batch.poll = now + batch.poll[1], min(_LAST_POLL_MS, 2 * batch.poll[1])
            self._note_pins(batch, pins, now)
            due = batch.poll[0] if batch.unpinned else batch.until
            for shard, ahead in batch.shards.items():
                self._take_answer(batch, shard, ahead)
                at = self._due(batch, shard, ahead, now)
                if at <= now:
                    self._ask(batch, shard, ahead, now)
                else:
                    due = int(min(due, at))
            return max(1, min(due, batch.until) - now) / 1000

    def end(self) -> None:
        """Stop reading ahead; wait for a call under way only where that is shorter than what it spares."""
        with self._lock:
            batch, self._batch = self._batch, None
        if batch is None:
            return
        batch.wake.set()
        now = self._steady()
        waited = []
        for shard, ahead in batch.shards.items():
            if ahead.call is not None and ahead.call.cancel():
                # It has not begun.
                ahead.call = None
            self._take_answer(batch, shard, ahead)
            if self._is_worth_waiting(ahead, now):
                if ahead.call is None and ahead.held[0] and self._may_ask(batch, shard, ahead, now):
                    self._ask(batch, shard, ahead, now)
                if ahead.call is not None:
                    waited.append((shard, ahead))
        wait([ahead.call for _, ahead in waited if ahead.call is not None])
        for shard, ahead in waited:
            self._take_answer(batch, shard, ahead)
        self._found = {
            shard: replace(ahead.look, seconds=ahead.reading / 1000)
            for shard, ahead in batch.shards.items()
            if ahead.look is not None
        }

    def take(self, positions: Mapping[str, Position]) -> dict[str, Look]:
        """Return, once, what was found at the positions where the shards stand now."""
        found, self._found = self._found, {}
        return {shard: look for shard, look in found.items() if positions.get(shard) == look.position}

    def drop(self) -> None:
        """Stop reading ahead and forget what was found."""
        self.end()
        self._found, self._counted = {}, set()

    def uncounted(self, calls: Mapping[str, int]) -> dict[str, int]:
        """Return, once, those of the calls of the last batch's turns that were not counted when a pin was seen."""
        counted, self._counted = self._counted, set()
        return {shard: count for shard, count in calls.items() if shard not in counted}

    def close(self) -> None:
        """End all work without waiting; another thread may call this."""
        self._closed = True
        batch = self._batch
        if batch is not None:
            batch.wake.set()

    def _note_pins(self, batch: _Batch, pins: Mapping[str, Pin], now: int) -> None:
        """Begin with the shards whose turn has ended, and count what their tasks have used up."""
        for shard, pin in pins.items():
            if pin.plan != batch.plan.plan:
                continue
            size = pin.cost[0] if pin.cost else 0
            self._pace.spent(shard, now, pin.reads)
            self._pace.answered(shard, batch.begun, max(0, int(size) - batch.carried.get(shard, 0)))
            batch.counted.add(shard)
            batch.unpinned.remove(shard)
            position = parse_position(pin.end)
            if not (pin.closed or isinstance(position, ShardEnd)):
                one = size / pin.fresh + _COLUMNS if pin.fresh else self._size_of(shard, batch.share)
                batch.shards[shard] = _Ahead(position, one, at_tip=pin.seen is not None)

    def _size_of(self, shard: str, size: int) -> float:
        return size / self._fitting(shard, size) + _COLUMNS

    def _due(self, batch: _Batch, shard: str, ahead: _Ahead, now: int) -> float:
        """Return when a shard may be asked again: infinite while a call is under way, or if enough is kept."""
        if ahead.call is not None or ahead.ended:
            return math.inf
        records, size = ahead.held
        if 2 * size >= batch.share or records >= batch.records:
            return math.inf
        at = self._pace.may_read(shard, now)
        return max(at, self._pace.due(shard, now)) if ahead.at_tip else at

    def _may_ask(self, batch: _Batch, shard: str, ahead: _Ahead, now: int) -> bool:
        at_once = replace(ahead, at_tip=False)
        return self._due(batch, shard, at_once, now) <= now

    def _ask(self, batch: _Batch, shard: str, ahead: _Ahead, now: int) -> None:
        records, size = ahead.held
        room = batch.share - size
        limit = min(
            self._options.max_records_per_fetch,
            batch.records - records,
            # Records differ, and what does not fit is lost.
            int(3 * room / 4 / ahead.record_bytes),
        )
        ahead.asked = now
        try:
            ahead.call = self._probe.begin_ahead(
                shard, ahead.position, ahead.look, batch.share, max(1, limit), self._steady
            )
        except RuntimeError:
            # The threads were ended a moment ago.
            ahead.ended = True
        else:
            ahead.call.add_done_callback(lambda _: batch.wake.set())

    def _take_answer(self, batch: _Batch, shard: str, ahead: _Ahead) -> None:
        """Take the result of a call that has ended; nothing more is asked for after one that failed."""
        if ahead.call is None or not ahead.call.done():
            return
        call, ahead.call = ahead.call, None
        before, size = ahead.held
        try:
            look, at = call.result()
        except (KinesisError, CancelledError) as error:
            log.debug("shard %s is not read ahead now: %s", shard, error)
            ahead.ended = True
            return
        ahead.answered, ahead.took = at, at - ahead.asked
        if look.refused is not None or look is ahead.look:
            ahead.ended = True
            return
        page = look.page
        if page is not None and page.records.nbytes > batch.share:
            ahead.ended = True
            if size:
                return
            page, look = None, replace(look, page=None)
        ahead.look = look
        ahead.ended = ahead.ended or (look.more is True and page is None)
        records, size = ahead.held
        behind = look.behind_ms if page is None else page.behind_ms
        # Without a lag, an empty answer is as much as is ever said.
        ahead.at_tip = not behind and (behind is not None or records == before)
        if records > before:
            ahead.reading += ahead.took
            ahead.record_bytes = size / records
        self._pace.looked(shard, at, found=records > before or bool(look.more and page is None))

    @staticmethod
    def _is_worth_waiting(ahead: _Ahead, now: int) -> bool:
        """Tell whether the next answer is to be waited for.

        What arrives behind records that were read to the tip would wait for another batch: longer, the longer ago that
        was. Where nothing is known the planner would ask too.
        """
        if ahead.look is None:
            return ahead.call is not None
        if not ahead.at_tip or ahead.ended:
            return False
        passed = now - ahead.asked if ahead.call is not None else 0
        return ahead.took - passed < now - ahead.answered
