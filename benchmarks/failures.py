"""Very many failing records: what a batch writes to ZooKeeper and to Spark's log, on a server with 256 MB of heap.

python -m benchmarks.failures

Planning, reading, publishing and settling are the real ones, and so is ZooKeeper; Kinesis is held in memory, and time
passes as the benchmark says. Records are numbered as Kinesis does, with neighbours that differ in 27 digits at random:
nothing packs worse. Each measurement has a process and a server of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Container, Iterable
from pathlib import Path
from time import perf_counter

import msgspec

from benchmarks.memory import resident
from benchmarks.plots import Panel, Plot
from benchmarks.report import Section, bounded, publish, verdict
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.nodes import BatchOutcome, NotDone, Plan
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import connect
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.clocks import Surroundings
from kinesis_trident.spout.planner.offsets import offset_from_plan, plan_from_offset
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.reader.task import TurnReader
from kinesis_trident.spout.testing import MemoryKinesis
from kinesis_trident.tracker.few_failures import Few

__all__ = ["Figures", "Life", "Speed", "measured", "speed"]

ROOT = Path(__file__).resolve().parents[1]
A_BATCH = 10.0
"""Seconds that the clock goes on with each batch."""

SHARES = (0.0, 0.01, 0.1, 0.5)
"""The shares of records that fail each time they come, whose speeds are compared."""

SHARDS, RECORDS, BATCHES = 10, 1_000, 10
"""Of the comparison: the shards, and new records of each in each of so many batches."""

SLOWEST = 1 / 4
"""The bound: the speed with half of the records failing, as a share of that without failures."""

DRAINED = 10
"""The bound: batches after the last new record until nothing waits any more."""

GIVEN_UP = 100
"""Batches after which a benchmark does not wait for that any longer."""


class Figures(msgspec.Struct, frozen=True):
    """Of all batches, what was most of each; and memory half-way and at the end, in bytes.

    `offset`: characters of the plan as Spark logs it. `event`: of what Spark's progress event holds of the source: two
    offsets and the report. `written`: bytes of the writes to ZooKeeper from one plan to the next. `waiting`: failed
    records that wait. `settle`, `plan`: seconds to settle a batch, and to plan the next one.
    """

    batches: int
    offset: int
    event: int
    written: int
    waiting: int
    settle: float
    plan: float
    half_way: int
    at_end: int


class Speed(msgspec.Struct, frozen=True):
    """What a share of failing records costs.

    `rate`: new records a second of planning, reading, publishing and settling, until nothing waits any more. `written`:
    bytes of the writes to ZooKeeper, a batch. `settle`: seconds to settle one. `drained`: batches after the last new
    record until nothing waits; None after too many. `waiting`: failed records that wait, at most.
    """

    rate: float
    written: float
    settle: float
    drained: int | None
    waiting: int


class ScatteredKinesis(MemoryKinesis):
    """A stream whose sequence numbers have gaps as wide as the service's, at random."""

    def __init__(self, shards: int, clock: Clock, rng: random.Random) -> None:
        super().__init__(shards=shards, clock=clock.milliseconds)
        self._rng = rng

    def fill(self, count: int, blocked: Container[str] = ()) -> None:
        """Write so many records to each shard that is not blocked."""
        for shard in self.open_shards:
            for _ in range(0 if shard in blocked else count):
                self._stream._sequence += self._rng.randrange(10**27)
                self.put(shard, b"%d" % self._rng.getrandbits(30))


