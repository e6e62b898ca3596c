"""One per cent of 1,000 records a second a shard fails: the retries keep up within what Kinesis allows a shard.

The planner, the fetcher, the spool and settling are the real ones; Kinesis counts calls and bytes as the service does,
and time passes only where somebody waits.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from thorough import cases

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import NotDone, Pin, Plan
from kinesis_trident.spout.failed_records.retry_spool import RetrySpool
from kinesis_trident.spout.kinesis import Page, ThrottledError
from kinesis_trident.spout.kinesis.rate_limit import Budget, ShardLimiter
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.plan import ShardState, make_plan
from kinesis_trident.spout.planner.settling.settlement import CommittedTurn, InflightRules, settle_shard
from kinesis_trident.spout.positions import TRIM_HORIZON, parse_position
from kinesis_trident.spout.reader.fetch import Bounds, ShardFetcher
from kinesis_trident.spout.reader.turn_source import take_up
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis, Quotas
from kinesis_trident.tracker.records import RecordPosition
from kinesis_trident.tracker.retry import Backoff, RetryPolicy

SHARD = "shardId-000000000000"
LAYOUT = Layout("/root", "app", "orders", 1)
A_SECOND = 1_000
SECONDS = 90
BATCH = 0.3
"""Seconds of a batch beside its reading."""


class BusyShard(MemoryKinesis):
    """1,000 records arrive in every second; partition keys are their numbers."""

    def __init__(self, time: FakeTime, size: int) -> None:
        super().__init__(clock=time.milliseconds, quotas=Quotas())
        self._began, self._time = time.now, time
        self._data = bytes(size)
        self._written = 0
        self.throttles = self.bytes = 0

    def get_records(self, iterator: str, limit: int) -> Page:
        for number in range(self._written, int((self._time.now - self._began) * A_SECOND)):
            self.put(SHARD, self._data, str(number))
            self._written = number + 1
        try:
            page = super().get_records(iterator, limit)
        except ThrottledError:
            self.throttles += 1
            raise
        self.bytes += page.size
        return page


@dataclass
class Life:
    """Batch after batch of one shard, as the planning process and the tasks do them."""

    size: int
    spool: RetrySpool | None
    time: FakeTime = field(default_factory=FakeTime)
    lags: list[float] = field(default_factory=list)
    backlogs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kinesis = BusyShard(self.time, self.size)
        self.rng = random.Random(7)
        self.bad = {str(number) for number in range(10**6) if self.rng.random() < 0.01}
        self.policy = RetryPolicy(3, Backoff.parse("1s..60s x2"))
        options = SourceOptions(stream_name="orders")
        self.options = options
        limiter = ShardLimiter(
            Budget.of(options.min_fetch_period, options.max_fetch_rate),
            clock=self.time,
            sleep=self.time.sleep,
            rng=self.rng,
        )
        self.fetcher = ShardFetcher(
            self.kinesis, "orders", SHARD, options, limiter=limiter, wall=self.time.milliseconds
        )
        self.state = ShardState(TRIM_HORIZON)

    def live(self) -> None:
        begun, txid = self.time.now, 0
        while self.time.now < begun + SECONDS:
            txid += 1
            self.batch(txid)
            self.time.sleep(BATCH)

    def batch(self, txid: int) -> None:
        plan = make_plan(
            txid=txid,
            plan="p",
            streams={"orders": 1},
            states={SHARD: self.state},
            read=[SHARD],
            now=self.time.milliseconds(),
            max_records=None,
        )
        assert plan is not None
        pin, failed = self.read(plan)
        settled, _ = settle_shard(
            self.state,
            CommittedTurn(plan, SHARD, "orders", pin, failed, self.time.milliseconds()),
            InflightRules(self.policy, self.rng, self.options.max_retrying_records),
        )
        self.state = ShardState(TRIM_HORIZON, settled.checkpoint, settled.inflight)
        if self.spool is not None:
            self.spool.clean(txid, {SHARD: (*self.state.waiting, *self.state.dead)})
        arrival = settled.checkpoint.arrival or self.time.milliseconds()
        self.lags.append((self.time.milliseconds() - arrival) / 1000)
        self.backlogs.append(sum(run.count for run in (*self.state.waiting, *self.state.dead)))
        assert not self.state.blocked

    def read(self, plan: Plan) -> tuple[Pin, list[NotDone]]:
        options, due = self.options, plan.due(SHARD)
        found = take_up(
            [run for run, _ in due],
            lambda rest: self.fetcher.fetch_due(
                rest, options.retry_ranges_per_shard, options.retry_bytes_per_shard
            ),
            self.spool,
            SHARD,
        )
        assert not found.missing
        if self.spool is not None:
            self.spool.put(SHARD, plan.txid, found.records.of(found.fetched).batches())
        bounds = Bounds(options.max_fetch_records_per_shard, options.max_fetch_bytes_per_shard, 1.0)
        fresh = self.fetcher.fetch_new(parse_position(plan.positions[SHARD]), bounds)
        alive = [batch for i, (_, dead) in enumerate(due) if not dead for batch in found.records.of_run(i)]
        pin = Pin(
            txid=plan.txid,
            plan=plan.plan,
            epoch=1,
            start=plan.positions[SHARD],
            end=str(fresh.end),
            last=str(fresh.last) if fresh.last else None,
            count=fresh.count + sum(batch.num_rows for batch in alive),
            fresh=fresh.count,
            digest="",
            xor=0,
            arrival=fresh.arrival,
            seen=fresh.seen,
            served=tuple(found.records.counts.tolist()),
            through=str(found.through) if found.through else None,
        )
        return pin, self.failing(plan.txid, [*alive, *fresh.batches])

    def failing(self, txid: int, batches: Sequence[pa.RecordBatch]) -> list[NotDone]:
        pieces, rows = [], []
        for batch in batches:
            keys, sequences = (batch.column(name).to_pylist() for name in ("partitionKey", "sequenceNumber"))
            for row, (key, sequence) in enumerate(zip(keys, sequences, strict=True)):
                if key in self.bad:
                    before = sequences[row - 1] if row else None
                    rows.append(batch.slice(row, 1))
                    pieces.append(NotDone(sequence, sequence, 1, "ValueError: bad", before))
        if self.spool is not None:
            # As an operator does.
            self.spool.put(SHARD, txid, rows)
        return sorted(pieces, key=lambda piece: RecordPosition.parse(piece.last))


def third(values: Sequence[float], number: int) -> float:
    """The most of one third of the values."""
    step = len(values) // 3
    return max(values[number * step : (number + 1) * step])


@pytest.mark.parametrize(("size", "spooled"), cases((1_000, True), long=((200, False),)))
def test_retries_keep_up_with_a_full_shard(size: int, spooled: bool, tmp_path: Path) -> None:
    spool = RetrySpool(str(tmp_path), LAYOUT) if spooled else None
    life = Life(size, spool)
    life.live()
    assert third(life.lags, 2) < third(life.lags, 1) + 1 < 5
    assert third(life.backlogs, 2) < 1.5 * third(life.backlogs, 1) + 20
    if spooled:
        assert life.kinesis.bytes <= 1.02 * SECONDS * A_SECOND * size
    assert life.kinesis.throttles <= len(life.lags) / 20
