"""The complete work of one Spark task, as the planning process sends it to an executor."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec
from pyspark.sql.datasource import InputPartition

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.spout.kinesis import StreamInfo
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.kinesis.rate_limit import Used
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.tracker.records import Run

PROTOCOL = 15
"""Increase this when the content of a partition, or the task's use of it, changes."""

_RECORDS_A_TASK, _BYTES_A_TASK = 5_000, 4 * 2**20
"""A task costs as much as reading so many records, or bytes, and passing them through a function in Python."""


@dataclass(frozen=True, slots=True)
class Amount:
    """The expected size of a batch: records, and the bytes of their payloads."""

    records: int
    bytes: int


_NOTHING = Used()


@dataclass(frozen=True, slots=True)
class ShardTurn:
    """The work of one batch in one shard.

    `shard` is its name in the layout, `index` its place in the plan. `due` holds the runs taken up again in shard
    order, each with True where it is exhausted and goes to the dead letter; `read` says whether new records are read
    from `start` (a position in text form), at most `limit` of them. `closed`: the shard was listed as closed. `used`:
    what was used up of its limits when the partition was made. `cursor`: what a look at `start` has left.
    `known_until`: a time up to which no record behind `start` was lost, in epoch milliseconds by the server's clock; 0
    if unknown. `is_held`: as in `FanOut`. `ahead`: the hashes of the keys whose new records wait, because earlier ones
    wait for another batch.
    """

    shard: str
    index: int
    start: str
    read: bool
    due: tuple[tuple[Run, bool], ...] = ()
    limit: int | None = None
    closed: bool = False
    used: Used = _NOTHING
    cursor: ShardCursor | None = None
    known_until: int = 0
    is_held: bool = False
    ahead: frozenset[str] = frozenset()

    def __reduce__(self) -> tuple[Any, ...]:
        # One by one, to pickle thousands of runs takes as long as to plan them.
        runs = tuple(zip(*(msgspec.structs.astuple(run) for run, _ in self.due), strict=True))
        rest = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "due"}
        return _turn_of, (rest, runs, tuple(dead for _, dead in self.due))


def _turn_of(rest: dict[str, Any], runs: tuple[tuple[Any, ...], ...], dead: tuple[bool, ...]) -> ShardTurn:
    return ShardTurn(**rest, due=tuple(zip(map(Run, *runs), dead, strict=True)) if dead else ())


@dataclass(frozen=True, kw_only=True, eq=False)
class TurnsPartition(InputPartition):
    """The complete work of one task, as the planning process sends it to an executor.

    An executor with another release unpickles the version of the protocol and bytes, but none of the classes of
    this one, so that it can say what is wrong: a partition of another version has only its `protocol`.
    `consumers` are the ARNs of the enhanced fan-out consumers by stream; empty with polling. `deaggregate` is
    what the option says now, while `options` have what the plan says: a batch is read as it was planned, otherwise the
    rows of a pinned turn would change. `described`: each stream as it was when it was the one that the layout names.
    `told`: when the turns were made, in epoch milliseconds. `upto`: as in `Plan`.
    """

    options: SourceOptions
    layout: Layout
    txid: int
    plan: str
    epoch: int
    replay: bool
    deaggregate: bool
    turns: Sequence[ShardTurn] = ()
    limit_bytes: int | None = None
    consumers: Mapping[str, str] = field(default_factory=dict)
    described: Mapping[str, StreamInfo] = field(default_factory=dict)
    told: int = 0
    upto: int | None = None
    protocol: int = PROTOCOL

    def apply_deaggregate(self) -> TurnsPartition | None:
        """Return the same work with today's value of `deaggregate`; None if that is the plan's too."""
        if self.options.deaggregate == self.deaggregate:
            return None
        return replace(self, options=replace(self.options, deaggregate=self.deaggregate))

    def __getstate__(self) -> dict[str, Any]:
        content = {name: value for name, value in self.__dict__.items() if name != "protocol"}
        return {"protocol": self.protocol, "content": pickle.dumps(content)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__["protocol"] = state["protocol"]
        if self.protocol == PROTOCOL:
            self.__dict__.update(pickle.loads(state["content"]))

    def __repr__(self) -> str:
        shards = ", ".join(self.layout.key_of(turn.shard).source for turn in self.turns)
        return f"TurnsPartition(txid={self.txid}, shards=[{shards}])"


def count_side_by_side(options: SourceOptions) -> int:
    """Return how many turns a task holds in memory at a time, each with its share of `maxFetchBytesPerTask`."""
    return max(1, options.max_fetch_bytes_per_task // options.max_fetch_bytes_per_shard)


def count_enough_tasks(shards: int, expected: Amount | None, options: SourceOptions) -> int | None:
    """Return the number of tasks that are enough for what a batch is expected to read.

    Each of them reads all its shards at once. None if what is expected is unknown, or `shardsPerTask` is set.
    """
    if expected is None or options.shards_per_task is not None:
        return None
    needed = max(
        expected.records / _RECORDS_A_TASK,
        expected.bytes / _BYTES_A_TASK,
        shards / count_side_by_side(options),
    )
    return max(1, math.ceil(needed))


def tasks_for(
    turns: Sequence[ShardTurn],
    shards_per_task: int | None,
    max_partitions: int | None,
    enough: int | None = None,
) -> list[list[ShardTurn]]:
    """Cut a batch's turns into tasks, evenly, in order; `enough`: as many as `count_enough_tasks` says at most.

    By default a task serves one shard if there are up to 8 shards, then more, and 5 from 40 shards on: few shards use
    all cores, and many do not flood the scheduler.
    """
    if not turns:
        return []
    per_task = shards_per_task or min(5, -(-len(turns) // 8))
    tasks = -(-len(turns) // per_task)
    if shards_per_task is None and enough is not None:
        tasks = min(tasks, enough)
    if max_partitions is not None:
        tasks = min(tasks, max_partitions)
    return [list(turns[i::tasks]) for i in range(tasks)]


def tasks_of(batch: TurnsPartition, turns: Sequence[ShardTurn], enough: int | None) -> list[TurnsPartition]:
    """Cut the turns of a batch into tasks, as `tasks_for`; `batch`: what they have in common."""
    options = batch.options
    parts = tasks_for(turns, options.shards_per_task, options.max_partitions, enough)
    return [replace(batch, turns=tuple(part)) for part in parts]