class Clock:
    """Time that goes on by itself, and more when it is told to."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead

    def milliseconds(self) -> int:
        return int(self() * 1000)


class Life:
    """A query over a stream of its own, driven by hand as Spark does."""

    def __init__(self, hosts: str, shards: int, seed: int = 7, **options: str) -> None:
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.kinesis = ScatteredKinesis(shards, self.clock, self.rng)
        self.options = SourceOptions.parse(
            {
                "streamName": "orders",
                "applicationName": uuid.uuid4().hex,
                "zookeeper.hosts": hosts,
                "startingPosition": "TRIM_HORIZON",
                "retryBackoff": "60s..600s x2",
                "onExhausted": "skip",
                "minFetchPeriod": "0ms",
                "maxFetchRate": "100000",
                "retryBytesPerShard": "1GiB",
                # However slow the machine is, the batches are the same.
                "maxFetchTime": "60s",
                **options,
            }
        )
        client = connect(self.options.zookeeper)
        self.run = SourceRun(self.options, self.kinesis, client, Surroundings(clock=self.clock, rng=self.rng))
        self.store = SourceStore(client, self.run.layout)
        self.before = logged(self.run.initial())
        self.offset = self.event = self.written = self.waiting = self.batches = self.new = 0
        self.planning = 0.0
        self.settles = [0.0]

    def settle(self) -> None:
        """Settle the last batch, as the first thing of the next plan does."""
        if self.before.plan and self.run.settled < self.before.txid:
            began = perf_counter()
            self.run.settle_finished(self.before)
            self.settles.append(perf_counter() - began)
        self.waiting = max(self.waiting, self.run.report()["retrying"])

    def plan(self) -> Plan | None:
        """The next plan as Spark logs it; None where there is nothing to do."""
        began = perf_counter()
        plan = self.run.latest(self.before, None)
        if plan is None:
            # All that has failed so far is due after that, and there is no more to wait for.
            self.clock.ahead += A_BATCH
            return None
        if self.before.plan:
            # The first one also connects, and lists the shards.
            self.planning = max(self.planning, perf_counter() - began)
        report, texts = self.run.report(), [json.dumps(offset_from_plan(at)) for at in (self.before, plan)]
        self.offset = max(self.offset, len(texts[1]))
        self.event = max(self.event, len(json.dumps(report)) + sum(map(len, texts)))
        for shard, node in report["shards"].items():
            if node["checkpoint"] is not None:
                # What is done is held no longer, so that the process's memory is the source's.
                self.kinesis.trim(shard, int(node["checkpoint"]))
        return logged(plan)

    def batch(self, share: float) -> None:
        """Settle the last batch and do the next one, if there is something to do; such a share of its records fails."""
        wrote = self.wrote
        self.settle()
        # Between the two: what has failed is due some time after it was settled.
        self.clock.ahead += A_BATCH
        end = self.plan()
        if end is not None:
            failed: dict[str, list[NotDone]] = {}
            for part in self.run.partitions(self.before, end):
                for rows in TurnReader(part, self.kinesis, self.store, look_first=part.replay).rows():
                    self.new += rows.column("attempt").to_pylist().count(1)
                    for shard, piece in self._failing(rows.column("messageId").to_pylist(), share):
                        failed.setdefault(shard, []).append(piece)
            keep = Few("batch").keep
            few = {
                shard: tuple(msgspec.structs.replace(piece, text=keep(piece.text)) for piece in pieces)
                for shard, pieces in failed.items()
            }
            acks = BatchOutcome(txid=end.txid, plan=end.plan, epoch=self.run.epoch, not_done=few)
            self.store.batches.put_outcome(acks, self.run.epoch)
            self.before = end
            self.batches += 1
            self.run.purge()
        self.written = max(self.written, self.wrote - wrote)

    def end(self) -> None:
        """The process is gone."""
        self.run.close()

    @property
    def held(self) -> int:
        """Records that are read and not done."""
        held: int = self.run.report()["inflight"]
        return held

    @property
    def blocked(self) -> set[str]:
        """The shards that read nothing new until some of their failed records are done."""
        return {shard for shard, node in self.run.report()["shards"].items() if "blocked" in node}

    @property
    def wrote(self) -> int:
        """Bytes written to ZooKeeper so far."""
        return self.run.written + self.store.written

    def _failing(self, ids: list[str], share: float) -> Iterable[tuple[str, NotDone]]:
        """Some of the rows of a shard, each with a reason of 200 characters."""
        before: dict[str, str] = {}
        for row, id_ in enumerate(ids):
            source, _, position = id_.partition(":")
            shard = source.rpartition("/")[2]
            fails = row % 2 == 0 if share == 0.5 else self.rng.random() < share
            if fails:
                reason = f"ValueError: record {position} is not what it should be".ljust(200, ".")
                yield shard, NotDone(position, position, 1, reason, before.get(shard))
            before[shard] = position


def logged(plan: Plan) -> Plan:
    """A plan as it goes to Spark and comes back."""
    return plan_from_offset(json.loads(json.dumps(offset_from_plan(plan))))


def measured(hosts: str, shards: int, records: int, share: float, batches: int) -> Figures:
    """So many batches with so many new records a shard, of which such a share fails each time they come."""
    life = Life(hosts, shards)
    half_way = 0
    for number in range(batches):
        # A shard that reads nothing new has a backlog elsewhere, not in this process's memory.
        life.kinesis.fill(records, life.blocked)
        life.batch(share)
        if number == batches // 2:
            half_way = resident()
    life.settle()
    # All that has failed is due by now, as much of it as there is.
    life.clock.ahead += 3600
    life.plan()
    at_end = resident()
    life.end()
    return Figures(
        batches,
        life.offset,
        life.event,
        life.written,
        life.waiting,
        max(life.settles),
        life.planning,
        half_way,
        at_end,
    )


def speed(hosts: str, share: float, *, records: int = RECORDS, batches: int = BATCHES) -> Speed:
    """What it costs where such a share fails; what has failed is due with the next batch."""
    life = Life(
        hosts,
        SHARDS,
        retryBackoff="1s..1s x1",
        retryBytesPerShard="4MiB",
        maxFetchRecordsPerShard=str(records),
    )
    # All of it: a shard whose records are put batch by batch is at its tip each time, and waits for its next look.
    life.kinesis.fill(records * (1 + batches))
    # The first batch connects, lists the shards, and loads what is loaded once.
    life.batch(0.0)
    life.settle()
    life.settles.clear()
    written, before, seconds, new = life.wrote, life.batches, 0.0, life.new
    last = before
    wanted = SHARDS * records * (1 + batches)
    while (life.new < wanted or life.held) and life.batches - last <= GIVEN_UP:
        had = life.new
        began = perf_counter()
        life.batch(share)
        life.settle()
        seconds += perf_counter() - began
        if life.new > had:
            last = life.batches
    count = life.batches - before
    found = Speed(
        rate=(life.new - new) / seconds,
        written=(life.wrote - written) / count,
        settle=sum(life.settles) / count,
        drained=None if life.held or life.new < wanted else life.batches - last,
        waiting=life.waiting,
    )
    life.end()
    return found


def apart(command: str, *given: object) -> bytes:
    """What such a measurement prints in a process of its own, with a server of 256 MB of heap, as all embedded ones."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.failures", command, *map(str, given)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    ).stdout


