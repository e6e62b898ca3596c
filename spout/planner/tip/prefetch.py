"""Reads the next batch's records beside the running batch (the option `prefetch`): a cache that nothing depends on.

The end of a shard's turn is known once its task has pinned it. From there on the planning process reads, at the pace
of its looks, and sends what it has along with the next plan. Whatever is missing then, for any reason, the task reads.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Container, Mapping
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, field
from functools import partial

from kinesis_trident.checkpoint.errors import CheckpointError
from kinesis_trident.checkpoint.model.nodes import Pin, Plan
from kinesis_trident.spout.kinesis.rate_limit import Budget
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.clocks import Surroundings
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.planner.tip.looks import Look, Question
from kinesis_trident.spout.planner.tip.read_ahead import OTHER_COLUMNS, Room, ShardAhead
from kinesis_trident.spout.planner.tip.tip_probe import Answers, TipProbe
from kinesis_trident.spout.positions import Position, ShardEnd, parse_position
from kinesis_trident.spout.turn_size import count_fitting

log = logging.getLogger(__name__)

MOST_SHARDS = 512
"""The shards up to which anything is read ahead: `MOST_BYTES` hold too little of each of more."""

FRESH_MS = 60_000
"""Milliseconds for which a look is passed on: Kinesis keeps its iterator for five minutes. Nothing is read ahead for
longer either: Spark leaves the planning process of a stopped query alive."""

_FIRST_POLL_MS, _LAST_POLL_MS = 50, 1_000
"""Milliseconds between two looks for new pins. The time doubles: a pin is seen after twice the time that it took."""

PinsOf = Callable[[int, list[str]], Mapping[str, Pin]]
"""Returns the pins of those shards of a batch that have one."""


@dataclass(slots=True)
class _Batch:
    """The running batch. Times are milliseconds of a clock that never steps back.

    Attributes:
        plan: of the batch.
        begun: when its tasks were handed out.
        closed: the shards that were listed as closed.
        room: of each shard.
        unpinned: the shards whose turn was not seen to have ended.
        poll: when the pins are looked for again, and the time after which they are then.
        sights: of the shards; nobody else changes them meanwhile.
        shards: what is read.
        calls: under way.
        wake: set when a call has ended, and at the end.
    """

    plan: Plan
    begun: int
    closed: Container[str]
    room: Room
    unpinned: list[str]
    poll: tuple[int, int]
    sights: Sights
    shards: dict[str, ShardAhead] = field(default_factory=dict)
    calls: dict[str, Future[Answers]] = field(default_factory=dict)
    wake: threading.Event = field(default_factory=threading.Event)


class Prefetcher:
    """Reads ahead from `begin` to `end`; only between these two it uses the probe and changes the sights."""

    def __init__(
        self,
        probe: TipProbe,
        options: SourceOptions,
        pins_of: PinsOf,
        around: Surroundings,
    ) -> None:
        self._probe = probe
        self._options = options
        self._pins_of = pins_of
        self._steady = around.steady_ms
        self._beside = around.beside
        self._lock = threading.Lock()
        self._batch: _Batch | None = None
        self._closed = False
        self._found: dict[str, Look] = {}
        self._late: list[tuple[str, Future[Answers]]] = []

    def begin(self, plan: Plan, idle: Mapping[str, Position], closed: Container[str], sights: Sights) -> None:
        """Read ahead from where the turns of a plan end, and look at the other shards, until `end`.

        Args:
            plan: whose tasks Spark is about to run.
            idle: the positions of the shards to be read that have no new records in this plan.
            closed: the shards that were listed as closed.
            sights: of the shards.
        """
        self._found = {}
        count = len(plan.read) + len(idle)
        if self._closed or not 0 < count <= MOST_SHARDS:
            return
        now, options = self._steady(), self._options
        # The next plan most probably has the limits of this one.
        payload = min(options.max_fetch_bytes_per_shard, plan.limitBytes or options.max_fetch_bytes_per_shard)
        records = min(options.max_fetch_records_per_shard, plan.limit or options.max_fetch_records_per_shard)
        room = Room.of(count, payload, records)
        poll = now + _FIRST_POLL_MS, 2 * _FIRST_POLL_MS
        batch = _Batch(plan, now, closed, room, list(plan.read), poll, sights)
        for shard, position in idle.items():
            last = sights.look_of(shard)
            if last is None or last.position != position or not last.more:
                batch.shards[shard] = ShardAhead(position, self._size_of(batch, shard), at_tip=True)
        self._batch = batch
        self._beside(partial(self._step, batch), batch.wake)

    def end(self, sights: Sights) -> Sights:
        """Stop reading ahead, and return the sights with what was read; `sights`: those if nothing was.

        A call under way is waited for only where that is shorter than what it spares.
        """
        with self._lock:
            batch, self._batch = self._batch, None
        if batch is None:
            return sights
        batch.wake.set()
        now = self._steady()
        waited = []
        for shard, ahead in batch.shards.items():
            if shard in batch.calls and batch.calls[shard].cancel():
                # It has not begun.
                del batch.calls[shard]
            self._take_answer(batch, shard, ahead)
            if ahead.is_worth_waiting(now, called=shard in batch.calls):
                full = ahead.is_full(batch.room) or not ahead.held[0]
                if shard not in batch.calls and not full and batch.sights.of(shard).may_read(now) <= now:
                    self._ask(batch, shard, ahead, now)
                waited.append(shard)
        wait([batch.calls[shard] for shard in waited if shard in batch.calls])
        for shard in waited:
            self._take_answer(batch, shard, batch.shards[shard])
        found = {shard: ahead.result() for shard, ahead in batch.shards.items()}
        self._found = {shard: look for shard, look in found.items() if look is not None}
        self._late += batch.calls.items()
        budgets = {shard: batch.sights.of(shard).budget.begin_call() for shard in batch.calls}
        return batch.sights.take({}, budgets)

    def take(self, positions: Mapping[str, Position], sights: Sights) -> Sights:
        """Return the sights with what was found, once, at the positions where the shards stand now.

        They know of the calls that have ended since the batch did, and for which nobody waited.
        """
        late, self._late, budgets = self._late, [], dict[str, Budget]()
        for shard, call in late:
            if not call.done():
                self._late.append((shard, call))
            elif not call.cancelled() and shard in sights.by_shard:
                budget = budgets.get(shard) or sights.of(shard).budget
                budgets[shard] = budget.join(call.result().budgets[shard])
        found, self._found = self._found, {}
        here = {shard: look for shard, look in found.items() if positions.get(shard) == look.position}
        return sights.take(here, budgets, self._steady(), ahead=True)

    def close(self) -> None:
        """End all work without waiting; another thread may call this."""
        self._closed = True
        batch = self._batch
        if batch is not None:
            batch.wake.set()

    def _step(self, batch: _Batch) -> float | None:
        """Do what is due; return the seconds until something may be again, None when the batch has ended."""
        now = self._steady()
        until = batch.begun + FRESH_MS
        if self._batch is not batch or self._closed or now >= until:
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
            due = min(until, batch.poll[0]) if batch.unpinned else until
            for shard, ahead in batch.shards.items():
                self._take_answer(batch, shard, ahead)
                at = self._due_time(batch, shard, ahead, now)
                if at <= now:
                    self._ask(batch, shard, ahead, now)
                else:
                    due = int(min(due, at))
            return max(1, due - now) / 1000

    def _note_pins(self, batch: _Batch, pins: Mapping[str, Pin], now: int) -> None:
        """Begin with the shards whose turn has ended, and count what their tasks have used up."""
        for shard, pin in pins.items():
            if pin.plan != batch.plan.plan:
                continue
            size = pin.cost[0] if pin.cost else 0
            sight = batch.sights.of(shard).note_calls(pin, now, batch.plan.txid)
            batch.sights = batch.sights.put({shard: sight})
            batch.unpinned.remove(shard)
            position = parse_position(pin.end)
            if not (pin.closed or isinstance(position, ShardEnd)):
                one = size / pin.fresh + OTHER_COLUMNS if pin.fresh else self._size_of(batch, shard)
                batch.shards[shard] = ShardAhead(position, one, at_tip=pin.seen is not None)

    def _size_of(self, batch: _Batch, shard: str) -> float:
        size = batch.room.bytes
        most = min(self._options.max_records_per_fetch, count_fitting(batch.sights.of(shard).size, size))
        return size / most + OTHER_COLUMNS

    def _due_time(self, batch: _Batch, shard: str, ahead: ShardAhead, now: int) -> float:
        """Return when a shard may be asked again: infinite while a call is under way, or if enough is kept."""
        if shard in batch.calls or ahead.is_full(batch.room):
            return math.inf
        sight = batch.sights.of(shard)
        at = sight.may_read(now)
        return max(at, sight.next_look(now)) if ahead.at_tip else at

    def _ask(self, batch: _Batch, shard: str, ahead: ShardAhead, now: int) -> None:
        limit = min(self._options.max_records_per_fetch, ahead.limit(batch.room))
        ahead.asked = now
        sight = batch.sights.of(shard)
        last = ahead.look or sight.look
        question = Question(
            ahead.position, shard in batch.closed, limit, batch.room.bytes, sight.budget, last
        )
        try:
            call = self._probe.begin_ahead(shard, question, ahead.look)
        except RuntimeError:
            # The threads were ended a moment ago.
            ahead.ended = True
        else:
            batch.calls[shard] = call
            call.add_done_callback(lambda _: batch.wake.set())

    def _take_answer(self, batch: _Batch, shard: str, ahead: ShardAhead) -> None:
        """Take the result of a call that has ended; nothing more is asked for after one that failed."""
        if shard not in batch.calls or not batch.calls[shard].done():
            return
        try:
            answer = batch.calls.pop(shard).result()
        except CancelledError:
            ahead.ended = True
            return
        batch.sights = batch.sights.take({}, answer.budgets)
        look = answer.looks.get(shard)
        if look is None:
            log.debug("shard %s is not read ahead now: %s", shard, answer.error)
            ahead.ended = True
            return
        at = int(answer.at * 1000)
        found = ahead.take(look, at, batch.room)
        if look.refused is None:
            batch.sights = batch.sights.put({shard: batch.sights.of(shard).note_look(at, found=found)})
