"""Measure how cost grows with what it is about: records that are named, keys, shards, records that wait.

python -m benchmarks.growth

Each curve has four sizes. Its exponent b is that between the last two: 1 is a cost in proportion to the size, 2 one
that grows with its square. The bend is by how much b is more than between the first two: a cost that only begins to
grow faster shows it there.
"""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from time import process_time

from rich.console import Console

from benchmarks.named_records import CURVES, NOW, SHARD, ack, held, take_in, waiting
from benchmarks.planning import measured_apart
from benchmarks.plots import Panel, Plot
from benchmarks.report import Section, publish, verdict
from benchmarks.small_server import work_off
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.common.folder import Folder
from kinesis_trident.console.render import json_parts, to_table
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.views import inflight
from kinesis_trident.trident.stores.files import FileByteStore

__all__ = ["Curve", "file_batches"]

LINEAR = 1.1
"""The bound of b."""

NAMED = (1_000, 3_000, 10_000, 20_000)
WAITING = (1_000, 3_000, 10_000, 30_000)
ROWS = (3_000, 9_000, 30_000, 90_000)
KEYS = (10_000, 30_000, 100_000, 300_000)
SHARDS = (10, 100, 1_000, 10_000)


@dataclass(frozen=True, slots=True)
class Curve:
    """The costs of something at ascending sizes, in a unit; `size` says what the size is of."""

    what: str
    size: str
    unit: str
    sizes: Sequence[int]
    costs: Sequence[float]

    @property
    def exponents(self) -> list[float]:
        """Return b between each two neighbours."""
        points = zip(self.sizes, self.costs, strict=True)
        return [
            math.log(max(cost, 1e-9) / max(before, 1e-9)) / math.log(size / smaller)
            for (smaller, before), (size, cost) in pairwise(points)
        ]

    @property
    def row(self) -> list[str]:
        """Return the row of the table."""
        first, *_, last = self.exponents
        costs = " / ".join(f"{cost:,.0f}" if cost >= 100 else f"{cost:,.3g}" for cost in self.costs)
        sizes = " / ".join(f"{size:,}" for size in self.sizes)
        return [
            f"{self.what}, {self.unit}",
            f"{sizes} {self.size}",
            costs,
            verdict(f"{last:.2f}", last <= LINEAR),
            f"{last - first:+.2f}",
        ]


def milliseconds(work: Callable[[], object]) -> float:
    """Return the milliseconds of the processor that work takes."""
    began = process_time()
    work()
    return (process_time() - began) * 1_000