def measured_apart(shards: int, records: int, share: float, batches: int) -> Figures:
    """As `measured`, in a process of its own."""
    return msgspec.json.decode(apart("--life", shards, records, share, batches), type=Figures)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what very many failing records cost.")
    parser.add_argument("--life", nargs=4)
    parser.add_argument("--speed", type=float)
    parser.add_argument("--rounds", type=int, default=3, help="how often the shares are measured")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--compare", action="store_true", help="only what is counted")
    parser.add_argument("--mend", action="store_true", help="only what is counted")
    given = parser.parse_args()
    if given.life or given.speed is not None:
        with EmbeddedZooKeeper() as zookeeper:
            if given.life:
                shards, records, share, batches = given.life
                found: object = measured(
                    zookeeper.hosts, int(shards), int(records), float(share), int(batches)
                )
            else:
                found = speed(zookeeper.hosts, given.speed)
        print(msgspec.json.encode(found).decode())
        return
    if not (given.compare or given.mend):
        publish_shares(given.rounds)
    publish_many()


def publish_shares(rounds: int) -> None:
    """Measure the shares side by side, several times in turns; of each the fastest counts."""
    measured_in_turns = [
        [msgspec.json.decode(apart("--speed", share), type=Speed) for share in SHARES] for _ in range(rounds)
    ]
    speeds = [max(some, key=lambda one: one.rate) for some in zip(*measured_in_turns, strict=True)]
    slowest = speeds[-1].rate / speeds[0].rate
    longest = max(GIVEN_UP if one.drained is None else one.drained for one in speeds)
    publish(
        Section(
            name="failing-shares",
            title="Failing records",
            command="python -m benchmarks.failures",
            columns=[
                f"{SHARDS} shards, {BATCHES} batches of {RECORDS:,} new records a shard",
                *(f"{share:.0%} fail" for share in SHARES),
                "bound",
            ],
            rows=[
                [
                    "new records/s until nothing waits any more",
                    *(f"{one.rate:,.0f}" for one in speeds),
                    bounded(f"50 % to 0 %: {slowest:.2f}", f"at least {SLOWEST}", slowest >= SLOWEST),
                ],
                [
                    "batches after the last new record until then",
                    *(f"more than {GIVEN_UP}" if one.drained is None else f"{one.drained}" for one in speeds),
                    verdict(str(DRAINED), longest <= DRAINED),
                ],
                [
                    "written to ZooKeeper a batch",
                    *(f"{one.written / 1024:,.0f} KiB" for one in speeds),
                    "",
                ],
                ["a batch settled", *(f"{one.settle * 1000:,.1f} ms" for one in speeds), ""],
                ["failed records that wait, at most", *(f"{one.waiting:,}" for one in speeds), ""],
            ],
            note="Each record fails with that likelihood each time it comes, at random (of half, every second one), up "
            "to `retryLimit=3`; with `retryBackoff=1s..1s x1` what has failed is due with the next batch. The process "
            "plans, reads, publishes and settles; ZooKeeper is a real server, Kinesis is held in memory. Means of all "
            f"batches, of the fastest of {rounds} run{'s' if rounds != 1 else ''}.",
            plots=[
                Plot(
                    name="failing-shares",
                    title="Speed, writes to ZooKeeper, settling and draining by the share of failing records",
                    what="records that fail each time they come, %",
                    x=[share * 100 for share in SHARES],
                    panels=[
                        Panel(
                            "new records/s",
                            {"rate": [one.rate for one in speeds]},
                            bound=speeds[0].rate * SLOWEST,
                            is_floor=True,
                        ),
                        Panel(
                            "written to ZooKeeper a batch, KiB",
                            {"written": [one.written / 1024 for one in speeds]},
                        ),
                        Panel("a batch settled, ms", {"settle": [one.settle * 1000 for one in speeds]}),
                        Panel(
                            "batches until drained",
                            {"batches": [one.drained for one in speeds]},
                            bound=DRAINED,
                        ),
                    ],
                )
            ],
        )
    )


