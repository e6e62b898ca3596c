"""Carries reports from tasks to the driver: as an accumulator, or, for Spark Connect, as nodes in ZooKeeper.

What tasks tell the console of calls that do not end is a node in both cases.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Protocol

from msgspec.structs import replace
from pyspark.accumulators import Accumulator

from kinesis_trident.bolt.tracking.failed import Failed
from kinesis_trident.bolt.tracking.reports import ReportKey, ReportParam, Reports
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import ReportNode, SlowCall, TaskReport
from kinesis_trident.checkpoint.store.batches import SLOW
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, shared_client

_RUNS_A_NODE = 500
"""The limit of a node: runs of failed records, or reports without any; with their reasons some 200 KB."""

_RECORDS_A_NODE = 20_000
"""The limit of the records of a node whose keys it has: some 500 KB."""


@dataclass(frozen=True, slots=True)
class NodeSender:
    """The sending end, in the tasks: `attempt` is the driver's attempt at the batch of the reports."""

    config: ZooKeeperConfig
    layout: Layout
    attempt: str

    def add(self, reports: Reports) -> None:
        """Write a task's reports at the end of its input.

        A task that fails afterwards has still reported, and so has the slower of two speculative tasks: reports are
        keyed by their content, so a repeated report adds nothing, and a record that failed in any of them has
        failed.

        Raises:
            BatchMissingError: the batch is settled.
        """
        store = SourceStore(shared_client(self.config), self.layout)
        pieces = [
            (key.txid, TaskReport(*key[1:], failed=some), _keys_in(some, failed.keys))
            for key, failed in reports.items()
            for some in _slices_of(failed)
        ]
        for txid, some in groupby(pieces, key=itemgetter(0)):
            for node in _nodes((report, keys) for _, report, keys in some):
                store.reports.add(txid, self.attempt, node)


@dataclass(frozen=True, slots=True)
class SlowCallNotes:
    """Takes the notes of the tasks of one batch; `epoch`: of the run."""

    config: ZooKeeperConfig
    layout: Layout
    txid: int
    epoch: int

    def put(self, call: SlowCall) -> str:
        """Leave a note; return its path.

        Raises:
            BatchMissingError: the batch is settled.
        """
        slow = replace(call, epoch=self.epoch)
        return self._store.reports.add(self.txid, SLOW, ReportNode(reports=(), slow=slow))

    def remove(self, name: str) -> None:
        """Take a note back."""
        self._store.reports.remove(name)

    @property
    def _store(self) -> SourceStore:
        return SourceStore(shared_client(self.config), self.layout)


class NodeCarrier:
    """The receiving end, in the driver. The nodes of a batch are removed with its plan."""

    def __init__(self, store: SourceStore, config: ZooKeeperConfig) -> None:
        self._store = store
        self._config = config
        self._attempt = ""
        self.clear()

    @property
    def sender(self) -> NodeSender:
        """The sender for operators of this attempt."""
        return NodeSender(self._config, self._store.layout, self._attempt)

    @property
    def reports(self) -> Reports:
        """Return all reports since `clear`."""
        found: Reports = {}
        param = ReportParam()
        for txid, node in self._store.reports.of_attempt(self._attempt):
            for report, keys in zip(node.reports, node.keys or repeat({}), strict=False):
                *key, failed = (getattr(report, name) for name in report.__struct_fields__)
                columns: Sequence[Any] = tuple(zip(*failed, strict=True))
                some = Failed.of_columns(*columns).with_keys(keys)
                param.addInPlace(found, {ReportKey(txid, *key): some})
        return found

    def clear(self) -> None:
        """Ignore reports of earlier attempts from now on."""
        self._attempt = uuid.uuid4().hex


def _nodes(reports: Iterable[tuple[TaskReport, dict[int, str]]]) -> Iterator[ReportNode]:
    """Yield nodes with as many reports as fit, each with the keys of its records."""
    held: list[tuple[TaskReport, dict[int, str]]] = []
    size = 0
    for report, keys in reports:
        more = max(len(report.failed), len(keys), 1)
        if held and size + more > _RUNS_A_NODE:
            yield _node(held)
            held, size = [], 0
        held.append((report, keys))
        size += more
    if held:
        yield _node(held)


def _node(held: Sequence[tuple[TaskReport, dict[int, str]]]) -> ReportNode:
    keys = tuple(keys for _, keys in held)
    return ReportNode(reports=tuple(report for report, _ in held), keys=keys if any(keys) else ())


def _keys_in(rows: Iterable[tuple[Any, ...]], keys: Mapping[int, str]) -> dict[int, str]:
    """Return those of the keys that are of records of these intervals."""
    return {at: keys[at] for first, last, *_ in rows if keys for at in range(first, last + 1) if at in keys}


def _slices_of(failed: Failed) -> Iterator[tuple[tuple[Any, ...], ...]]:
    rows = list(zip(*failed.columns(), strict=True))
    parts = [rows]
    if failed.keys:
        cut = (part for row in rows for part in _cut(row))
        parts = [list(some) for _, some in groupby(cut, key=lambda row: row[0] // _RECORDS_A_NODE)] or parts
    for part in parts:
        for start in range(0, max(len(part), 1), _RUNS_A_NODE):
            yield tuple(part[start : start + _RUNS_A_NODE])


def _cut(row: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield an interval in parts for different nodes; put together, they are one again."""
    first, last, start, end, before, text = row
    while (until := first - first % _RECORDS_A_NODE + _RECORDS_A_NODE) <= last:
        yield first, until - 1, start, "", before, text
        first, start, before = until, "", None
    yield first, last, start, end, before, text


class Sender(Protocol):
    """The sending end, in the tasks: it is pickled with the operator."""

    def add(self, reports: Reports) -> None:
        """Send a task's reports at the end of its input."""
        ...


class Unheard:
    """The sending end of operators to which nobody listens."""

    def add(self, reports: Reports) -> None:
        """Do nothing."""


class Carrier(Protocol):
    """The end in the driver."""

    @property
    def sender(self) -> Sender:
        """The sender for operators."""
        ...

    @property
    def reports(self) -> Reports:
        """Return all reports since `clear`."""
        ...

    def clear(self) -> None:
        """Forget all reports: another attempt begins."""
        ...


class AccumulatorCarrier:
    """A Spark accumulator: exact, because Spark delivers a task's update with its end, or not at all.

    One for all batches, because Spark keeps each for good; it holds the reports of the current batch.
    """

    def __init__(self) -> None:
        from pyspark import SparkContext

        self.sender: Accumulator[Reports] = SparkContext.getOrCreate().accumulator({}, ReportParam())

    @property
    def reports(self) -> Reports:
        """Return all reports since `clear`."""
        return self.sender.value

    def clear(self) -> None:
        """Forget all reports."""
        self.sender.value = {}
