"""Measure the plan of very many shards in the planning process: the time of each step, and what it asks of ZooKeeper.

python -m benchmarks.planning

Kinesis is held in memory behind the narrow interface, ZooKeeper is a real server. Each size is measured in a process
of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter, process_time, thread_time
from typing import TypeVar

import msgspec

from benchmarks.memory import peak
from benchmarks.plots import Panel, Plot
from benchmarks.report import Section, publish, verdict
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import Pin, Plan
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import connect
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.offsets import offset_from_plan, plan_from_offset
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.positions import After
from kinesis_trident.spout.testing import MemoryKinesis
from kinesis_trident.tracker.records import RecordPosition

__all__ = ["Cost", "measured", "measured_apart"]

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
SHARDS = (10, 100, 1_000, 10_000)
BATCHES = 5
FIRST = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898
"""A sequence number as long as those of Kinesis."""

SETTLED = 0.7
"""The bound: seconds to settle a batch of the most shards."""


class Cost(msgspec.Struct, frozen=True):
    """Seconds of each step, the shortest where it is done several times, and peak memory in bytes.

    `start`: until the run stands: listing, lineage stored, and state read back. `first`: the first plan, as many
    shards looked at as it has time for. `cut`: the plan stored and cut into tasks. `settle`: a batch settled, every
    shard's checkpoint moved; `settle_cpu`: the processor's time for that, of all threads; `collected`: that of Python's
    collector meanwhile, which looks at all objects of the process, the fake Kinesis' too. `plan`: the next one
    planned. `reads`: the shards that it reads, as many as were looked at in time. `operations`: of this process with
    ZooKeeper in one batch, at most, the removal of what a batch leaves included: each read, `sync` or multi counts one.
    `offset`: characters of the plan as Spark logs it. `base`: memory before there was a run.
    """

    start: float
    first: float
    cut: float
    settle: float
    settle_cpu: float
    collected: float
    plan: float
    reads: int
    operations: int
    offset: int
    base: int
    peak: int


class Collecting:
    """The processor's time of Python's collector."""

    def __init__(self) -> None:
        self.seconds = self._began = 0.0

    def note(self, phase: str, _: dict[str, int]) -> None:
        """Note the beginning or the end of a collection."""
        if phase == "start":
            self._began = thread_time()
        else:
            self.seconds += thread_time() - self._began


def measured_apart(shards: int, hosts: str) -> Cost:
    """Return what planning so many shards costs, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.planning", "--shards", str(shards), "--zookeeper", hosts]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(done.stdout, type=Cost)


def measured(
    shards: int, hosts: str, *, batches: int = BATCHES, clock: Callable[[], float] = perf_counter
) -> Cost:
    """Return what planning so many shards costs, in this process and by this clock."""
    kinesis = MemoryKinesis(shards=shards)
    for shard in kinesis.list_shards("orders"):
        kinesis.put(shard.id, b"data")
    options = SourceOptions.parse(
        {
            "streamName": "orders",
            "applicationName": uuid.uuid4().hex,
            "zookeeper.hosts": hosts,
            "startingPosition": "TRIM_HORIZON",
        }
    )
    base = peak()
    times: dict[str, list[float]] = {
        "start": [],
        "first": [],
        "cut": [],
        "settle": [],
        "settle_cpu": [],
        "collected": [],
        "plan": [],
    }

    def timed(name: str, step: Callable[[], T]) -> T:
        began = clock()
        result = step()
        times[name].append(clock() - began)
        return result

    run = timed("start", lambda: SourceRun(options, kinesis, connect(options.zookeeper)))
    stream = kinesis.describe("orders")
    store = SourceStore(
        connect(options.zookeeper),
        Layout(options.zookeeper_root, options.application_name, stream.name, stream.created),
    )
    before = logged(run.initial())
    end = timed("first", lambda: planned(run, before))
    while len(end.read) < shards:
        # Looked at a part at a time, until all are known to have more.
        end = planned(run, before)
    operations = []
    collecting = Collecting()
    gc.callbacks.append(collecting.note)
    for _ in range(batches):
        timed("cut", partial(run.partitions, before, end))
        # Beside the tasks, as when Spark commits the batch before.
        run.purge()
        pin(store, end, run.epoch)
        before = end
        busy, collected = process_time(), collecting.seconds
        timed("settle", partial(run.settle_finished, before))
        times["settle_cpu"].append(process_time() - busy)
        times["collected"].append(collecting.seconds - collected)
        operations.append(run.report()["counts"]["lastOperations"])
        end = timed("plan", partial(planned, run, before))
    gc.callbacks.remove(collecting.note)
    size = len(json.dumps(offset_from_plan(end)))
    run.close()
    least = {name: min(found) for name, found in times.items()}
    # The first batch is counted with the start.
    most = max(operations[1:], default=operations[0])
    return Cost(**least, reads=len(end.read), operations=most, offset=size, base=base, peak=peak())