def publish_many() -> None:
    """Measure very many failing records: a hundred batches, and one large one."""
    many = measured_apart(10, 1_000, 0.1, 100)
    halves = [measured_apart(1, 100_000, 0.5, 1) for _ in range(3)]
    half = msgspec.structs.replace(
        halves[0], settle=min(one.settle for one in halves), plan=min(one.plan for one in halves)
    )
    columns = (many, half)
    rows = [
        ["failed records that wait, at most", *(f"{one.waiting:,}" for one in columns)],
        ["the plan as Spark logs it, at most", *(f"{one.offset / 1024:,.0f} KiB" for one in columns)],
        [
            "Spark's progress event, at most: report, start and end",
            *(f"{one.event / 1024:,.0f} KiB" for one in columns),
        ],
        ["written to ZooKeeper a batch, at most", *(f"{one.written / 1024:,.0f} KiB" for one in columns)],
        ["a batch settled, at most", *(f"{one.settle * 1000:,.0f} ms" for one in columns)],
        ["the next one planned, at most", *(f"{one.plan * 1000:,.0f} ms" for one in columns)],
        ["memory of the process half-way", *(f"{one.half_way / 2**20:,.0f} MiB" for one in columns)],
        ["memory of the process at the end", *(f"{one.at_end / 2**20:,.0f} MiB" for one in columns)],
    ]
    publish(
        Section(
            name="failures",
            title="Very many failing records",
            command="python -m benchmarks.failures",
            columns=[
                "reasons of 200 characters, `retryBackoff=60s..600s x2`",
                "10 shards, 1,000 new records a shard and batch, 10 % fail each time, 100 batches",
                "one batch of 100,000, every second one fails",
            ],
            rows=rows,
            note="ZooKeeper is a real server with 256 MB of heap, which was alive at the end; Kinesis is held in "
            "memory, as part of the process's memory, without what is done. The process plans, reads and publishes. 10 "
            "seconds pass with each batch. Neighbouring sequence numbers differ in 27 digits at random. Times of the "
            "second column are the shortest of three.",
        )
    )


if __name__ == "__main__":
    main()