def named_curves() -> Iterator[Curve]:
    """Yield what is asked for by name."""
    for what, make in CURVES.items():
        costs = [min(take_in(*make(size), milliseconds)[0] for _ in range(3)) for size in NAMED]
        yield Curve(what, "records named", "ms", NAMED, costs)
    costs = [
        min(take_in(held(size), {"a": ack(size // 2)}, milliseconds)[0] for _ in range(3)) for size in NAMED
    ]
    yield Curve("one more ack", "records named", "ms", NAMED, costs)


def console_curves() -> Iterator[Curve]:
    """Yield the list of what is in flight."""
    snapshots = [
        Snapshot(Layout("/k", "app", "orders", 1), inflight={SHARD: node})
        for node in (waiting(size).inflight for size in ROWS)
        if node is not None
    ]

    def as_json(snapshot: Snapshot) -> None:
        for _ in json_parts(inflight(snapshot, NOW)):
            pass

    def as_lines(snapshot: Snapshot) -> None:
        Console(file=io.StringIO(), width=250).print(to_table(inflight(snapshot, NOW)), crop=False)

    for what, show in (("inflight --json", as_json), ("inflight --limit 0", as_lines)):
        costs = [milliseconds(partial(show, snapshot)) for snapshot in snapshots]
        yield Curve(what, "records in flight", "ms", ROWS, costs)


def file_batches(keys: int, interval: int, batches: int) -> list[int]:
    """Return the bytes that each batch of a state in files writes, which changes ten of so many keys."""
    written = list[int]()
    write = Folder.write

    def count(folder: Folder, name: str, data: bytes) -> None:
        write(folder, name, data)
        written[-1] += len(data)

    with tempfile.TemporaryDirectory() as place:
        store = FileByteStore(place, snapshot_interval=interval)
        store.set_many([f"key-{number:08}" for number in range(keys)], [b"[1,2,null]"] * keys)
        store.end_batch(0)
        Folder.write = count  # type: ignore[method-assign, assignment]
        try:
            for txid in range(1, batches + 1):
                written.append(0)
                changed = [f"key-{(txid * 7_919 + number) % keys:08}" for number in range(10)]
                store.set_many(changed, [b"[%d,3,2]" % txid] * 10)
                store.end_batch(txid)
        finally:
            Folder.write = write  # type: ignore[method-assign]
    return written


def file_curves() -> Iterator[Curve]:
    """Yield a state in files, whose batches change ten keys."""
    found = [file_batches(keys, 100, 220) for keys in KEYS]
    yield Curve(
        "a batch of a state in files, the median", "keys", "bytes", KEYS, [median(one) for one in found]
    )
    yield Curve("the largest of these batches", "keys", "bytes", KEYS, [max(one) for one in found])


def server_curves() -> Iterator[Curve]:
    """Yield what a query writes to ZooKeeper and to Spark's log."""
    with EmbeddedZooKeeper() as zookeeper:
        costs = [work_off(zookeeper.hosts, 1, 2 * count).written / 1024 for count in WAITING]
        yield Curve("written to ZooKeeper until all are done", "records in flight", "KiB", WAITING, costs)
        found = [measured_apart(shards, zookeeper.hosts) for shards in SHARDS]
    for what, unit, some in (
        ("operations with ZooKeeper", "a batch", [one.operations for one in found]),
        ("the plan as Spark logs it", "KiB", [one.offset / 1024 for one in found]),
        (
            "a batch settled, but for Python's collector",
            "ms",
            [(one.settle_cpu - one.collected) * 1_000 for one in found],
        ),
    ):
        yield Curve(what, "shards", unit, SHARDS, some)


def drawing(curves: Sequence[Curve]) -> Plot:
    """Return the costs to that at the smallest size, by the size as a multiple of the smallest."""
    steps = sorted({size / curve.sizes[0] for curve in curves for size in curve.sizes})

    def panel(unit: str, some: Sequence[Curve]) -> Panel:
        places = [
            dict(zip([size / one.sizes[0] for size in one.sizes], one.costs, strict=True)) for one in some
        ]
        return Panel(
            unit,
            {
                one.what: [costs[step] / one.costs[0] if step in costs else None for step in steps]
                for one, costs in zip(some, places, strict=True)
            },
            log=True,
        )

    return Plot(
        name="growth",
        title="Cost by size, both as multiples of those of the smallest size",
        what="size, times the smallest",
        x=steps,
        log=True,
        panels=[
            panel(f"cost by {size}, times the least", [one for one in curves if one.size == size])
            for size in dict.fromkeys(one.size for one in curves)
        ],
    )


def main() -> None:
    """Measure, print, and write the section."""
    curves = [*named_curves(), *console_curves(), *file_curves(), *server_curves()]
    publish(
        Section(
            name="growth",
            title="How cost grows",
            command="python -m benchmarks.growth",
            columns=["the cost of", "sizes", "costs", f"b (bound {LINEAR})", "bend"],
            rows=[curve.row for curve in curves],
            note="b is the exponent between the last two sizes: 1 is a cost in proportion to the size. The bend is by "
            "how much that is more than between the first two. Milliseconds are of the processor; bytes and operations "
            "are counted. `make test` has these curves in counts, at n and 4 n. Of requests one by one each thousand "
            "are taken in together, and stored with all that waits of the shard: of 20,000 records there are two "
            "thousand. Python's collector looks at all objects of the process, the fake Kinesis' too: once for each "
            "batch of 10,000 shards, hardly ever for one of 1,000.",
            plots=[drawing(curves)],
        )
    )


if __name__ == "__main__":
    main()