def planned(run: SourceRun, before: Plan) -> Plan:
    """The next plan, as it goes to Spark and comes back."""
    # Nothing is read before all shards were looked at.
    while (plan := run.latest(before, None)) is None:
        pass
    return logged(plan)


def logged(plan: Plan) -> Plan:
    return plan_from_offset(json.loads(json.dumps(offset_from_plan(plan))))


def pin(store: SourceStore, plan: Plan, epoch: int) -> None:
    """Return what the tasks of a batch do in ZooKeeper: each shard's turn of one record, with more to come.

    Sequence numbers are as Kinesis gives them: the number of the shard above the 144th bit, and below it some 64 bits
    of time and counter.
    """
    arrival = int(time.time() * 1000)

    def put(shard: str) -> None:
        below = (plan.txid << 64) + random.Random(f"{shard} {plan.txid}").getrandbits(64)
        last = RecordPosition(FIRST + (int(shard[-12:]) << 144) + below)
        turn = Pin(
            txid=plan.txid,
            plan=plan.plan,
            epoch=epoch,
            start=plan.positions[shard],
            end=str(After(last)),
            last=str(last),
            count=1,
            fresh=1,
            digest=f"{plan.txid:016}",
            xor=plan.txid,
            arrival=arrival,
            behind_ms=1000,
        )
        store.batches.create_pin(shard, turn, epoch)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, plan.read))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what planning very many shards costs.")
    parser.add_argument("--shards", type=int)
    parser.add_argument("--zookeeper")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--mend", action="store_true")
    given = parser.parse_args()
    if given.shards:
        print(msgspec.json.encode(measured(given.shards, given.zookeeper)).decode())
        return
    with EmbeddedZooKeeper() as zookeeper:
        costs = {shards: measured_apart(shards, zookeeper.hosts) for shards in SHARDS}
    most = costs[SHARDS[-1]]
    steps = {
        "start: shards listed, lineage stored, state read": "start",
        "first plan: shards looked at until some have records": "first",
        "a further plan": "plan",
        "the plan stored and cut into tasks": "cut",
        "a batch settled, every checkpoint moved": "settle",
        "the processor's time for that": "settle_cpu",
        "of that, Python's collector": "collected",
    }
    bound = verdict(f"{SETTLED * 1000:,.0f} ms for {SHARDS[-1]:,}", most.settle <= SETTLED)
    rows = [
        [
            what,
            *(f"{getattr(cost, name) * 1000:,.1f} ms" for cost in costs.values()),
            bound if name == "settle" else "",
        ]
        for what, name in steps.items()
    ]
    figures = {
        "operations with ZooKeeper a batch": lambda cost: f"{cost.operations:,}",
        "shards that the further plan reads": lambda cost: f"{cost.reads:,}",
        "the plan as Spark logs it, a batch": lambda cost: f"{cost.offset / 1024:,.1f} KiB",
        "peak memory of the process": lambda cost: f"{cost.peak / 2**20:,.0f} MiB",
    }
    rows += [[what, *map(figure, costs.values()), ""] for what, figure in figures.items()]
    publish(
        Section(
            name="planning",
            title="Planning very many shards",
            command="python -m benchmarks.planning",
            columns=["the planning process", *(f"{shards:,} shards" for shards in SHARDS), "bound"],
            rows=rows,
            note="Kinesis is held in memory behind the source's interface, as part of the process's memory; ZooKeeper "
            f"is a real server. The shortest of {BATCHES} batches.",
            plots=[curves(costs)],
        )
    )


def curves(costs: Mapping[int, Cost]) -> Plot:
    """Return the curves over the number of shards."""
    found = costs.values()
    return Plot(
        name="planning",
        title="Planning, settling, operations with ZooKeeper and bytes of the offset by the number of shards",
        what="shards",
        x=list(costs),
        log=True,
        panels=[
            Panel(
                "a batch settled, ms",
                {"settle": [one.settle * 1000 for one in found]},
                SETTLED * 1000,
                log=True,
            ),
            Panel(
                "ms",
                {
                    "a further plan": [one.plan * 1000 for one in found],
                    "stored and cut into tasks": [one.cut * 1000 for one in found],
                },
                log=True,
            ),
            Panel(
                "ZooKeeper operations a batch", {"operations": [one.operations for one in found]}, log=True
            ),
            Panel("offset, KiB a batch", {"offset": [one.offset / 1024 for one in found]}, log=True),
        ],
    )


if __name__ == "__main__":
    main()
